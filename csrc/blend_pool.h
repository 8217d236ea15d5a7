// Some leaders, and drawing one of them as the rule says.

#include <algorithm>
#include <cmath>

namespace nodecache {
namespace {

struct Work {
    Everybody& all;
    BlendOutput out;
    Poll& poll;
};

constexpr std::uint16_t kShared = 0x8000;  // beside a leader's index: others have its weight

// Leaders among whom the next to be drawn is, by numbers of their own: everybody, or those near.
struct Pool {
    const double* weights;
    double* drawn;
    const std::uint16_t* leaders;  // of each number, with kShared; null where it is the number itself
    std::int32_t count;

    std::int32_t leader(std::int32_t number) const { return leaders ? leaders[number] & ~kShared : number; }
};

// Some of a pool.
template <int kMost>
struct Set {
    static constexpr int kRoom = kMost;
    alignas(64) double weight[kMost + kLanes];
    alignas(64) double drawn[kMost + kLanes];
    std::int32_t number[kMost + kBeyond];  // in the pool
    int used = 0;

    // Fetches the weights and draws of those whose numbers it has.
    void fetch(const double* weights, const double* draws) {
        for (int s = 0; s < used; ++s) {
            weight[s] = weights[number[s]];
            drawn[s] = draws[number[s]];
        }
    }

    // Adds some who are never drawn, till there are so many.
    NODECACHE_TARGET void pad(int size) {
        for (int s = used; s < size; s += kLanes) {
            store(weight + s, fill(used > 0 ? weight[0] : 0));
            store(drawn + s, fill(kInfinity));
        }
    }
};

// A line of errors over the steps.
struct Line {
    double begin = 0, low = -kInfinity, slope = 0;
    double at(double step) const { return low + slope * (step - begin); }
};

// Rounding moves an error, an end of a line or a point between them by less than this, up to some step.
NODECACHE_INLINE double margin(const Everybody& all, double last, double low, double high) {
    return 0x1p-49 * (all.heaviest * last + std::fabs(low) + std::fabs(high) + 1e-300);
}

NODECACHE_INLINE double step_of(std::int64_t i) { return static_cast<double>(i > 1 ? i : 1); }

// Some leaders' errors over the steps.
struct Rays {
    Vector weight, drawn;
    NODECACHE_TARGET NODECACHE_METHOD Vector at(Vector step) const { return sub(mul(weight, step), drawn); }
};

NODECACHE_TARGET NODECACHE_INLINE Rays rays(const double* weight, const double* drawn) { return {load(weight), load(drawn)}; }

// The leaders from j on; past the last one somebody who is never drawn.
NODECACHE_TARGET NODECACHE_INLINE Rays rays(const Pool& pool, std::int32_t j) {
    if (j + kLanes <= pool.count) return rays(pool.weights + j, pool.drawn + j);
    double weight[kLanes] = {}, drawn[kLanes];
    std::fill(drawn, drawn + kLanes, kInfinity);
    std::copy(pool.weights + j, pool.weights + pool.count, weight);
    std::copy(pool.drawn + j, pool.drawn + pool.count, drawn);
    return rays(weight, drawn);
}

// Draws from a leader's ring.
NODECACHE_TARGET static void take(Work& work, Pool& pool, std::int32_t number, std::int64_t i) {
    const std::int32_t leader = pool.leader(number);
    const double drawn = pool.drawn[number];
    const std::uint16_t head = work.all.head[leader], after = work.all.after[head];
    work.out.put(i, head, static_cast<std::int64_t>(drawn));
    work.all.head[leader] = after;
    if (after > head) return;
    const bool spent = work.all.limits && work.all.limits[leader] == static_cast<std::int64_t>(drawn) + 1;
    pool.drawn[number] = spent ? kInfinity : drawn + 1;
}

// Draws from all of a pool if somebody is above `under`. Returns the winner's error, or minus infinity.
NODECACHE_TARGET static double draw_one(Work& work, Pool& pool, const Line& under, std::int64_t i) {
    const double step = step_of(i);
    Vector best = fill(-kInfinity);
    for (std::int32_t j = 0; j < pool.count; j += kLanes) best = max(rays(pool, j).at(fill(step)), best);
    const double error = one(spread_max(best));
    if (!(error > under.at(step))) return -kInfinity;
    std::int32_t winner = -1, ties = 0;  // of several that are equally far behind, the lowest index
    const auto head = [&](std::int32_t number) { return work.all.head[pool.leader(number)]; };
    for (std::int32_t j = 0; j < pool.count; j += kLanes)
        for (unsigned in = equal(rays(pool, j).at(fill(step)), fill(error)); in; in &= in - 1, ++ties) {
            const std::int32_t other = j + __builtin_ctz(in);
            if (winner < 0 || head(other) < head(winner)) winner = other;
        }
    work.poll.spend(pool.count + 8 * ties);
    if (winner < 0) return -kInfinity;  // another thread has changed a weight in between
    take(work, pool, winner, i);
    return error;
}

}  // namespace
}  // namespace nodecache
