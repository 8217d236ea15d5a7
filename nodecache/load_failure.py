"""Load failures: why the loader refused a finished file, and what to do about it."""

from __future__ import annotations

import os
import re

from nodecache.elf import library_of_version

_NO_VERSION = re.compile(r"(?P<library>.+?): version `(?P<version>[^']+)' not found \(required by (?P<user>.+)\)")
# As glibc says it, and how older ones said it.
_NO_SYMBOL = re.compile(
    r"(?:(?P<user>/.+?): )?(?:undefined )?symbol:? \S+, version (?P<version>[\w.]+)"
    r"(?: not defined in file (?P<library>\S+))?"
)
_OF_THE_COMPILER = ("GLIBCXX_", "CXXABI_", "GCC_")


def load_failure(name: str, path: str, error: ImportError) -> str:
    """Why the loader refused, and what to do."""
    text = str(error).replace(f"{path}: ", "")
    if _is_noexec(path):
        return (
            f"{name!r} cannot be loaded: its root is on a file system that is mounted noexec ({path}). "
            f"Set NODECACHE_ROOT to a folder where code may run."
        )
    version = _version_failure(name, path, text)
    if version is not None:
        return version
    if "cannot open shared object file" in text:
        library = text.partition(":")[0]
        return (
            f"{name!r} was built, and cannot be loaded here: {library} is not found by the loader. "
            f"Install it or add its folder to LD_LIBRARY_PATH; a driver's library is only where the device is. ({path})"
        )
    if "already registered" in text:  # pybind11 has one registry of types per interpreter, and cannot take one back
        return (
            f"{name!r} was built, and cannot be loaded into this process, which has already loaded a module with the "
            f"same C++ type: {text} Register the type with py::module_local(), or restart the process. ({path})"
        )
    return (
        f"{name!r} was built, and cannot be loaded: {text}. Check extra_ldflags and what the source refers to. ({path})"
    )


def _version_failure(name: str, path: str, text: str) -> str | None:
    """The message where a library in this process is older than the one that was linked; None for other causes."""
    found = _NO_VERSION.search(text) or _NO_SYMBOL.search(text)
    if found is None:
        return None
    user, version = found["user"] or path, found["version"]
    library = found["library"] or library_of_version(user, version) or "the library that defines it"
    if "/" not in library:
        from nodecache.libstdcxx import mapped

        library = mapped(library) or library
    if version.startswith("GLIBC_"):
        remedy = "Build it on a node whose C library is no newer than this one's."
    elif version.startswith(_OF_THE_COMPILER):
        remedy = (
            "Build it with the compiler that this library belongs to (CXX), or add -static-libstdc++ and "
            "-static-libgcc to extra_ldflags. nodecache doctor compares the two libraries."
        )
    else:
        remedy = "Put the folder of the library that was linked first in LD_LIBRARY_PATH, or link this one."
    return (
        f"{name!r} was built, and cannot be loaded here: {user} needs version {version} of "
        f"{os.path.basename(library)}, and the one that this process loads, {library}, does not have it. {remedy}"
    )


def _is_noexec(path: str) -> bool:
    """Whether no code may run where ``path`` is; false where that cannot be asked."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False
