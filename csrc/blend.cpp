#include "blend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nodecache {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the search knows of some leaders. Datasets of one weight form a ring in the order of their indices. Of these the
// next to be drawn is always known (the fewest draws, then the lowest index), so that only the ring's first member, its
// leader, takes part in the search.
struct Pool {
    const double* weights;
    const std::int64_t* limits;
    std::int32_t count;
    double heaviest;
    double* drawn;               // of the ring's head, at its leader; infinite for all that cannot be drawn
    std::uint16_t* head;         // of the ring, at its leader
    const std::uint16_t* after;  // the next one in the ring, at each dataset; itself if alone
};

// All datasets: twelve bytes each beside the caller's weights, and two in the calendar.
struct Everybody {
    Pool pool;
    std::int32_t leaders;
    std::unique_ptr<double[]> drawn;
    std::unique_ptr<std::uint16_t[]> head, after;
};

constexpr std::uint16_t kNobody = 0xffff;

Everybody make_pool(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size) {
    Everybody all{};
    all.drawn = std::make_unique<double[]>(count);
    all.head = std::make_unique<std::uint16_t[]>(count);
    all.after = std::make_unique<std::uint16_t[]>(count);
    std::uint16_t* const last = all.head.get();  // of the ring so far, at its leader
    std::uint16_t* const after = all.after.get();
    const double heaviest = *std::max_element(weights, weights + count);
    // Beyond 2^51 one draw more may not change the rounded error, and the ring's order would not be the rule's.
    const bool rings = heaviest * static_cast<double>(std::max<std::int64_t>(size, 1)) < 0x1p51;
    // The leaders by a hash of their weights: sorting thousands would take longer than drawing a sample of each.
    const std::size_t room = 2 * static_cast<std::size_t>(count);
    const auto leader_of = std::make_unique<std::uint16_t[]>(room);
    std::fill(leader_of.get(), leader_of.get() + room, kNobody);
    for (std::int32_t j = 0; j < count; ++j) {
        const auto here = static_cast<std::uint16_t>(j);
        all.drawn[j] = kInfinity;
        last[j] = after[j] = here;
        if (!(weights[j] > 0)) continue;
        std::uint16_t leader = kNobody;
        if (rings) {
            std::uint64_t bits;
            std::memcpy(&bits, weights + j, sizeof bits);
            std::size_t place = (bits * 0x9e3779b97f4a7c15 >> 32) * room >> 32;
            while (leader_of[place] != kNobody && weights[leader_of[place]] != weights[j]) place = (place + 1) % room;
            leader = leader_of[place];
            if (leader == kNobody) leader_of[place] = here;
        }
        if (leader == kNobody) {
            all.drawn[j] = 0;
            ++all.leaders;
        } else {
            after[last[leader]] = here;
            after[j] = leader;
            last[leader] = here;
        }
    }
    for (std::int32_t j = 0; j < count; ++j) all.head[j] = static_cast<std::uint16_t>(j);
    all.pool = {weights, limits, count, heaviest, all.drawn.get(), all.head.get(), after};
    return all;
}

// A line of errors over the steps.
struct Line {
    double begin = 0, low = -kInfinity, slope = 0;
    double at(double step) const { return low + slope * (step - begin); }
};

// When everybody who is not in a set may become a candidate for it: lists of leaders, each for one group of steps.
struct Calendar {
    static constexpr int kMost = 512;        // lists
    Line floor;                              // whoever is not in the set is below it at both ends of some steps,
    Line line;                               // and so not above this one in between
    double end = 0;                          // the last step that it tells about
    std::unique_ptr<std::uint16_t[]> first;  // of each list
    std::unique_ptr<std::uint16_t[]> next;   // in its list
    int lists = 0;                           // lists in use
    int span = kMost;                        // lists to use in the next one
    int wanted = 0;                          // candidates at the beginning
    double top = 0, low = 0;                 // the largest and the least of their errors
    double last_low = 0, last_steps = 0;     // of the calendar before, and how long it lasted
    double guess = -kInfinity;               // of the next line's beginning
    double trend = 0;                        // rise of the line per step
    double rise = 0;                         // the same for who is just on it, until they are drawn
    int patience = 0;                        // how often in a row there was none

    // For leaders below `count`.
    Calendar(int candidates, std::int32_t count)
        : first(std::make_unique<std::uint16_t[]>(kMost)),
          next(std::make_unique<std::uint16_t[]>(count)),
          wanted(candidates) {}
};

// There are two sets with a calendar: the slots, and those near the line, among whom the slots' candidates are found. A
// new calendar takes time linear in the leaders that it is for, so that one for all of them must last long. Its set is
// made large, for the more candidates there are, the longer it takes until none is left, or too many are. The slots'
// calendar, whose set must be small, is only for those near the line.

constexpr int kSlots = 128;  // whoever is compared at every step
struct Seat {
    std::int64_t count;  // draws from the ring's head
    std::int64_t limit;
    std::uint16_t leader;
    std::uint16_t head;
};

// Some of the slots.
struct Some {
    static constexpr int kWords = kSlots / 64;
    std::uint64_t word[kWords];

    bool has(int s) const { return word[s / 64] >> s % 64 & 1; }
    void set(int s, bool in) {
        const std::uint64_t bit = std::uint64_t{1} << s % 64;
        word[s / 64] = (word[s / 64] & ~bit) | (in ? bit : 0);
    }
};

struct Slots {
    static constexpr int kRoom = 64;      // in use where there is a calendar
    static constexpr int kGroup = 8;      // steps between two changes of who is in them
    static constexpr int kUnit = 1;       // by how many candidates more or less to try
    static constexpr int kPatience = 8;   // steps without a candidate that a calendar may have
    static constexpr double kGain = 0.5;  // how much of a new trend to believe
    alignas(64) double weight[kSlots];
    alignas(64) double drawn[kSlots];  // the seat's count; infinite when it is spent
    Seat seat[kSlots];
    Some special;                      // whose draw is not just one draw more: rings, and the last draw of all
    int used = 0;
};

struct Near {
    static constexpr int kRoom = 2048;
    static constexpr int kGroup = 256;
    static constexpr int kUnit = 8;
    static constexpr int kPatience = 0;
    static constexpr double kGain = 0.75;
    alignas(64) double weight[kRoom];
    alignas(64) double drawn[kRoom];
    std::int64_t limit[kRoom];
    std::uint16_t head[kRoom];
    std::uint16_t leader[kRoom];
    int used = 0;
    Slots slots;
    Calendar calendar{12 * Slots::kUnit, kRoom};  // of the slots
};

struct Contender {
    double error;
    std::uint16_t leader;
};

#define NODECACHE_METHOD inline __attribute__((always_inline))
#define NODECACHE_INLINE static NODECACHE_METHOD

#if defined(__x86_64__)
namespace wide512 {
#define NODECACHE_TARGET __attribute__((target("avx512f,avx512dq,avx512vl")))
constexpr int kLanes = 8;
constexpr int kWidths[] = {1, 2, 4, 8, 13};  // vectors of slots; what the registers hold
constexpr int kFew = 13 * kLanes;            // leaders for whom comparing all is quicker than a calendar
using Vector = __m512d;
NODECACHE_TARGET NODECACHE_INLINE Vector load(const double* p) { return _mm512_loadu_pd(p); }
NODECACHE_TARGET NODECACHE_INLINE void store(double* p, Vector v) { _mm512_storeu_pd(p, v); }
NODECACHE_TARGET NODECACHE_INLINE Vector fill(double x) { return _mm512_set1_pd(x); }
NODECACHE_TARGET NODECACHE_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector div(Vector a, Vector b) { return _mm512_div_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector max(Vector a, Vector b) { return _mm512_max_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector spread_max(Vector v) {
    v = _mm512_max_pd(v, _mm512_shuffle_f64x2(v, v, 0x4e));
    v = _mm512_max_pd(v, _mm512_shuffle_f64x2(v, v, 0xb1));
    return _mm512_max_pd(v, _mm512_permute_pd(v, 0x55));
}
NODECACHE_TARGET NODECACHE_INLINE double one(Vector v) { return _mm512_cvtsd_f64(v); }
NODECACHE_TARGET NODECACHE_INLINE Vector add_where_equal(Vector v, Vector a, Vector b) {
    return _mm512_mask_add_pd(v, _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ), v, _mm512_set1_pd(1));
}
NODECACHE_TARGET NODECACHE_INLINE Vector choose_where_equal(Vector other, Vector v, Vector a, Vector b) {
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ), other, v);
}
NODECACHE_TARGET NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ);
}
NODECACHE_TARGET NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ);
}
#include "blend_search.h"
#undef NODECACHE_TARGET
}  // namespace wide512

namespace wide256 {
#define NODECACHE_TARGET __attribute__((target("avx2")))
constexpr int kLanes = 4;
constexpr int kWidths[] = {1, 2, 4, 8, 16};
constexpr int kFew = 16 * kLanes;
using Vector = __m256d;
NODECACHE_TARGET NODECACHE_INLINE Vector load(const double* p) { return _mm256_loadu_pd(p); }
NODECACHE_TARGET NODECACHE_INLINE void store(double* p, Vector v) { _mm256_storeu_pd(p, v); }
NODECACHE_TARGET NODECACHE_INLINE Vector fill(double x) { return _mm256_set1_pd(x); }
NODECACHE_TARGET NODECACHE_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector div(Vector a, Vector b) { return _mm256_div_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector max(Vector a, Vector b) { return _mm256_max_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector spread_max(Vector v) {
    v = _mm256_max_pd(v, _mm256_permute2f128_pd(v, v, 1));
    return _mm256_max_pd(v, _mm256_permute_pd(v, 5));
}
NODECACHE_TARGET NODECACHE_INLINE double one(Vector v) { return _mm256_cvtsd_f64(v); }
NODECACHE_TARGET NODECACHE_INLINE Vector add_where_equal(Vector v, Vector a, Vector b) {
    return _mm256_add_pd(v, _mm256_and_pd(_mm256_cmp_pd(a, b, _CMP_EQ_OQ), _mm256_set1_pd(1)));
}
NODECACHE_TARGET NODECACHE_INLINE Vector choose_where_equal(Vector other, Vector v, Vector a, Vector b) {
    return _mm256_blendv_pd(other, v, _mm256_cmp_pd(a, b, _CMP_EQ_OQ));
}
NODECACHE_TARGET NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_EQ_OQ)));
}
NODECACHE_TARGET NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_LT_OQ)));
}
#include "blend_search.h"
#undef NODECACHE_TARGET
}  // namespace wide256
#endif

namespace plain {
#define NODECACHE_TARGET
constexpr int kLanes = 4;
constexpr int kWidths[] = {1, 2, 4, 8, 16};
constexpr int kFew = 8 * kLanes;
struct Vector {
    double lane[kLanes];
};
template <class Operation>
NODECACHE_INLINE Vector each(Vector a, Vector b, Operation operation) {
    for (int k = 0; k < kLanes; ++k) a.lane[k] = operation(a.lane[k], b.lane[k]);
    return a;
}
NODECACHE_INLINE Vector load(const double* p) { return {{p[0], p[1], p[2], p[3]}}; }
NODECACHE_INLINE void store(double* p, Vector v) { std::copy(v.lane, v.lane + kLanes, p); }
NODECACHE_INLINE Vector fill(double x) { return {{x, x, x, x}}; }
NODECACHE_INLINE Vector mul(Vector a, Vector b) {
    return each(a, b, [](double x, double y) { return x * y; });
}
NODECACHE_INLINE Vector sub(Vector a, Vector b) {
    return each(a, b, [](double x, double y) { return x - y; });
}
NODECACHE_INLINE Vector add(Vector a, Vector b) {
    return each(a, b, [](double x, double y) { return x + y; });
}
NODECACHE_INLINE Vector div(Vector a, Vector b) {
    return each(a, b, [](double x, double y) { return x / y; });
}
NODECACHE_INLINE Vector max(Vector a, Vector b) {
    return each(a, b, [](double x, double y) { return x > y ? x : y; });
}
NODECACHE_INLINE Vector spread_max(Vector v) {
    return fill(std::max(std::max(v.lane[0], v.lane[1]), std::max(v.lane[2], v.lane[3])));
}
NODECACHE_INLINE double one(Vector v) { return v.lane[0]; }
NODECACHE_INLINE Vector add_where_equal(Vector v, Vector a, Vector b) {
    for (int k = 0; k < kLanes; ++k) v.lane[k] += a.lane[k] == b.lane[k] ? 1 : 0;
    return v;
}
NODECACHE_INLINE Vector choose_where_equal(Vector other, Vector v, Vector a, Vector b) {
    for (int k = 0; k < kLanes; ++k) other.lane[k] = a.lane[k] == b.lane[k] ? v.lane[k] : other.lane[k];
    return other;
}
NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    unsigned mask = 0;
    for (int k = 0; k < kLanes; ++k) mask |= static_cast<unsigned>(a.lane[k] == b.lane[k]) << k;
    return mask;
}
NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    unsigned mask = 0;
    for (int k = 0; k < kLanes; ++k) mask |= static_cast<unsigned>(a.lane[k] < b.lane[k]) << k;
    return mask;
}
#include "blend_search.h"
#undef NODECACHE_TARGET
}  // namespace plain

}  // namespace

void blend(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size, BlendOutput out,
           Poll& poll) {
    Everybody all = make_pool(weights, limits, count, size);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return wide512::search(all, size, out, poll);
    if (__builtin_cpu_supports("avx2")) return wide256::search(all, size, out, poll);
#endif
    plain::search(all, size, out, poll);
}

}  // namespace nodecache
