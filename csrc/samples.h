// Where each sample of fixed length begins in a sequence of documents.
#pragma once

#include <cstddef>
#include <cstdint>

#include "poll.h"

namespace nodecache {

template <class T>
struct Strided {
    const T* data;
    std::int64_t size;
    std::ptrdiff_t stride;  // in elements
    T operator[](std::int64_t k) const { return data[k * stride]; }
};

enum class SampleFault { none, document_out_of_range, negative_size, too_few_tokens };

struct SampleIndexResult {
    SampleFault fault;
    std::int64_t document;  // position in `documents` where the fault was found
};

// Fills `rows` rows of (position in documents, offset in that document) behind the first one, which is (0, 0). A sample
// takes `length` tokens and shares `extra` (0 or 1) tokens with the next one.
SampleIndexResult build_sample_index(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                                     std::int64_t extra, std::int32_t* index, std::int64_t rows, Poll& poll);
SampleIndexResult build_sample_index(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                                     std::int64_t extra, std::int64_t* index, std::int64_t rows, Poll& poll);

}  // namespace nodecache
