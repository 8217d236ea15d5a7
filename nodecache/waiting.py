"""Waiting: what a process says while somebody else builds for it.

Quiet for two seconds, then clear: who builds what, for how long, how far it is and where its log is; again at growing
intervals. Where ranks are known, one waiter a node speaks. On a terminal, one waiter draws a bar instead.
"""

from __future__ import annotations

import time

from nodecache import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nodecache.bar import Bar
    from nodecache.launchers import Node
    from nodecache.owner import Owner

FIRST = 2.0
"""Seconds of silence."""

LONGEST = 60.0
"""Longest interval between two messages, in seconds."""

REDRAW = 0.5
"""Seconds after which a bar is drawn anew."""


class Voice:
    """One wait's voice.

    Attributes:
        here: this node and rank, once there was a wait.
        holder: who was last seen building, or None.
        waited: seconds since the wait began, or 0.0 when there was none.
    """

    def __init__(self, name: str, *, verbose: bool) -> None:
        self._name = name
        self._verbose = verbose
        self._began: float | None = None
        self._next = FIRST
        self._bar: Bar | None = None
        self._ended: float | None = None
        self.here: Node | None = None
        self.holder: Owner | None = None

    @property
    def waited(self) -> float:
        """Seconds since the wait began, until it ended."""
        return 0.0 if self._began is None else (self._ended or time.monotonic()) - self._began

    @property
    def started(self) -> float:
        """When the wait began, in seconds since the epoch."""
        return time.time() - (0.0 if self._began is None else time.monotonic() - self._began)

    def wait_for(self, read: Callable[[], Owner | None]) -> Owner | None:
        """Note who is waited for, and speak when it is time."""
        if self._began is None:
            self._began = time.monotonic()
            from nodecache.launchers import node

            self.here = node()  # now, when there is time: it would come between the wake-up and the module
        self.holder = read() or self.holder
        if self._bar is not None:
            self._bar.show(self._name, self.holder)
        elif self.waited >= self._next:
            self._next = min(self._next * 2, self._next + LONGEST)
            self._speak()
        return self.holder

    def patience(self) -> float:
        """Seconds until there is something to say."""
        if self._bar is not None:
            return REDRAW
        return max(0.0, self._next - self.waited)

    def end(self) -> None:
        """The wait is over; take the bar away."""
        self._ended = time.monotonic()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _speak(self) -> None:
        import logging

        from nodecache.bar import begin
        from nodecache.printable import logger

        if self._speaks():
            self._bar = begin()
            if self._bar is not None:
                self._bar.show(self._name, self.holder)
                return

        log = logger()
        level = logging.WARNING if self._verbose or self._speaks() else logging.DEBUG
        if self.holder is None:
            log.log(level, "waiting for %r for %.0f s; its builder has not said who it is yet", self._name, self.waited)
            return
        step = attempt.progress(self.holder.log)
        log.log(
            level,
            "waiting for %r: %s has been building it for %.0f s%s; log: %s",
            self._name,
            self.holder.label,
            max(0.0, time.time() - self.holder.since),  # the wall clock may have been set back
            f", {step}" if step else "",
            self.holder.log,
        )

    def _speaks(self) -> bool:
        """One waiter a node: local rank 0, or 1 where 0 is the one that builds; everybody where ranks are not known."""
        mine = self.here.local_rank if self.here else None
        zero_builds = self.holder is not None and self.holder.local_rank == 0
        return mine is None or mine == 0 or (mine == 1 and zero_builds)
