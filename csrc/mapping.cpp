#include "mapping.h"

#include <cstdlib>
#include <limits>
#include <utility>

namespace nodecache {
namespace {

constexpr std::int32_t kLengthy = 512;  // a document of several sentences with one longer than this is left out

// The Mersenne Twister of M. Matsumoto and T. Nishimura, in its 32 and 64 bit forms.
template <class Word, int kWords, int kMiddle, int kLowBits>
struct Twister {
    Word state[kWords];
    int next = kWords;

    Twister(Word seed, Word multiplier) {
        state[0] = seed;
        for (int k = 1; k < kWords; ++k) {
            const Word previous = state[k - 1];
            state[k] = multiplier * (previous ^ (previous >> (sizeof(Word) * 8 - 2))) + static_cast<Word>(k);
        }
    }

    static Word mix(Word high, Word low, Word across, Word matrix) {
        const Word mask = (Word{1} << kLowBits) - 1;
        const Word both = (high & ~mask) | (low & mask);
        return across ^ (both >> 1) ^ ((both & 1) ? matrix : 0);
    }

    void turn(Word matrix) {
        int k = 0;
        for (; k < kWords - kMiddle; ++k) state[k] = mix(state[k], state[k + 1], state[k + kMiddle], matrix);
        for (; k < kWords - 1; ++k) state[k] = mix(state[k], state[k + 1], state[k + kMiddle - kWords], matrix);
        state[k] = mix(state[k], state[0], state[kMiddle - 1], matrix);
        next = 0;
    }
};

struct Twister32 : Twister<std::uint32_t, 624, 397, 31> {
    explicit Twister32(std::uint32_t seed) : Twister(seed, 1812433253u) {}
    std::uint32_t operator()() {
        if (next == 624) turn(0x9908b0dfu);
        std::uint32_t word = state[next++];
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c5680u;
        word ^= (word << 15) & 0xefc60000u;
        return word ^ (word >> 18);
    }
};

struct Twister64 : Twister<std::uint64_t, 312, 156, 31> {
    explicit Twister64(std::uint64_t seed) : Twister(seed, 6364136223846793005u) {}
    std::uint64_t operator()() {
        if (next == 312) turn(0xb5026f5aa96619e9u);
        std::uint64_t word = state[next++];
        word ^= (word >> 29) & 0x5555555555555555u;
        word ^= (word << 17) & 0x71d67fffeda60000u;
        word ^= (word << 37) & 0xfff7eee000000000u;
        return word ^ (word >> 43);
    }
};

// Rows in memory that realloc can grow and shrink without a second copy.
template <class Row, int kColumns>
struct Rows {
    Row* data = nullptr;
    std::int64_t size = 0;
    std::int64_t capacity = 0;

    ~Rows() { std::free(data); }
    bool resize(std::int64_t rows) {
        void* memory = std::realloc(data, static_cast<std::size_t>(rows ? rows : 1) * kColumns * sizeof(Row));
        if (!memory) return false;
        data = static_cast<Row*>(memory);
        capacity = rows;
        return true;
    }
    bool reserve_one() { return size < capacity || resize(capacity + capacity / 2 + 4096); }
};

// Swaps each row, from the last one down, with a random one before it or itself.
template <class Row, int kColumns>
void shuffle(Row* rows, std::int64_t size, std::uint64_t seed, Poll& poll) {
    constexpr int kAhead = 32;
    Twister64 random(seed);
    std::int64_t partner[kAhead];
    for (std::int64_t last = size - 1; last > 0;) {
        const int some = static_cast<int>(last < kAhead ? last : kAhead);
        for (int k = 0; k < some; ++k) {
            partner[k] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(last - k + 1));
            __builtin_prefetch(rows + partner[k] * kColumns, 1);
        }
        for (int k = 0; k < some; ++k) {
            Row* one = rows + (last - k) * kColumns;
            Row* other = rows + partner[k] * kColumns;
            for (int column = 0; column < kColumns; ++column) std::swap(one[column], other[column]);
        }
        last -= some;
        poll.spend(some * 10);
    }
}

// Knows of stretches of sentences that none of them is negative or lengthy, from a look at a whole block at a time. Nearly
// all sentences are so, and then no document need be gone through for it.
class Checked {
public:
    explicit Checked(Strided<std::int32_t> sizes) : sizes_(sizes) {}

    bool none_is_odd(std::int64_t first, std::int64_t last) {
        if (first < begin_ || first > end_) begin_ = end_ = first;
        while (end_ < last)
            if (!next_block()) return false;
        return true;
    }

private:
    static constexpr std::int64_t kBlock = 128;

    bool next_block() {
        if (sizes_.stride != 1 || sizes_.size - end_ < kBlock) return false;
        const std::int32_t* const sizes = sizes_.data + end_;
        std::uint32_t signs = 0;  // of each size, and of what it is below the limit
        for (std::int64_t k = 0; k < kBlock; ++k) {
            const auto size = static_cast<std::uint32_t>(sizes[k]);
            signs |= size | (std::uint32_t{kLengthy} - size);
        }
        if (signs >> 31) return false;
        end_ += kBlock;
        return true;
    }

    Strided<std::int32_t> sizes_;
    std::int64_t begin_ = 0, end_ = 0;
};

// How many there are from one to before another: fewer than any number that is asked for, if that many fewer than none.
std::int64_t sentences(std::int64_t first, std::int64_t last) {
    std::int64_t count = 0;
    return __builtin_sub_overflow(last, first, &count) ? std::numeric_limits<std::int64_t>::min() : count;
}

template <class Row, bool kBlocks>
void build(Strided<std::int64_t> documents, Strided<std::int32_t> sizes, const MappingOptions& options, Poll& poll,
           Mapping<Row>& result) {
    constexpr int kColumns = kBlocks ? 4 : 3;
    Rows<Row, kColumns> rows;
    Twister32 random(static_cast<std::uint32_t>(options.seed));
    Checked checked(sizes);
    const std::int64_t fewest = options.fewest;
    // When a sample is closed, so many sentences must be left for the next one.
    const std::int64_t leave = kBlocks ? fewest : 2;
    const auto draw_target = [&]() -> std::int64_t {
        if (!options.short_ratio) return options.length;
        const std::uint32_t word = random();
        if (word % static_cast<std::uint32_t>(options.short_ratio)) return options.length;
        return 2 + static_cast<std::int64_t>(word % static_cast<std::uint32_t>(options.length - 1));
    };
    const auto fail = [&](MappingFault fault, std::int64_t place) {
        result.fault = fault;
        result.place = place;
    };
    for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
        if (static_cast<std::uint64_t>(rows.size) >= options.most) break;
        ++result.epochs;
        const std::int64_t before = rows.size;
        std::uint64_t block = 0;
        for (std::int64_t document = 0; document + 1 < documents.size; ++document) {
            const std::int64_t first = documents[document], last = documents[document + 1];
            std::int64_t target = options.length;
            if (kBlocks) {
                const std::int32_t title = options.titles[document];
                if (title < 0) return fail(MappingFault::negative_title, document);
                target -= title;
            }
            if (last > first && (first < 0 || last > sizes.size)) return fail(MappingFault::sentence_out_of_range, document);
            const std::int64_t count = sentences(first, last);
            poll.spend(count > 0 ? 3 + 2 * count : 3);
            if (epoch == 0) {
                result.empty += count == 0;
                result.single += count == 1;
            }
            // A document that is too short to be looked at for lengthy sentences may have any.
            const bool looked_at = kBlocks ? count >= fewest : count > 1;
            if (count > 0 && (looked_at || count >= fewest) && !checked.none_is_odd(first, last)) {
                std::int32_t most = 0;
                std::int32_t signs = 0;
                for (std::int64_t sentence = first; sentence < last; ++sentence) {
                    const std::int32_t size = sizes[sentence];
                    most = size > most ? size : most;
                    signs |= size;
                }
                if (signs < 0) return fail(MappingFault::negative_size, document);
                if (looked_at && most > kLengthy) {
                    result.lengthy += epoch == 0;
                    continue;
                }
            }
            if (count < fewest) continue;
            if (!kBlocks) target = draw_target();
            if (count <= 0) continue;
            std::int64_t start = first, tokens = 0;
            const auto close = [&](std::int64_t end) {
                if (!rows.reserve_one()) return false;
                Row* row = rows.data + rows.size++ * kColumns;
                row[0] = static_cast<Row>(start);
                row[1] = static_cast<Row>(end);
                row[2] = static_cast<Row>(kBlocks ? document : target);
                if (kBlocks) row[kColumns - 1] = static_cast<Row>(block++);
                if (!kBlocks) target = draw_target();
                start = end;
                tokens = 0;
                return true;
            };
            for (std::int64_t end = first + 1; end <= last - leave; ++end) {
                tokens += sizes[end - 1];
                if (tokens >= target && end - start >= fewest && !close(end))
                    return fail(MappingFault::out_of_memory, document);
            }
            if (start < last && !close(last)) return fail(MappingFault::out_of_memory, document);
        }
        // An epoch without a row means that no document qualifies, and none will in a later epoch.
        if (rows.size == before) {
            result.epochs = options.epochs;
            break;
        }
    }
    // The shuffle's seed is a 32 bit integer too: the largest one wraps around.
    const auto next_seed = static_cast<std::int32_t>(static_cast<std::uint32_t>(options.seed) + 1);
    shuffle<Row, kColumns>(rows.data, rows.size, static_cast<std::uint64_t>(std::int64_t{next_seed}), poll);
    if (!rows.resize(rows.size)) return fail(MappingFault::out_of_memory, 0);
    result.rows = rows.size;
    result.data = std::exchange(rows.data, nullptr);
}

template <class Row>
Mapping<Row> build_either(Strided<std::int64_t> documents, Strided<std::int32_t> sizes, const MappingOptions& options,
                          Poll& poll) {
    Mapping<Row> result;
    if (options.blocks)
        build<Row, true>(documents, sizes, options, poll, result);
    else
        build<Row, false>(documents, sizes, options, poll, result);
    return result;
}

}  // namespace

Mapping<std::uint32_t> build_mapping32(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                                       const MappingOptions& options, Poll& poll) {
    return build_either<std::uint32_t>(documents, sizes, options, poll);
}

Mapping<std::uint64_t> build_mapping64(Strided<std::int64_t> documents, Strided<std::int32_t> sizes,
                                       const MappingOptions& options, Poll& poll) {
    return build_either<std::uint64_t>(documents, sizes, options, poll);
}

}  // namespace nodecache
