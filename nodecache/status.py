"""Status: the builds going on in a root, and whether those who hold them live."""

from __future__ import annotations

import fcntl
import os
import time

from nodecache import attempt, owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.owner import Owner
    from nodecache.root import Root


class Build:
    """One lease that is held, or was not let go by its dead holder.

    Attributes:
        owner: who holds it.
        state: ``running``, ``stopped``, ``dead``, or ``unknown`` where its process cannot be seen from here.
        step: the last step that the log tells of.
        seconds: seconds since the lease was taken, by the wall clock.
    """

    __slots__ = ("owner", "seconds", "state", "step")

    def __init__(self, holder: Owner, state: str) -> None:
        self.owner = holder
        self.state = state
        self.step = attempt.progress(holder.log)
        self.seconds = max(0.0, time.time() - holder.since)

    def record(self) -> dict[str, object]:
        """As plain values, for JSON."""
        fields = {name: getattr(self.owner, name) for name in self.owner.__slots__}
        return {**fields, "state": self.state, "step": self.step, "seconds": self.seconds}


def builds(root: Root) -> list[Build]:
    """The builds going on, the oldest first. Reads only; a root that is not there has none.

    Concurrency: safe at any time. Where the owner's process cannot be seen, its lock is tried for an instant; a waiter
    that tries in the same instant finds it busy once more.
    """
    try:
        names = [name for name in os.listdir(root.at("leases")) if name.endswith(".lock")]
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        path = root.at("leases", name)
        holder = owner.read_path(path)
        if holder is None:
            continue
        state = owner.state(holder)
        if state == "unknown" and not _is_locked(path):
            state = "dead"
        found.append(Build(holder, state))
    return sorted(found, key=lambda build: -build.seconds)


def _is_locked(path: str) -> bool:
    """Whether anybody holds the lock; true where that cannot be told."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
