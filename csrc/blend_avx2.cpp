// The search with four errors in a vector.
#include "blend_sets.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define NODECACHE_TARGET __attribute__((target("avx2")))
// Before a loop over vectors, which stay in registers only if it is unrolled.
#define NODECACHE_UNROLL _Pragma("GCC unroll 16")

namespace nodecache {
namespace {

constexpr int kLanes = 4;
constexpr int kFloats = 8;         // that are compared at once
constexpr int kInts = 8;           // lanes in fixed point
constexpr int kWidths[] = {1, 2, 4, 6, 8, 12};  // vectors of slots, of kInts
constexpr int kFew = 8 * kInts;    // leaders who are all in the slots
constexpr int kSteps[] = {24, 24, 32};  // between two looks at everybody, who are few, many, very many
using Vector = __m256d;
NODECACHE_TARGET NODECACHE_INLINE Vector load(const double* p) { return _mm256_loadu_pd(p); }
NODECACHE_TARGET NODECACHE_INLINE void store(double* p, Vector v) { _mm256_storeu_pd(p, v); }
NODECACHE_TARGET NODECACHE_INLINE Vector fill(double x) { return _mm256_set1_pd(x); }
NODECACHE_TARGET NODECACHE_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector div(Vector a, Vector b) { return _mm256_div_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector max(Vector a, Vector b) { return _mm256_max_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector min(Vector a, Vector b) { return _mm256_min_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector spread_max(Vector v) {
    v = _mm256_max_pd(v, _mm256_permute2f128_pd(v, v, 1));
    return _mm256_max_pd(v, _mm256_permute_pd(v, 5));
}
NODECACHE_TARGET NODECACHE_INLINE double one(Vector v) { return _mm256_cvtsd_f64(v); }
NODECACHE_TARGET NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_EQ_OQ)));
}
NODECACHE_TARGET NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_LT_OQ)));
}
NODECACHE_TARGET NODECACHE_INLINE unsigned not_above(const float* p, float most) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(p), _mm256_set1_ps(most), _CMP_LE_OQ)));
}

using Ints = __m256i;
NODECACHE_TARGET NODECACHE_INLINE Ints load(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
NODECACHE_TARGET NODECACHE_INLINE void store(std::int32_t* p, Ints v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
NODECACHE_TARGET NODECACHE_INLINE void store_rounded(std::int32_t* p, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtpd_epi32(v));
}
NODECACHE_TARGET NODECACHE_INLINE Ints fill(std::int32_t x) { return _mm256_set1_epi32(x); }
NODECACHE_TARGET NODECACHE_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints spread_max(Ints v) {
    v = _mm256_max_epi32(v, _mm256_permute2x128_si256(v, v, 1));
    v = _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
}
NODECACHE_TARGET NODECACHE_INLINE std::int32_t one(Ints v) { return _mm256_cvtsi256_si32(v); }
NODECACHE_TARGET NODECACHE_INLINE unsigned above(Ints a, Ints b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b))));
}
NODECACHE_TARGET NODECACHE_INLINE Ints sub_where_above(Ints v, Ints less, Ints a, Ints b) {
    return _mm256_sub_epi32(v, _mm256_and_si256(_mm256_cmpgt_epi32(a, b), less));
}
NODECACHE_TARGET NODECACHE_INLINE int put(std::int32_t* to, std::uint64_t bits, std::int32_t first) {
    return put_each(to, bits, first);
}

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_avx2
#include "blend_search.h"

#endif
