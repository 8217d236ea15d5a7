#include "samples.h"

#include <algorithm>

namespace nodecache {
namespace {

constexpr std::int64_t kAhead = 48;         // documents whose size is fetched before it is needed
constexpr std::int64_t kBlock = 1 << 16;    // documents between two questions whether to stop

struct Rows {
    std::int64_t length, extra;
    std::int64_t ahead;  // tokens from the document's beginning to the end of the next sample, the extra token included
    std::int64_t size;   // of the last document
};

// Goes through the documents from `begin` on and before `stop`; with kMore there are kAhead more behind each.
template <bool kMore, class T>
SampleFault walk(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t& position, std::int64_t stop,
                 T*& row, T* end, Rows& rows) {
    const std::int64_t length = rows.length, extra = rows.extra;
    std::int64_t ahead = rows.ahead;
    for (; position < stop; ++position) {
        if (kMore) {
            // The address is not used but to fetch, and fetching from a wrong one does nothing.
            const auto next = static_cast<std::uintptr_t>(documents[position + kAhead]);
            __builtin_prefetch(reinterpret_cast<const void*>(
                reinterpret_cast<std::uintptr_t>(sizes.data) + next * static_cast<std::uintptr_t>(sizes.stride) * sizeof(std::int32_t)));
        }
        const std::int64_t document = documents[position];
        if (document < 0 || document >= sizes.size) return SampleFault::document_out_of_range;
        const std::int64_t size = rows.size = sizes[document];
        if (size < 0) return SampleFault::negative_size;
        // Whether a sample ends in a document is as good as random, so the first row is written in any case, and kept
        // if one does.
        row[0] = static_cast<T>(position);
        row[1] = static_cast<T>(ahead - extra);
        const std::int64_t ends = -static_cast<std::int64_t>(ahead <= size);  // all bits or none: no branch
        row += ends & 2;
        ahead += ends & length;
        if (row == end) return SampleFault::none;
        while (ahead <= size) {
            row[0] = static_cast<T>(position);
            row[1] = static_cast<T>(ahead - extra);
            row += 2;
            if (row == end) return SampleFault::none;
            ahead += length;
        }
        ahead -= size;
    }
    rows.ahead = ahead;
    return SampleFault::none;
}

template <class T>
SampleIndexResult build(Strided<std::int32_t> sizes, Strided<std::int32_t> documents, std::int64_t length,
                        std::int64_t extra, T* index, std::int64_t rows, Poll& poll) {
    index[0] = 0;
    index[1] = 0;
    T* row = index + 2;
    T* const end = row + 2 * rows;
    if (row == end) return {SampleFault::none, 0};
    Rows state{length, extra, length + extra, 0};
    const std::int64_t fetched = std::max<std::int64_t>(0, documents.size - kAhead);
    for (std::int64_t position = 0; position < documents.size;) {
        const std::int64_t stop = std::min(position < fetched ? fetched : documents.size, position + kBlock);
        const SampleFault fault = position < fetched ? walk<true>(sizes, documents, position, stop, row, end, state)
                                                     : walk<false>(sizes, documents, position, stop, row, end, state);
        if (fault != SampleFault::none) return {fault, position};
        if (row == end) return {SampleFault::none, 0};
        poll.spend(4 * kBlock);
    }
    // Only the last sample may be cut short by the end of the documents.
    if (row + 2 != end) return {SampleFault::too_few_tokens, 0};
    row[0] = static_cast<T>(documents.size - 1);
    row[1] = static_cast<T>(state.size - extra);
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
