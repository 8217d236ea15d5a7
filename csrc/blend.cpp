#include "blend.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "blend_sets.h"

namespace nodecache {
namespace {

Everybody meet(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size) {
    Everybody all{};
    all.weights = weights;
    all.limits = limits;
    all.count = count;
    all.drawn = std::make_unique<double[]>(count);
    all.head = std::make_unique<std::uint16_t[]>(count);
    all.after = std::make_unique<std::uint16_t[]>(count);
    std::uint16_t* const last = all.head.get();  // of the ring so far, at its leader
    std::uint16_t* const after = all.after.get();
    all.heaviest = *std::max_element(weights, weights + count);
    // Beyond 2^51 one draw more may not change the rounded error, and the ring's order would not be the rule's.
    const bool rings = all.heaviest * static_cast<double>(std::max<std::int64_t>(size, 1)) < 0x1p51;
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
            all.rings = true;
            after[last[leader]] = here;
            after[j] = leader;
            last[leader] = here;
        }
    }
    for (std::int32_t j = 0; j < count; ++j) all.head[j] = static_cast<std::uint16_t>(j);
    return all;
}

}  // namespace

void blend(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size, BlendOutput out,
           Poll& poll) {
    Everybody all = meet(weights, limits, count, size);
    if (all.leaders == 0) return;  // another thread has written zeros
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return search_avx512(all, size, out, poll);
    if (__builtin_cpu_supports("avx2")) return search_avx2(all, size, out, poll);
#endif
    search_plain(all, size, out, poll);
}

}  // namespace nodecache
