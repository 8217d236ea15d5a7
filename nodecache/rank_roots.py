"""Rank roots: the ranks of one node have a root each, so each builds for itself. One line of the log says so."""

from __future__ import annotations

import os
import re

from nodecache.launchers import node
from nodecache.printable import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodecache.root import Root

_MOST_RANKS = 1024
_NAMED = 3
_told: set[str] = set()


def tell_of_rank_roots(root: Root) -> None:
    """After a build: warn where other ranks have roots that differ from this one by the rank alone.

    Only the first rank of a node speaks; when it has built, the others have begun.
    """
    here = node()
    if root.path in _told or here.rank is None or here.local_rank or (here.local_rank is None and here.rank):
        return
    size = min(here.local_world_size or here.world_size or 0, _MOST_RANKS)
    found = max(
        (siblings(root.path, first, range(first, first + size)) for first in {here.local_rank or 0, here.rank}), key=len
    )
    if len(found) < 2:  # itself alone
        return
    _told.add(root.path)
    named = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
    logger().warning(
        "%d ranks of this node use %d roots, because the folder that was chosen (build_directory, root or a variable) "
        "differs by rank: %s. Each builds for itself. Choose one folder for all, or set NODECACHE_ROOT to one.",
        len(found),
        len(found),
        named,
    )


def siblings(path: str, number: int, others: Iterable[int]) -> list[str]:
    """Roots whose paths are this one's with another number in place of this; with this one, sorted by number."""
    best: list[str] = []
    numbers = list(others)
    chosen = path.removesuffix(f"nodecache_{os.getuid()}")  # whose number is the user's
    for match in re.finditer(rf"(?<!\d)0*{number}(?!\d)", chosen):
        width = len(match[0])
        paths = [f"{path[: match.start()]}{other:0{width}d}{path[match.end() :]}" for other in numbers]
        found = [each for each in paths if os.path.isdir(f"{each}/entries")]
        best = max(best, found, key=len)
    return best
