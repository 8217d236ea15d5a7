"""The bell: wakes all who wait for a recipe at the moment its builder ends, however it ends.

A named pipe beside the lock file. The builder keeps it open for writing, waiters poll it for the hang-up that the
kernel sends when the last writer closes: on release, and on death. So a wait needs no thread, burns nothing, keeps
Python's signal handling and any timeout, and works across PID and mount namespaces.

It is only a bell. Waiters look at the truth (entry, failure, lock) after *renewing* their end and before every wait,
and again at ticks that grow from ten milliseconds to two seconds: where a pipe cannot be made, was unlinked, or is held
open by a child that was forked without Python knowing, they are late, never wrong. The ticks begin anew at each ring,
because the kernel closes a dying builder's descriptors in an order of its own, and the lock may come after the bell.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from nodecache import errand, lock

FIRST_TICK = 0.01
"""Seconds after which a waiter looks for itself, at first and after a ring; they double from look to look."""

LONGEST_TICK = 2.0
"""The longest of them."""

LONGEST_BLIND_TICK = 0.25
"""The longest where there is no pipe to wait on."""


_LOCK = struct.Struct("hhqqi0q")
"""The kernel's ``struct flock`` with 64-bit offsets: type, whence, start, length, pid."""

_CANNOT = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EROFS}
    | {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOSPC, errno.EDQUOT}
)


def hang(path: str) -> lock.Descriptor | None:
    """The builder's end: open until :func:`nodecache.lock.close`. None where pipes cannot be made."""
    return _open(path, os.O_RDWR)


def _open(path: str, mode: int) -> lock.Descriptor | None:
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
        if error.errno in _CANNOT:
            return None
        raise
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        lock.close(fd)
        return None
    return fd


class Ear:
    """A waiter's end. Renew it, look at the truth, then wait.

    Waiters can have numbers: each locks the byte of its number in the pipe's inode, shared. The kernel keeps such locks
    of a named pipe to itself whatever the file system, and drops them when the descriptor closes, so a waiter's death
    needs no cleaning up.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: lock.Descriptor | None = None
        self._tick = FIRST_TICK
        self._number: int | None = None

    def renew(self) -> None:
        """Listen for a hang-up from now on: one that came before shows in the truth already."""
        old = self._fd
        try:
            self._fd = _open(self._path, os.O_RDONLY)
            self._lock()
        finally:  # an interrupt between the two would leave a number for which nobody waits
            if old is not None and old is not self._fd:
                lock.close(old)

    def be(self, number: int) -> None:
        """Wait under this number from now on."""
        self._number = number
        self._lock()

    def is_lowest(self, base: int) -> bool:
        """Whether nobody else waits under a number from ``base`` up to its own; true where that cannot be told."""
        if self._fd is None or self._number is None or self._number == base:
            return True
        ask = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, base, self._number - base, 0)
        try:
            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, ask)
        except OSError:  # no such locks here
            return True
        return int(_LOCK.unpack(answer)[0]) == fcntl.F_UNLCK

    def _lock(self) -> None:
        if self._fd is not None and self._number is not None:
            wish = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, self._number, 1, 0)
            try:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wish)
            except OSError:  # no such locks here: the others take it for one that does not wait
                pass

    def wait(self, seconds: float) -> bool:
        """Return true when a builder ends, false after ``seconds`` or after a tick."""
        if errand.wait([] if self._fd is None else [self._fd], 0, min(seconds, self._tick)):
            self._tick = FIRST_TICK
            return True
        self._tick = min(self._tick * 2, LONGEST_BLIND_TICK if self._fd is None else LONGEST_TICK)
        return False

    def close(self) -> None:
        """Stop listening."""
        if self._fd is not None:
            lock.close(self._fd)
            self._fd = None
