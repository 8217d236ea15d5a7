"""The Megatron helpers beside Megatron-core's own: time, peak memory, and distance from the memory's bandwidth.

Usage: python benchmarks/megatron.py [--quick] [--rounds N]

Fetches the wheel megatron-core 0.16.1 with pip (once), builds the helpers, and runs both in turn on the same input.
Each line gives the medians, their ratio beside its goal, and how many times longer ours take than copying as many bytes
as the function must read and write at least. The last lines give how the cost of a sample grows with the datasets.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from nodecache import megatron

PEER = "megatron-core==0.16.1"


def load_peer():
    """Load Megatron-core's helpers out of its wheel."""
    folder = Path(sys.prefix) / "peers" / PEER.replace("==", "-")
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PEER]
        subprocess.run(command, check=True)
    inside = "megatron/core/datasets/helpers_cpp" + importlib.machinery.EXTENSION_SUFFIXES[0]
    place = tempfile.mkdtemp()
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        path = archive.extract(inside, place)
    spec = importlib.util.spec_from_file_location("helpers_cpp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(prepare, module):
    """Seconds, without those of the preparation, and the result."""
    call = prepare(module)
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def seconds_a_byte():
    """What it costs to move a byte, from the best of five copies."""
    source = np.ones(1 << 27, np.uint8)
    target = np.empty_like(source)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begin)
    return min(times) / (2 * source.nbytes)


def filling(name, size, *arguments):
    """Prepare a call of a function that fills two outputs, whose pages are there before."""

    def prepare(module):
        index, sample = np.ones(size, np.int16), np.ones(size, np.int64)

        def call():
            getattr(module, name)(index, sample, *arguments)
            return index, sample

        return call

    return prepare


def blend(weights, size):
    """Prepare a blend."""
    return filling("build_blending_indices", size, weights, len(weights), size, False)


def exhaust(sizes):
    """Prepare an exhaustive blend."""
    return filling("build_exhaustive_blending_indices", int(sizes.sum()), sizes, len(sizes))


def making(name, *arguments):
    """Prepare a call of a function that makes its output."""
    return lambda module: lambda: getattr(module, name)(*arguments)


def inputs(quick):
    """Yield name, call, units, bytes that must be moved, and the goal."""
    random = np.random.default_rng(1)
    scale = 10 if quick else 1
    for count, size, goal in [(10, 4_000_000, 1.5), (100, 2_000_000, 6), (1000, 400_000, 25), (30_000, 40_000, None)]:
        weights = random.dirichlet(np.ones(count))
        yield (
            f"build_blending_indices {count:,}",
            blend(weights, size // scale),
            size // scale,
            10 * size // scale,
            goal,
        )
    for count, size, goal in [(10, 4_000_000, 2), (100, 1_000_000, 12), (1000, 200_000, 60), (30_000, 20_000, None)]:
        sizes = random.multinomial(size // scale, random.dirichlet(np.ones(count))).astype(np.int64)
        sizes = sizes[sizes > 0]
        total = int(sizes.sum())
        yield f"build_exhaustive_blending_indices {count:,}", exhaust(sizes), total, 10 * total, goal

    documents = 5_000_000 // scale
    sizes = random.integers(1, 2000, documents).astype(np.int32)
    order = random.permutation(documents).astype(np.int32)
    tokens = int(sizes.sum(dtype=np.int64))
    for width in (32, 64):
        moved = 8 * documents + tokens // 2048 * width // 4
        arguments = (sizes, order, 2048, 1, tokens, True, 1)
        name = f"build_sample_idx_int{width}"
        yield name, making(name, *arguments), documents, moved, 3

    sentences = 10_000_000 // scale
    counts = random.integers(1, 40, sentences // 20)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    lengths = random.integers(3, 60, int(bounds[-1])).astype(np.int32)
    total = int(bounds[-1])
    arguments = (bounds, lengths, 1, 10**9, 512, 0.1, 1234, False, 2)
    rows = len(megatron.compile_helper().build_mapping(*arguments))
    moved = lengths.nbytes + bounds.nbytes + 3 * 12 * rows
    yield "build_mapping", making("build_mapping", *arguments), total, moved, 1.5
    blocks = (bounds, lengths, np.zeros(len(counts), np.int32), 1, 10**9, 512, 1234, False, False)
    moved = lengths.nbytes + bounds.nbytes + 3 * 16 * rows
    yield "build_blocks_mapping", making("build_blocks_mapping", *blocks), total, moved, 1.5


def growth(ours, options):
    """Print what a sample costs in a blend of more and more datasets, beside their logarithm."""
    random = np.random.default_rng(1)
    weights = {count: random.dirichlet(np.ones(count)) for count in (1000, 3000, 10_000, 30_000)}
    for size in (50_000, 500_000) if options.quick else (1_000_000, 10_000_000):
        times = {count: [] for count in weights}
        for _ in range(options.rounds):
            for count, each in weights.items():
                times[count].append(timed(blend(each, size), ours)[0] / size * 1e9)
        least = statistics.median(times[1000])
        print(f"\na blend of {size:,} samples")
        for count, each in times.items():
            cost = statistics.median(each)
            logarithm = np.log(count) / np.log(1000)
            print(f"{count:>7,} datasets {cost:6.1f} ns {cost / least:5.2f}x, their logarithm {logarithm:.2f}x")


def equal(one, other):
    """Whether both gave the same arrays."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def main():
    """Run, compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the input")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    ours, theirs = megatron.compile_helper(), load_peer()
    per_byte = seconds_a_byte()
    print(f"memory: {1e-9 / per_byte:.1f} GB/s\n")
    print(f"{'function and datasets':42} {'theirs':>10} {'ours':>9} {'ratio':>7} {'goal':>6} {'x bandwidth':>12}")
    for name, call, units, moved, goal in inputs(options.quick):
        if options.only not in name:
            continue
        times = {ours: [], theirs: []}
        for _ in range(options.rounds):
            (a, mine), (b, other) = timed(call, ours), timed(call, theirs)
            times[ours].append(a)
            times[theirs].append(b)
            if not equal(mine, other):
                raise SystemExit(f"{name}: the results differ")
        mine, other = (statistics.median(times[module]) for module in (ours, theirs))
        print(
            f"{name:42} {other / units * 1e9:7.1f} ns {mine / units * 1e9:6.1f} ns {other / mine:6.1f}x "
            f"{f'{goal}x' if goal else '':>6} {mine / (moved * per_byte):11.1f}x",
            flush=True,
        )
    if options.only in "growth":
        growth(ours, options)


if __name__ == "__main__":
    main()
