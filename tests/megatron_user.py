"""Reads real .bin and .idx files through a Megatron dataset, with its own compiled helpers or with nodecache's.

    python megatron_user.py megatron|automodel PACKAGES FOLDER own|nodecache

Prints how many samples there are, of which kinds of dataset, and which helpers put them in order, as JSON; the samples
go to FOLDER/USER-HELPERS.npz.
"""

import importlib
import json
import logging
import sys
import types
from pathlib import Path

import numpy as np
import torch

WEIGHTED = [0.5, 0.3, 0.15, 0.05]


class Tokenizer:
    """What the datasets ask of a tokenizer."""

    vocab_size, eod, pad, bos, pad_token_id, eos_token_id = 1000, 0, 1, 2, 1, 0
    name_or_path = "test"
    unique_identifiers = {"class": "Tokenizer"}  # noqa: RUF012


def megatron(packages, helpers):
    """Megatron-core's modules; its helpers are what ``megatron.core.datasets.helpers_cpp`` is."""
    sys.path.insert(0, packages)
    if helpers:
        sys.modules["megatron.core.datasets.helpers_cpp"] = helpers
    prefix = "megatron.core.datasets"
    builder = importlib.import_module(f"{prefix}.blended_megatron_dataset_builder")
    dataset = importlib.import_module(f"{prefix}.gpt_dataset")
    indexed = importlib.import_module(f"{prefix}.indexed_dataset")
    used = importlib.import_module(f"{prefix}.helpers").build_blending_indices.__module__

    def build(sizes, config):
        return builder.BlendedMegatronDatasetBuilder(dataset.GPTDataset, sizes, lambda: True, config).build()

    return build, dataset.GPTDatasetConfig, indexed, lambda: used


def automodel(packages, helpers):
    """NeMo AutoModel's modules without its packages' ``__init__``, which import all of it, transformers included."""
    name = "nemo_automodel"
    for part in ("", ".shared", *(".components.datasets.llm.megatron".rsplit(".", k)[0] for k in (3, 2, 1, 0))):
        package = types.ModuleType(name + part)
        package.__path__ = [f"{packages}/{(name + part).replace('.', '/')}"]
        sys.modules[name + part] = package
    base = types.ModuleType("transformers.tokenization_utils_base")
    base.PreTrainedTokenizerBase = object  # it stands in an annotation only
    sys.modules |= {"transformers": types.ModuleType("transformers"), base.__name__: base}
    prefix = f"{name}.components.datasets.llm.megatron"
    utils = importlib.import_module(f"{prefix}.megatron_utils")
    utils._HELPER_CACHE_ROOT = Path(sys.argv[3]) / "their-helpers"
    if helpers:
        utils.compile_helper = lambda: helpers
    builder = importlib.import_module(f"{prefix}.builder")
    dataset = importlib.import_module(f"{prefix}.gpt_dataset")
    indexed = importlib.import_module(f"{prefix}.indexed_dataset")

    def build(sizes, config):
        return builder.BlendedMegatronDatasetBuilder(sizes, lambda: True, config).build()

    return build, dataset.GPTDatasetConfig, indexed, lambda: utils.compile_helper().__name__


def corpus(indexed, folder):
    """Four datasets of documents of all lengths, written by their own builder unless they are there already."""
    prefixes = [f"{folder}/corpus{number}" for number in range(4)]
    for number, prefix in enumerate(prefixes):
        if Path(f"{prefix}.idx").exists():
            continue
        random = np.random.default_rng(number)
        builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for length in random.integers(1, 120, 60 + 20 * number):
            builder.add_document(torch.from_numpy(random.integers(3, 1000, length)), [int(length)])
        builder.finalize(f"{prefix}.idx")
    return prefixes


def main():
    user, packages, folder, choice = sys.argv[1:]
    logging.disable(logging.WARNING)
    helpers = None
    if choice == "nodecache":
        from nodecache.megatron import compile_helper

        helpers = compile_helper()
    build, config, indexed, used = {"megatron": megatron, "automodel": automodel}[user](packages, helpers)
    prefixes = corpus(indexed, folder)
    common = {"random_seed": 7, "sequence_length": 64, "split": "80,15,5", "tokenizer": Tokenizer()}
    common |= {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    found, kinds = {}, set()
    # Without weights and sizes every dataset is read once, which is the exhaustive blend.
    for name, sizes, blend in (
        ("weighted", (240, 40, 12), (prefixes, WEIGHTED)),
        ("exhaustive", (None, None, None), (prefixes, None)),
        ("single", (900, 90, 30), (prefixes[:1], None)),
    ):
        settings = config(blend=blend, mid_level_dataset_surplus=0.05, **common)
        for split, dataset in enumerate(build(sizes, settings)):
            kinds.add(type(dataset).__name__)
            samples = [dataset[k] for k in range(len(dataset))]
            for key in samples[0]:
                found[f"{name}-{split}-{key}"] = np.stack([np.asarray(sample[key]) for sample in samples])
    np.savez(f"{folder}/{user}-{choice}.npz", **found)
    samples = sum(len(each) for key, each in found.items() if key.endswith("labels"))
    print(json.dumps({"samples": samples, "kinds": sorted(kinds), "used": used()}))


if __name__ == "__main__":
    main()
