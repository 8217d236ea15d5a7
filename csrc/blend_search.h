// The search itself. One file for each vector width includes it, after it has defined load, store, mul and the rest.
//
// Comparing all datasets at every step is what takes the time, so only a few, in the slots, are. An error is a straight
// line until its dataset is drawn: so it is known for everybody else before which step it cannot be above a given line of
// errors, and the calendar lets them into the slots by then. Whoever is above the line in a slot is the winner of all.
// Once nobody is, or the slots are full, a new calendar with a better line is made. Where there are many datasets, the
// slots' line and calendar are only for those near it, and a second, lower line and its calendar tell who these are.
//
// Everything that decides is computed as the rule says. Rounding is monotone, so an error that is below the floor at both
// ends of some steps is not above the line in between, which is higher by what rounding may do.

#include <algorithm>
#include <cmath>

namespace nodecache {
namespace {

constexpr unsigned kAll = (1u << kLanes) - 1;

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

NODECACHE_TARGET static double best_of_all(const Pool& pool, double step) {
    Vector best = fill(-kInfinity);
    for (std::int32_t j = 0; j < pool.count; j += kLanes) best = max(rays(pool, j).at(fill(step)), best);
    return one(spread_max(best));
}

NODECACHE_TARGET static std::uint16_t winner_of_all(const Pool& pool, double step, double best) {
    std::uint16_t leader = kNobody;
    for (std::int32_t j = 0; j < pool.count; j += kLanes)
        for (unsigned in = equal(rays(pool, j).at(fill(step)), fill(best)); in; in &= in - 1) {
            const auto other = static_cast<std::uint16_t>(j + __builtin_ctz(in));
            if (leader == kNobody || pool.head[other] < pool.head[leader]) leader = other;
        }
    return leader;
}

// Draws once from all if somebody is above `under`; tells the leader, or nobody.
NODECACHE_TARGET static std::uint16_t draw_one(Pool& pool, const Line& under, std::int64_t i, BlendOutput out, Poll& poll,
                                               double& best) {
    const double step = static_cast<double>(i > 1 ? i : 1), most = best_of_all(pool, step);
    poll.spend(pool.count);
    if (!(most > under.at(step))) return kNobody;
    best = most;
    const std::uint16_t leader = winner_of_all(pool, step, best);
    const std::uint16_t head = pool.head[leader], after = pool.after[head];
    const double drawn = pool.drawn[leader];
    out.dataset[i * out.dataset_stride] = static_cast<std::int16_t>(head);
    out.sample[i * out.sample_stride] = static_cast<std::int64_t>(drawn);
    pool.head[leader] = after;
    if (after > head) return leader;
    pool.drawn[leader] = drawn + 1;
    if (pool.limits && pool.limits[leader] == static_cast<std::int64_t>(drawn) + 1) pool.drawn[leader] = kInfinity;
    return leader;
}

NODECACHE_TARGET NODECACHE_INLINE void sit(const Pool& pool, Slots& slots, int s, std::uint16_t leader) {
    const double drawn = pool.drawn[leader];
    const std::uint16_t head = pool.head[leader];
    const std::int64_t limit = pool.limits ? pool.limits[leader] : std::numeric_limits<std::int64_t>::max();
    const std::int64_t count = drawn < kInfinity ? static_cast<std::int64_t>(drawn) : limit;
    slots.weight[s] = pool.weights[leader];
    slots.drawn[s] = drawn;
    slots.seat[s] = {count, limit, leader, head};
    slots.special.set(s, pool.after[head] != head || count >= limit - 1);
}

NODECACHE_TARGET NODECACHE_INLINE void sit(const Pool& pool, Near& near, int s, std::uint16_t leader) {
    near.weight[s] = pool.weights[leader];
    near.drawn[s] = pool.drawn[leader];
    near.limit[s] = pool.limits ? pool.limits[leader] : 0;
    near.head[s] = pool.head[leader];
    near.leader[s] = leader;
}

// Writes back what was drawn.
NODECACHE_TARGET NODECACHE_INLINE void settle(Pool& pool, const Slots& slots, int s) {
    pool.drawn[slots.seat[s].leader] = slots.drawn[s];
    pool.head[slots.seat[s].leader] = slots.seat[s].head;
}

NODECACHE_TARGET NODECACHE_INLINE void settle(Pool& pool, const Near& near, int s) {
    pool.drawn[near.leader[s]] = near.drawn[s];
    pool.head[near.leader[s]] = near.head[s];
}

NODECACHE_TARGET NODECACHE_INLINE void move(Slots& slots, int to, int from) {
    slots.seat[to] = slots.seat[from];
    slots.weight[to] = slots.weight[from];
    slots.drawn[to] = slots.drawn[from];
    slots.special.set(to, slots.special.has(from));
}

NODECACHE_TARGET NODECACHE_INLINE void move(Near& near, int to, int from) {
    near.weight[to] = near.weight[from];
    near.drawn[to] = near.drawn[from];
    near.limit[to] = near.limit[from];
    near.head[to] = near.head[from];
    near.leader[to] = near.leader[from];
}

NODECACHE_INLINE std::uint16_t leader_in(const Slots& slots, int s) { return slots.seat[s].leader; }
NODECACHE_INLINE std::uint16_t leader_in(const Near& near, int s) { return near.leader[s]; }

template <class Set>
NODECACHE_TARGET NODECACHE_INLINE bool enter(const Pool& pool, Set& set, std::uint16_t leader) {
    if (set.used == Set::kRoom) return false;
    sit(pool, set, set.used++, leader);
    return true;
}

template <class Set>
NODECACHE_TARGET static void settle_all(Pool& pool, const Set& set) {
    for (int s = 0; s < set.used; ++s) settle(pool, set, s);
}

// Where leaders belong at `step`: in one of the calendar's lists if they are below its floor now and can be above it only
// after, nowhere if they cannot be before it ends, or, where that cannot be told and otherwise, in the set.
struct Places {
    unsigned listed, nowhere;
    double list[kLanes];
};

NODECACHE_TARGET NODECACHE_INLINE Places places(const Calendar& calendar, int group, Rays leaders, double step) {
    const Line& floor = calendar.floor;
    const Vector begin = fill(floor.begin), slope = fill(floor.slope), low = fill(floor.low);
    const Vector above = sub(fill(floor.at(step)), leaders.at(fill(step)));
    const Vector rest = div(above, sub(leaders.weight, slope));
    const Vector groups = mul(add(fill(step - floor.begin), rest), fill(1.0 / group));
    // Rounded down: to the nearest after somewhat more than a half.
    const Vector list = sub(add(sub(groups, fill(0.501)), fill(0x1.8p52)), fill(0x1.8p52));
    // The end of the steps before the list's first one; the leader must be below the floor there.
    const Vector before = add(mul(list, fill(group)), fill(floor.begin - 1));
    Places result;
    store(result.list, list);
    const unsigned under = below(fill(0), above);
    result.nowhere = under & below(leaders.at(fill(calendar.end)), fill(floor.at(calendar.end)));
    result.listed = under & below(fill(step - 1), before) & below(list, fill(calendar.lists)) &
                    below(leaders.at(before), add(low, mul(slope, sub(before, begin)))) & ~result.nowhere;
    return result;
}

// Puts a leader there; false if the set is full.
template <class Set>
NODECACHE_TARGET NODECACHE_INLINE bool put(const Pool& pool, Calendar& calendar, Set& set, std::uint16_t leader,
                                           const Places& places, int lane) {
    if (places.nowhere >> lane & 1) return true;
    if (!(places.listed >> lane & 1)) return enter(pool, set, leader);
    std::uint16_t& first = calendar.first[static_cast<int>(places.list[lane])];
    calendar.next[leader] = first;
    first = leader;
    return true;
}

// Puts whoever is below the floor at `step` back into the calendar. False if somebody is left out because the set is full.
template <class Set>
NODECACHE_TARGET static bool leave(Pool& pool, Calendar& calendar, Set& set, double step) {
    double weight[Set::kRoom + kLanes], drawn[Set::kRoom + kLanes];
    std::uint16_t leader[Set::kRoom];
    int size = 0;
    const Vector now = fill(step), floor = fill(calendar.floor.at(step));
    // From the last one on, so that whoever moves into a place that is left has been looked at.
    for (int v = (set.used - 1) / kLanes * kLanes; v >= 0; v -= kLanes)
        for (unsigned out = below(Rays{load(set.weight + v), load(set.drawn + v)}.at(now), floor); out;) {
            const int s = v + 31 - __builtin_clz(out);
            out ^= 1u << (s - v);
            if (s >= set.used) continue;
            weight[size] = set.weight[s];
            drawn[size] = set.drawn[s];
            leader[size] = leader_in(set, s);
            size += drawn[size] < kInfinity;
            settle(pool, set, s);
            move(set, s, --set.used);
        }
    bool fits = true;
    for (int v = 0; v < size; v += kLanes) {
        const Places where = places(calendar, Set::kGroup, {load(weight + v), load(drawn + v)}, step);
        for (int lane = 0; lane < kLanes && v + lane < size; ++lane)
            fits = put(pool, calendar, set, leader[v + lane], where, lane) && fits;
    }
    return fits;
}

// Finds the wanted number of leaders with the largest errors, and tells who has the least of these. Those above the
// calendar's guess are looked at first, and all where they are too few.
template <int kMost>
NODECACHE_TARGET static Contender last_of_the_best(const Pool& pool, double step, Calendar& calendar) {
    int wanted = calendar.wanted;
    double guess = calendar.guess;
    Contender found[kMost + kLanes];
    const auto larger = [](const Contender& a, const Contender& b) { return a.error > b.error; };
    for (;; guess = -kInfinity) {
        const Vector now = fill(step);
        double bound = guess;
        int size = 0;
        for (std::int32_t j = 0; j < pool.count; j += kLanes) {
            for (unsigned in = kAll ^ below(rays(pool, j).at(now), fill(bound)); in; in &= in - 1) {
                const std::int32_t k = j + __builtin_ctz(in);
                if (k >= pool.count || !(pool.drawn[k] < kInfinity)) continue;
                const double error = pool.weights[k] * step - pool.drawn[k];
                if (!(error < bound)) found[size++] = {error, static_cast<std::uint16_t>(k)};
            }
            if (size >= kMost) {
                std::nth_element(found, found + wanted - 1, found + size, larger);
                size = wanted;
                bound = found[wanted - 1].error;
            }
        }
        if (size < wanted && guess > -kInfinity) continue;
        if (size == 0) return {-kInfinity, 0};
        wanted = std::min(wanted, size);
        std::nth_element(found, found + wanted - 1, found + size, larger);
        calendar.top = std::min_element(found, found + wanted, larger)->error;
        return found[wanted - 1];
    }
}

// Makes a calendar for the steps from i on, up to `stop` at most, with a line that is nowhere below `under`. False if the
// set cannot hold all who are above any useful line.
template <class Set>
NODECACHE_TARGET static bool make_calendar(Pool& pool, Calendar& calendar, Set& set, const Line& under, std::int64_t i,
                                           std::int64_t stop, Poll& poll) {
    constexpr int kGroup = Set::kGroup;
    const double step = static_cast<double>(i > 1 ? i : 1);
    for (int attempt = 0; attempt < 3; ++attempt) {
        poll.spend(2 * pool.count);
        const Contender least = last_of_the_best<256 * Set::kUnit>(pool, step, calendar);
        calendar.low = least.error;
        calendar.rise = pool.weights[least.leader];
        calendar.lists = static_cast<int>(std::min<std::int64_t>(calendar.span, (stop - i + kGroup - 1) / kGroup));
        const double end = step + calendar.lists * kGroup;
        Line& floor = calendar.floor = {step, least.error, calendar.trend};
        if (!(floor.low >= under.at(step))) floor.low = under.at(step);
        if (!(floor.at(end) >= under.at(end))) floor.slope = (under.at(end) - floor.low) / (end - step);
        const double low = floor.low, high = floor.at(end);
        // Rounding moves an error, an end of a line or a point between them by less than this.
        const double margin = 0x1p-49 * (pool.heaviest * end + std::fabs(low) + std::fabs(high) + 1e-300);
        calendar.line = {step, low + margin, floor.slope};
        calendar.end = end;
        std::fill(calendar.first.get(), calendar.first.get() + calendar.lists, kNobody);
        set.used = 0;
        bool fits = true;
        const Vector first = fill(step), last = fill(end), floor_first = fill(low), floor_last = fill(high);
        for (std::int32_t j = 0; j < pool.count && fits; j += kLanes) {
            const Rays here = rays(pool, j);
            unsigned in = kAll ^ (below(here.at(first), floor_first) & below(here.at(last), floor_last));
            if (!in) continue;
            const Places where = places(calendar, kGroup, here, step);
            for (; in; in &= in - 1) {
                const std::int32_t k = j + __builtin_ctz(in);
                if (k >= pool.count || !(pool.drawn[k] < kInfinity)) continue;
                fits = fits && put(pool, calendar, set, static_cast<std::uint16_t>(k), where, __builtin_ctz(in));
            }
        }
        if (fits && set.used < Set::kRoom - 2 * kGroup) return true;
        calendar.trend = calendar.rise;
        calendar.wanted = std::max(4 * Set::kUnit, calendar.wanted / 2);
        calendar.span = std::max(1, calendar.span / 8);
    }
    return false;
}

// Draws from a slot whose draw is not simply one draw more, and among several slots that are equally far behind.
NODECACHE_TARGET static void draw_special(Pool& pool, Slots& slots, const Some& best, std::int64_t i, BlendOutput out) {
    int slot = -1;
    for (int w = 0; w * 64 < slots.used; ++w)
        for (std::uint64_t word = best.word[w]; word; word &= word - 1) {
            const int s = w * 64 + __builtin_ctzll(word);
            if (slot < 0 || slots.seat[s].head < slots.seat[slot].head) slot = s;
        }
    Seat& seat = slots.seat[slot];
    const std::uint16_t head = seat.head, after = pool.after[head];
    out.dataset[i * out.dataset_stride] = static_cast<std::int16_t>(head);
    out.sample[i * out.sample_stride] = seat.count;
    seat.head = after;
    if (after > head) return;
    ++seat.count;
    slots.drawn[slot] = seat.count < seat.limit ? slots.drawn[slot] + 1 : kInfinity;
    if (seat.count + 1 >= seat.limit) slots.special.set(slot, true);
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
// line there.
//
// A step can only begin when the last one's winner is known, and that takes longer than all the rest. So where there are
// registers for it, everybody's next error is computed before that, as it will be with and without one draw more.
template <int kVectors>
NODECACHE_TARGET static std::int64_t draw_group(Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                std::int64_t stop, BlendOutput out, double& best) {
    constexpr int kWords = (kVectors * kLanes + 63) / 64;
    constexpr bool kEarly = kVectors <= 4;
    Vector drawn[kVectors], error[kVectors], same[kEarly ? kVectors : 1], less[kEarly ? kVectors : 1];
    double step = static_cast<double>(i > 1 ? i : 1);
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
        Some winners{};
        NODECACHE_UNROLL
        for (int v = 0; v < kVectors; ++v)
            winners.word[v * kLanes / 64] |= static_cast<std::uint64_t>(equal(error[v], most)) << (v * kLanes % 64);
        const double now_best = one(most);
        if (__builtin_expect(!(now_best > line.at(step)), 0)) break;
        best = now_best;
        step = next;
        int slot = 0, words = 0;
        std::uint64_t odd = 0;
        for (int w = 0; w < kWords; ++w) {
            const std::uint64_t word = winners.word[w];
            odd |= (word & (word - 1)) | (word & slots.special.word[w]);
            words += word != 0;
            slot = word ? w * 64 + __builtin_ctzll(word) : slot;
        }
        if (__builtin_expect(odd != 0 || words > 1, 0)) {
            NODECACHE_UNROLL
            for (int v = 0; v < kVectors; ++v) store(slots.drawn + v * kLanes, drawn[v]);
            draw_special(pool, slots, winners, i, out);
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
        Seat& seat = slots.seat[slot];
        const std::int64_t count = seat.count;
        out.dataset[i * out.dataset_stride] = static_cast<std::int16_t>(seat.head);
        out.sample[i * out.sample_stride] = count;
        seat.count = count + 1;
        if (__builtin_expect(count + 2 >= seat.limit, 0)) slots.special.set(slot, true);
    }
    NODECACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(slots.drawn + v * kLanes, drawn[v]);
    return i;
}

NODECACHE_TARGET static std::int64_t draw(Pool& pool, Slots& slots, const Line& line, std::int64_t i, std::int64_t stop,
                                          BlendOutput out, Poll& poll, double& best) {
    constexpr decltype(&draw_group<1>) kWays[] = {draw_group<kWidths[0]>, draw_group<kWidths[1]>, draw_group<kWidths[2]>,
                                                 draw_group<kWidths[3]>, draw_group<kWidths[4]>};
    poll.spend(16 * (stop - i));
    int way = 0;
    while (kWidths[way] * kLanes < slots.used) ++way;
    for (int s = slots.used; s < kWidths[way] * kLanes; ++s) {
        slots.weight[s] = 0;
        slots.drawn[s] = kInfinity;
    }
    return kWays[way](pool, slots, line, i, stop, out, best);
}

template <class Set>
NODECACHE_TARGET static std::int64_t draw_set(Pool& pool, Calendar& calendar, Set& set, const Line& under, std::int64_t i,
                                              std::int64_t stop, BlendOutput out, Poll& poll, double& best);

NODECACHE_TARGET static std::int64_t draw(Pool& pool, Near& near, const Line& line, std::int64_t i, std::int64_t stop,
                                          BlendOutput out, Poll& poll, double& best) {
    const std::int64_t* limits = pool.limits ? near.limit : nullptr;
    Pool few{near.weight, limits, near.used, pool.heaviest, near.drawn, near.head, pool.after};
    return draw_set(few, near.calendar, near.slots, line, i, stop, out, poll, best);
}

// Draws from a pool from step i on, with a calendar for who is in the set; returns the first step that it has not done,
// before `stop` if nobody is above `under` there.
template <class Set>
NODECACHE_TARGET static std::int64_t draw_set(Pool& pool, Calendar& calendar, Set& set, const Line& under, std::int64_t i,
                                              std::int64_t stop, BlendOutput out, Poll& poll, double& best) {
    constexpr int kGroup = Set::kGroup, kUnit = Set::kUnit;
    while (i < stop) {
        if (!make_calendar(pool, calendar, set, under, i, stop, poll)) {
            // The set cannot hold all who might win: compare all, and longer each time that this happens in a row.
            for (std::int64_t end = std::min(stop, i + (std::int64_t{1} << calendar.patience)); i < end; ++i)
                if (draw_one(pool, under, i, out, poll, best) == kNobody) return i;
            calendar.patience = std::min(calendar.patience + 1, 6);
            continue;
        }
        const std::int64_t begin = i;
        int misses = 0, in_a_row = 0;
        bool full = false, none = false;
        for (int list = 0; list < calendar.lists && i < stop; ++list) {
            for (std::uint16_t leader = calendar.first[list]; leader != kNobody && !full;) {
                const std::uint16_t next = calendar.next[leader];
                full = !enter(pool, set, leader);
                leader = next;
            }
            if (full) break;
            const std::int64_t end = std::min(stop, begin + (list + 1) * kGroup);
            while (i < end) {
                const std::int64_t from = i;
                i = draw(pool, set, calendar.line, i, end, out, poll, best);
                if (i == end) break;
                in_a_row = i > from ? 1 : in_a_row + 1;
                ++misses;
                if (i > begin && (in_a_row > 1 || misses > Set::kPatience)) break;
                // Nobody is above the line: one draw is made from all.
                settle_all(pool, set);
                const std::uint16_t leader = draw_one(pool, under, i, out, poll, best);
                none = leader == kNobody;
                if (none) break;
                ++i;
                for (int s = 0; s < set.used; ++s)
                    if (leader_in(set, s) == leader) sit(pool, set, s, leader);
            }
            if (i < end) break;
            full = !leave(pool, calendar, set, static_cast<double>(i > 1 ? i : 1));
            if (full) break;
        }
        settle_all(pool, set);
        const auto steps = static_cast<double>(i - begin);
        // The trend is that from the last calendar to this one; after one that was soon over, that of the drawn errors.
        double trend = calendar.trend;
        if (calendar.last_steps >= kGroup / 2)
            trend = (calendar.low - calendar.last_low) / calendar.last_steps;
        else if (steps > 4 * kUnit)
            trend = (best - calendar.top) / (steps - 1);
        if (full && steps < 2 * kGroup)
            calendar.trend = calendar.rise;
        else if (std::fabs(trend) <= pool.heaviest)
            calendar.trend += Set::kGain * (trend - calendar.trend);
        calendar.last_low = calendar.low;
        calendar.last_steps = steps;
        if (steps >= 2 * kGroup) calendar.patience = 0;
        calendar.guess = best - 1.5 * (calendar.top - calendar.low);
        if (full)
            calendar.wanted = std::max(8 * kUnit, calendar.wanted - 4 * kUnit);
        else if (misses > Set::kPatience || in_a_row > 1)
            calendar.wanted = std::min(40 * kUnit, calendar.wanted + 4 * kUnit);
        else if (misses <= Set::kPatience / 2)
            calendar.wanted = std::max(8 * kUnit, calendar.wanted - kUnit);
        // What was cut short by `stop` tells nothing of how long a calendar lasts.
        if (i < stop || calendar.lists == calendar.span)
            calendar.span = std::max(2, std::min(Calendar::kMost, static_cast<int>(2 * steps / kGroup)));
        if (none) return i;
    }
    return i;
}

}  // namespace

NODECACHE_TARGET void NODECACHE_SEARCH(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll) {
    constexpr std::int64_t kChunk = 1 << 14;
    Pool& pool = all.pool;
    double best = 0;
    std::int64_t i = 0;
    if (all.leaders <= kFew) {
        Slots slots;
        for (std::int32_t j = 0; j < pool.count; ++j)
            if (pool.drawn[j] < kInfinity) sit(pool, slots, slots.used++, static_cast<std::uint16_t>(j));
        while (i < size) i = draw(pool, slots, Line{}, i, std::min(size, i + kChunk), out, poll, best);
        return;
    }
    const auto near = std::make_unique<Near>();
    if (all.leaders <= Near::kRoom) {
        for (std::int32_t j = 0; j < pool.count; ++j)
            if (pool.drawn[j] < kInfinity) enter(pool, *near, static_cast<std::uint16_t>(j));
        draw(pool, *near, Line{}, 0, size, out, poll, best);
        return;
    }
    Calendar calendar(12 * Near::kUnit, pool.count);
    draw_set(pool, calendar, *near, Line{}, 0, size, out, poll, best);
}

}  // namespace nodecache
