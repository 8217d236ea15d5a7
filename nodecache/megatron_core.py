"""Lets an unchanged Megatron-core import nodecache's dataset helpers where its own ``helpers_cpp`` is not installed.

An import hook answers for ``megatron.core.datasets.helpers_cpp`` only after every other finder has failed, so a
compiled module inside the package still wins. ``compile_helpers``, by which Megatron runs ``make`` inside its own
package on rank 0, becomes an import of that module: there may be no Makefile, and the package may be read-only.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_HELPERS = "megatron.core.datasets.helpers_cpp"
_UTILS = "megatron.core.datasets.utils"


def install() -> None:
    """Let ``megatron.core.datasets`` use nodecache's helpers, from now on, in this process.

    ``megatron.core.datasets.helpers_cpp`` is built once per node when it is first imported, unless the package has one.
    ``megatron.core.datasets.utils.compile_helpers`` imports it and runs no ``make``.

    Call it before the program imports ``megatron.core.datasets``. Nothing is imported or built by the call itself.

    Concurrency: calling it again has no effect. Forked children inherit it, spawned ones do not.
    """
    if any(isinstance(finder, _HelpersFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(_HelpersFinder())
    if _UTILS in sys.modules:
        _replace_make(sys.modules[_UTILS])
    else:
        sys.meta_path.insert(0, _UtilsFinder())


class _HelpersFinder(MetaPathFinder, Loader):
    """Last on ``sys.meta_path``: loads nodecache's module where no other finder has one."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # the protocol's
        return ModuleSpec(fullname, self) if fullname == _HELPERS else None

    def exec_module(self, module: ModuleType) -> None:
        from nodecache.megatron import compile_helper

        # Importlib returns what sys.modules holds afterwards, so the helpers keep their own name and spec.
        sys.modules[module.__name__] = compile_helper()


class _UtilsFinder(MetaPathFinder, Loader):
    """First on ``sys.meta_path``: replaces ``compile_helpers`` once the module that defines it was imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # the protocol's
        if fullname != _UTILS:
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
        _replace_make(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _replace_make(utils: ModuleType) -> None:
    vars(utils)["compile_helpers"] = compile_helpers


def compile_helpers() -> None:
    """Import the helpers, building them first if needed; any rank may call it."""
    importlib.import_module(_HELPERS)
