// What the search for the next dataset of a blend works on.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "blend.h"

namespace nodecache {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::uint16_t kNobody = 0xffff;

// What the search knows of some leaders. Datasets of one weight form a ring in the order of their indices. Of these the
// next to be drawn is always known (the fewest draws, then the lowest index), so that only the ring's first member, its
// leader, takes part in the search.
struct Pool {
    const double* weights;
    const std::int64_t* limits;
    std::int32_t count;
    double heaviest;
    double* drawn;               // of the ring's head, at its leader; infinite for all that cannot be drawn
    std::uint16_t* head;         // of the ring, at its leader
    const std::uint16_t* after;  // the next one in the ring, at each dataset; itself if alone
};

// All datasets: twelve bytes each beside the caller's weights, and two in the calendar.
struct Everybody {
    Pool pool;
    std::int32_t leaders;
    std::unique_ptr<double[]> drawn;
    std::unique_ptr<std::uint16_t[]> head, after;
};

// A line of errors over the steps.
struct Line {
    double begin = 0, low = -kInfinity, slope = 0;
    double at(double step) const { return low + slope * (step - begin); }
};

// When everybody who is not in a set may become a candidate for it: lists of leaders, each for one group of steps.
struct Calendar {
    static constexpr int kMost = 512;        // lists
    Line floor;                              // whoever is not in the set is below it at both ends of some steps,
    Line line;                               // and so not above this one in between
    double end = 0;                          // the last step that it tells about
    std::unique_ptr<std::uint16_t[]> first;  // of each list
    std::unique_ptr<std::uint16_t[]> next;   // in its list
    int lists = 0;                           // lists in use
    int span = kMost;                        // lists to use in the next one
    int wanted = 0;                          // candidates at the beginning
    double top = 0, low = 0;                 // the largest and the least of their errors
    double last_low = 0, last_steps = 0;     // of the calendar before, and how long it lasted
    double guess = -kInfinity;               // of the next line's beginning
    double trend = 0;                        // rise of the line per step
    double rise = 0;                         // the same for who is just on it, until they are drawn
    int patience = 0;                        // how often in a row there was none

    // For leaders below `count`.
    Calendar(int candidates, std::int32_t count)
        : first(std::make_unique<std::uint16_t[]>(kMost)),
          next(std::make_unique<std::uint16_t[]>(count)),
          wanted(candidates) {}
};

// There are two sets with a calendar: the slots, and those near the line, among whom the slots' candidates are found. A
// new calendar takes time linear in the leaders that it is for, so that one for all of them must last long. Its set is
// made large, for the more candidates there are, the longer it takes until none is left, or too many are. The slots'
// calendar, whose set must be small, is only for those near the line.

constexpr int kSlots = 128;  // whoever is compared at every step
struct Seat {
    std::int64_t count;  // draws from the ring's head
    std::int64_t limit;
    std::uint16_t leader;
    std::uint16_t head;
};

// Some of the slots.
struct Some {
    static constexpr int kWords = kSlots / 64;
    std::uint64_t word[kWords];

    bool has(int s) const { return word[s / 64] >> s % 64 & 1; }
    void set(int s, bool in) {
        const std::uint64_t bit = std::uint64_t{1} << s % 64;
        word[s / 64] = (word[s / 64] & ~bit) | (in ? bit : 0);
    }
};

struct Slots {
    static constexpr int kRoom = 64;      // in use where there is a calendar
    static constexpr int kGroup = 8;      // steps between two changes of who is in them
    static constexpr int kUnit = 1;       // by how many candidates more or less to try
    static constexpr int kPatience = 8;   // steps without a candidate that a calendar may have
    static constexpr double kGain = 0.5;  // how much of a new trend to believe
    alignas(64) double weight[kSlots];
    alignas(64) double drawn[kSlots];  // the seat's count; infinite when it is spent
    Seat seat[kSlots];
    Some special;                      // whose draw is not just one draw more: rings, and the last draw of all
    int used = 0;
};

struct Near {
    static constexpr int kRoom = 2048;
    static constexpr int kGroup = 256;
    static constexpr int kUnit = 8;
    static constexpr int kPatience = 0;
    static constexpr double kGain = 0.75;
    alignas(64) double weight[kRoom];
    alignas(64) double drawn[kRoom];
    std::int64_t limit[kRoom];
    std::uint16_t head[kRoom];
    std::uint16_t leader[kRoom];
    int used = 0;
    Slots slots;
    Calendar calendar{12 * Slots::kUnit, kRoom};  // of the slots
};

struct Contender {
    double error;
    std::uint16_t leader;
};

// The search, for CPUs that have the vectors for it.
#if defined(__x86_64__)
void search_avx512(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);
void search_avx2(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);
#endif
void search_plain(Everybody& all, std::int64_t size, BlendOutput out, Poll& poll);

}  // namespace nodecache
