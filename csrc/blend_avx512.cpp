// The search with eight errors in a vector.
#include "blend_sets.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define NODECACHE_TARGET __attribute__((target("avx512f,avx512dq,avx512vl")))
// Before a loop over vectors, which stay in registers only if it is unrolled.
#define NODECACHE_UNROLL _Pragma("GCC unroll 16")

namespace nodecache {
namespace {

constexpr int kLanes = 8;
constexpr int kFloats = 16;        // that are compared at once
constexpr int kInts = 16;          // lanes in fixed point
constexpr int kWidths[] = {1, 2, 3, 4, 6, 8};  // vectors of slots, of kInts
constexpr int kFew = 8 * kInts;    // leaders who are all in the slots
constexpr int kSteps[] = {24, 48, 56};  // between two looks at everybody, who are few, many, very many
using Vector = __m512d;
NODECACHE_TARGET NODECACHE_INLINE Vector load(const double* p) { return _mm512_loadu_pd(p); }
NODECACHE_TARGET NODECACHE_INLINE void store(double* p, Vector v) { _mm512_storeu_pd(p, v); }
NODECACHE_TARGET NODECACHE_INLINE Vector fill(double x) { return _mm512_set1_pd(x); }
NODECACHE_TARGET NODECACHE_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector div(Vector a, Vector b) { return _mm512_div_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector max(Vector a, Vector b) { return _mm512_max_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector min(Vector a, Vector b) { return _mm512_min_pd(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Vector spread_max(Vector v) {
    v = _mm512_max_pd(v, _mm512_shuffle_f64x2(v, v, 0x4e));
    v = _mm512_max_pd(v, _mm512_shuffle_f64x2(v, v, 0xb1));
    return _mm512_max_pd(v, _mm512_permute_pd(v, 0x55));
}
NODECACHE_TARGET NODECACHE_INLINE double one(Vector v) { return _mm512_cvtsd_f64(v); }
NODECACHE_TARGET NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ);
}
NODECACHE_TARGET NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ);
}
NODECACHE_TARGET NODECACHE_INLINE unsigned not_above(const float* p, float most) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(p), _mm512_set1_ps(most), _CMP_LE_OQ);
}

using Ints = __m512i;
NODECACHE_TARGET NODECACHE_INLINE Ints load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
NODECACHE_TARGET NODECACHE_INLINE void store(std::int32_t* p, Ints v) { _mm512_storeu_si512(p, v); }
NODECACHE_TARGET NODECACHE_INLINE void store_rounded(std::int32_t* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtpd_epi32(v));
}
NODECACHE_TARGET NODECACHE_INLINE Ints fill(std::int32_t x) { return _mm512_set1_epi32(x); }
NODECACHE_TARGET NODECACHE_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints spread_max(Ints v) {
    v = _mm512_max_epi32(v, _mm512_shuffle_i64x2(v, v, 0x4e));
    v = _mm512_max_epi32(v, _mm512_shuffle_i64x2(v, v, 0xb1));
    v = _mm512_max_epi32(v, _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0x4e)));
    return _mm512_max_epi32(v, _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0xb1)));
}
NODECACHE_TARGET NODECACHE_INLINE std::int32_t one(Ints v) { return _mm512_cvtsi512_si32(v); }
NODECACHE_TARGET NODECACHE_INLINE unsigned above(Ints a, Ints b) { return _mm512_cmpgt_epi32_mask(a, b); }
NODECACHE_TARGET NODECACHE_INLINE Ints sub_where_above(Ints v, Ints less, Ints a, Ints b) {
    return _mm512_mask_sub_epi32(v, _mm512_cmpgt_epi32_mask(a, b), v, less);
}
NODECACHE_TARGET NODECACHE_INLINE int put(std::int32_t* to, std::uint64_t bits, std::int32_t first) {
    const Ints lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int count = 0;
    NODECACHE_UNROLL
    for (int k = 0; k < 64; k += kInts) {
        const auto some = static_cast<__mmask16>(bits >> k);
        store(to + count, _mm512_maskz_compress_epi32(some, add(lanes, fill(first + k))));
        count += __builtin_popcount(some);
    }
    return count;
}

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_avx512
#include "blend_search.h"

#endif
