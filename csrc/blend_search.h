// The search itself; blend.cpp includes it once for each vector width, with load, store, mul and the rest defined.
//
// Comparing all datasets at every step is what takes the time, so only a few, in the slots, are. An error is a straight
// line until its dataset is drawn: so it is known for everybody else before which step it cannot be above a given line of
// errors, and the calendar lets them into the slots by then. Whoever is above the line in a slot is the winner of all.
// Once nobody is, or the slots are full, a new calendar with a better line is made.
//
// Everything that decides is computed as the rule says. Rounding is monotone, so an error that is below the line at both
// ends of some steps, give or take the margin in the line, is below it in between.

NODECACHE_TARGET static double best_of_all(const Pool& pool, double step) {
    const Vector now = fill(step);
    Vector best = fill(-kInfinity);
    std::int32_t j = 0;
    for (; j + kLanes <= pool.count; j += kLanes)
        best = max(sub(mul(load(pool.weights + j), now), load(pool.drawn.get() + j)), best);
    double result = one(spread_max(best));
    for (; j < pool.count; ++j) {
        const double error = pool.weights[j] * step - pool.drawn[j];
        if (error > result) result = error;
    }
    return result;
}

NODECACHE_TARGET static std::uint16_t winner_of_all(const Pool& pool, double step, double best) {
    std::int32_t leader = -1;
    for (std::int32_t j = 0; j < pool.count; ++j)
        if (pool.weights[j] * step - pool.drawn[j] == best && (leader < 0 || pool.head[j] < pool.head[leader])) leader = j;
    return static_cast<std::uint16_t>(leader);
}

NODECACHE_TARGET static void draw_one(Pool& pool, std::uint16_t leader, std::int64_t i, BlendOutput out) {
    const std::uint16_t head = pool.head[leader], after = pool.after[head];
    const double drawn = pool.drawn[leader];
    out.dataset[i * out.dataset_stride] = static_cast<std::int16_t>(head);
    out.sample[i * out.sample_stride] = static_cast<std::int64_t>(drawn);
    pool.head[leader] = after;
    if (after > head) return;
    pool.drawn[leader] = drawn + 1;
    if (pool.limits && pool.limits[leader] == static_cast<std::int64_t>(drawn) + 1) pool.drawn[leader] = kInfinity;
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
    slots.touched.set(s, false);
}

NODECACHE_TARGET NODECACHE_INLINE bool enter(const Pool& pool, Slots& slots, std::uint16_t leader) {
    if (slots.used == kRoom) return false;
    sit(pool, slots, slots.used++, leader);
    return true;
}

// Writes back what was drawn from a slot.
NODECACHE_TARGET NODECACHE_INLINE void settle(Pool& pool, const Slots& slots, int s) {
    const Seat& seat = slots.seat[s];
    pool.drawn[seat.leader] = slots.drawn[s];
    pool.head[seat.leader] = seat.head;
}

NODECACHE_TARGET static void settle_all(Pool& pool, Slots& slots) {
    for (int s = 0; s < slots.used; ++s)
        if (slots.touched.has(s)) settle(pool, slots, s);
    slots.touched.clear();
}

NODECACHE_TARGET NODECACHE_INLINE void leave(Slots& slots, int s) {
    const int last = --slots.used;
    slots.seat[s] = slots.seat[last];
    slots.weight[s] = slots.weight[last];
    slots.drawn[s] = slots.drawn[last];
    slots.special.set(s, slots.special.has(last));
}

// Where the calendar puts a leader who is below the line at `step`, and can be above it only after: in a list, nowhere
// (until the calendar ends), or, where that cannot be told, in the slots. False if these are full.
NODECACHE_TARGET NODECACHE_INLINE bool place(const Pool& pool, Calendar& calendar, Slots& slots, std::uint16_t leader,
                                             double step) {
    const Line& line = calendar.line;
    const double weight = pool.weights[leader], drawn = pool.drawn[leader];
    if (weight * calendar.end - drawn < line.at(calendar.end)) return true;
    const double rest = (line.at(step) - (weight * step - drawn)) / (weight - line.slope);
    const double since = step - line.begin + rest;
    if (!(since >= 0 && since < calendar.end - line.begin + kGroup)) return enter(pool, slots, leader);
    const int list = std::min(static_cast<int>(since * (1.0 / kGroup)), calendar.lists - 1);
    // The end of the steps before the list's first one; the leader must be below the line there.
    const double before = line.begin + list * kGroup - 1;
    if (!(before >= step) || !(weight * before - drawn < line.at(before))) return enter(pool, slots, leader);
    calendar.next[leader] = calendar.first[list];
    calendar.first[list] = leader;
    return true;
}

struct Contender {
    double error;
    std::uint16_t leader;
};

// Finds the `wanted` leaders with the largest errors, with the least of these first. Anything above `guess` is looked at
// first, and everything where that is too little.
NODECACHE_TARGET static Contender last_of_the_best(const Pool& pool, double step, double guess, int wanted) {
    constexpr int kMost = 256;
    Contender found[kMost + kLanes];
    const auto larger = [](const Contender& a, const Contender& b) { return a.error > b.error; };
    for (;; guess = -kInfinity) {
        const Vector now = fill(step);
        double bound = guess;
        int size = 0;
        for (std::int32_t j = 0; j < pool.count; j += kLanes) {
            unsigned in = (1u << kLanes) - 1;
            if (j + kLanes <= pool.count) {
                in ^= below(sub(mul(load(pool.weights + j), now), load(pool.drawn.get() + j)), fill(bound));
                if (!in) continue;
            }
            for (; in; in &= in - 1) {
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
        if (size >= wanted || !(guess > -kInfinity)) {
            wanted = std::min(wanted, size);
            std::nth_element(found, found + wanted - 1, found + size, larger);
            return found[wanted - 1];
        }
    }
}

// Makes a calendar for the steps from i on. False if the slots cannot hold all who are above any useful line.
NODECACHE_TARGET static bool make_calendar(Pool& pool, Calendar& calendar, Slots& slots, std::int64_t i, Poll& poll) {
    const double step = static_cast<double>(i > 1 ? i : 1);
    for (int attempt = 0; attempt < 3; ++attempt) {
        poll.spend(2 * pool.count);
        const Contender least = last_of_the_best(pool, step, calendar.guess, calendar.wanted);
        calendar.rise = pool.weights[least.leader];
        const double end = step + calendar.lists * kGroup;
        const double low = least.error, high = low + calendar.trend * (end - step);
        // Rounding moves an error, an end of the line or a point between them by less than this.
        const double margin = 0x1p-49 * (pool.heaviest * end + std::fabs(low) + std::fabs(high) + 1e-300);
        calendar.begin = i;
        calendar.end = end;
        calendar.line.begin = step;
        calendar.line.low = low + margin;
        calendar.line.slope = calendar.trend;
        std::fill(calendar.first.get(), calendar.first.get() + calendar.lists, kNobody);
        slots.used = 0;
        slots.special.clear();
        slots.touched.clear();
        bool fits = true;
        const Vector first = fill(step), last = fill(end), floor_first = fill(low), floor_last = fill(high);
        for (std::int32_t j = 0; j < pool.count && fits; j += kLanes) {
            unsigned in = (1u << kLanes) - 1;
            if (j + kLanes <= pool.count) {
                const Vector weight = load(pool.weights + j), drawn = load(pool.drawn.get() + j);
                in ^= below(sub(mul(weight, first), drawn), floor_first) & below(sub(mul(weight, last), drawn), floor_last);
            }
            for (; in; in &= in - 1) {
                const std::int32_t k = j + __builtin_ctz(in);
                if (k >= pool.count || !(pool.drawn[k] < kInfinity)) continue;
                const auto leader = static_cast<std::uint16_t>(k);
                const bool candidate = !(pool.weights[k] * step - pool.drawn[k] < low);
                fits = fits && (candidate ? enter(pool, slots, leader) : place(pool, calendar, slots, leader, step));
            }
        }
        if (fits && slots.used < kRoom - 2 * kGroup) return true;
        calendar.trend = calendar.rise;
        calendar.wanted = std::max(4, calendar.wanted / 2);
        calendar.lists = std::max(1, calendar.lists / 8);
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
    slots.touched.set(slot, true);
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
            for (int v = 0; v < kVectors; ++v) {
                const Vector reached = mul(load(slots.weight + v * kLanes), fill(next));
                same[v] = sub(reached, drawn[v]);
                less[v] = sub(reached, add(drawn[v], fill(1)));
            }
        const Vector most = spread_max(most_of<kVectors>(error));
        Some winners{};
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
            for (int v = 0; v < kVectors; ++v) store(slots.drawn + v * kLanes, drawn[v]);
            draw_special(pool, slots, winners, i, out);
            read<kVectors>(slots, step, drawn, error);
            continue;
        }
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
        for (int w = 0; w < kWords; ++w) slots.touched.word[w] |= winners.word[w];
        if (__builtin_expect(count + 2 >= seat.limit, 0)) slots.special.set(slot, true);
    }
    for (int v = 0; v < kVectors; ++v) store(slots.drawn + v * kLanes, drawn[v]);
    return i;
}

NODECACHE_TARGET static std::int64_t draw_slots(Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                std::int64_t stop, BlendOutput out, double& best) {
    constexpr decltype(&draw_group<1>) kWays[] = {draw_group<kWidths[0]>, draw_group<kWidths[1]>, draw_group<kWidths[2]>,
                                                 draw_group<kWidths[3]>, draw_group<kWidths[4]>};
    int way = 0;
    while (kWidths[way] * kLanes < slots.used) ++way;
    for (int s = slots.used; s < kWidths[way] * kLanes; ++s) {
        slots.weight[s] = 0;
        slots.drawn[s] = kInfinity;
    }
    return kWays[way](pool, slots, line, i, stop, out, best);
}

NODECACHE_TARGET static void search(Pool& pool, std::int64_t size, BlendOutput out, Poll& poll) {
    constexpr std::int64_t kChunk = 1 << 14;
    Slots slots;
    slots.used = 0;
    slots.special.clear();
    slots.touched.clear();
    double best = 0;
    std::int64_t i = 0;
    if (pool.leaders <= kFew) {
        for (std::int32_t j = 0; j < pool.count; ++j)
            if (pool.drawn[j] < kInfinity) sit(pool, slots, slots.used++, static_cast<std::uint16_t>(j));
        while (i < size) {
            poll.spend(kChunk * 16);
            i = draw_slots(pool, slots, Line{}, i, std::min(size, i + kChunk), out, best);
        }
        return;
    }

    Calendar calendar;
    calendar.size = std::max(16, pool.leaders / 2);
    calendar.lists = calendar.size;
    calendar.first = std::make_unique<std::uint16_t[]>(calendar.size);
    calendar.next = std::make_unique<std::uint16_t[]>(pool.count);
    const int patient = 8;
    double last_least = 0, last_steps = 0;
    int patience = 0;
    while (i < size) {
        if (!make_calendar(pool, calendar, slots, i, poll)) {
            // The slots cannot hold all who might win: compare all, and longer each time that this happens in a row.
            for (std::int64_t stop = std::min(size, i + (std::int64_t{1} << patience)); i < stop; ++i) {
                const double step = static_cast<double>(i > 1 ? i : 1);
                draw_one(pool, winner_of_all(pool, step, best_of_all(pool, step)), i, out);
                poll.spend(pool.count);
            }
            patience = std::min(patience + 1, 6);
            continue;
        }
        const std::int64_t begin = i;
        int misses = 0, in_a_row = 0;
        bool full = false;
        for (int list = 0; list < calendar.lists && i < size; ++list) {
            for (std::uint16_t leader = calendar.first[list]; leader != kNobody && !full;) {
                const std::uint16_t next = calendar.next[leader];
                full = !enter(pool, slots, leader);
                leader = next;
            }
            if (full) break;
            const std::int64_t stop = std::min(size, calendar.begin + (list + 1) * kGroup);
            while (i < stop) {
                const std::int64_t from = i;
                i = draw_slots(pool, slots, calendar.line, i, stop, out, best);
                if (i == stop) break;
                if (i > from) in_a_row = 0;
                ++misses;
                if (++in_a_row > 1 || misses > patient) break;
                // Nobody is above the line: one draw is made from all.
                settle_all(pool, slots);
                const double step = static_cast<double>(i > 1 ? i : 1);
                const std::uint16_t leader = winner_of_all(pool, step, best_of_all(pool, step));
                draw_one(pool, leader, i++, out);
                for (int s = 0; s < slots.used; ++s)
                    if (slots.seat[s].leader == leader) sit(pool, slots, s, leader);
                poll.spend(pool.count);
            }
            poll.spend(16 * kGroup);
            if (i < stop) break;
            const double step = static_cast<double>(i > 1 ? i : 1);
            const double floor = calendar.line.at(step);
            // From the last one on, so that whoever moves into a slot that is left has been looked at.
            for (std::uint64_t drawn = slots.touched.word[0]; drawn;) {
                const int s = 63 - __builtin_clzll(drawn);
                drawn ^= std::uint64_t{1} << s;
                settle(pool, slots, s);
                if (!(slots.weight[s] * step - slots.drawn[s] < floor)) continue;
                const std::uint16_t leader = slots.seat[s].leader;
                const bool spent = !(slots.drawn[s] < kInfinity);
                leave(slots, s);
                if (!spent && !place(pool, calendar, slots, leader, step)) full = true;
            }
            slots.touched.clear();
            if (full) break;
        }
        settle_all(pool, slots);
        const auto steps = static_cast<double>(i - begin);
        const double least = calendar.line.low;
        if (full && steps < 2 * kGroup) {
            calendar.trend = calendar.rise;
        } else if (last_steps >= kGroup / 2) {
            const double trend = (least - last_least) / last_steps;
            if (std::fabs(trend) <= pool.heaviest) calendar.trend += 0.5 * (trend - calendar.trend);
        }
        if (steps >= 2 * kGroup) patience = 0;
        last_least = least;
        last_steps = steps;
        calendar.guess = least - 2 * std::fabs(best - least);
        if (full)
            calendar.wanted = std::max(8, calendar.wanted - 4);
        else if (misses > patient || in_a_row > 1)
            calendar.wanted = std::min(40, calendar.wanted + 2);
        else if (misses < patient / 2)
            calendar.wanted = std::max(8, calendar.wanted - 1);
        calendar.lists = std::max(2, std::min(calendar.size, static_cast<int>(2 * steps / kGroup)));
    }
}
