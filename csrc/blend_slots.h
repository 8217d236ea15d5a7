// Drawing from the slots: the few leaders who are compared at every step.
//
// They are compared in fixed point: whole numbers of 32 bits, by which twice as many fit into a vector, and an error at the
// next step is one addition. Those can be wrong by a few units. Where two errors are as close as that, the rule is computed
// as it stands.

namespace nodecache {
namespace {

constexpr std::int64_t kStretch = 64;  // steps in fixed point between two conversions
// Units by which an error rises in a stretch at most. All begin at zero or below, and only who is above -kReach is drawn, so
// that no number overflows before the last step; what wraps there is not looked at.
constexpr double kReach = 0x1p29;

struct Slots : Set<kWidths[5] * kInts> {
    // The fixed point: how far errors are from a line that rises no faster than any of them.
    alignas(64) std::int32_t rise[kRoom];  // units per step
    double slope;                          // of the line
    double scale;                          // so many units are 1; a power of two

    // Chooses it for some steps.
    NODECACHE_TARGET void fix(const Everybody& all, int size, const Line& line, double begin, double last) {
        Vector least = fill(kInfinity), most = fill(0.0), top = fill(-kInfinity);
        for (int s = 0; s < size; s += kLanes) {
            least = min(load(weight + s), least);
            most = max(load(weight + s), most);
            top = max(rays(weight + s, drawn + s).at(fill(begin)), top);
        }
        slope = -one(spread_max(sub(fill(0.0), least)));
        // So coarse that the highest error can fall to the line, and a unit is not nothing beside rounding.
        const double fall = std::clamp(one(spread_max(top)) - line.at(begin), 0., 1.);
        const double steepest = std::max({one(spread_max(most)) - slope, fall / 32, 0x1p13 * margin(all, last, 0, 1)});
        // Weights that another thread makes no numbers have no scale, and do not rise.
        const bool any = steepest > 0 && steepest < kInfinity;
        scale = any ? std::ldexp(kReach / static_cast<double>(kStretch) / 2, -std::ilogb(steepest)) : 0;
        for (int s = 0; s < size; s += kLanes)
            store_rounded(rise + s, max(mul(sub(load(weight + s), fill(slope)), fill(scale)), fill(0.0)));
    }

    static std::int64_t most_steps(std::int32_t count) { return kSteps[count <= 256 ? 0 : count <= 1024 ? 1 : 2]; }
};

// Draws as the rule says, from step i on; returns the first step that it has not done, before `stop` if nobody is above the
// line there. `slack` becomes what the lowest error that was drawn is above the line, if that is less.
NODECACHE_TARGET static std::int64_t draw_exactly(Work& work, Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                  std::int64_t stop, double& slack) {
    std::uint16_t leaders[Slots::kRoom];
    for (int s = 0; s < slots.used; ++s) leaders[s] = pool.leaders[slots.number[s]];
    Pool few{slots.weight, slots.drawn, leaders, (slots.used + kLanes - 1) / kLanes * kLanes};  // padded, for whole vectors
    for (; i < stop; ++i) {
        const double error = draw_one(work, few, line, i);
        if (error == -kInfinity) break;
        slack = std::min(slack, error - line.at(step_of(i)));
    }
    for (int s = 0; s < slots.used; ++s) pool.drawn[slots.number[s]] = slots.drawn[s];
    return i;
}

// The largest of the lanes of each other, in a tree: a chain of them would be what a step takes.
template <int kVectors, class Any>
NODECACHE_TARGET NODECACHE_INLINE Any most_of(const Any* some) {
    if constexpr (kVectors == 1)
        return some[0];
    else
        return max(most_of<kVectors / 2>(some), most_of<kVectors - kVectors / 2>(some + kVectors / 2));
}

enum class Why { far, low, doubtful };  // went so far; nobody is above the line; nothing but the rule can tell

// The same in fixed point, for a stretch of steps.
template <int kVectors>
NODECACHE_TARGET static std::int64_t draw_quickly(Work& work, Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                  std::int64_t stop, double& slack, Why& why) {
    constexpr int kWords = (kVectors * kInts + 63) / 64;
    static_assert(kWords <= 2);
    stop = std::min(stop, i + kStretch);
    why = Why::doubtful;
    const double begin = step_of(i), last = step_of(stop - 1), scale = slots.scale;
    constexpr int kExact = kVectors * kInts / kLanes;
    Vector exact[kExact];
    NODECACHE_UNROLL
    for (int v = 0; v < kExact; ++v)
        exact[v] = rays(slots.weight + v * kLanes, slots.drawn + v * kLanes).at(fill(begin));
    const double zero = one(spread_max(most_of<kExact>(exact)));  // where the units begin
    if (!(zero > -kInfinity)) return i;
    // Rounding, once and at each step, is half a unit of each of the two that are compared; then there is the rule's own.
    const double most_doubt = last - begin + 4 + 2 * scale * margin(work.all, last, zero, 0x1p32 / scale);
    const double slope_units = std::rint((line.slope - slots.slope) * scale);
    if (!(most_doubt < 0x1p20 && std::fabs(slope_units) < 0x1p40)) return i;
    const auto doubt = static_cast<std::int64_t>(most_doubt), slope = static_cast<std::int64_t>(slope_units);
    auto low = static_cast<std::int64_t>(std::clamp((line.at(begin) - zero) * scale, -0x1p50, 0x1p50)) + doubt;
    const std::int64_t floor = static_cast<std::int64_t>(-kReach) + doubt;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();

    alignas(64) std::int32_t units[kVectors * kInts];
    NODECACHE_UNROLL
    for (int v = 0; v < kExact; ++v)
        store_rounded(units + v * kLanes, max(mul(sub(exact[v], fill(zero)), fill(scale)), fill(-0x1p31)));
    Ints error[kVectors], rise[kVectors];
    NODECACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
        error[v] = load(units + v * kInts);
        rise[v] = load(slots.rise + v * kInts);
    }
    // Where this is less than a draw, whoever is drawn stays below -kReach all the same.
    const auto draw = static_cast<std::int32_t>(std::min(scale, 2 * kReach));
    const std::int64_t* const limits = work.all.limits;
    const BlendOutput out = work.out;
    const std::uint16_t* const leaders = pool.leaders;
    double* const drawn = pool.drawn;
    for (; i < stop; ++i) {
        const Ints most = spread_max(most_of<kVectors>(error)), almost = sub(most, fill(static_cast<std::int32_t>(doubt)));
        std::uint64_t winners[2] = {};
        NODECACHE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            winners[v * kInts / 64] |= static_cast<std::uint64_t>(above(error[v], almost)) << (v * kInts % 64);
            error[v] = sub_where_above(add(error[v], rise[v]), fill(draw), error[v], almost);
        }
        const std::int64_t top = one(most);
        if (__builtin_expect(top <= std::max(low, floor), 0)) {
            why = low < floor ? Why::far : top > low - 2 * doubt ? Why::doubtful : Why::low;
            break;
        }
        const std::uint64_t winner = winners[0] | winners[1];
        const std::uint64_t more = (winner & (winner - 1)) | (winners[0] & winners[1]);
        const int slot = __builtin_ctzll(winner) + 64 * (winners[1] != 0);
        if (__builtin_expect(more != 0, 0)) break;
        least = std::min(least, top - low);
        low += slope;
        const std::int32_t number = slots.number[slot], leader = leaders[number];
        const double count = slots.drawn[slot];
        const auto sample = static_cast<std::int64_t>(count);
        if (__builtin_expect(leader >= kShared || (limits && limits[leader] == sample + 1), 0)) {
            take(work, pool, number, i);
            const double now = slots.drawn[slot] = pool.drawn[number];
            NODECACHE_UNROLL
            for (int v = 0; v < kVectors; ++v) store(units + v * kInts, error[v]);
            if (now == count) units[slot] += draw;  // another one of the ring is next
            if (now == kInfinity) units[slot] = std::numeric_limits<std::int32_t>::min();
            NODECACHE_UNROLL
            for (int v = 0; v < kVectors; ++v) error[v] = load(units + v * kInts);
            continue;
        }
        out.put(i, leader, sample);
        slots.drawn[slot] = drawn[number] = count + 1;
    }
    if (i == stop) why = Why::far;
    slack = std::min(slack, static_cast<double>(least) / scale);
    return i;
}

NODECACHE_TARGET static std::int64_t draw(Work& work, Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                          std::int64_t stop, double& slack) {
    constexpr decltype(&draw_quickly<1>) kWays[] = {draw_quickly<kWidths[0]>, draw_quickly<kWidths[1]>,
                                                   draw_quickly<kWidths[2]>, draw_quickly<kWidths[3]>,
                                                   draw_quickly<kWidths[4]>, draw_quickly<kWidths[5]>};
    work.poll.spend(16 * (stop - i));
    int way = 0;
    while (kWidths[way] * kInts < slots.used) ++way;
    const int size = kWidths[way] * kInts;
    slots.pad(size);
    slots.fix(work.all, size, line, step_of(i), step_of(stop - 1));
    if (slots.scale < 1) return draw_exactly(work, pool, slots, line, i, stop, slack);  // a draw is not a whole unit
    std::int64_t exactly = i == 0;  // from there to the next step no error rises
    while (i < stop) {
        const std::int64_t begin = i;
        if (exactly > 0) {
            const std::int64_t end = std::min(stop, i + exactly);
            i = draw_exactly(work, pool, slots, line, i, end, slack);
            if (i < end) break;
            exactly = 0;
        } else {
            Why why;
            i = kWays[way](work, pool, slots, line, i, stop, slack, why);
            if (why == Why::low) break;
            if (why == Why::doubtful) exactly = i - begin < kStretch / 8 ? kStretch : 1;
        }
    }
    return i;
}

}  // namespace
}  // namespace nodecache
