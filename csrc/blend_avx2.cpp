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
constexpr int kFloats = 8;  // that are compared at once
constexpr int kWidths[] = {1, 2, 4, 8, 12, 16};  // vectors of slots
constexpr int kEarlyWidth = 4;  // up to which the registers hold two next errors of each slot
constexpr int kFew = 8 * kLanes;  // leaders who are all in the slots
constexpr int kSteps = 24;       // between two looks at everybody
constexpr int kLongSteps = 24;   // the same where that takes long
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
NODECACHE_TARGET NODECACHE_INLINE unsigned not_above(const float* p, float most) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(p), _mm256_set1_ps(most), _CMP_LE_OQ)));
}

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_avx2
#include "blend_search.h"

#endif
