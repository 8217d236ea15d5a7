// The search with two errors in a vector, which any 64-bit CPU has.
#include "blend_sets.h"

#define NODECACHE_TARGET
#define NODECACHE_UNROLL  // there are not so many registers

namespace nodecache {
namespace {

constexpr int kLanes = 2;
constexpr int kFloats = 1;  // that are compared at once
constexpr int kWidths[] = {2, 4, 8, 16, 24, 32};  // vectors of slots
constexpr int kEarlyWidth = 4;  // up to which the registers hold two next errors of each slot
constexpr int kFew = 8 * kLanes;  // leaders who are all in the slots
constexpr int kSteps = 8;       // between two looks at everybody
constexpr int kLongSteps = 16;   // the same where that takes long
typedef double Vector __attribute__((vector_size(16)));
NODECACHE_INLINE Vector load(const double* p) { return Vector{p[0], p[1]}; }
NODECACHE_INLINE void store(double* p, Vector v) {
    p[0] = v[0];
    p[1] = v[1];
}
NODECACHE_INLINE Vector fill(double x) { return Vector{x, x}; }
NODECACHE_INLINE Vector mul(Vector a, Vector b) { return a * b; }
NODECACHE_INLINE Vector sub(Vector a, Vector b) { return a - b; }
NODECACHE_INLINE Vector add(Vector a, Vector b) { return a + b; }
NODECACHE_INLINE Vector div(Vector a, Vector b) { return a / b; }
NODECACHE_INLINE Vector max(Vector a, Vector b) { return a > b ? a : b; }
NODECACHE_INLINE Vector min(Vector a, Vector b) { return a < b ? a : b; }
NODECACHE_INLINE Vector spread_max(Vector v) { return max(v, Vector{v[1], v[0]}); }
NODECACHE_INLINE double one(Vector v) { return v[0]; }
NODECACHE_INLINE Vector add_where_equal(Vector v, Vector a, Vector b) { return a == b ? v + 1 : v; }
NODECACHE_INLINE Vector choose_where_equal(Vector other, Vector v, Vector a, Vector b) { return a == b ? v : other; }
NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    const auto lanes = a == b;
    return static_cast<unsigned>((lanes[0] & 1) | (lanes[1] & 2));
}
NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    const auto lanes = a < b;
    return static_cast<unsigned>((lanes[0] & 1) | (lanes[1] & 2));
}
NODECACHE_INLINE unsigned not_above(const float* p, float most) { return *p <= most; }

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_plain
#include "blend_search.h"
