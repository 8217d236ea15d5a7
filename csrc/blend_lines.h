// Drawing by lines of errors: what works for any weights.
//
// An error never falls until its dataset is drawn, along a straight line: whoever is not above a given line of errors at the
// first and the last of some steps is not above it in between. So before each group of steps one look at a pool finds who
// may be, and these are compared at each of the steps. Whoever is above the line there is the winner of all. If nobody is,
// all are compared once, and a new group begins, with a lower line.

namespace nodecache {
namespace {

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

constexpr std::int32_t kBlock = 64;  // leaders that are looked at together

// Those of a larger group of steps, where there are many, among whom the slots' candidates are looked for.
struct Near : Set<2048> {
    std::uint16_t leader[kRoom];
    Slots slots;
    Guess guess{kSteps[0]};  // for the slots

    static constexpr std::int64_t kMostSteps = 512;
    static std::int64_t most_steps(std::int32_t) { return kMostSteps; }

    Pool pool(const Everybody& all) {
        if (all.rings)
            for (int s = 0; s < used; ++s)
                leader[s] = static_cast<std::uint16_t>(number[s] | (all.after[number[s]] == number[s] ? 0 : kShared));
        else
            for (int s = 0; s < used; ++s) leader[s] = static_cast<std::uint16_t>(number[s]);
        const int size = (used + kBlock - 1) / kBlock * kBlock;
        pad(size);
        return {weight, drawn, leader, size};
    }
};

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
        if (j + kBlock <= pool.count) {
            NODECACHE_UNROLL
            for (int k = 0; k < kBlock; k += kLanes) in |= look({load(pool.weights + j + k), load(pool.drawn + j + k)}) << k;
        } else
            for (int k = 0; j + k < pool.count; k += kLanes) in |= look(rays(pool, j + k)) << k;
        if (set.used + __builtin_popcountll(in) > Some::kRoom) return false;
        set.used += put(set.number + set.used, in, j);
    }
    set.fetch(pool.weights, pool.drawn);
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
        work.poll.spend(pool.count / (selected ? 1 : 4));
        last = step_of(stop - 1);
        slope = guess.slope;
        guess.low = std::max(guess.low, under.at(first));
        // Not worth a second look, unless too many are above a flat line.
        if (!selected && slope > 0 && slope * (last - first) <= guess.reserve) slope = 0;
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

}  // namespace
}  // namespace nodecache
