"""Inline sources: C++ and CUDA text in Python strings, with the pybind11 binding generated from a list of functions."""

from __future__ import annotations

import os

from nodecache.errors import SpecError
from nodecache.extension import obtain
from nodecache.spec import Source, Spec, arguments, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    Path = str | os.PathLike[str]


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Path | Sequence[Path] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    verbose: bool = False,
    timeout: float | None = None,
    *,
    root: Path | None = None,
) -> ModuleType:
    """Build an extension from source text once per node, and import it.

    Args:
        name: the module's name.
        cpp_sources: C++ text, one string or several that are joined. Functions to bind must be declared in it.
        cuda_sources: CUDA text, likewise; compiled by nvcc as a unit of its own.
        functions: names of functions to bind with pybind11: one, several, or a mapping from name to docstring. None
            when the text holds its own ``PYBIND11_MODULE`` or init function.
        extra_cflags, extra_ldflags, extra_include_paths, extra_cuda_cflags, verbose, timeout, root: as for
            :func:`nodecache.load`.

    Returns:
        The module, as :func:`nodecache.load` does.

    Raises:
        SpecError: sources are no text, or ``functions`` is neither a name, nor a list, nor a mapping of names; or as
            :func:`nodecache.load`.

    Concurrency: as :func:`nodecache.load`.
    """
    text = _texts("cpp_sources", cpp_sources)
    cuda = _texts("cuda_sources", cuda_sources or ())
    if functions is not None:
        text = ["#include <pybind11/pybind11.h>", *text, binding(functions)]
    try:
        place = os.getcwd()  # where text that includes a file by quotes finds it
    except FileNotFoundError:  # it was removed
        place = ""
    place = place.rstrip("/")
    sources = [Source(f"{place}/main.cpp", _joined(text))]
    if cuda:
        sources.append(Source(f"{place}/cuda.cu", _joined(["#include <cuda_runtime.h>", *cuda])))
    spec = Spec(
        name,
        sources,
        cflags=arguments("extra_cflags", extra_cflags),
        cuda_cflags=arguments("extra_cuda_cflags", extra_cuda_cflags),
        ldflags=arguments("extra_ldflags", extra_ldflags),
        include_paths=paths("extra_include_paths", extra_include_paths),
        frameworks=("pybind11",) if functions is not None else (),
    )
    module: ModuleType = obtain(spec, verbose=verbose, timeout=timeout, root=root)
    return module


def _texts(what: str, value: object) -> list[str]:
    texts = []
    for text in [value] if isinstance(value, str) or not hasattr(value, "__iter__") else value:
        if not isinstance(text, str):
            raise SpecError(f"{what} is or has what is no text: {text!r:.80}. Give source text, or a list of such.")
        texts.append(text)
    return texts


def _joined(parts: list[str]) -> bytes:
    return ("\n".join(parts) + "\n").encode("utf-8", "surrogateescape")


def binding(functions: str | Sequence[str] | Mapping[str, str]) -> str:
    """The pybind11 module definition for ``functions``."""
    if isinstance(functions, str) or not hasattr(functions, "__iter__"):
        functions = [functions]  # type: ignore[list-item]  # or something else, which is told below
    documented = dict(functions) if hasattr(functions, "keys") else {function: function for function in functions}
    lines = ["PYBIND11_MODULE(NODECACHE_MODULE_NAME, m) {"]
    for function, doc in documented.items():
        if not isinstance(function, str) or not all(part.isidentifier() for part in function.split("::")):
            raise SpecError(
                f"{function!r} is no name of a function. Give functions=['name', ...] or {{'name': 'doc'}}."
            )
        exposed = function.rpartition("::")[2]
        lines.append(f'  m.def("{exposed}", &{function}, {_literal(str(doc))});')
    return "\n".join([*lines, "}"])


def _literal(text: str) -> str:
    """A C++ string literal; every byte that could end it or be a trigraph is an octal escape."""
    safe = [chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()]  # ASCII
    return f'"{"".join(safe)}"'
