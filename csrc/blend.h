// Which dataset, and which sample of it, each sample of a blend comes from.
//
// The rule: at step i every dataset has the error weight * max(i, 1) - drawn, computed in double and rounded after each
// operation. The dataset with the largest error is drawn, among equals the one with the lowest index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "poll.h"

namespace nodecache {

struct BlendOutput {
    std::int16_t* dataset;
    std::ptrdiff_t dataset_stride;  // in elements
    std::int64_t* sample;
    std::ptrdiff_t sample_stride;

    void put(std::int64_t i, std::int32_t drawn_dataset, std::int64_t drawn_sample) const {
        dataset[i * dataset_stride] = static_cast<std::int16_t>(drawn_dataset);
        sample[i * sample_stride] = drawn_sample;
    }
};

// Draws `size` times. Weights of zero are never drawn; at least one weight is positive, all are finite, `count` is in
// [1, 32768]. With `limits`, dataset j is drawn exactly limits[j] times, and `size` is the sum of the limits.
void blend(const double* weights, const std::int64_t* limits, std::int32_t count, std::int64_t size, BlendOutput out,
           Poll& poll);

}  // namespace nodecache
