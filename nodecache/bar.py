"""The bar: how far a build is, on the terminal of whoever waits for it or warms.

Drawn by rich, where that is installed. A terminal shows one bar: that of the process that leads its foreground group,
so of many ranks that a launcher started on it none draws, and they log instead.
"""

from __future__ import annotations

import os
import sys
import time

from nodecache import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.progress import Progress

    from nodecache.owner import Owner

_drawn = False


class Bar:
    """A bar on stderr. Take it away with :meth:`close`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        progress.start()

    def show(self, name: str, holder: Owner | None, halted: str = "") -> None:
        """Say who builds ``name``, how far that is, and which process of it is halted."""
        if holder is None:
            self.say(f"waiting for {name}")
            return
        step = attempt.progress(holder.log)
        seconds = max(0.0, time.time() - holder.since)
        more = "".join(f", {each}" for each in (halted, step) if each)
        self.say(f"waiting for {name}: {holder.label}, {seconds:.0f} s{more}", *attempt.count(step))

    def say(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say what is done, and how much of it there is behind."""
        from nodecache.printable import one_line

        self._progress.update(self._task, description=one_line(what), completed=done, total=total)

    def close(self) -> None:
        """Take it away."""
        global _drawn  # noqa: PLW0603  # a terminal has room for one
        self._progress.stop()
        _drawn = False


def begin() -> Bar | None:
    """A bar, or None where there is no terminal that is this process's to draw on, or no rich."""
    global _drawn  # noqa: PLW0603  # a terminal has room for one
    if _drawn or not _is_mine():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column
    except ImportError:
        return None
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    _drawn = True
    return Bar(Progress(text, BarColumn(bar_width=12), console=console, transient=True, expand=True))


def _is_mine() -> bool:
    """Whether stderr is a terminal, and this process the leader of its foreground group."""
    try:
        fd = sys.stderr.fileno()
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpid()
    except (AttributeError, OSError, ValueError):  # no stderr, or one that is no file
        return False
