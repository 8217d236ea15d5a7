#include "samples.h"

#include <algorithm>

namespace nodecache {
namespace {

constexpr std::int64_t kAhead = 48;         // documents whose size is fetched before it is needed
constexpr std::int64_t kBlock = 1 << 16;    // documents between two questions whether to stop

template <class T>
SampleIndexResult build(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                        std::int64_t extra, T* index, std::int64_t rows, Poll& poll) {
    index[0] = 0;
    index[1] = 0;
    T* row = index + 2;
    T* const end = row + 2 * rows;
    if (row == end) return {SampleFault::none, 0};
    // Tokens from the document's beginning to the end of the next sample, the extra token included.
    std::int64_t ahead = length + extra;
    std::int64_t size = 0;
    for (std::int64_t block = 0; block < documents.size; block += kBlock) {
        const std::int64_t stop = std::min(documents.size, block + kBlock);
        for (std::int64_t position = block; position < stop; ++position) {
            // The address is not used but to fetch, and fetching from a wrong one does nothing.
            const auto next = static_cast<std::uintptr_t>(documents[std::min(position + kAhead, documents.size - 1)]);
            __builtin_prefetch(reinterpret_cast<const void*>(
                reinterpret_cast<std::uintptr_t>(sizes.data) + next * static_cast<std::uintptr_t>(sizes.stride) * sizeof(std::int32_t)));
            const std::int64_t document = documents[position];
            if (document < 0 || document >= sizes.size) return {SampleFault::document_out_of_range, position};
            size = sizes[document];
            if (size < 0) return {SampleFault::negative_size, position};
            while (ahead <= size) {
                row[0] = static_cast<T>(position);
                row[1] = static_cast<T>(ahead - extra);
                row += 2;
                if (row == end) return {SampleFault::none, 0};
                ahead += length;
            }
            ahead -= size;
        }
        poll.spend(4 * kBlock);
    }
    // Only the last sample may be cut short by the end of the documents.
    if (row + 2 != end) return {SampleFault::too_few_tokens, 0};
    row[0] = static_cast<T>(documents.size - 1);
    row[1] = static_cast<T>(size - extra);
    return {SampleFault::none, 0};
}

}  // namespace

SampleIndexResult build_sample_index(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                                     std::int64_t extra, std::int32_t* index, std::int64_t rows, Poll& poll) {
    return build(sizes, documents, length, extra, index, rows, poll);
}

SampleIndexResult build_sample_index(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                                     std::int64_t extra, std::int64_t* index, std::int64_t rows, Poll& poll) {
    return build(sizes, documents, length, extra, index, rows, poll);
}

}  // namespace nodecache
