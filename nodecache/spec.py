"""The spec: what to build, checked, with its sources read.

The sources are read once, here. What is compiled later is this snapshot, so a binary always belongs to the
bytes that its key was computed from, whatever happens to the files meanwhile.
"""

from __future__ import annotations

import os

from nodecache.digest import digest_bytes, read_bytes
from nodecache.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME_LIMIT = 200
HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c++", ".C", ".c", ".S", ".s")
CUDA_SUFFIXES = (".cu",)
FRAMEWORKS = ("pybind11", "torch", "cuda")


class Source:
    """One source file, as it was when the call began.

    Attributes:
        path: absolute path, for messages and for finding what it includes.
        data: its bytes.
        digest: their digest.
    """

    __slots__ = ("data", "digest", "path")

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.digest = digest_bytes(data)

    @property
    def cuda(self) -> bool:
        """Whether nvcc compiles it."""
        return self.path.endswith(CUDA_SUFFIXES)


class Flags:
    """Flags that a framework adds.

    Attributes:
        cflags, cuda_cflags, ldflags: one string an argument.
    """

    __slots__ = ("cflags", "cuda_cflags", "ldflags")

    def __init__(self, cflags: list[str], cuda_cflags: list[str], ldflags: list[str]) -> None:
        self.cflags = cflags
        self.cuda_cflags = cuda_cflags
        self.ldflags = ldflags


class Spec:
    """A checked build request.

    Attributes:
        name: module name, an ASCII identifier of at most 200 characters.
        sources: at least one.
        cflags, cuda_cflags, ldflags: one string an argument, no shell involved.
        include_paths: absolute.
        frameworks: of ``pybind11``, ``torch`` and ``cuda``, those that must be there. pybind11's headers are found
            without where it is installed.
        kind: ``module`` (has an init function), ``library`` (only loaded) or ``program``.
        environment_flags: whether CXXFLAGS and LDFLAGS apply.
        base_flags: what comes before all other compile flags.
        framework_flags: asked only when it is built: what the framework's identity, which is in the key, decides.
        instead: asked with path and role before a finished file is loaded; what it returns, unless None, is returned in
            its place.
        items: further named values for the key.
    """

    __slots__ = (
        "base_flags",
        "cflags",
        "cuda_cflags",
        "environment_flags",
        "framework_flags",
        "frameworks",
        "include_paths",
        "instead",
        "items",
        "kind",
        "ldflags",
        "name",
        "sources",
    )

    def __init__(
        self,
        name: str,
        sources: list[Source],
        *,
        cflags: tuple[str, ...] = (),
        cuda_cflags: tuple[str, ...] = (),
        ldflags: tuple[str, ...] = (),
        include_paths: tuple[str, ...] = (),
        frameworks: tuple[str, ...] = (),
        kind: str = "module",
        environment_flags: bool = True,
        base_flags: tuple[str, ...] = ("-O2", "-std=c++17"),
        framework_flags: Callable[[], Flags] | None = None,
        instead: Callable[[str, str], Any] | None = None,
        items: tuple[tuple[str, str], ...] = (),
    ) -> None:
        _check_name(name, kind)
        if not sources:
            raise SpecError(f"Extension {name!r} has no sources. Give at least one .cpp file.")
        for framework in frameworks:
            if framework not in FRAMEWORKS:
                raise SpecError(f"Framework {framework!r} is not known. Choose from {', '.join(FRAMEWORKS)}.")
        self.name = name
        self.sources = sources
        self.cflags = cflags
        self.cuda_cflags = cuda_cflags
        self.ldflags = ldflags
        self.include_paths = include_paths
        self.frameworks = frameworks
        self.kind = kind
        self.environment_flags = environment_flags
        self.base_flags = base_flags
        self.framework_flags = framework_flags
        self.instead = instead
        self.items = items

    @property
    def cuda(self) -> bool:
        """Whether any source is CUDA."""
        return any(source.cuda for source in self.sources)

    @property
    def file_name(self) -> str:
        """Name of the file that is built."""
        return self.name if self.kind == "program" else f"{self.name}.so"


def _check_name(name: str, kind: str) -> None:
    word = name
    if kind != "module" and isinstance(name, str):  # nobody imports it: it is the name of a file, and a macro
        word = name.replace("-", "_").replace(".", "_") if name[:1] not in "-." else ""
    if not isinstance(word, str) or not (word.isidentifier() and word.isascii()):
        raise SpecError(
            f"Extension name {name!r} is not an ASCII identifier, so no module can be called that. "
            f"Use letters, digits and underscores."
        )
    if len(name) > NAME_LIMIT:
        raise SpecError(f"Extension name {name[:32]}... has {len(name)} characters. Use at most {NAME_LIMIT}.")


def arguments(what: str, value: object) -> tuple[str, ...]:
    """A list of command-line arguments, checked.

    Raises:
        SpecError: ``value`` is a bare string (is it one flag or several?), or an element is not a string.
    """
    if value is None:
        return ()
    if isinstance(value, str | bytes):
        raise SpecError(f"{what} is one string: {value!r}. Give a list with one argument an element.")
    found: tuple[object, ...] = tuple(value)  # type: ignore[arg-type]  # not iterable: TypeError, as anywhere
    checked = []
    for element in found:
        if not isinstance(element, str) or set("\0\n\r") & set(element):
            raise SpecError(f"{what} has an element that is no argument: {element!r}. Give strings on one line.")
        checked.append(element)
    return tuple(checked)


TIME_LIMIT = 10**9
"""Seconds; the longest time limit that is understood. System calls take no more than some hundred times that."""


def seconds(what: str, value: object) -> float | None:
    """A time limit in seconds, checked; None is no limit.

    Raises:
        SpecError: ``value`` is no number, is not finite, is negative, or is more than :data:`TIME_LIMIT`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, complex):
        raise SpecError(f"{what} is not a number of seconds: {shown(value)}. Give a number, or None for no limit.")
    # A comparison with NaN is false.
    if not 0 <= value <= TIME_LIMIT:  # type: ignore[operator]
        raise SpecError(
            f"{what} is not between 0 and {TIME_LIMIT} seconds: {shown(value)}. "
            f"Give such a number, or None for no limit."
        )
    return float(value)


def shown(value: object) -> str:
    """An argument's value in a message, cut to 80 characters."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes out integers of up to 4300 digits
        return "a number of thousands of digits"


def paths(what: str, value: object) -> tuple[str, ...]:
    """A list of absolute paths, checked; one path may stand alone."""
    if isinstance(value, str | os.PathLike):
        value = [value]
    return tuple(os.path.abspath(element) for element in arguments(what, [os.fspath(v) for v in value or ()]))  # type: ignore[attr-defined]


def read_sources(value: object) -> list[Source]:
    """Read the source files; one path may stand alone.

    Raises:
        SpecError: a path does not exist, cannot be read, or is no source file.
    """
    found = []
    for path in paths("sources", value):
        if not path.endswith(HOST_SUFFIXES + CUDA_SUFFIXES):
            raise SpecError(
                f"{path} is no source file. Give one of {' '.join(HOST_SUFFIXES + CUDA_SUFFIXES)}; "
                f"objects and libraries go into extra_ldflags."
            )
        try:
            found.append(Source(path, read_bytes(path)))
        except OSError as error:
            raise SpecError(f"Source {path} cannot be read: {error.strerror}. Check the path.") from error
    return found


def split_words(text: str) -> list[str]:
    """Split as a shell would; the module for it is only loaded where there is something to split."""
    if not text.strip():
        return []
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError(f"{text!r} cannot be split into flags: {error}. Correct its quotes.") from error
