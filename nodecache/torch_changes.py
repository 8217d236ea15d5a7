"""Changes that a program makes to ``torch.utils.cpp_extension``, told from what torch wrote there.

Programs replace helpers of that module and edit its lists of flags to get another binary. nodecache does not call those
helpers, so it must notice: a build that would use a changed one is left to torch.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType, ModuleType
    from typing import Any

HONOURED = "COMMON_NVCC_FLAGS"
"""The list that nodecache takes from torch as it is, and has in the key when it differs from torch's own."""
# Read only by builds that nodecache leaves to torch anyway.
_OF_OTHER_BUILDS = ("COMMON_HIP", "COMMON_MSVC", "MSVC_", "_COMMON_SYCL", "_SYCL")
_VALUES = (str, bytes, int, float, tuple, list, dict, set, frozenset, type(None))


class Globals:
    """What torch's functions read of their module, as it was when this object was made.

    Args:
        module: ``torch.utils.cpp_extension``.
        entries: names of the functions that a build begins with.
        fresh: whether the module has just been imported, so that no program can have changed it yet. Otherwise its
            source tells which functions and lists are torch's own.
    """

    def __init__(self, module: ModuleType, entries: Mapping[str, Any], *, fresh: bool) -> None:
        self._module = module
        self._read_by = {name: _names_read(function, module) for name, function in entries.items()}
        names = set().union(*self._read_by.values())
        here = vars(module)
        self._was: dict[str, tuple[Any, CodeType | None]] = {
            name: (_copied(here[name]), getattr(here[name], "__code__", None)) for name in names
        }
        self._changed_before = set() if fresh else _not_as_written(module, names)

    def changed(self, entry: str, expected: Mapping[str, Any]) -> list[str]:
        """Names that a build which begins with ``entry`` would read, and that are no longer torch's own.

        Args:
            entry: name of the function.
            expected: objects that were put in place of torch's by us.
        """
        here = vars(self._module)
        return [name for name in self._read_by[entry] if self._differs(name, here, expected)]

    def _differs(self, name: str, here: dict[str, Any], expected: Mapping[str, Any]) -> bool:
        now = here.get(name, self)
        if name in expected and now is expected[name]:
            return False
        was, code = self._was[name]
        if name in self._changed_before:
            return True
        if code is not None:
            return now is not was or now.__code__ is not code
        return now is not was and not (isinstance(was, _VALUES) and now == was)


def changed_flags(module: ModuleType) -> list[str] | None:
    """The program's COMMON_NVCC_FLAGS where they differ from torch's, else None."""
    flags = list(getattr(module, HONOURED, ()))
    return None if flags == as_written(module, HONOURED) else flags


_literals: dict[tuple[str, str], Any] = {}
_UNKNOWN = object()


def as_written(module: ModuleType, name: str) -> Any:
    """The literal that the module's source assigns to ``name``; an object equal to nothing if there is none."""
    known = (str(module.__file__), name)
    if known not in _literals:
        _literals[known] = _literal(_source(module), name)
    return _literals[known]


def _names_read(function: Any, module: ModuleType) -> list[str]:
    """Globals of the module that a function, and the functions of the module that it calls, may read."""
    here = vars(module)
    found: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
        for name in code.co_names:
            if name in found or name not in here or name == HONOURED or name.startswith(_OF_OTHER_BUILDS):
                continue
            found.add(name)
            if getattr(here[name], "__globals__", None) is here:
                waiting.append(here[name].__code__)
    return sorted(found)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict | set) else value


def _not_as_written(module: ModuleType, names: Iterable[str]) -> set[str]:
    """Names whose values are not what the module's source defines."""
    text = _source(module)
    here = vars(module)
    defined = set(re.findall(r"^def (\w+)\(", text, re.MULTILINE))
    found = set()
    for name in names:
        value = here[name]
        if name in defined:
            value = getattr(value, "__wrapped__", value) if hasattr(value, "cache_clear") else value
            code = getattr(value, "__code__", None)
            if getattr(value, "__globals__", None) is not here or code is None or code.co_name != name:
                found.add(name)
        elif isinstance(value, _VALUES):
            written = as_written(module, name)
            if written is not _UNKNOWN and written != value:
                found.add(name)
    return found


def _source(module: ModuleType) -> str:
    import inspect

    try:
        return inspect.getsource(module)
    except (OSError, TypeError):  # only compiled files are installed: nothing can be told
        return ""


def _literal(text: str, name: str) -> Any:
    """The value of the first assignment to ``name`` at the left margin, where it is a literal."""
    import ast

    begin = re.search(rf"^{re.escape(name)}(?:\s*:[^=\n]+)?\s*=\s*", text, re.MULTILINE)
    if begin is None:
        return _UNKNOWN
    # A statement ends where the next one begins at the left margin; a closing bracket is still part of this one.
    end = re.compile(r"^[^\s\])}]", re.MULTILINE).search(text, begin.end())
    try:
        return ast.literal_eval(text[begin.end() : end.start() if end else len(text)].strip())
    except (ValueError, SyntaxError):
        return _UNKNOWN
