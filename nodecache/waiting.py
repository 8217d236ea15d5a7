"""Waiting: what a process says while somebody else builds for it.

Quiet for two seconds, then clear: who builds what, for how long, how far it is and where its log is; again at growing
intervals. Of a job's ranks that wait on a node, the lowest speaks. On a terminal, one waiter draws a bar instead.
"""

from __future__ import annotations

import os
import time

from nodecache import attempt, owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nodecache.bar import Bar
    from nodecache.bell import Ear
    from nodecache.launchers import Node
    from nodecache.owner import Owner

FIRST = 2.0
"""Seconds of silence."""

LONGEST = 60.0
"""Longest interval between two messages, in seconds."""

REDRAW = 0.5
"""Seconds after which a bar is drawn anew."""


JOB = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PMIX_NAMESPACE"),
    *("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PYTEST_XDIST_TESTRUNUID"),
)
"""Variables that are alike in the ranks of one job, and differ between jobs that wait for the same build."""

_RANKS = 1 << 31
"""More ranks than a job has."""


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
        self._ear: Ear | None = None
        self._base = 0
        self._halted = ""

    @property
    def waited(self) -> float:
        """Seconds since the wait began, until it ended."""
        return 0.0 if self._began is None else (self._ended or time.monotonic()) - self._began

    @property
    def started(self) -> float:
        """When the wait began, in seconds since the epoch."""
        return time.time() - (0.0 if self._began is None else time.monotonic() - self._began)

    def wait_for(self, read: Callable[[], Owner | None], ear: Ear | None = None) -> Owner | None:
        """Note who is waited for, and speak when it is time. The ranks of a job find each other through the ears."""
        if self._began is None:
            self._began = time.monotonic()
            from nodecache.launchers import node

            self.here = node()  # now, when there is time: it would come between the wake-up and the module
            if ear is not None and self.here.local_rank is not None:
                self._ear, self._base = ear, _job(self.here) * _RANKS
                ear.be(self._base + self.here.local_rank)
        self.holder = read() or self.holder
        if self._bar is not None:
            if self.waited >= self._next:
                self._next = self.waited + FIRST
                self._halted = _halted(self.holder)
            self._bar.show(self._name, self.holder, self._halted)
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
        thread = None if self.holder is None else owner.thread_here(self.holder)
        if thread is not None:
            self._warn_of_itself(thread)
            return
        import logging

        from nodecache.bar import begin
        from nodecache.printable import logger

        speaks = self._speaks()
        if speaks:
            self._bar = begin()
            if self._bar is not None:
                self._bar.show(self._name, self.holder)
                return

        log = logger()
        level = logging.WARNING if self._verbose or speaks else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        if self.holder is None:
            log.log(level, "waiting for %r for %.0f s; its builder has not said who it is yet", self._name, self.waited)
            return
        from nodecache.activity import phrase

        step = attempt.progress(self.holder.log)
        log.log(
            level,
            "waiting for %r: %s has been building it for %.0f s%s%s; log: %s",
            self._name,
            self.holder.label,
            max(0.0, time.time() - self.holder.since),  # the wall clock may have been set back
            f", {step}" if step else "",
            phrase(self.holder),
            self.holder.log,
        )

    def _warn_of_itself(self, thread: str) -> None:
        """Say that this very process builds it: the build may be waiting for this call, and neither would ever end."""
        from nodecache.printable import logger

        logger().warning(
            "waiting for %r for %.0f s: thread %r of this very process (pid %d) builds it. If that build waits for "
            "this call, neither can end: get %r before or after the build, not from a thread that it waits for.",
            self._name,
            self.waited,
            thread,
            os.getpid(),
            self._name,
        )

    def _speaks(self) -> bool:
        """Whether nobody of a lower local rank waits on this node; where that cannot be told, everybody speaks."""
        return self._ear is None or self._ear.is_lowest(self._base)


def _halted(holder: Owner | None) -> str:
    """A builder's process that cannot go on by itself, for a bar."""
    if holder is None:
        return ""
    from nodecache.activity import processes

    return next((each.label for each in processes(holder) if each.halted), "")


def _job(here: Node) -> int:
    """A number of 28 bits that the ranks of a job share."""
    from nodecache.digest import digest_items

    names = [(name, os.environ.get(name, "")) for name in JOB]
    return int(digest_items([*names, ("world size", str(here.world_size))])[:7], 16)
