"""Warm: build before the job, in an image, a prolog or on a login node. No GPU is needed.

A target is a function (``package.module:function``), a source file, or what ``pyproject.toml`` declares:

    [tool.nodecache]
    warm = ["mypackage.kernels:get"]         # functions to call

    [tool.nodecache.extensions.fast]         # what nodecache.load("fast", ...) is called with
    sources = ["csrc/fast.cpp"]              # paths from pyproject.toml's folder
    extra_cflags = ["-O3"]
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from nodecache import attempt, bar
from nodecache.errors import LoadError, NodecacheError, SpecError
from nodecache.spec import CUDA_SUFFIXES, HOST_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_LISTS = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "frameworks", "sources", "extra_include_paths")


class Target(NamedTuple):
    """One thing to build.

    Attributes:
        label: as it was named.
        make: builds it; what it returns may say how (``__nodecache__``).
    """

    label: str
    make: Callable[[], Any]


class Done(NamedTuple):
    """What came of a target.

    Attributes:
        label: as it was named.
        how: ``built``, ``waited``, ``hit``, ``built, not loaded`` (its libraries are only where the job runs),
            ``done`` (a function that does not say) or ``failed``.
        seconds: how long it took.
        said: the error, or why it could not be loaded here; else the entry's key, where known.
    """

    label: str
    how: str
    seconds: float
    said: str

    def __str__(self) -> str:
        if self.how in ("failed", "built, not loaded"):
            return f"{self.label}: {self.how}, {self.seconds:.1f} s: {self.said}"
        return f"{self.label}: {self.how}, {self.seconds:.1f} s{f' (key {self.said[:12]})' if self.said else ''}"


def find_targets(words: Sequence[str], project: str = "pyproject.toml") -> list[Target]:
    """The targets that words name; without any, those that a ``pyproject.toml`` declares.

    Raises:
        SpecError: a word is no target, or the declaration makes no sense.
    """
    if words:
        return [_target(word) for word in words]
    found = _declared(project)
    if not found:
        raise SpecError(
            f"Nothing to warm: {project} declares nothing under [tool.nodecache]. Declare extensions there, or name a "
            f"source file or package.module:function."
        )
    return found


def warm(targets: list[Target], say: Callable[[str], None]) -> list[Done]:
    """Build the targets one after the other (each build runs its own compilers in parallel).

    Args:
        targets: what to build.
        say: told a line for each; on a terminal a bar shows meanwhile how far it is.
    """
    found = []
    for number, target in enumerate(targets, 1):
        with _Progress(f"[{number}/{len(targets)}] {target.label}"):
            done = _make(target)
        say(f"[{number}/{len(targets)}] {done}")
        found.append(done)
    return found


def command(words: Sequence[str], project: str) -> int:
    """``nodecache warm``; returns its exit status: 0, or 1 when a target failed."""
    found = warm(find_targets(words, project), _say)
    return 1 if any(done.how == "failed" for done in found) else 0


def _say(line: str) -> None:
    from nodecache.printable import printable

    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def _make(target: Target) -> Done:
    began = time.monotonic()
    try:
        made = target.make()
    except LoadError as error:
        # A driver's library, for one, is only where the device is; the entry is there all the same.
        how = "built, not loaded" if "is not found by the loader" in str(error) else "failed"
        return Done(target.label, how, time.monotonic() - began, str(error))
    except NodecacheError as error:
        return Done(target.label, "failed", time.monotonic() - began, str(error))
    except Exception as error:  # noqa: BLE001  # the caller's own function: its error is told, and the others go on
        return Done(target.label, "failed", time.monotonic() - began, f"{type(error).__name__}: {error}")
    told = getattr(made, "__nodecache__", None)
    return Done(
        target.label, getattr(told, "role", "done"), time.monotonic() - began, str(getattr(told, "key", "") or "")
    )


def _target(word: str) -> Target:
    if word.endswith(HOST_SUFFIXES + CUDA_SUFFIXES):
        name = os.path.splitext(os.path.basename(word))[0]
        return Target(word, lambda: _load(name, {"sources": [word]}))
    module, colon, function = word.partition(":")
    if colon and all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
        return Target(word, lambda: _call(module, function))
    raise SpecError(
        f"{word!r} is no target. Name a source file ({' '.join(HOST_SUFFIXES + CUDA_SUFFIXES)}), or a function as "
        f"package.module:function."
    )


def _load(name: str, arguments: dict[str, Any]) -> Any:
    import nodecache

    return nodecache.load(name, **arguments)


def _call(module: str, function: str) -> Any:
    from importlib import import_module

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as ``python -m`` does
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise SpecError(f"{module} cannot be imported: {error}. Check the name, and PYTHONPATH.") from error
    for name in function.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise SpecError(f"{module} has no function {function!r}. Check the name.")
    return found()


def _declared(project: str) -> list[Target]:
    import tomllib

    try:
        with open(project, "rb") as file:
            said = tomllib.load(file).get("tool", {}).get("nodecache", {})
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SpecError(f"{project} cannot be read: {error}. Correct it.") from error
    unknown = sorted(set(said) - {"warm", "extensions"})
    if unknown:
        raise SpecError(f"{project}: [tool.nodecache] has {unknown[0]!r}; it knows warm and extensions. Correct it.")
    folder = os.path.dirname(os.path.abspath(project))
    found = [
        Target(name, _loader(project, folder, name, said["extensions"][name])) for name in said.get("extensions", {})
    ]
    return found + [_target(word) for word in said.get("warm", [])]


def _loader(project: str, folder: str, name: str, declared: Any) -> Callable[[], Any]:
    """A declared extension's load, checked now."""
    where = f"{project}: [tool.nodecache.extensions.{name}]"
    if not isinstance(declared, dict) or "sources" not in declared:
        raise SpecError(f"{where} names no sources. Give sources = [...].")
    for key, value in declared.items():
        if key not in _LISTS:
            raise SpecError(f"{where} has {key!r}; it knows {', '.join(_LISTS)}. Correct it.")
        if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
            raise SpecError(f"{where} {key} is no list of strings. Write one argument an element.")
    arguments = {
        key: [os.path.join(folder, element) for element in value]
        if key in ("sources", "extra_include_paths")
        else value
        for key, value in declared.items()
    }
    return lambda: _load(name, arguments)


class _Progress:
    """Shows on a bar, meanwhile, how far this process's build is."""

    def __init__(self, label: str) -> None:
        self._bar = bar.begin()
        self._label = label
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nodecache-bar", daemon=True)

    def __enter__(self) -> None:
        if self._bar is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._thread.join()
            self._bar.close()

    def _watch(self) -> None:
        from nodecache.root import open_root
        from nodecache.status import builds

        while self._bar is not None:
            try:
                mine = [build for build in builds(open_root()) if build.owner.pid == os.getpid()]
            except NodecacheError:  # the build itself says so
                mine = []
            step = mine[0].step if mine else ""
            self._bar.say(f"{self._label}{': ' + step if step else ''}", *attempt.count(step))
            if self._over.wait(0.3):
                return
