// Drawing by a level of errors, which only rises: where there are very many.
//
// Only one number of each is looked at: a step before which it is not above the level. That stays true when the level rises,
// or the dataset is drawn.

namespace nodecache {
namespace {

// For each leader its first step above a level of errors, or an earlier one; four bytes each.
struct Due {
    std::unique_ptr<float[]> step;  // of whole blocks

    explicit Due(std::int32_t count) : step(new float[(count + kBlock - 1) / kBlock * kBlock]) {
        std::fill(step.get() + count, step.get() + (count + kBlock - 1) / kBlock * kBlock,
                  std::numeric_limits<float>::infinity());
    }
    // Of some leaders; the largest number if never.
    NODECACHE_TARGET static NODECACHE_METHOD Vector of(const Rays& here, double level) {
        // Rounding, also that to float, moves a step by less.
        constexpr double kEarlier = 1 - 0x1p-22;
        const Vector steps = mul(div(add(here.drawn, fill(level)), here.weight), fill(kEarlier));
        return min(max(steps, fill(0.0)), fill(std::numeric_limits<float>::max()));
    }

    // Who in the block from j on is due up to a step.
    NODECACHE_TARGET std::uint64_t until(std::int32_t j, double last) const {
        std::uint64_t in = 0;
        NODECACHE_UNROLL
        for (int k = 0; k < kBlock; k += kFloats)
            in |= std::uint64_t{not_above(&step[j + k], static_cast<float>(last))} << k;
        return in;
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
    near.used = 0;
    for (std::int32_t j = 0; j < all.count; j += kBlock) {
        const std::uint64_t in = due.until(j, last);
        if (near.used + __builtin_popcountll(in) > Near::kRoom) return false;
        near.used += put(near.number + near.used, in, j);
    }
    near.fetch(all.weights, all.drawn.get());
    // From the end, so that the last who is above can take the place of one who is not.
    for (int end = near.used, begin; end > 0; end = begin) {
        begin = (end - 1) / kBlock * kBlock;
        std::uint64_t above = 0;
        for (int s = begin; s < end; s += kLanes)
            above |= std::uint64_t{below(fill(level), rays(near.weight + s, near.drawn + s).at(fill(last)))} << (s - begin);
        for (std::uint64_t bit, others = ~above & ~std::uint64_t{0} >> (kBlock - (end - begin)); others; others ^= bit) {
            const int place = 63 - __builtin_clzll(others), s = begin + place;
            bit = std::uint64_t{1} << place;
            due.step[near.number[s]] = static_cast<float>(one(Due::of({fill(near.weight[s]), fill(near.drawn[s])}, level)));
            --near.used;
            near.weight[s] = near.weight[near.used];
            near.drawn[s] = near.drawn[near.used];
            near.number[s] = near.number[near.used];
        }
    }
    return true;
}

// Draws from everybody from step i on by a level of errors, which only rises; returns the first step that it has not done,
// before `stop` if the level is of no more use: it is too high, and nobody is above it, or too low, and too many are.
NODECACHE_TARGET static std::int64_t draw_level(Work& work, Pool& pool, Guess& guess, Near& near, Due& due, std::int64_t i,
                                                std::int64_t stop) {
    constexpr int kSpare = 384;  // who are above the level at first, so that it lasts
    double reserve = kInfinity;  // what it is to be below the lowest error that is drawn
    double level = ranked<kSpare>(pool, step_of(i)).error;
    if (!(level > -kInfinity)) return i;
    due.reckon(pool, level);
    work.poll.spend(2 * pool.count);
    while (i < stop) {
        const std::int64_t begin = i, end = std::min(stop, i + 2 * Near::kMostSteps);
        const double last = step_of(end - 1);
        work.poll.spend(pool.count / 8);
        if (!fill_near(work.all, due, level, last, near)) break;
        double slack = kInfinity;
        i = draw(work, pool, near, Line{step_of(i), level + margin(work.all, last, level, level), 0}, i, end, slack);
        guess.low = level;
        if (i < end) break;
        due.reckon({near.weight, near.drawn, near.leader, near.used}, level);
        if (reserve == kInfinity)
            reserve = 0.75 * slack;
        else if (near.used > end - begin + kSpare)
            reserve *= 0.97;
        level += std::max(0.0, slack - reserve);
    }
    guess.floor = kInfinity;
    return i;
}

}  // namespace
}  // namespace nodecache
