"""Spawned children: ``multiprocessing`` with ``spawn`` or ``forkserver`` starts new interpreters, which need the patch.

What the parent tells such a child before anything else is a pickled dict (``multiprocessing.spawn``'s preparation
data). One more item in it installs the patch in the child when it is unpickled. Other ways to start a program, such as
``subprocess``, are left alone.
"""

from __future__ import annotations

import functools
import os
import sys

from nodecache.import_hook import after_import, is_awaited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_SPAWN = "multiprocessing.spawn"
_IN_THE_CHILD = """\
import sys
sys.path.append({folder!r})  # the parent's sys.path comes next, and replaces this one
try:
    from nodecache.patch import install_on_import
except ImportError as error:
    sys.stderr.write(f"nodecache: torch builds for itself in this child process: {{error}}\\n")
else:
    install_on_import()
"""


def cover(wanted: Callable[[], bool]) -> None:
    """Install the patch in spawned children too.

    Args:
        wanted: asked for each child; whether the patch is installed, or will be, in this process.
    """
    spawn = sys.modules.get(_SPAWN)
    if spawn is not None:
        _wrap(spawn, wanted)
    elif not is_awaited(_SPAWN):
        after_import(_SPAWN, lambda module: _wrap(module, wanted))


def _wrap(spawn: ModuleType, wanted: Callable[[], bool]) -> None:
    theirs = vars(spawn)["get_preparation_data"]
    if hasattr(theirs, "nodecache"):
        return

    @functools.wraps(theirs)
    def prepare(*arguments: Any, **named: Any) -> Any:
        data = theirs(*arguments, **named)
        if wanted():
            data["nodecache"] = _Install()
        return data

    vars(prepare)["nodecache"] = True
    vars(spawn)["get_preparation_data"] = prepare


class _Install:
    """Installs the patch where it is unpickled; a child that cannot import nodecache says so and goes on."""

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, object]]]:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        return exec, (_IN_THE_CHILD.format(folder=folder), {})
