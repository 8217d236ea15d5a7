"""Operators: which files of this process register them with torch (``TORCH_LIBRARY``).

Torch cannot take a registration back, and a second one of the same namespace ends the process inside the loader, where
nobody can catch it. So the builder writes down what a file registers, and whoever loads a file is asked before.
"""

from __future__ import annotations

import os
import re

from nodecache.errors import LoadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nodecache.spec import Source

FILE = "operators"
"""In an entry whose file registers operators: a namespace a line; after a tab, ``part`` for TORCH_LIBRARY_FRAGMENT."""

# The static object that each registration defines, as the symbol table has it; its length is before the name.
_SYMBOL = re.compile(rb"TORCH_LIBRARY(_FRAGMENT)?_static_init_(\w+)")
_LENGTH = re.compile(rb"(\d+)(STABLE_)?$")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_REGISTRATION = re.compile(rb"\bTORCH_LIBRARY(?:_EXPAND)?(_FRAGMENT)?\s*\(\s*(\w+)\s*,")

_registered: dict[tuple[str, str], str] = {}
_results: dict[str, Any] = {}


def write_down(folder: str, file: str) -> None:
    """Note beside a shared object that has just been built which operators it registers, if any.

    A stripped file does not tell; then its sources' text must do.
    """
    with open(f"{folder}/{file}", "rb") as built:
        found = _in_symbols(built.read())
    if found:
        with open(f"{folder}/{FILE}", "x", encoding="ascii") as note:
            note.write("".join(f"{namespace}\tpart\n" if part else f"{namespace}\n" for namespace, part in found))


def _in_symbols(data: bytes) -> list[tuple[str, bool]]:
    """Namespaces, and for each whether only a part of it is registered."""
    found = set()
    for match in _SYMBOL.finditer(data):
        length = _LENGTH.search(data[max(0, match.start() - 12) : match.start()])
        if length is None:  # debugging information, or part of another name
            continue
        more = match.start() + int(length[1]) - len(length[2] or b"") - match.start(2)
        namespace = match[2][:more].decode()
        part = bool(match[1])
        found.add((namespace.rpartition("_")[0] if part else namespace, part))
    return sorted(found)


def in_text(sources: Sequence[Source], name: str) -> list[tuple[str, bool]]:
    """The same of the sources' text; macros and headers may hide some."""
    found = []
    for source in sources:
        if b"TORCH_LIBRARY" not in source.data:
            continue
        for part, word in _REGISTRATION.findall(_COMMENT.sub(b"", source.data)):
            found.append((name if word == b"TORCH_EXTENSION_NAME" else word.decode(), bool(part)))
    return found


class Guard:
    """Keeps one call from loading a file that would end the process.

    Args:
        name: the module's name, without the number that other content gets.
        kind: the spec's.
        written: what the sources' text registers, for files that do not tell.
        edited: whether a module may stand for itself as it was before an edit, with a warning; else that is an error.
    """

    def __init__(self, name: str, kind: str, written: list[tuple[str, bool]], *, edited: bool) -> None:
        self._name = name
        self._kind = kind
        self._written = written
        self._edited = edited
        self._mine: list[tuple[str, str]] = []

    def run(self, load: Callable[[], Any]) -> Any:
        """Load, by a function that calls :meth:`before`; remember what the result has registered."""
        try:
            found = load()
        except BaseException:
            for operators in self._mine:
                _registered.pop(operators, None)
            raise
        if self._mine:
            _results[found if isinstance(found, str) else str(found.__file__)] = found
        return found

    def before(self, path: str) -> Any:
        """What is to be used in place of a file that is about to be loaded, or None.

        Raises:
            LoadError: nothing can stand for it.
        """
        registers = _noted(os.path.dirname(path))
        if registers is None:
            registers = self._written
        operators = [(namespace, self._name if part else "") for namespace, part in registers]
        for each in operators:
            first = _registered.get(each, path)
            if first != path:
                return self._first(each[0], first)
        for each in operators:
            if each not in _registered:
                _registered[each] = path
                self._mine.append(each)
        return None

    def _first(self, namespace: str, path: str) -> Any:
        """What registered these operators already, where that can stand for this."""
        result = _results.get(path)
        same = _unnumbered(getattr(result, "__name__", "")) == _unnumbered(self._name)
        if not self._edited or (self._kind == "module" and not same):
            raise LoadError(
                f"{self._name!r} registers operators {namespace!r}, which {path} has registered in this process, and "
                f"torch would end it. Start another process for it, or rename the operators' namespace."
            )
        from nodecache.printable import logger

        logger().warning(
            "operators %r are in this process already, from %s, and stay in use, because torch cannot take them out. "
            "Restart the process to use %r as it is now.",
            namespace,
            path,
            self._name,
        )
        return result if self._kind == "module" else path


def _noted(folder: str) -> list[tuple[str, bool]] | None:
    """What the builder wrote down; None where it found nothing."""
    try:
        fd = os.open(f"{folder}/{FILE}", os.O_RDONLY | os.O_CLOEXEC)  # the cheapest way to learn that it is not there
    except OSError:
        return None
    with open(fd, "rb", buffering=0) as note:
        lines = note.read().decode("ascii", "replace").splitlines()
    return [(namespace, bool(part)) for namespace, _, part in (line.partition("\t") for line in lines)]


def _unnumbered(name: str) -> str:
    """A module's name without the number that other content under the same name gets."""
    return re.sub(r"_v\d+$", "", name)
