// Which sentences make up each sample of a sentence-based dataset, in shuffled order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "poll.h"
#include "samples.h"

namespace nodecache {

enum class MappingFault { none, sentence_out_of_range, negative_size, negative_title, out_of_memory };

struct MappingOptions {
    bool blocks;                // rows of (first, last, document, block), else (first, last, target length)
    std::int64_t epochs;
    std::uint64_t most;         // no epoch begins once there are this many rows
    std::int64_t length;        // target length of a sample, in tokens
    std::int64_t short_ratio;   // one of this many samples is shorter; 0 for none
    std::int64_t seed;
    std::int64_t fewest;        // sentences in a sample
    Strided<std::int32_t> titles;
};

template <class Row>
struct Mapping {
    MappingFault fault = MappingFault::none;
    std::int64_t place = 0;     // the document (negative_title) or its position (the others) where the fault was found
    Row* data = nullptr;        // from malloc; the caller frees it
    std::int64_t rows = 0;
    std::int64_t epochs = 0;    // begun
    std::int64_t empty = 0;     // documents without a sentence, of one sentence, with too long a sentence
    std::int64_t single = 0;
    std::int64_t lengthy = 0;
};

Mapping<std::uint32_t> build_mapping32(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                                       const MappingOptions& options, Poll& poll);
Mapping<std::uint64_t> build_mapping64(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                                       const MappingOptions& options, Poll& poll);

}  // namespace nodecache
