// The search itself. One file for each vector width includes it, after it has defined load, store, mul and the rest.
//
// Comparing all datasets at every step is what takes the time, so only a few, in the slots, are: those who may be drawn in
// the next steps. Where there are many, these are looked for among fewer, who are near, and those by a level of errors that
// they are above, or, where no level lasts, by a line.
//
// Everything that decides is computed as the rule says, or with a margin for what rounding may do.

#include "blend_pool.h"
#include "blend_slots.h"
#include "blend_lines.h"
#include "blend_level.h"

namespace nodecache {
namespace {

constexpr std::int32_t kMany = 512;        // leaders from which on it pays to look at those near only
constexpr std::int32_t kVeryMany = 16384;  // and from which on it pays to know when each is due

// Draws from everybody. After a level that has lasted comes another at once; after one that has not, some steps by line come
// first, each time twice as many.
NODECACHE_TARGET static void draw_many(Work& work, Near& near, std::int64_t size) {
    Pool everybody{work.all.weights, work.all.drawn.get(), nullptr, work.all.count};
    Guess guess{kSteps[0]};
    double slack = kInfinity;
    if (work.all.leaders <= kVeryMany) {
        draw_all(work, everybody, guess, near, Line{}, 0, size, slack);
        return;
    }
    Due due(work.all.count);
    constexpr std::int64_t kFewest = 4 * Near::kMostSteps, kMost = 64 * kFewest, kWorthwhile = 8 * kFewest;
    std::int64_t by_line = kFewest;  // steps until the next trial of a level
    for (std::int64_t i = 0; i < size;) {
        i = draw_all(work, everybody, guess, near, Line{}, i, std::min(size, i + by_line), slack);
        const std::int64_t begin = i;
        i = draw_level(work, everybody, guess, near, due, i, size);
        by_line = i - begin < std::max(2 * by_line, kWorthwhile) ? std::clamp(2 * by_line, kFewest, kMost) : 0;
    }
}

}  // namespace

NODECACHE_TARGET void NODECACHE_SEARCH(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll) {
    Work work{all, out, poll};
    const auto near = std::make_unique<Near>();
    if (all.leaders > kMany) return draw_many(work, *near, size);
    // Everybody who can be drawn is near; where these are few, in the slots.
    Pool everybody{all.weights, all.drawn.get(), nullptr, all.count};
    fill_set<false>(everybody, *near, -kInfinity, -kInfinity, 1, 1);
    Pool few = near->pool(all);
    double slack = kInfinity;
    if (all.leaders > kFew) {
        draw_all(work, few, near->guess, near->slots, Line{}, 0, size, slack);
        return;
    }
    constexpr std::int64_t kChunk = 1 << 14;
    for (std::int64_t i = 0; i < size;) {
        fill_set<false>(few, near->slots, -kInfinity, -kInfinity, 1, 1);
        i = draw(work, few, near->slots, Line{}, i, std::min(size, i + kChunk), slack);
    }
}

}  // namespace nodecache
