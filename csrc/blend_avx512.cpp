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
constexpr int kFloats = 16;  // that are compared at once
constexpr int kWidths[] = {1, 2, 4, 6, 8, 13};  // vectors of slots
constexpr int kEarlyWidth = 6;  // up to which the registers hold two next errors of each slot
constexpr int kFew = 8 * kLanes;  // leaders who are all in the slots
constexpr int kSteps = 24;       // between two looks at everybody
constexpr int kLongSteps = 48;   // the same where that takes long
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
NODECACHE_TARGET NODECACHE_INLINE unsigned not_above(const float* p, float most) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(p), _mm512_set1_ps(most), _CMP_LE_OQ);
}

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_avx512
#include "blend_search.h"

#endif
