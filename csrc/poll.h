// How long work asks whether it should stop, without knowing of Python.
#pragma once

#include <cstdint>

namespace nodecache {

// Thrown out of a loop whose Poll said stop; the binding turns it into the pending Python exception.
struct Stopped {};

struct Poll {
    bool (*stop)(void*);
    void* context;
    // Work since the last question, in steps of about a nanosecond.
    std::int64_t spent = 0;

    void spend(std::int64_t steps) {
        spent += steps;
        if (spent >= (std::int64_t{1} << 25)) {
            spent = 0;
            if (stop(context)) throw Stopped{};
        }
    }
};

}  // namespace nodecache
