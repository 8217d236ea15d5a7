#include "blend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nodecache {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// All that the search knows of the datasets: twelve bytes each beside the caller's weights, and three in the calendar.
//
// Datasets of one weight form a ring in the order of their indices. Of these the next to be drawn is always known (the
// fewest draws, then the lowest index), so that only the ring's first member, its leader, takes part in the search.
struct Pool {
    const double* weights;
    const std::int64_t* limits;
    std::int32_t count;
    std::int32_t leaders;
    double heaviest;
    std::unique_ptr<double[]> drawn;         // of the ring's head, at its leader; infinite for all that cannot be drawn
    std::unique_ptr<std::uint16_t[]> head;   // of the ring, at its leader
    std::unique_ptr<std::uint16_t[]> after;  // the next one in the ring; itself if alone
};

Pool make_pool(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size) {
    Pool pool{weights, limits, count, 0, 0, nullptr, nullptr, nullptr};
    pool.drawn = std::make_unique<double[]>(count);
    pool.head = std::make_unique<std::uint16_t[]>(count);
    pool.after = std::make_unique<std::uint16_t[]>(count);
    std::uint16_t* order = pool.head.get();
    std::int32_t usable = 0;
    for (std::int32_t j = 0; j < count; ++j) {
        pool.drawn[j] = kInfinity;
        if (weights[j] > 0) {
            order[usable++] = static_cast<std::uint16_t>(j);
            pool.heaviest = std::max(pool.heaviest, weights[j]);
        }
    }
    // Beyond 2^51 one draw more may not change the rounded error, and the ring's order would not be the rule's.
    const bool rings = pool.heaviest * static_cast<double>(std::max<std::int64_t>(size, 1)) < 0x1p51;
    if (rings)
        std::sort(order, order + usable, [weights](std::uint16_t a, std::uint16_t b) {
            return weights[a] != weights[b] ? weights[a] < weights[b] : a < b;
        });
    for (std::int32_t first = 0; first < usable;) {
        std::int32_t last = first;
        while (rings && last + 1 < usable && weights[order[last + 1]] == weights[order[first]]) ++last;
        for (std::int32_t k = first; k < last; ++k) pool.after[order[k]] = order[k + 1];
        pool.after[order[last]] = order[first];
        pool.drawn[order[first]] = 0;
        ++pool.leaders;
        first = last + 1;
    }
    for (std::int32_t j = 0; j < count; ++j) pool.head[j] = static_cast<std::uint16_t>(j);
    return pool;
}

// An error that nobody outside the slots exceeds between `begin` and the end of the calendar.
struct Line {
    double begin = 0, low = -kInfinity, slope = 0;
    double at(double step) const { return low + slope * (step - begin); }
};

constexpr int kSlots = 128;  // whoever is compared at every step
constexpr int kRoom = 64;    // of them in use where there is a calendar
constexpr int kGroup = 8;    // steps between two changes of who is in the slots
constexpr std::uint16_t kNobody = 0xffff;
struct Seat {
    std::int64_t count;    // draws from the ring's head
    std::int64_t limit;
    std::uint16_t leader;
    std::uint16_t head;
};

// Some of the slots.
struct Some {
    static constexpr int kWords = kSlots / 64;
    std::uint64_t word[kWords];

    void clear() { std::fill(word, word + kWords, 0); }
    bool has(int s) const { return word[s / 64] >> s % 64 & 1; }
    void set(int s, bool in) {
        const std::uint64_t bit = std::uint64_t{1} << s % 64;
        word[s / 64] = (word[s / 64] & ~bit) | (in ? bit : 0);
    }
};

struct Slots {
    alignas(64) double weight[kSlots];
    alignas(64) double drawn[kSlots];  // the seat's count; infinite when it is spent
    Seat seat[kSlots];
    Some special;                      // whose draw is not just one draw more: rings, and the last draw of all
    Some touched;                      // drawn from since they were looked at
    int used;
};

// When everybody else may become a candidate: lists of leaders, each for one group of steps.
struct Calendar {
    Line line;
    double end = 0;                          // the last step that it tells about
    std::int64_t begin = 0;                  // the step its first list is for
    std::unique_ptr<std::uint16_t[]> first;  // of each list
    std::unique_ptr<std::uint16_t[]> next;   // in its list
    int size = 0;                            // lists that there is room for
    int lists = 0;                           // lists in use
    int wanted = 12;                         // candidates at the beginning
    double guess = -kInfinity;               // of the line's beginning
    double trend = 0;                        // rise of the line per step
    double rise = 0;                         // the same for who is just on it, until they are drawn
};

#define NODECACHE_INLINE static inline __attribute__((always_inline))

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
    Pool pool = make_pool(weights, limits, count, size);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return wide512::search(pool, size, out, poll);
    if (__builtin_cpu_supports("avx2")) return wide256::search(pool, size, out, poll);
#endif
    plain::search(pool, size, out, poll);
}

}  // namespace nodecache
