"""Lets an unchanged Megatron-core import nodecache's dataset helpers where its own ``helpers_cpp`` is not installed.

An import hook answers for ``megatron.core.datasets.helpers_cpp`` only after every other finder has failed, so a
compiled module inside the package still wins. ``compile_helpers``, by which Megatron runs ``make`` inside its own
package on rank 0, becomes an import of that module: there may be no Makefile, and the package may be read-only.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

from nodecache.import_hook import after_import

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
        after_import(_UTILS, _replace_make)


class _HelpersFinder(MetaPathFinder, Loader):
    """Last on ``sys.meta_path``: loads nodecache's module where no other finder has one."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # the protocol's
        return ModuleSpec(fullname, self) if fullname == _HELPERS else None

    def exec_module(self, module: ModuleType) -> None:
        from nodecache.megatron import compile_helper

        # Importlib returns what sys.modules holds afterwards, so the helpers keep their own name and spec.
        sys.modules[module.__name__] = compile_helper()


def _replace_make(utils: ModuleType) -> None:
    vars(utils)["compile_helpers"] = compile_helpers


def compile_helpers() -> None:
    """Import the helpers, building them first if needed; any rank may call it."""
    importlib.import_module(_HELPERS)
