"""A kernel lock on a file, exclusive, tied to this process and to nobody that it forks.

``flock`` belongs to the open file description: the kernel gives it up when the last descriptor closes, so the death
of the holder frees it, at any instruction. What is left to get wrong, and what is done about it here:

- A forked child inherits the description. It closes its copy at once, without unlocking, which leaves the parent's
  lock alone and does not keep it when the parent dies. Descriptors that are being opened while another thread forks
  count too: opening and noting happen under the mutex that a fork takes.
- A temp cleaner may unlink the path. Whoever is granted a lock must ask :func:`is_current` before believing in it.
- Another user may plant the path. It is opened first and created only if absent (a sticky folder with
  ``fs.protected_regular`` refuses O_CREAT on what exists), never through a link, and must be the caller's own file.
- A path that is unlinked on release would split waiters over two inodes. Nothing here ever unlinks it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading

from nodecache.errors import RootError

# Answers of file systems that have no kernel locks: Lustre without -o flock, some NFS and FUSE. 524 is the kernel's
# ENOTSUPP, which leaks to user space there.
UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, 524})


class LocksUnsupported(Exception):
    """The file system under the root has no kernel locks."""


_mutex = threading.Lock()
_noted: set[int] = set()
_hooked = False


def _forked() -> None:
    """In a forked child: give up every descriptor that belongs to the parent's locks."""
    global _mutex  # noqa: PLW0603  # the parent's may be held by a thread that does not exist here
    _mutex = threading.Lock()
    for fd in _noted:
        try:
            os.close(fd)
        except OSError as error:  # closed by somebody who closes descriptors wholesale after a fork
            if error.errno != errno.EBADF:
                raise
    _noted.clear()


def _before_fork() -> None:
    _mutex.acquire()


def _after_fork() -> None:
    _mutex.release()


def _hook() -> None:
    global _hooked  # noqa: PLW0603  # once a process
    if not _hooked:
        _hooked = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)


def note(make: object, *arguments: object) -> int:
    """Call ``make(*arguments)``, which returns a descriptor that no forked child may keep."""
    with _mutex:
        _hook()
        fd: int = make(*arguments)  # type: ignore[operator]
        _noted.add(fd)
        return fd


def pipe() -> tuple[int, int]:
    """A pipe of which no forked child may keep an end."""
    with _mutex:
        _hook()
        ends = os.pipe()
        _noted.update(ends)
        return ends


def close(fd: int) -> None:
    """Close a noted descriptor; a lock on it is gone with it. Twice is no error (a forked child has closed it)."""
    with _mutex:
        if fd in _noted:
            _noted.discard(fd)
            os.close(fd)


def held(fd: int) -> bool:
    """Whether the descriptor is still this process's own: false in a child forked since."""
    return fd in _noted


def open_lock(path: str) -> int:
    """Open a lock file, making it where it is absent.

    Raises:
        RootError: it is a link, not a plain file, or another user's.
        OSError: the folder is gone, read-only, full, ...
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        try:
            fd = note(os.open, path, flags)
        except FileNotFoundError:
            try:
                fd = note(os.open, path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise RootError(f"The lock file {path} is not a plain file. Remove it: rm -rf {path}") from error
            raise
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return fd
        close(fd)
        raise RootError(
            f"The lock file {path} is not a plain file of yours (uid {status.st_uid}). Remove it: rm -rf {path}"
        )


def try_exclusive(fd: int, path: str) -> bool:
    """Ask for the exclusive lock without blocking.

    Raises:
        LocksUnsupported: the file system has none.
        RootError: any other answer than granted or busy; it names the path and the error.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in UNSUPPORTED:
            raise LocksUnsupported(
                f"{path}: {error.strerror} ({errno.errorcode.get(error.errno, error.errno)})"
            ) from error
        name = errno.errorcode.get(error.errno or 0, error.errno)
        raise RootError(
            f"Locking {path} failed: {error.strerror} ({name}). Set NODECACHE_ROOT to a folder on a local disk."
        ) from error
    return True


def is_current(fd: int, path: str) -> bool:
    """Whether ``path`` still leads to the file that ``fd`` has open."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))
