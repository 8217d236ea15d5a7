"""A kernel lock on a file, exclusive, tied to this process and to nobody that it forks.

``flock`` belongs to the open file description: the kernel gives it up when the last descriptor closes, so the death
of the holder frees it, at any instruction. What is left to get wrong, and what is done about it here:

- A forked child inherits the description. It closes its copy at once, without unlocking, which leaves the parent's
  lock alone and does not keep it when the parent dies. Descriptors that are being opened while another thread forks
  count too: opening and noting happen under the mutex that a fork takes. A number may come again for another file, in
  the child or here, so a :class:`Descriptor` knows whose it is and whether it is still open.
- A temp cleaner may unlink the path. Whoever is granted a lock must ask :func:`is_current` before believing in it.
- Another user may plant the path. It is opened first and created only if absent (a sticky folder with
  ``fs.protected_regular`` refuses O_CREAT on what exists), never through a link, and must be the caller's own file.
- A path that is unlinked on release would split waiters over two inodes. Nothing here ever unlinks it.
- "Without blocking" is a wish. On a network or FUSE file system the call may not return for a minute, or ever, and
  nothing can interrupt it; there it is made by a thread that owns the descriptor and drops what is granted late.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading

from nodecache.errors import RootError, of_the_kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

# Answers of file systems that have no kernel locks: Lustre without -o flock, some NFS and FUSE. 524 is the kernel's
# ENOTSUPP, which leaks to user space there.
UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, 524})

# File systems whose locks are decided in this kernel, without asking anybody.
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)


QUIET = 3.0
"""Seconds without an answer to a lock call after which it is said."""


class LocksUnsupported(Exception):
    """The file system under the root has no kernel locks. Its text is the path, the errno and the file system."""


class LockSilent(Exception):
    """The file system has not answered in time. Its text is the path and the file system."""


class Descriptor(int):
    """A file descriptor that no forked child may keep.

    Attributes:
        pid: the process that it belongs to; in a child forked since, the number means something else.
        closed: whether it has been closed; then too.
    """

    pid: int
    closed: bool


# Reentrant: a signal handler that forks may run in the thread that has it.
_mutex = threading.RLock()
_noted: set[int] = set()
_hooked = False
_kinds: dict[int, str] = {}


def _forked() -> None:
    """In a forked child: give up every descriptor that belongs to the parent's locks."""
    global _mutex  # noqa: PLW0603  # the parent's may be held by a thread that does not exist here
    _mutex = threading.RLock()
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


def _own(fd: int) -> Descriptor:
    _noted.add(fd)
    mine = Descriptor(fd)
    mine.pid = os.getpid()
    mine.closed = False
    return mine


def note(make: Callable[..., int], *arguments: object) -> Descriptor:
    """Call ``make(*arguments)``, which returns a descriptor that no forked child may keep."""
    with _mutex:
        _hook()
        return _own(make(*arguments))


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe of which no forked child may keep an end."""
    with _mutex:
        _hook()
        ends = os.pipe()
        return _own(ends[0]), _own(ends[1])


def spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """``subprocess.Popen``, which waits on pipes: a child forked meanwhile would hold them for as long as it lives."""
    import subprocess

    with _mutex:
        _hook()
        return subprocess.Popen(command, **options)


def close(fd: Descriptor) -> None:
    """Close a noted descriptor; a lock on it is gone with it. Twice, or in a forked child, is no error."""
    with _mutex:
        if held(fd):
            try:
                fd.closed = True
                _noted.discard(fd)
            finally:  # an interrupt between the two would leave a lock that nobody can let go
                os.close(fd)


def held(fd: Descriptor) -> bool:
    """Whether the descriptor is still this process's own: false in a child forked since."""
    return not fd.closed and fd.pid == os.getpid()


def open_lock(path: str) -> Descriptor:
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


def try_exclusive(fd: Descriptor, path: str, patience: float | None = None, *, tell: bool = True) -> bool:
    """Ask for the exclusive lock without blocking.

    Args:
        fd: the open lock file. Unless the lock is granted it is closed, at once or when the call returns.
        path: its path.
        patience: seconds to wait for an answer where the file system is not known to give it at once; None for ever.
        tell: whether to log that the answer is late; false where the caller reports it itself.

    Raises:
        LocksUnsupported: the file system has no locks.
        LockSilent: it has not answered in that time.
        RootError: any other answer than granted or busy; it names the path, the error and the file system.
    """
    ask = _Ask(fd)
    device = os.fstat(fd).st_dev
    kind = _kinds.get(device) or file_system(path)
    if kind != "unknown":  # another time the list of mounts may be readable
        _kinds[device] = kind
    try:
        if kind in LOCAL:
            ask.run()
        else:
            ask.run_aside(patience, f"{path} ({kind})", tell=tell)
    except BaseException:
        ask.leave()
        raise
    error = ask.error
    if error is None:
        return True
    close(fd)
    if not of_the_kernel(error):
        raise error
    # ESTALE: the file was removed on the server. To open it again is what a busy lock's waiter does anyway.
    if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.ESTALE):
        return False
    name = errno.errorcode.get(error.errno or 0, error.errno)
    if error.errno in UNSUPPORTED:
        raise LocksUnsupported(f"{path}: {error.strerror} ({name}, {kind})") from error
    from nodecache.remedy import REFUSED

    remedy = REFUSED if error.errno == errno.EPERM else "Set NODECACHE_ROOT to a folder on a local disk."
    raise RootError(
        f"Locking {path} failed on a file system of type {kind}: {error.strerror} ({name}). {remedy}"
    ) from error


_said: set[str] = set()


def _say_silence(what: str) -> None:
    """Say once per process and file that a lock call does not return."""
    if what not in _said:
        _said.add(what)
        from nodecache.printable import logger

        logger().warning(
            "the file system has not answered a lock call on %s for %.0f s; still waiting for it. Check its server, or "
            "set NODECACHE_ROOT to a folder on a local disk.",
            what,
            QUIET,
        )


class _Ask:
    """One lock call, and who closes the descriptor when nobody wants the answer any more."""

    def __init__(self, fd: Descriptor) -> None:
        self._fd = fd
        self._answered = threading.Event()
        self._left = False
        self._mutex = threading.Lock()
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.error = error
        with self._mutex:
            self._answered.set()
            late = self._left
        if late:
            close(self._fd)

    def run_aside(self, patience: float | None, what: str, *, tell: bool) -> None:
        threading.Thread(target=self.run, name="nodecache-lock", daemon=True).start()
        early = QUIET if patience is None else min(QUIET, patience)
        if self._answered.wait(early):
            return
        if patience is None or patience > early:
            if tell:
                _say_silence(what)
            if self._answered.wait(None if patience is None else patience - early):
                return
        raise LockSilent(what)

    def leave(self) -> None:
        with self._mutex:
            self._left = True
            if not self._answered.is_set():
                return
        close(self._fd)


def is_current(fd: Descriptor, path: str) -> bool:
    """Whether ``path`` still leads to the file that ``fd`` has open."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def is_local(path: str) -> bool:
    """Whether locks below a path are decided in this kernel, so that a granted one proves that nobody else has it."""
    return file_system(path) in LOCAL


def file_system(path: str) -> str:
    """Type of the file system that a path lies on, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``; ``unknown``."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return "unknown"
    best, kind = b"", "unknown"
    here = os.fsencode(os.path.abspath(path))
    for line in lines:  # proc(5): id parent dev root MOUNT-POINT options optional... - TYPE source options
        before, _, after = line.partition(b" - ")
        point = before.split()[4]
        for text, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
            point = point.replace(text, byte)
        # Of two mounts on one point the later one covers the other.
        if len(point) >= len(best) and (here + b"/").startswith(point.rstrip(b"/") + b"/"):
            best, kind = point, os.fsdecode(after.split()[0])
    return kind
