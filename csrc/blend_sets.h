// What the search for the next dataset of a blend works on, and its forms.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "blend.h"

#define NODECACHE_METHOD inline __attribute__((always_inline))
#define NODECACHE_INLINE static NODECACHE_METHOD

namespace nodecache {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::uint16_t kNobody = 0xffff;

// All datasets. Those of one weight form a ring in the order of their indices. Of these the next to be drawn is always known
// (the fewest draws, then the lowest index), so that only the ring's first member, its leader, takes part in the search.
// Twelve bytes each beside the caller's weights.
struct Everybody {
    const double* weights;
    const std::int64_t* limits;  // or none
    std::int32_t count;
    std::int32_t leaders;
    double heaviest;
    bool rings;                              // of more than one
    std::unique_ptr<double[]> drawn;         // of the ring's head, at its leader; infinite for all that cannot be drawn
    std::unique_ptr<std::uint16_t[]> head;   // of the ring, at its leader
    std::unique_ptr<std::uint16_t[]> after;  // the next one in the ring, at each dataset; itself if alone
};

// Writes first + k for each bit k of a mask, one after the other, and maybe up to kBeyond more numbers, which mean nothing.
// Returns how many bits there are.
constexpr int kBeyond = 16;
NODECACHE_INLINE int put_each(std::int32_t* to, std::uint64_t bits, std::int32_t first) {
    constexpr int kUsual = 6;
    const int count = __builtin_popcountll(bits);
    // How many they are cannot be foreseen, so the usual number is written in any case.
    for (int n = 0; n < kUsual || n < count; ++n, bits &= bits - 1)
        to[n] = first + __builtin_ctzll(bits | std::uint64_t{1} << 63);
    return count;
}

// The search, for CPUs that have the vectors for it.
#if defined(__x86_64__)
void search_avx512(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);
void search_avx2(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);
#endif
void search_plain(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);

}  // namespace nodecache
