"""The soft lease: stands in for the kernel lock on a file system that has none. It is said in the log when it does.

One folder per recipe and root, ``<root>/leases/<recipe>.soft/v2/``, with files that are numbered upwards. Nothing that
a process may see otherwise than its neighbour (a boot id, a hostname) is part of the path. The file with the highest
number says whose the lease is: *free*, or an owner record. Whoever finds it free, or its owner dead, makes the next
number; a name can be made only once, so one of them does. Nothing is ever broken, taken away or renamed, so there is no
instant in which two can both have been right. Only who holds the lease removes lower numbers, nobody the highest. So
who made a number that a slow look had promised, long after others had gone past it, sees a higher one when it looks
again, and steps back.

Dead is who is proved dead by PID, start and namespace. Where the owner cannot be seen (another node, PID namespace or
boot, or no /proc) nothing can be proved; there, and only there, a heartbeat decides: an owner touches its file every
second, and is taken for dead when it has not been touched while a waiter watched for ten. Seconds are counted by the
waiter's looks, none for more than two, so that no clock and no suspension of the machine can run them down.

filelock's soft locks are not used: to succeed a dead owner they need RENAME_EXCHANGE, which NFS and FUSE refuse, and
its lease is taken from a stopped owner by age.
"""

from __future__ import annotations

import errno
import os
import threading
import time

from nodecache import lock, owner
from nodecache.root import Root, make_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.owner import Owner

BEAT = 1.0
"""Seconds between two heartbeats."""

WATCH = 10.0
"""Seconds of watching without a heartbeat after which an owner that cannot be seen is taken for dead."""

LONGEST_LOOK = 2.0
"""Seconds that one look adds to the watch at most."""

_FORMAT = "v2"
_FREE = b"free\n"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EINVAL})


def soft_path(root: Root, recipe: str) -> str:
    """The recipe's folder, the same for everybody who shares the root."""
    return root.at("leases", f"{recipe}.soft", _FORMAT)


def soft_claim(root: Root, recipe: str, cause: lock.LocksUnsupported) -> SoftClaim | None:
    """Ask for the lease; None while somebody else holds it."""
    folder = soft_path(root, recipe)
    make_folder(root, folder)
    number = _highest(folder)
    before = None
    if number:
        verdict, before = _judge(f"{folder}/{number}")
        if verdict == "held":
            return None
    made = SoftClaim(folder, number + 1, before)
    try:
        if not made.make():
            return None
    except OSError as error:
        raise root.failed(error, "making a lease file") from error
    if _highest(folder) > number + 1:
        made.step_back()
        return None
    _remove_lower(folder, number + 1)
    _announce(root, cause)
    return made


def soft_holder(root: Root, recipe: str) -> Owner | None:
    """The record of who holds the lease, where it can be read."""
    folder = soft_path(root, recipe)
    number = _highest(folder)
    return owner.read_path(f"{folder}/{number}") if number else None


def is_held(root: Root, recipe: str) -> bool:
    """Whether somebody alive holds it: a call that was told "no locks" when this one was not."""
    folder = soft_path(root, recipe)
    number = _highest(folder)
    return bool(number) and _judge(f"{folder}/{number}")[0] == "held"


class SoftClaim:
    """A numbered file that is this process's own, and its heartbeat."""

    def __init__(self, folder: str, number: int, before: Owner | None) -> None:
        self._folder = folder
        self._number = number
        self._path = f"{folder}/{number}"
        self._before = before
        self._fd: lock.Descriptor | None = None
        self._ended = threading.Event()

    def make(self) -> bool:
        """Make the file with this process's record in it, in one step; false when it is there already."""
        temporary = f"{self._folder}/new.{os.urandom(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        record = owner.this_process(attempt="", recipe="", name="", log="")
        # From here on an interrupt leaves a file that says "free".
        self._fd = lock.note(os.open, temporary, flags, 0o600)
        try:
            owner.write(self._fd, record)
            os.link(temporary, self._path)
        except (FileExistsError, FileNotFoundError):  # lost, or a winner has tidied up
            self._close()
            return False
        except OSError as error:
            self._close()
            if error.errno not in _NO_LINKS:
                raise
            # Without links it is there before its record is: for that instant it cannot be read, so it counts as held.
            try:
                self._fd = lock.note(os.open, self._path, flags, 0o600)
            except FileExistsError:
                return False
            owner.write(self._fd, record)
        finally:
            _unlink(temporary)
        threading.Thread(target=self._beat, name="nodecache-heartbeat", daemon=True).start()
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                os.utime(self._path, follow_symlinks=False)
            except OSError:  # a server that is away; what becomes of the lease shows in is_mine()
                continue

    def previous(self) -> Owner | None:
        """The dead owner's record."""
        return self._before

    def write(self, record: Owner) -> None:
        """Put the whole owner record in the place of the first one."""
        if self._fd is not None:
            owner.write(self._fd, record)

    def is_mine(self) -> bool:
        """Whether no higher number is there, and the file is still this one."""
        fd = self._fd
        return (
            fd is not None
            and lock.held(fd)
            and _highest(self._folder) <= self._number
            and lock.is_current(fd, self._path)
        )

    def release(self) -> None:
        """Say that it is free. In a child that was forked since: nothing."""
        if self._fd is not None and lock.held(self._fd):
            try:
                os.pwrite(self._fd, _FREE, 0)
                os.ftruncate(self._fd, len(_FREE))
            except OSError:  # a record that still names this living process would make others wait for it
                _unlink(self._path)
            finally:
                self._close()

    def step_back(self) -> None:
        """Remove the file: others have gone past it."""
        self._close()
        _unlink(self._path)

    def _close(self) -> None:
        self._ended.set()
        if self._fd is not None:
            lock.close(self._fd)

    def __del__(self) -> None:
        self.release()


def _highest(folder: str) -> int:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
    except FileNotFoundError:
        return 0


def _remove_lower(folder: str, number: int) -> None:
    for name in os.listdir(folder):
        # No other names: NFS shows a removed file that is still open as .nfs..., and does not let that be removed.
        if name.startswith("new.") or (name.isdigit() and int(name) < number):
            _unlink(f"{folder}/{name}")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _judge(path: str) -> tuple[str, Owner | None]:
    """``free``, ``dead`` or ``held``, and the owner's record."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:  # a winner has gone past it
        return "held", None
    try:
        free = os.pread(fd, len(_FREE), 0) == _FREE
        record = owner.read(fd)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if free:
        return "free", None
    state = "unknown" if record is None else owner.state(record)
    if state == "unknown" and _watched(path, (status.st_ino, status.st_mtime_ns)) >= WATCH:
        state = "dead"
    return ("dead" if state == "dead" else "held"), record


_watches: dict[str, tuple[tuple[int, int], float, float]] = {}


def _watched(path: str, stamp: tuple[int, int]) -> float:
    """Seconds for which this process has looked at a file without seeing a heartbeat."""
    now = time.monotonic()
    known, seconds, looked = _watches.get(path, (None, 0.0, now))
    seconds = seconds + min(now - looked, LONGEST_LOOK) if known == stamp else 0.0
    _watches[path] = (stamp, seconds, now)
    return seconds


_announced: set[str] = set()


def _announce(root: Root, cause: lock.LocksUnsupported) -> None:
    """Say it once a process and root."""
    if root.path not in _announced:
        _announced.add(root.path)
        from nodecache.printable import logger

        logger().warning(
            "no kernel locks on %s; an owner record with a heartbeat stands in for them. %s",
            cause,
            root.remedy(),
        )
