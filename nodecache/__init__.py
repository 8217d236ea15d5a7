"""Build native Python extensions once per node, however many ranks ask.

Exactly one process per node compiles; all others wait on the same lease and then import the finished module. There is
no barrier, no rank 0, and no lock to delete by hand.

(PYTEST_DONT_REWRITE: where a program has imported this before it starts pytest, pytest would warn of it.)
"""

from __future__ import annotations

from nodecache.errors import (
    ArchiveError,
    BuildError,
    BuildInterrupted,
    LeaseLost,
    LeaseTimeout,
    LoadError,
    NestedLease,
    NodecacheError,
    NotBuilt,
    RootError,
    SpecError,
    ToolchainError,
    UnsafeRoot,
)
from nodecache.extension import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.explanation import explain as explain
    from nodecache.folder import get_or_build as get_or_build
    from nodecache.inline import load_inline as load_inline
    from nodecache.launchers import node as node

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "BuildError",
    "BuildInterrupted",
    "LeaseLost",
    "LeaseTimeout",
    "LoadError",
    "NestedLease",
    "NodecacheError",
    "NotBuilt",
    "RootError",
    "SpecError",
    "ToolchainError",
    "UnsafeRoot",
    "explain",
    "get_or_build",
    "load",
    "load_inline",
    "node",
]

# What a hit does not need is imported when it is first asked for.
_LATER = {
    "explain": "nodecache.explanation",
    "get_or_build": "nodecache.folder",
    "load_inline": "nodecache.inline",
    "node": "nodecache.launchers",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'nodecache' has no attribute {name!r}")
