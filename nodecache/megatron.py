"""The dataset helpers of Megatron-core and NeMo AutoModel, built once per node and many times faster.

``docs/megatron.md`` tells in full where they differ from theirs.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nodecache
from nodecache.megatron_core import install

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["build_sample_idx", "compile_helper", "get_blend_from_list", "install"]

_DEFAULT_ROOT = Path("/tmp") / f"nodecache_{os.getuid()}"

#: Where the helpers are kept, unless NODECACHE_ROOT is set. Assign another path to move them.
_HELPER_CACHE_ROOT = _DEFAULT_ROOT

_NAME = "nodecache_megatron"
_SOURCES = (  # the longest first
    "binding.cpp",
    "blend_avx512.cpp",
    "blend_avx2.cpp",
    "blend_plain.cpp",
    "mapping.cpp",
    "blend.cpp",
    "samples.cpp",
)
_CFLAGS = (
    "-O2",
    "-std=c++17",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # an error is rounded after each operation, as Megatron-core's wheel does it
)

_modules: dict[tuple[str, str | None], ModuleType] = {}
_modules_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_modules_lock=threading.Lock()))


def compile_helper() -> ModuleType:
    """Load the CPU dataset helpers from the locked, node-local build cache.

    Needs a C++ compiler and nothing else that pip does not bring. Sources and artifacts lie in a per-user folder under
    ``/tmp``, whatever TORCH_EXTENSIONS_DIR and TMPDIR say; NODECACHE_ROOT moves it. Each source and Python environment
    has its own entry. The lease covers everything up to publication, so a rank can call this at any time, without a
    distributed barrier.

    Returns:
        The module with ``build_sample_idx_int32``, ``build_sample_idx_int64``, ``build_blending_indices``,
        ``build_exhaustive_blending_indices``, ``build_mapping`` and ``build_blocks_mapping``, each with the arguments,
        dtypes and results of the same function in ``megatron.core.datasets.helpers_cpp`` (megatron-core 0.16). It is
        kept for the life of the process.

    Raises:
        nodecache.NodecacheError: as :func:`nodecache.load` says.

    Concurrency: threads and processes may call it at the same time; one process of the node compiles.
    """
    key = (str(_HELPER_CACHE_ROOT), os.environ.get("NODECACHE_ROOT"))
    module = _modules.get(key)
    if module is None:
        moved = Path(_HELPER_CACHE_ROOT) != _DEFAULT_ROOT
        folder = _source_folder()
        module = nodecache.load(
            _NAME,
            [folder / name for name in _SOURCES],
            extra_cflags=_CFLAGS,
            root=Path(_HELPER_CACHE_ROOT) if moved else None,
        )
        with _modules_lock:
            module = _modules.setdefault(key, module)
    return module


def build_sample_idx(
    sizes: NDArray[np.int32],
    document_indices: NDArray[np.int32],
    sequence_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: bool = True,
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Build the 2-D sample index, in int32 where that holds it and else in int64.

    Args:
        sizes: length of each document in tokens; shape ``[documents]``, int32.
        document_indices: the documents in the order in which they are read, all epochs; shape ``[n]``, int32.
        sequence_length: tokens of a sample, at least 2.
        num_epochs: at least 1.
        tokens_per_epoch: tokens of one epoch. Together with ``num_epochs`` it says how many samples there are.
        drop_last_partial_sequence: leave out the last sample if it is shorter than the others.
        add_extra_token_to_sequence: a sample is read with one token more, which it shares with the next.

    Returns:
        Where each sample begins, and where the last one ends: rows of the position in ``document_indices`` and the
        offset in that document in tokens. Shape ``[samples + 1, 2]``.

    Raises:
        ValueError, TypeError, IndexError: an argument makes no sense; the message names it. An index whose last
            offset would be negative (the last documents are empty) is such a case, as in Megatron-core's wrapper, from
            which the rule for the dtype comes too.

    Concurrency: threads may call it at the same time; the GIL is released during the work.
    """
    import numpy as np

    helpers = compile_helper()
    documents = np.asarray(document_indices)
    narrow = documents.ndim != 1 or documents.shape[0] <= np.iinfo(np.int32).max
    build = helpers.build_sample_idx_int32 if narrow else helpers.build_sample_idx_int64
    index: NDArray[np.int32] | NDArray[np.int64] = build(
        sizes,
        documents,
        sequence_length,
        num_epochs,
        tokens_per_epoch,
        drop_last_partial_sequence,
        int(add_extra_token_to_sequence),
    )
    # Only the last offset can be negative: the end of a partial sample that runs out in an empty document.
    if index[-1, 1] < 0:
        raise ValueError("sizes: the last document of document_indices is empty, and a sample would end before it")
    return index


def get_blend_from_list(blend: Sequence[str] | None) -> tuple[list[str], list[float] | None] | None:
    """Get prefixes and weights from the list that a command line or recipe gives.

    Args:
        blend: None; or prefixes; or weights and prefixes in turn, such as ``["30", "path/a", "70", "path/b"]``. A list
            of odd length, or one without weights, is a list of prefixes.

    Returns:
        None for None; else the prefixes, stripped, and either their weights or None.

    Raises:
        ValueError: ``blend`` is no list or an empty one, only some of the weights are numbers, or a weight is negative
            or not finite. The message names the element.

    Warns:
        UserWarning: a prefix looks like a weight, as in ``["30", "path/a", "70"]``, where one was probably left out.

    Concurrency: a pure function. The rule is that of NeMo AutoModel's function of the same name.
    """
    if blend is None:
        return None
    if isinstance(blend, str | bytes) or not isinstance(blend, Sequence) or len(blend) == 0:
        raise ValueError(f"blend is {blend!r:.200}: pass a list of prefixes, or of weights and prefixes in turn")
    if len(blend) % 2 == 1:
        return _prefixes_alone(blend), None
    weights = [_number(blend[k]) for k in range(0, len(blend), 2)]
    if all(weight is None for weight in weights):
        return _prefixes_alone(blend), None
    found: list[float] = []
    for k, weight in zip(range(0, len(blend), 2), weights, strict=True):
        if weight is None:
            raise ValueError(f"blend[{k}] is {blend[k]!r}, which is no weight, though others are: give all or none")
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"blend[{k}] is {blend[k]!r}: a weight must be finite and not negative")
        found.append(weight)
    prefixes = _prefixes(blend, range(1, len(blend), 2))
    for k, prefix in zip(range(1, len(blend), 2), prefixes, strict=True):
        if _number(prefix) is not None:
            warnings.warn(f"blend[{k}] is {prefix!r}, a prefix that looks like a weight: is one missing?", stacklevel=2)
    return prefixes, found


def _prefixes_alone(blend: Sequence[str]) -> list[str]:
    """All elements as prefixes; warns of those that look like weights, for then every weight becomes a dataset."""
    prefixes = _prefixes(blend, range(len(blend)))
    numbers = [prefix for prefix in prefixes if _number(prefix) is not None]
    if numbers:
        looks = "looks like a weight" if len(numbers) == 1 else "look like weights"
        warnings.warn(
            f"blend has {len(blend)} prefixes and no weights, but {len(numbers)} of {len(blend)} entries {looks} "
            f"({numbers[0]!r}): is a prefix missing? Weights and prefixes alternate, beginning with a weight.",
            stacklevel=3,
        )
    return prefixes


def _number(element: object) -> float | None:
    try:
        return float(element)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _prefixes(blend: Sequence[str], places: range) -> list[str]:
    for k in places:
        if not isinstance(blend[k], str):
            raise ValueError(f"blend[{k}] is {blend[k]!r}: a prefix must be a string")  # noqa: TRY004
    return [blend[k].strip() for k in places]


def _source_folder() -> Path:
    """The C++ sources: in the wheel beside this file, in a checkout beside the package."""
    package = Path(nodecache.__file__).resolve().parent
    inside = package / "csrc"
    return inside if inside.is_dir() else package.parent / "csrc"
