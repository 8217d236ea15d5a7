"""The C++ library: which one the compiler links against, which one a process loads, and the versions that they have."""

from __future__ import annotations

import re

from nodecache.compiler import run_tool
from nodecache.digest import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.compiler import Compiler

NAME = "libstdc++.so.6"
_VERSION = re.compile(rb"\0GLIBCXX_(\d+)\.(\d+)(?:\.(\d+))?(?=\0)")


def newest(path: str) -> tuple[int, ...] | None:
    """The newest version that a library defines, such as ``(3, 4, 30)``; None for what is no such library.

    Raises:
        OSError: it cannot be read.
    """
    found = _VERSION.findall(read_bytes(path))
    return max((tuple(int(part or 0) for part in version) for version in found), default=None)


def linked(compiler: Compiler) -> str | None:
    """Path of the library that a compiler links against; None where it has none of that name.

    Raises:
        ToolchainError: the compiler cannot be started.
    """
    status, said = run_tool([*compiler.command, *compiler.words, f"-print-file-name={NAME}"])
    path = said.strip()
    return path if status == 0 and path.startswith("/") else None


def mapped(name: str = NAME) -> str | None:
    """Path of the library of that name in this process, or None."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = (line.rstrip("\n").partition("/")[2] for line in maps)
        return next((f"/{path}" for path in paths if path and _is_called(path.rpartition("/")[2], name)), None)


def _is_called(file: str, name: str) -> bool:
    """Whether a file is the library of that name: ``libx.so.6.0.30`` is what ``libx.so.6`` links to."""
    return file == name or file.startswith(f"{name}.")


def loaded() -> str | None:
    """Path of the library that this process has or gets; it is loaded, because only the loader knows its choice."""
    import ctypes

    try:
        ctypes.CDLL(NAME)
    except OSError:
        return None
    return mapped()
