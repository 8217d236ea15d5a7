"""The bell: wakes all who wait for a recipe at the moment its builder ends, however it ends.

A named pipe beside the lock file. The builder keeps it open for writing, waiters poll it for the hang-up that the
kernel sends when the last writer closes: on release, and on death. So a wait needs no thread, burns nothing, keeps
Python's signal handling and any timeout, and works across PID and mount namespaces.

It is only a bell. Waiters look at the truth (entry, failure, lock) after *renewing* their end and before every wait,
and again at least every half second: where a pipe cannot be made, was unlinked, or is held open by a child that was
forked without Python knowing, they are late, never wrong.
"""

from __future__ import annotations

import errno
import os
import select
import stat

from nodecache import lock

TICK = 0.5
"""Seconds after which a waiter looks for itself."""

BLIND_TICK = 0.02
"""The same where there is no pipe to wait on."""


def hang(path: str) -> int | None:
    """The builder's end: open until :func:`nodecache.lock.close`. None where pipes cannot be made."""
    return _open(path, os.O_RDWR)


def _open(path: str, mode: int) -> int | None:
    flags = mode | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            fd = lock.note(os.open, path, flags)
        except FileNotFoundError:
            try:
                os.mkfifo(path, 0o600)
            except FileExistsError:
                pass
            fd = lock.note(os.open, path, flags)
    except OSError as error:
        if error.errno in (
            errno.EPERM,
            errno.ENOSYS,
            errno.EOPNOTSUPP,
            errno.ENOENT,
            errno.ELOOP,
            errno.ENXIO,
            errno.ENOSPC,
        ):
            return None
        raise
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        lock.close(fd)
        return None
    return fd


class Ear:
    """A waiter's end. Renew it, look at the truth, then wait."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def renew(self) -> None:
        """Listen for a hang-up from now on: one that came before shows in the truth already."""
        self.close()
        self._fd = _open(self._path, os.O_RDONLY)

    def wait(self, seconds: float) -> None:
        """Return when a builder ends, or after ``seconds``, or after a tick."""
        if self._fd is None:
            select.select([], [], [], min(seconds, BLIND_TICK))
            return
        poll = select.poll()
        poll.register(self._fd, 0)
        poll.poll(min(seconds, TICK) * 1000)

    def close(self) -> None:
        """Stop listening."""
        if self._fd is not None:
            lock.close(self._fd)
            self._fd = None
