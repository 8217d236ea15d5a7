"""An import hook: does something to a module as soon as a program has imported it, and costs nothing before that."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call ``action(module)`` once the module was executed, before the import returns; it must not be imported yet."""
    sys.meta_path.insert(0, _AfterImport(name, action))


def is_awaited(name: str) -> bool:
    """Whether :func:`after_import` waits for this module."""
    return any(isinstance(finder, _AfterImport) and finder.name == name for finder in sys.meta_path)


class _AfterImport(MetaPathFinder, Loader):
    """First on ``sys.meta_path``: loads the module as the path's own loader does, and goes away."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self.name = name
        self._action = action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # the protocol's
        if fullname != self.name:
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.loader is None:
            return None
        self._loader = found.loader
        found.loader = self
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._action(module)
