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
        // Rounding to float moves a step by less, and so does rounding before that, unless the sum nearly cancels; then the
        // level is about as large as `drawn`, and the margin above it covers what that may do.
        constexpr double kEarlier = 1 - 0x1p-22;
        const Vector steps = mul(div(add(here.drawn, fill(level)), here.weight), fill(kEarlier));
        return min(max(steps, fill(0.0)), fill(std::numeric_limits<float>::max()));
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
        due.reckon({near.weight, near.drawn, near.leader, near.used}, level);
        level += std::max(0.0, slack - reserve);
        reserve *= 0.99;
    }
    guess.floor = kInfinity;
    return i;
}

}  // namespace
}  // namespace nodecache
