"""Installed packages whose headers are covered by the package's identity instead of one by one.

Torch alone has over 5,000 headers; nobody edits them in place, an upgrade replaces them all. What a package
is, is read from a file or two of it; nothing is imported.
"""

from __future__ import annotations

import os
import sys

from nodecache.digest import digest_bytes, digest_items, read_bytes

ABSENT = "absent"
UNTOLD = "unknown"
"""The identity of a package without the files that tell of it, as in an image that has a toolkit's libraries only."""


def package_folder(name: str) -> str | None:
    """Folder of an importable package, without importing it; None when it is not installed."""
    loaded = sys.modules.get(name)
    places = getattr(loaded, "__path__", None)
    if not places:
        # Where nearly every package is. The import system's own search would cost a hit the import of importlib.
        for entry in sys.path:
            if os.path.isfile(f"{entry}/{name}/__init__.py"):
                return os.path.realpath(f"{entry}/{name}")
        from importlib.util import find_spec

        try:
            found = find_spec(name)
        except (ImportError, ValueError):
            return None
        places = found.submodule_search_locations if found else None
    for place in places or ():
        return os.path.realpath(place)
    return None


def cuda_home() -> str | None:
    """The CUDA toolkit: CUDA_HOME, CUDA_PATH, where nvcc on PATH comes from, or ``/usr/local/cuda``."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return os.path.realpath(os.environ[variable])
    from nodecache.compiler import which

    nvcc = which("nvcc")
    if nvcc:
        home = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
        if os.path.isfile(os.path.join(home, "include", "cuda.h")):
            return home
    return "/usr/local/cuda" if os.path.isfile("/usr/local/cuda/include/cuda.h") else None


def locate(name: str) -> str | None:
    """Folder of one of the packages that :func:`identity` knows, or None."""
    if name == "cuda":
        home = cuda_home()
        return os.path.realpath(home) if home else None
    return package_folder(name)


def identity(name: str, folder: str | None = None) -> str:
    """What identifies the installed package ``name``; ``absent`` when it is not there.

    pybind11: the header that holds its version. torch: ``version.py`` (release, build tag, git commit, CUDA
    version) and the sizes of the libraries, which differ between builds of one release (C++ ABI). cuda: the
    toolkit's ``version.json``, or the header with its version.
    """
    folder = folder or locate(name)
    if folder is None:
        return ABSENT
    try:
        if name == "pybind11":
            return digest_bytes(read_bytes(f"{folder}/include/pybind11/detail/common.h"))
        if name == "torch":
            sizes = [
                (library, str(os.stat(f"{folder}/lib/{library}").st_size))
                for library in ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")
                if os.path.exists(f"{folder}/lib/{library}")
            ]
            return digest_items(
                [("version", read_bytes(f"{folder}/version.py").decode("utf-8", "surrogateescape")), *sizes]
            )
        for token in ("version.json", "include/cuda_runtime_api.h"):
            if os.path.isfile(f"{folder}/{token}"):
                return digest_bytes(read_bytes(f"{folder}/{token}"))
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return UNTOLD


COVERED = ("pybind11", "torch", "cuda")
