// The search itself; blend.cpp includes it once for each vector width, with load, store, mul and the rest defined.
//
// Comparing all datasets at every step is what takes the time, so most of them are kept out of it. A list of candidates is
// sifted from all datasets, a shorter one from that list, and so on to the few slots that are compared at every step. A
// list holds for some steps ahead and comes with a line that the error of nobody outside it can exceed in that time: an
// error is a straight line until its dataset is drawn, so it is enough to look at both ends. Whoever is above the line in
// a slot is therefore the winner of all; once nobody is, the lists are sifted again.

// The largest error of all, and how many are within reach of winning; see the head of this file.
struct Sifted {
    int found;
    double best;
};

NODECACHE_TARGET static double best_of_all(const Pool& pool, double step) {
    const Vector now = fill(step);
    Vector best = fill(-kInfinity);
    std::int32_t j = 0;
    for (; j + kLanes <= pool.count; j += kLanes)
        best = max(sub(mul(load(pool.weights + j), now), load(pool.drawn.get() + j)), best);
    double result = top(best);
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

NODECACHE_TARGET static Sifted sift_all(const Pool& pool, double begin, double end, double low, double high,
                                        std::uint16_t* list, int capacity) {
    const Vector first = fill(begin), last = fill(end), floor_first = fill(low), floor_last = fill(high);
    Vector best = fill(-kInfinity);
    Sifted result{0, -kInfinity};
    std::int32_t j = 0;
    for (; j + kLanes <= pool.count; j += kLanes) {
        const Vector weight = load(pool.weights + j), drawn = load(pool.drawn.get() + j);
        const Vector error = sub(mul(weight, first), drawn);
        best = max(error, best);
        unsigned in = below(error, floor_first) & below(sub(mul(weight, last), drawn), floor_last);
        in ^= (1u << kLanes) - 1;
        for (; in; in &= in - 1) {
            if (result.found < capacity) list[result.found] = static_cast<std::uint16_t>(j + __builtin_ctz(in));
            ++result.found;
        }
    }
    result.best = top(best);
    for (; j < pool.count; ++j) {
        const double error = pool.weights[j] * begin - pool.drawn[j];
        if (error > result.best) result.best = error;
        if (error < low && pool.weights[j] * end - pool.drawn[j] < high) continue;
        if (result.found < capacity) list[result.found] = static_cast<std::uint16_t>(j);
        ++result.found;
    }
    return result;
}

NODECACHE_TARGET static Sifted sift_list(const Pool& pool, const Level& from, double begin, double end, double low,
                                         double high, std::uint16_t* list, int capacity) {
    Sifted result{0, -kInfinity};
    for (int k = 0; k < from.size; ++k) {
        const std::uint16_t j = from.list[k];
        const double weight = pool.weights[j], drawn = pool.drawn[j];
        const double error = weight * begin - drawn;
        result.best = error > result.best ? error : result.best;
        const bool out = (error < low) & (weight * end - drawn < high);
        if (result.found < capacity) list[result.found] = j;
        result.found += !out;
    }
    return result;
}

// Makes level k's list, and those it comes from where they have run out. False if no short enough list can be found.
NODECACHE_TARGET static bool renew(Pool& pool, Level* levels, int k, double step, double last_step, Poll& poll) {
    Level& level = levels[k];
    Level* from = k ? levels + k - 1 : nullptr;
    if (from && !(step < from->line.end) && !renew(pool, levels, k - 1, step, last_step, poll)) return false;

    double guess = level.best;
    if (level.best_at < step && level.best_at >= 0) guess += level.trend * (step - level.best_at);
    for (int attempt = 0; attempt < 6; ++attempt) {
        double end = std::min(step + std::max(1.0, std::floor(level.horizon)), last_step);
        if (from) end = std::min(end, from->line.end);
        const double low = guess - level.slack;
        const double high = low + level.trend * (end - step);
        poll.spend(from ? from->size : pool.count / 2);
        const Sifted sifted = from ? sift_list(pool, *from, step, end, low, high, level.list, level.capacity)
                                   : sift_all(pool, step, end, low, high, level.list, level.capacity);
        // Rounding moves an error, an end of the line or a point between them by less than this.
        const double margin = 0x1p-49 * (pool.heaviest * end + std::fabs(low) + std::fabs(high) + 1e-300);
        const double floor_now = std::max(low, from ? from->line.at(step) : low) + margin;
        const double floor_end = std::max(high, from ? from->line.at(end) : high) + margin;
        const bool near = std::fabs(sifted.best - guess) < 0.5 * level.slack;
        guess = sifted.best;
        if (sifted.found > level.capacity) {
            if (near) {
                level.slack *= 0.5;
                if (attempt & 1) level.horizon = std::max(2.0, level.horizon * 0.5);
            }
            continue;
        }
        if (!(sifted.best > floor_now)) {
            if (from && !(sifted.best > from->line.at(step) + margin)) {
                if (!renew(pool, levels, k - 1, step, last_step, poll)) return false;
            } else if (near) {
                level.slack *= 2;
            }
            continue;
        }
        level.size = sifted.found;
        if (level.best_at >= 0 && level.best_at < step) {
            const double trend = (sifted.best - level.best) / (step - level.best_at);
            if (std::fabs(trend) <= pool.heaviest) level.trend += 0.5 * (trend - level.trend);
        }
        level.best = sifted.best;
        level.best_at = step;
        level.line.begin = step;
        level.line.end = end;
        level.line.low = floor_now;
        level.line.slope = end > step ? (floor_end - floor_now) / (end - step) : 0;
        if (sifted.found > level.capacity * 3 / 4) {
            level.horizon = std::max(2.0, level.horizon * 0.85);
            level.slack *= 0.9;
        } else if (sifted.found < level.capacity / 3) {
            level.horizon *= 1.15;
            level.slack *= 1.1;
        }
        return true;
    }
    return false;
}

NODECACHE_TARGET static void fill_slots(const Pool& pool, Slots& slots, int used) {
    for (int s = 0; s < used; ++s) {
        const std::uint16_t j = slots.leader[s];
        slots.weight[s] = pool.weights[j];
        slots.drawn[s] = pool.drawn[j];
        slots.head[s] = pool.head[j];
    }
    for (; used % kLanes; ++used) {
        slots.weight[used] = 0;
        slots.drawn[used] = kInfinity;
    }
    slots.used = used;
}

// Draws from the slots from step i on; returns the first step that it has not done, before `stop` if nobody is above the
// line there.
NODECACHE_TARGET static std::int64_t draw_slots(Pool& pool, Slots& slots, const Line& line, std::int64_t i,
                                                std::int64_t stop, BlendOutput out, double& best) {
    alignas(64) double errors[kSlots];
    alignas(64) double one[2 * kLanes] = {};
    one[kLanes] = 1;
    for (; i < stop; ++i) {
        const double step = static_cast<double>(i > 1 ? i : 1);
        const Vector now = fill(step);
        Vector most = fill(-kInfinity);
        for (int s = 0; s < slots.used; s += kLanes) {
            const Vector error = sub(mul(load(slots.weight + s), now), load(slots.drawn + s));
            store(errors + s, error);
            most = max(error, most);
        }
        best = top(most);
        if (!(best > line.at(step))) break;
        const Vector winning = fill(best);
        std::uint64_t mask = 0;
        for (int s = 0; s < slots.used; s += kLanes)
            mask |= static_cast<std::uint64_t>(equal(load(errors + s), winning)) << s;
        int slot = __builtin_ctzll(mask);
        if (mask & (mask - 1))
            for (std::uint64_t rest = mask & (mask - 1); rest; rest &= rest - 1) {
                const int other = __builtin_ctzll(rest);
                if (slots.head[other] < slots.head[slot]) slot = other;
            }
        const std::uint16_t leader = slots.leader[slot], head = slots.head[slot], after = pool.after[head];
        const double drawn = slots.drawn[slot];
        out.dataset[i * out.dataset_stride] = static_cast<std::int16_t>(head);
        out.sample[i * out.sample_stride] = static_cast<std::int64_t>(drawn);
        if (after > head) {
            slots.head[slot] = pool.head[leader] = after;
            continue;
        }
        // As wide as the next step's load: a narrower store would have to reach the cache before it could be read.
        double* group = slots.drawn + slot / kLanes * kLanes;
        store(group, add(load(group), load(one + kLanes - slot % kLanes)));
        pool.drawn[leader] = drawn + 1;
        if (after != head) slots.head[slot] = pool.head[leader] = after;
        if (pool.limits && pool.limits[leader] == static_cast<std::int64_t>(drawn) + 1)
            slots.drawn[slot] = pool.drawn[leader] = kInfinity;
    }
    return i;
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

NODECACHE_TARGET static void search(Pool& pool, std::int64_t size, BlendOutput out, Poll& poll) {
    constexpr std::int64_t kChunk = 1 << 14;
    Slots slots;
    std::int64_t i = 0;
    double best = 0;
    if (pool.leaders <= kSlots) {
        int used = 0;
        for (std::int32_t j = 0; j < pool.count; ++j)
            if (pool.drawn[j] < kInfinity) slots.leader[used++] = static_cast<std::uint16_t>(j);
        fill_slots(pool, slots, used);
        while (i < size) {
            poll.spend(kChunk * 16);
            i = draw_slots(pool, slots, Line{}, i, std::min(size, i + kChunk), out, best);
        }
        return;
    }

    Level levels[kLevels];
    int lists = 0;
    for (double ratio = static_cast<double>(pool.leaders) / kSlots; ratio > 9 && lists + 1 < kLevels; ratio /= 6) ++lists;
    const double shrink = std::pow(static_cast<double>(pool.leaders) / kSlots, 1.0 / (lists + 1));
    std::unique_ptr<std::uint16_t[]> memory;
    {
        int total = 0;
        double capacity = pool.leaders;
        for (int k = 0; k < lists; ++k) total += levels[k].capacity = static_cast<int>(capacity /= shrink);
        memory = std::make_unique<std::uint16_t[]>(total);
        std::uint16_t* free = memory.get();
        for (int k = 0; k < lists; ++k) {
            levels[k].list = free;
            free += levels[k].capacity;
        }
        levels[lists].list = slots.leader;
        levels[lists].capacity = kSlots;
        for (int k = 0; k <= lists; ++k) {
            levels[k].horizon = std::max(4.0, levels[k].capacity / 5.0);
            levels[k].slack = 2 * pool.mean * levels[k].horizon;
        }
    }
    const double last_step = static_cast<double>(size);
    int patience = 0;
    while (i < size) {
        double step = static_cast<double>(i > 1 ? i : 1);
        if (i > 1 && renew(pool, levels, lists, step, std::max(last_step, step + 1), poll)) {
            const Level& level = levels[lists];
            fill_slots(pool, slots, level.size);
            const std::int64_t begin = i;
            i = draw_slots(pool, slots, level.line, i, std::min(size, static_cast<std::int64_t>(level.line.end)), out, best);
            poll.spend((i - begin + 2) * 16);
            if (i - begin > 2) patience = 0;
            step = static_cast<double>(i);
            if (step < level.line.end) {
                for (int k = 0; k <= lists; ++k)
                    if (!(best > levels[k].line.at(step))) {
                        levels[k].slack *= 1.15;
                        levels[k].line.end = step;
                        break;
                    }
                levels[lists].line.end = step;
            } else {
                levels[lists].slack *= 0.98;
            }
            continue;
        }
        // No list is short enough: compare all, and longer each time that this happens in a row.
        for (std::int64_t stop = std::min(size, i + (std::int64_t{1} << patience)); i < stop; ++i) {
            step = static_cast<double>(i > 1 ? i : 1);
            best = best_of_all(pool, step);
            draw_one(pool, winner_of_all(pool, step, best), i, out);
            poll.spend(pool.count);
        }
        patience = std::min(patience + 1, 6);
        for (int k = 0; k <= lists; ++k) {
            levels[k].best = best;
            levels[k].best_at = -1;
            levels[k].line.end = 0;
        }
    }
}
