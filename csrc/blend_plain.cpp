// The search with two errors in a vector, which any 64-bit CPU has.
#include "blend_sets.h"

#define NODECACHE_TARGET
#define NODECACHE_UNROLL  // there are not so many registers

namespace nodecache {
namespace {

constexpr int kLanes = 2;
constexpr int kFloats = 1;         // that are compared at once
constexpr int kInts = 4;           // lanes in fixed point
constexpr int kWidths[] = {1, 2, 4, 8, 12, 16};  // vectors of slots, of kInts
constexpr int kFew = 8 * kInts;    // leaders who are all in the slots
constexpr int kSteps[] = {8, 16, 28};  // between two looks at everybody, who are few, many, very many
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
NODECACHE_INLINE unsigned equal(Vector a, Vector b) {
    const auto lanes = a == b;
    return static_cast<unsigned>((lanes[0] & 1) | (lanes[1] & 2));
}
NODECACHE_INLINE unsigned below(Vector a, Vector b) {
    const auto lanes = a < b;
    return static_cast<unsigned>((lanes[0] & 1) | (lanes[1] & 2));
}
NODECACHE_INLINE unsigned not_above(const float* p, float most) { return *p <= most; }

typedef std::int32_t Ints __attribute__((vector_size(16)));
typedef std::uint32_t Words __attribute__((vector_size(16)));  // sums wrap, as they do in the other vectors
NODECACHE_INLINE Ints load(const std::int32_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
NODECACHE_INLINE void store(std::int32_t* p, Ints v) {
    for (int k = 0; k < 4; ++k) p[k] = v[k];
}
NODECACHE_INLINE void store_rounded(std::int32_t* p, Vector v) {
    v = v + 0x1.8p52 - 0x1.8p52;
    for (int k = 0; k < 2; ++k) p[k] = static_cast<std::int32_t>(v[k]);
}
NODECACHE_INLINE Ints fill(std::int32_t x) { return Ints{x, x, x, x}; }
NODECACHE_INLINE Ints add(Ints a, Ints b) { return Ints(Words(a) + Words(b)); }
NODECACHE_INLINE Ints sub(Ints a, Ints b) { return Ints(Words(a) - Words(b)); }
NODECACHE_INLINE Ints max(Ints a, Ints b) { return a > b ? a : b; }
NODECACHE_INLINE Ints spread_max(Ints v) {
    v = max(v, Ints{v[2], v[3], v[0], v[1]});
    return max(v, Ints{v[1], v[0], v[3], v[2]});
}
NODECACHE_INLINE std::int32_t one(Ints v) { return v[0]; }
NODECACHE_INLINE unsigned above(Ints a, Ints b) {
    const Ints lanes = a > b;
    return static_cast<unsigned>((lanes[0] & 1) | (lanes[1] & 2) | (lanes[2] & 4) | (lanes[3] & 8));
}
NODECACHE_INLINE Ints sub_where_above(Ints v, Ints less, Ints a, Ints b) { return sub(v, (a > b) & less); }
NODECACHE_INLINE int put(std::int32_t* to, std::uint64_t bits, std::int32_t first) {
    return put_each(to, bits, first);
}

}  // namespace
}  // namespace nodecache

#define NODECACHE_SEARCH search_plain
#include "blend_search.h"
