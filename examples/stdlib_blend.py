"""A small real data-loading job: blend collections of real text and read this rank's share of samples.

    torchrun --standalone --nproc-per-node=4 examples/stdlib_blend.py --cache empty

The text is what is on every machine: the source files of Python's own standard library. One file is a document, one
byte is a token, one top-level folder a collection. Every rank asks for the compiled dataset helpers when it needs them,
with no barrier before or after: one rank of the node compiles, the others wait for it, and then all go on.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.distributed as dist

import nodecache
from nodecache import megatron

SEQUENCE_LENGTH = 512
SAMPLES = 4096
COLLECTIONS = {"asyncio": 0.4, "email": 0.3, "importlib": 0.1, "json": 0.2}


class Collection(NamedTuple):
    """Documents of one folder.

    Attributes:
        tokens: all documents one after the other, uint8, shape [tokens].
        starts: where each document begins, int64, shape [documents].
        sizes: tokens of each document, int32, shape [documents].
    """

    tokens: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


def read_collection(name: str) -> Collection:
    """Read the source files below one package of the standard library."""
    files = sorted((Path(sysconfig.get_path("stdlib")) / name).rglob("*.py"))
    documents = [np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in files]
    documents = [document for document in documents if document.size]
    sizes = np.array([document.size for document in documents], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
    return Collection(np.concatenate(documents), starts, sizes)


class Samples:
    """The samples of one collection: sequences that run over document borders, as Megatron cuts them."""

    def __init__(self, collection: Collection, wanted: int, seed: int) -> None:
        self.collection = collection
        per_epoch = int(collection.sizes.sum(dtype=np.int64))
        epochs = (wanted * SEQUENCE_LENGTH) // per_epoch + 1
        order = np.tile(np.arange(len(collection.sizes), dtype=np.int32), epochs)
        np.random.default_rng(seed).shuffle(order)
        self.order = order
        self.index = megatron.build_sample_idx(collection.sizes, order, SEQUENCE_LENGTH, epochs, per_epoch)

    def __getitem__(self, sample: int) -> np.ndarray:
        (first, begin), (last, end) = (tuple(map(int, row)) for row in self.index[sample : sample + 2])
        pieces = []
        for at in range(first, last + 1):
            document = int(self.order[at])
            start = int(self.collection.starts[document])
            low = begin if at == first else 0
            high = end + 1 if at == last else int(self.collection.sizes[document])
            pieces.append(self.collection.tokens[start + low : start + high])
        return np.concatenate(pieces)


def main() -> int:
    """Run the job on this rank; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", choices=("empty", "full"), required=True, help="what the run is expected to find")
    expected = {"empty": 1, "full": 0}[parser.parse_args().cache]
    here = nodecache.node()

    began = time.perf_counter()
    helpers = megatron.compile_helper()
    seconds = time.perf_counter() - began
    how = helpers.__nodecache__
    role = f"waited for rank {how.builder_rank}" if how.role == "waited" else how.role

    weights = np.array(list(COLLECTIONS.values()), dtype=np.float64)
    which = np.zeros(SAMPLES, dtype=np.int16)
    sample = np.zeros(SAMPLES, dtype=np.int64)
    helpers.build_blending_indices(which, sample, weights, len(weights), SAMPLES, False)  # Megatron's
    datasets = [
        Samples(read_collection(name), int((which == number).sum()), seed=number)
        for number, name in enumerate(COLLECTIONS)
    ]

    indices = hashlib.blake2b(digest_size=8)
    for array in (which, sample, *(dataset.index for dataset in datasets)):
        indices.update(np.ascontiguousarray(array))
    read = hashlib.blake2b(digest_size=8)
    for at in range(here.rank or 0, SAMPLES, here.world_size or 1):
        read.update(datasets[which[at]][int(sample[at])])

    print(
        f"rank {here.rank}  local rank {here.local_rank}  node {here.hostname}  {role:<18}  {seconds:6.2f} s  "
        f"index {indices.hexdigest()}  read {read.hexdigest()}\n",
        end="",  # one write a line: ranks share the terminal
        flush=True,
    )

    # Only the comparison needs the ranks to meet; building and loading did not.
    dist.init_process_group("gloo")
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, (how.role, indices.hexdigest()))
    dist.destroy_process_group()
    built = sum(role == "built" for role, _ in told)
    if built != expected or len({index for _, index in told}) != 1:
        print(f"wrong: {built} ranks built instead of {expected}, or their indices differ: {told}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
