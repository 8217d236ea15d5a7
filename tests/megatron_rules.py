"""The rules of the Megatron helpers in plain Python, and how the tests call and compare them."""

from itertools import pairwise

import numpy as np


def _normal(weights):
    return weights / weights.sum()


# Weights of the kinds that meet each branch of the search: ties, near ties, and scales far apart.
KINDS = {
    "dirichlet": lambda random, count: random.dirichlet(np.ones(count)),
    "equal": lambda _random, count: np.ones(count) / count,
    "nearly equal": lambda random, count: _normal(1 + 1e-6 * random.random(count)),
    "as near as fixed point can tell": lambda random, count: _normal(1 + 2.0 ** -random.integers(18, 34, count)),
    "above the steps of fixed point": lambda random, count: 2.0 ** random.uniform(20, 27, count),
    "units in the last place": lambda random, count: _normal(1 + 2.0**-52 * random.integers(0, 9, count)),
    "powers of two": lambda random, count: 2.0 ** -random.integers(1, 60, count),
    "whole numbers": lambda random, count: _normal(random.integers(1, 50, count).astype(float)),
    "tiny next to huge": lambda random, count: 10.0 ** random.uniform(-15, 3, count),
    "heavy tail": lambda random, count: _normal(random.pareto(0.7, count) + 1e-3),
    "one huge": lambda random, count: _normal(np.r_[1e6, random.random(count - 1)]),
    "one as heavy as all others, nearly equal": lambda random, count: _normal(
        np.r_[count, 1 + 1e-9 * random.permutation(count - 1)]
    ),
    "not normalised": lambda random, count: random.random(count) * 100,
    "adding up to a half": lambda random, count: random.dirichlet(np.ones(count)) / 2,
    "beyond exact counting": lambda random, count: 1e17 * (1 + random.random(count)),
    "overflowing": lambda random, count: 1e308 * random.random(count),
    "denormal": lambda random, count: 5e-324 * random.integers(1, 9, count),
    "two groups": lambda random, count: _normal(
        np.where(random.random(count) < 0.5, 1e-9, 1) * (1 + random.random(count))
    ),
}


def blend_arrays(size):
    return np.full(size, -1, np.int16), np.full(size, -1, np.int64)


def blended(module, weights, size):
    index, sample = blend_arrays(size)
    module.build_blending_indices(index, sample, weights, len(weights), size, False)
    return index, sample


def exhausted(module, sizes):
    index, sample = blend_arrays(int(sum(sizes)))
    module.build_exhaustive_blending_indices(index, sample, sizes, len(sizes))
    return index, sample


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def slow_blend(weights, size, limits=None):
    """The rule of the blend, dataset by dataset; zero weights and spent limits are left out."""
    weights = np.asarray(weights, np.float64)
    drawn = np.zeros(len(weights))
    out = (weights <= 0) if limits is None else np.asarray(limits) <= 0
    index, sample = blend_arrays(size)
    for i in range(size):
        with np.errstate(over="ignore"):  # an infinite error is one too
            error = weights * max(i, 1.0) - drawn
        error[out] = -np.inf
        j = int(np.argmax(error))
        index[i], sample[i] = j, drawn[j]
        drawn[j] += 1
        if limits is not None and drawn[j] == limits[j]:
            out[j] = True
    return index, sample


def slow_sample_index(sizes, documents, length, epochs, per_epoch, drop, extra):
    """The rule of the sample index in exact integers: sample k begins at token k * length."""
    tokens = epochs * per_epoch - extra
    rows = tokens // length if drop else -(-tokens // length)
    ends = np.cumsum([int(sizes[d]) for d in documents])
    result = [(0, 0)]
    for k in range(1, rows + 1):
        last = k * length + extra  # tokens read up to the end of sample k
        position = min(int(np.searchsorted(ends, last)), len(documents) - 1)
        before = int(ends[position]) - int(sizes[documents[position]])
        result.append((position, min(last, int(ends[-1])) - before - extra))
    return result


class Twister64:
    """The 64 bit Mersenne Twister."""

    def __init__(self, seed):
        self.state = [seed]
        for k in range(1, 312):
            previous = self.state[-1]
            self.state.append((6364136223846793005 * (previous ^ (previous >> 62)) + k) % 2**64)
        self.next = 312

    def __call__(self):
        if self.next == 312:
            for k in range(312):
                both = (self.state[k] & 0xFFFFFFFF80000000) | (self.state[(k + 1) % 312] & 0x7FFFFFFF)
                self.state[k] = self.state[(k + 156) % 312] ^ (both >> 1) ^ (0xB5026F5AA96619E9 if both & 1 else 0)
            self.next = 0
        word = self.state[self.next]
        self.next += 1
        word ^= (word >> 29) & 0x5555555555555555
        word ^= (word << 17) & 0x71D67FFFEDA60000
        word ^= (word << 37) & 0xFFF7EEE000000000
        return word ^ (word >> 43)


def slow_mapping(documents, sizes, epochs, most, length, ratio, seed, fewest, titles=None):
    """The rule of both mappings; with titles that of the blocks."""
    blocks = titles is not None
    twister = np.random.RandomState(seed)

    def target(document):
        if blocks:
            return length - int(titles[document])
        word = int(twister.randint(0, 2**32, dtype=np.uint32)) if ratio else 1
        return 2 + word % (length - 1) if ratio and word % ratio == 0 else length

    rows = []
    for _ in range(epochs):
        if len(rows) >= most:
            break
        block = 0
        for document, (first, last) in enumerate(pairwise(documents)):
            left = int(last - first)
            several = left >= fewest if blocks else left > 1
            if left < fewest or (several and any(sizes[k] > 512 for k in range(first, last))):
                continue
            wanted, start, tokens = target(document), int(first), 0
            for sentence in range(int(first), int(last)):
                tokens += int(sizes[sentence])
                left -= 1
                enough = tokens >= wanted and left >= (fewest if blocks else 2) and sentence + 1 - start >= fewest
                if enough or left == 0:
                    rows.append((start, sentence + 1, document, block) if blocks else (start, sentence + 1, wanted))
                    block += 1
                    wanted = wanted if blocks else target(document)
                    start, tokens = sentence + 1, 0
    shuffler = Twister64(int(np.uint32(seed + 1).astype(np.int32)) % 2**64)
    for k in range(len(rows) - 1, 0, -1):
        other = shuffler() % (k + 1)
        rows[k], rows[other] = rows[other], rows[k]
    return rows
