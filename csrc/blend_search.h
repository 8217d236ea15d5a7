// The search itself. One file for each vector width includes it, after it has defined load, store, mul and the rest.
//
// Comparing all datasets at every step is what takes the time, so only a few, in the slots, are. An error never falls until
// its dataset is drawn, along a straight line: whoever is not above a given line of errors at the first and the last of some
// steps is not above it in between. So before each group of steps one look at everybody finds who may be, and these are
// compared at each of the steps. Whoever is above the line there is the winner of all. If nobody is, all are compared once,
// and a new group begins, with a lower line.
//
// Where there are many datasets, looking at all takes long, so that is done for a larger group of steps, and those found,
// who are near, are the ones among whom the slots' candidates are looked for. Where the line is as good as level, and mostly
// it is, only one number of each is looked at: a step before which it is not above the level. That stays true when the
// level rises, or the dataset is drawn.
//
// Everything that decides is computed as the rule says. A line carries a margin for what rounding may do between its ends.

#include <algorithm>
#include <cmath>

namespace nodecache {
namespace {

struct Work {
    Everybody& all;
    BlendOutput out;
    Poll& poll;
};

// Leaders among whom the next to be drawn is, by numbers of their own: everybody, or those near.
struct Pool {
    const double* weights;
    double* drawn;
    const std::int32_t* leaders;  // of each number; null where it is the number itself
    const bool* alone;            // in the ring; null for everybody
    std::int32_t count;

    std::int32_t leader(std::int32_t number) const { return leaders ? leaders[number] : number; }
};

// Some of a pool.
template <int kMost>
struct Set {
    static constexpr int kRoom = kMost;
    alignas(64) double weight[kMost + kLanes];
    alignas(64) double drawn[kMost + kLanes];
    std::int32_t number[kMost + 1];  // in the pool; one more, for somebody who is written and then not kept
    int used = 0;

    // Adds some who are never drawn, till there are so many.
    NODECACHE_TARGET void pad(int size) {
        for (int s = used; s < size; s += kLanes) {
            store(weight + s, fill(0));
            store(drawn + s, fill(kInfinity));
        }
    }
};

// A line of errors over the steps.
struct Line {
    double begin = 0, low = -kInfinity, slope = 0;
    double at(double step) const { return low + slope * (step - begin); }
};

// What is known of the next group of steps, and of the line that it should have.
struct Guess {
    std::int64_t steps;        // in the group
    double low = -kInfinity;   // of the line at its first step
    double slope = 0;          // per step
    double reserve = 0;        // what it is to be below the lowest error that is drawn
    double floor = kInfinity;  // the lowest that was, as it would be at the end of the last group; infinite if not known
    double spread = 0;         // of the errors above the last line
    int failures = 0;          // groups in a row in which nobody was above it at the first step
};

struct Slots : Set<kWidths[5] * kLanes> {
    static std::int64_t most_steps(std::int32_t count) { return count <= 256 ? kSteps : kLongSteps; }
};

constexpr std::int32_t kBlock = 64;  // leaders that are looked at together

struct Near : Set<2048> {
    static constexpr std::int64_t kMostSteps = 512;
    static std::int64_t most_steps(std::int32_t) { return kMostSteps; }
    Pool pool(const Everybody& all) {
        const int size = (used + kBlock - 1) / kBlock * kBlock;
        pad(size);
        for (int s = 0; s < used; ++s) alone[s] = all.after[number[s]] == number[s];
        return {weight, drawn, number, alone, size};
    }
    bool alone[kRoom];
    Slots slots;
    Guess guess{kSteps};  // for the slots
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

// The leaders from j on; past the last one somebody who is never drawn.
NODECACHE_TARGET NODECACHE_INLINE Rays rays(const Pool& pool, std::int32_t j) {
    if (j + kLanes <= pool.count) return {load(pool.weights + j), load(pool.drawn + j)};
    double weight[kLanes] = {}, drawn[kLanes];
    std::fill(drawn, drawn + kLanes, kInfinity);
    std::copy(pool.weights + j, pool.weights + pool.count, weight);
    std::copy(pool.drawn + j, pool.drawn + pool.count, drawn);
    return {load(weight), load(drawn)};
}

// Draws from a leader's ring.
NODECACHE_TARGET static void take(Work& work, Pool& pool, std::int32_t number, std::int64_t i) {
    const std::int32_t leader = pool.leader(number);
    const double drawn = pool.drawn[number];
    const std::uint16_t head = work.all.head[leader], after = work.all.after[head];
    work.out.dataset[i * work.out.dataset_stride] = static_cast<std::int16_t>(head);
    work.out.sample[i * work.out.sample_stride] = static_cast<std::int64_t>(drawn);
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
    work.poll.spend(pool.count);
    if (!(error > under.at(step))) return -kInfinity;
    std::int32_t winner = -1;
    for (std::int32_t j = 0; j < pool.count; j += kLanes)
        for (unsigned in = equal(rays(pool, j).at(fill(step)), fill(error)); in; in &= in - 1) {
            const std::int32_t other = j + __builtin_ctz(in);
            const auto head = [&](std::int32_t number) { return work.all.head[pool.leader(number)]; };
            if (winner < 0 || head(other) < head(winner)) winner = other;
        }
    take(work, pool, winner, i);
    return error;
}

// Fills a set with whoever is above a line, from `low` at the first step to `high` at the last, at one of these; false if it
// cannot hold them. An error never falls, so with a line that does not rise the last step tells all.
template <bool kRises, class Some>
NODECACHE_TARGET static bool fill_set(const Pool& pool, Some& set, double low, double high, double first, double last) {
    const Vector begin = fill(first), end = fill(last), at_begin = fill(low), at_end = fill(high);
    const auto look = [&](const Rays& here) NODECACHE_TARGET {
        unsigned above = below(at_end, here.at(end));
        if (kRises) above |= below(at_begin, here.at(begin));
        return std::uint64_t{above};
    };
    set.used = 0;
    for (std::int32_t j = 0; j < pool.count; j += kBlock) {  // with one branch, for one a vector takes longer
        std::uint64_t in = 0;
        if (j + kBlock <= pool.count)
            for (int k = 0; k < kBlock; k += kLanes) in |= look({load(pool.weights + j + k), load(pool.drawn + j + k)}) << k;
        else
            for (int k = 0; j + k < pool.count; k += kLanes) in |= look(rays(pool, j + k)) << k;
        if (set.used + __builtin_popcountll(in) > Some::kRoom) return false;
        for (; in; in &= in - 1) {
            const std::int32_t number = j + __builtin_ctzll(in);
            set.weight[set.used] = pool.weights[number];
            set.drawn[set.used] = pool.drawn[number];
            set.number[set.used++] = number;
        }
    }
    return true;
}

struct Contender {
    double error;
    std::int32_t number;
};

// Who has the wanted rank among the errors at a step, or the least of all where there are not so many.
template <int kWanted>
NODECACHE_TARGET static Contender ranked(const Pool& pool, double step) {
    constexpr int kEnough = 2 * kWanted;
    Contender found[kEnough + kLanes];
    double low = -kInfinity;
    int size = 0;
    const auto cut = [&](int wanted) {
        std::nth_element(found, found + wanted - 1, found + size,
                         [](const Contender& a, const Contender& b) { return a.error > b.error; });
        size = wanted;
        low = found[wanted - 1].error;
    };
    for (std::int32_t j = 0; j < pool.count; j += kLanes) {
        double errors[kLanes];
        const Vector here = rays(pool, j).at(fill(step));
        unsigned in = below(fill(low), here);
        if (!in) continue;
        store(errors, here);
        for (; in; in &= in - 1) found[size++] = {errors[__builtin_ctz(in)], j + __builtin_ctz(in)};
        if (size >= kEnough) cut(kWanted);
    }
    if (size == 0) return {-kInfinity, 0};
    cut(std::min(size, kWanted));
    return found[size - 1];
}

// Fills a set for the steps up to `stop`, or up to an earlier one; returns a line that nobody else is above till then, and
// that is nowhere below `under`.
template <class Some>
NODECACHE_TARGET static Line gather(const Work& work, const Pool& pool, Guess& guess, Some& set, const Line& under,
                                    std::int64_t i, std::int64_t& stop) {
    const double first = step_of(i);
    double last, slope, high;
    bool selected = false;
    for (;; selected = true) {
        last = step_of(stop - 1);
        slope = guess.slope;
        guess.low = std::max(guess.low, under.at(first));
        if (slope > 0 && slope * (last - first) <= guess.reserve) slope = 0;  // not worth a second look
        if (guess.low + slope * (last - first) < under.at(last) && last > first)
            slope = (under.at(last) - guess.low) / (last - first);
        high = guess.low + slope * (last - first);
        if (slope > 0 ? fill_set<true>(pool, set, guess.low, high, first, last)
                      : fill_set<false>(pool, set, guess.low, high, first, last))
            break;
        guess.reserve *= 0.7;
        const Contender least = ranked<Some::kRoom / 2>(pool, first);
        if (!selected) {
            // The line of somebody of a middle rank, until that one is drawn.
            guess.low = least.error;
            guess.slope = pool.weights[least.number];
        } else {
            guess.steps = std::max<std::int64_t>(1, guess.steps / 2);
            stop = std::min(stop, i + guess.steps);
        }
    }
    if (selected || guess.low == -kInfinity) {
        double top = -kInfinity, bottom = kInfinity;
        for (int s = 0; s < set.used; ++s) {
            const double error = set.weight[s] * first - set.drawn[s];
            top = std::max(top, error);
            bottom = std::min(bottom, error);
        }
        if (guess.low == -kInfinity) guess.low = high = bottom - 1;  // nobody is left out
        guess.spread = top - guess.low;
    }
    return {first, guess.low + margin(work.all, last, guess.low, high), slope};
}

// The largest of the lanes of each other, in a tree: a chain of them would be what a step takes.
template <int kVectors>
NODECACHE_TARGET NODECACHE_INLINE Vector most_of(const Vector* error) {
    if constexpr (kVectors == 1)
        return error[0];
    else
        return max(most_of<kVectors / 2>(error), most_of<kVectors - kVectors / 2>(error + kVectors / 2));
}

template <int kVectors>
NODECACHE_TARGET NODECACHE_INLINE void read(const Slots& slots, double step, Vector* drawn, Vector* error) {
    NODECACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
        drawn[v] = load(slots.drawn + v * kLanes);
        error[v] = sub(mul(load(slots.weight + v * kLanes), fill(step)), drawn[v]);
    }
}

// Draws from the slots from step i on; returns the first step that it has not done, before `stop` if nobody is above the
// line there. `slack` becomes what the lowest error that was drawn is above the line, if that is less.
//
// A step can only begin when the last one's winner is known, and that takes longer than all the rest. So where there are
// registers for it, everybody's next error is computed before that, as it will be with and without one draw more.
template <int kVectors>
NODECACHE_TARGET static std::int64_t draw_group(Work& work, Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                std::int64_t stop, double& slack) {
    constexpr int kWords = (kVectors * kLanes + 63) / 64;
    constexpr bool kEarly = kVectors <= kEarlyWidth;
    const Everybody& all = work.all;
    Vector drawn[kVectors], error[kVectors], same[kEarly ? kVectors : 1], less[kEarly ? kVectors : 1];
    double step = step_of(i);
    read<kVectors>(slots, step, drawn, error);
    for (; i < stop; ++i) {
        const double next = static_cast<double>(i + 1);
        if constexpr (kEarly)
            NODECACHE_UNROLL
            for (int v = 0; v < kVectors; ++v) {
                const Vector reached = mul(load(slots.weight + v * kLanes), fill(next));
                same[v] = sub(reached, drawn[v]);
                less[v] = sub(reached, add(drawn[v], fill(1)));
            }
        const Vector most = spread_max(most_of<kVectors>(error));
        std::uint64_t winners[kWords] = {};
        NODECACHE_UNROLL
        for (int v = 0; v < kVectors; ++v)
            winners[v * kLanes / 64] |= static_cast<std::uint64_t>(equal(error[v], most)) << (v * kLanes % 64);
        const double above = one(most) - line.at(step);
        if (__builtin_expect(!(above > 0), 0)) break;
        slack = std::min(slack, above);
        int slot = 0, words = 0;
        std::uint64_t more = 0;
        for (int w = 0; w < kWords; ++w) {
            more |= winners[w] & (winners[w] - 1);
            words += winners[w] != 0;
            slot = winners[w] ? w * 64 + __builtin_ctzll(winners[w]) : slot;
        }
        const std::int32_t number = slots.number[slot], leader = pool.leaders[number];
        const double count = pool.drawn[number];
        const bool last = all.limits && all.limits[leader] == static_cast<std::int64_t>(count) + 1;
        step = next;
        if (__builtin_expect(more != 0 || words > 1 || last || !pool.alone[number], 0)) {
            // Of several that are equally far behind, the lowest index; and a draw that is not just one more.
            NODECACHE_UNROLL
            for (int v = 0; v < kVectors; ++v) store(slots.drawn + v * kLanes, drawn[v]);
            for (int w = 0; w < kWords; ++w)
                for (std::uint64_t word = winners[w]; word; word &= word - 1) {
                    const int other = w * 64 + __builtin_ctzll(word);
                    const auto first = [&](int s) { return all.head[pool.leader(slots.number[s])]; };
                    if (first(other) < first(slot)) slot = other;
                }
            take(work, pool, slots.number[slot], i);
            slots.drawn[slot] = pool.drawn[slots.number[slot]];
            read<kVectors>(slots, step, drawn, error);
            continue;
        }
        NODECACHE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            drawn[v] = add_where_equal(drawn[v], error[v], most);
            if constexpr (kEarly)
                error[v] = choose_where_equal(same[v], less[v], error[v], most);
            else
                error[v] = sub(mul(load(slots.weight + v * kLanes), fill(next)), drawn[v]);
        }
        work.out.dataset[i * work.out.dataset_stride] = static_cast<std::int16_t>(leader);
        work.out.sample[i * work.out.sample_stride] = static_cast<std::int64_t>(count);
        pool.drawn[number] = count + 1;
    }
    return i;
}

NODECACHE_TARGET static std::int64_t draw(Work& work, Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                          std::int64_t stop, double& slack) {
    constexpr decltype(&draw_group<1>) kWays[] = {draw_group<kWidths[0]>, draw_group<kWidths[1]>, draw_group<kWidths[2]>,
                                                 draw_group<kWidths[3]>, draw_group<kWidths[4]>, draw_group<kWidths[5]>};
    work.poll.spend(16 * (stop - i));
    int way = 0;
    while (kWidths[way] * kLanes < slots.used) ++way;
    slots.pad(kWidths[way] * kLanes);
    return kWays[way](work, pool, slots, line, i, stop, slack);
}

template <class Some>
NODECACHE_TARGET static std::int64_t draw_all(Work& work, Pool& pool, Guess& guess, Some& set, const Line& under,
                                              std::int64_t i, std::int64_t stop, double& slack);

NODECACHE_TARGET static std::int64_t draw(Work& work, Pool&, Near& near, const Line& line, std::int64_t i, std::int64_t stop,
                                          double& slack) {
    Pool few = near.pool(work.all);
    i = draw_all(work, few, near.guess, near.slots, line, i, stop, slack);
    for (int s = 0; s < near.used; ++s) work.all.drawn[near.number[s]] = near.drawn[s];
    return i;
}

// Draws from a pool from step i on, through a set; returns the first step that it has not done, before `stop` if nobody is
// above `under` there. `slack` as before, of `under`.
template <class Some>
NODECACHE_TARGET static std::int64_t draw_all(Work& work, Pool& pool, Guess& guess, Some& set, const Line& under,
                                              std::int64_t i, std::int64_t stop, double& slack) {
    while (i < stop) {
        const std::int64_t begin = i;
        std::int64_t end = std::min(stop, i + guess.steps);
        work.poll.spend(pool.count / 4);
        const Line line = gather(work, pool, guess, set, under, i, end);
        double above = kInfinity;
        i = draw(work, pool, set, line, i, end, above);
        if (i > begin) {
            const double first = step_of(begin), last = step_of(i - 1);
            slack = std::min({slack, line.at(first) + above - under.at(first), line.at(last) + above - under.at(last)});
            guess.failures = 0;
        }
        const double steps = static_cast<double>(i - begin);
        double floor = line.at(step_of(i - 1)) + above;
        if (i == end) {
            guess.reserve *= 0.97;
            guess.steps = std::min(2 * guess.steps, Some::most_steps(pool.count));
        } else {
            guess.failures += i == begin;
            guess.reserve = i == begin ? std::max(2 * guess.reserve, guess.spread / 4) : 1.5 * guess.reserve;
            // Where this happens again and again, hundreds of errors are equal but for rounding, and no line is of use.
            for (std::int64_t left = std::int64_t{1} << std::clamp(guess.failures - 2, 0, 6); left > 0 && i < stop; --left) {
                floor = draw_one(work, pool, under, i);
                if (floor == -kInfinity) return i;
                slack = std::min(slack, floor - under.at(step_of(i)));
                ++i;
            }
        }
        const double trend = (floor - guess.floor) / steps;
        if (std::fabs(trend) <= work.all.heaviest) guess.slope += (trend - guess.slope) / 4;
        guess.floor = floor;
        guess.low = guess.failures > 1 ? -kInfinity : floor + guess.slope - guess.reserve;
    }
    return i;
}

// For each leader its first step above a level of errors, or an earlier one; four bytes each.
struct Due {
    std::unique_ptr<float[]> step;  // of whole blocks

    explicit Due(std::int32_t count) : step(new float[(count + kBlock - 1) / kBlock * kBlock]) {
        std::fill(step.get() + count, step.get() + (count + kBlock - 1) / kBlock * kBlock,
                  std::numeric_limits<float>::infinity());
    }
    // Of some leaders; the largest number if never.
    NODECACHE_TARGET static NODECACHE_METHOD Vector of(const Rays& here, double level) {
        // Rounding to float moves a step by less, and so does rounding before that, unless the sum nearly cancels; then the
        // level is about as large as `drawn`, and the margin above it covers what that may do.
        constexpr double kEarlier = 1 - 0x1p-22;
        const Vector steps = mul(div(add(here.drawn, fill(level)), here.weight), fill(kEarlier));
        return min(max(steps, fill(0)), fill(std::numeric_limits<float>::max()));
    }

    // Of a pool's leaders, anew.
    NODECACHE_TARGET void reckon(const Pool& pool, double level) {
        for (std::int32_t j = 0; j < pool.count; j += kLanes) {
            double steps[kLanes];
            store(steps, of(rays(pool, j), level));
            for (int k = 0; k < kLanes && j + k < pool.count; ++k) step[pool.leader(j + k)] = static_cast<float>(steps[k]);
        }
    }
};

// Fills it with whoever is above a level of errors at a step; false if it cannot hold them. Whoever seemed due, and is not
// above, gets a later step.
NODECACHE_TARGET static bool fill_near(const Everybody& all, Due& due, double level, double last, Near& near) {
    const float until = static_cast<float>(last);
    constexpr int kUsual = 6;
    near.used = 0;
    for (std::int32_t j = 0; j < all.count;) {
        std::int32_t leaders[4 * kBlock + kUsual];
        double weight[4 * kBlock], drawn[4 * kBlock];
        int size = 0;
        for (; j < all.count && size <= 3 * kBlock; j += kBlock) {
            std::uint64_t in = 0;
            NODECACHE_UNROLL
            for (int k = 0; k < kBlock; k += kFloats) in |= std::uint64_t{not_above(&due.step[j + k], until)} << k;
            // How many they are cannot be foreseen, so the usual number is written in any case, and what is too much is
            // written over.
            const int more = size + __builtin_popcountll(in);
            for (int k = 0; k < kUsual || size + k < more; ++k, in &= in - 1)
                leaders[size + k] = j + __builtin_ctzll(in | std::uint64_t{1} << 63);
            size = more;
        }
        if (near.used + size > Near::kRoom) return false;
        for (int k = 0; k < size; ++k) {
            weight[k] = all.weights[leaders[k]];
            drawn[k] = all.drawn[leaders[k]];
        }
        for (int k = 0; k < size; k += kLanes) {
            const Rays here{load(weight + k), load(drawn + k)};
            double steps[kLanes];
            store(steps, Due::of(here, level));
            const unsigned above = below(fill(level), here.at(fill(last)));
            for (int n = 0; n < kLanes && k + n < size; ++n) {
                const std::int32_t leader = leaders[k + n];
                due.step[leader] = static_cast<float>(steps[n]);
                near.weight[near.used] = weight[k + n];
                near.drawn[near.used] = drawn[k + n];
                near.number[near.used] = leader;
                near.used += above >> n & 1;
            }
        }
    }
    return true;
}

// Draws from everybody from step i on by a level of errors, which only rises; returns the first step that it has not done,
// before `stop` if the level is of no more use: it is too high, and nobody is above it, or too low, and too many are.
NODECACHE_TARGET static std::int64_t draw_level(Work& work, Pool& pool, Guess& guess, Near& near, Due& due, std::int64_t i,
                                                std::int64_t stop) {
    double reserve = 2 * guess.reserve, level = guess.low - reserve;
    if (!(level > -kInfinity)) return i;
    due.reckon(pool, level);
    while (i < stop) {
        const std::int64_t end = std::min(stop, i + 2 * Near::kMostSteps);
        const double last = step_of(end - 1);
        work.poll.spend(pool.count / 8);
        if (!fill_near(work.all, due, level, last, near)) break;
        double slack = kInfinity;
        i = draw(work, pool, near, Line{step_of(i), level + margin(work.all, last, level, level), 0}, i, end, slack);
        guess.low = level;
        if (i < end) break;
        due.reckon({near.weight, near.drawn, near.number, near.alone, near.used}, level);
        level += std::max(0.0, slack - reserve);
        reserve *= 0.99;
    }
    guess.floor = kInfinity;
    return i;
}

constexpr std::int32_t kMany = 512;       // leaders from which on it pays to look at those near only
constexpr std::int32_t kVeryMany = 8192;  // and from which on it pays to know when each is due

// Draws from everybody. A level is tried time and again, the more seldom the shorter it lasts.
NODECACHE_TARGET static void draw_many(Work& work, Near& near, std::int64_t size) {
    Pool everybody{work.all.weights, work.all.drawn.get(), nullptr, nullptr, work.all.count};
    Guess guess{kSteps};
    double slack = kInfinity;
    if (work.all.leaders <= kVeryMany) {
        draw_all(work, everybody, guess, near, Line{}, 0, size, slack);
        return;
    }
    Due due(work.all.count);
    constexpr std::int64_t kFewest = 4 * Near::kMostSteps, kMost = 64 * kFewest;
    std::int64_t by_line = kFewest;  // steps until the next trial of a level
    for (std::int64_t i = 0; i < size;) {
        i = draw_all(work, everybody, guess, near, Line{}, i, std::min(size, i + by_line), slack);
        const std::int64_t begin = i;
        i = draw_level(work, everybody, guess, near, due, i, size);
        by_line = i - begin < 2 * by_line ? std::min(2 * by_line, kMost) : kFewest;
    }
}

}  // namespace

NODECACHE_TARGET void NODECACHE_SEARCH(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll) {
    Work work{all, out, poll};
    const auto near = std::make_unique<Near>();
    if (all.leaders > kMany) return draw_many(work, *near, size);
    // Everybody who can be drawn is near; where these are few, in the slots.
    Pool everybody{all.weights, all.drawn.get(), nullptr, nullptr, all.count};
    fill_set<false>(everybody, *near, -kInfinity, -kInfinity, 1, 1);
    Pool few = near->pool(all);
    double slack = kInfinity;
    if (all.leaders > kFew) {
        draw_all(work, few, near->guess, near->slots, Line{}, 0, size, slack);
        return;
    }
    constexpr std::int64_t kChunk = 1 << 14;
    for (std::int64_t i = 0; i < size;) {
        fill_set<false>(few, near->slots, -kInfinity, -kInfinity, 1, 1);
        i = draw(work, few, near->slots, Line{}, i, std::min(size, i + kChunk), slack);
    }
}

}  // namespace nodecache
