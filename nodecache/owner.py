"""The owner record: who holds a lease, written into the locked file itself.

It explains, in messages and in ``nodecache status``. It never decides while the kernel lock works, because a number is
not a process: PIDs are reused, mean nothing in another PID namespace, and a killed process that nobody has reaped still
answers to its number.
"""

from __future__ import annotations

import os
import time

from nodecache.digest import digest_bytes

_HEAD = b"nodecache-owner 1"
_LIMIT = 1 << 16
_PID_LIMIT = 1 << 31
_NUMBER = (int, type(None))
_DEAD = (b"Z", b"X")
_STOPPED = (b"T", b"t")
_KINDS: dict[str, tuple[type, ...]] = {
    "pid": (int,),
    "start": (int,),
    "pidns": (str,),
    "host": (str,),
    "boot_id": (str,),
    "rank": _NUMBER,
    "local_rank": _NUMBER,
    "launcher": (str,),
    "since": (int, float),
    "attempt": (str,),
    "recipe": (str,),
    "name": (str,),
    "log": (str,),
}


class Owner:
    """One holder of a lease.

    Attributes:
        pid, start: process id, and its start in clock ticks since boot (``/proc/PID/stat``, field 22), which no
            change of the wall clock moves. (psutil's ``create_time`` adds the boot time, which does move.)
        pidns: the namespaces in which ``pid`` and ``start`` mean something.
        host, boot_id: the node.
        rank, local_rank, launcher: as the launcher says; labels only.
        since: wall-clock time at which the lease was taken, seconds since the epoch; for people.
        attempt, recipe, name: what is being built.
        log: path of the build's log.
    """

    __slots__ = (
        "attempt",
        "boot_id",
        "host",
        "launcher",
        "local_rank",
        "log",
        "name",
        "pid",
        "pidns",
        "rank",
        "recipe",
        "since",
        "start",
    )

    def __init__(self, **fields: object) -> None:
        for field in self.__slots__:
            setattr(self, field, fields.get(field))
        self.pid: int
        self.start: int
        self.pidns: str
        self.host: str
        self.boot_id: str
        self.rank: int | None
        self.local_rank: int | None
        self.launcher: str
        self.since: float
        self.attempt: str
        self.recipe: str
        self.name: str
        self.log: str

    @property
    def label(self) -> str:
        """``pid 4711 (rank 3) on node17``."""
        rank = "" if self.rank is None else f" (rank {self.rank})"
        return f"pid {self.pid}{rank} on {self.host}"

    def encode(self) -> bytes:
        """The record as it lies in the file: length, digest, body."""
        import json

        body = json.dumps({field: getattr(self, field) for field in self.__slots__}).encode()
        return b"%s %d %s\n%s" % (_HEAD, len(body), digest_bytes(body).encode(), body)


def this_process(*, attempt: str, recipe: str, name: str, log: str) -> Owner:
    """The record of the calling process."""
    from nodecache.launchers import node

    here = node()
    try:
        start = start_ticks("self")
    except ProcessLookupError:  # there is no /proc, and so nobody who could compare it
        start = 0
    return Owner(
        pid=os.getpid(),
        start=start,
        pidns=namespaces(),
        host=here.hostname,
        boot_id=here.boot_id,
        rank=here.rank,
        local_rank=here.local_rank,
        launcher=here.launcher,
        since=time.time(),
        attempt=attempt,
        recipe=recipe,
        name=name,
        log=log,
    )


_threads: dict[tuple[int, str], str] = {}


def note_thread(attempt: str, thread: str) -> None:
    """Remember which thread of this process an attempt is for."""
    _threads[os.getpid(), attempt] = thread


def forget_thread(attempt: str) -> None:
    """The attempt has ended; nothing if it was not noted."""
    _threads.pop((os.getpid(), attempt), None)


def thread_here(owner: Owner) -> str | None:
    """The thread of this very process that the owner is; None where it is another process."""
    return _threads.get((os.getpid(), owner.attempt))


def decode(data: bytes) -> Owner | None:
    """The record in ``data``; None for anything empty, cut, garbled, huge or from a version that is not known."""
    head, _, rest = data.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 4 or b" ".join(words[:2]) != _HEAD or not words[2].isdigit() or len(words[2]) > 8:
        return None
    body = rest[: int(words[2])]
    if len(body) != int(words[2]) or digest_bytes(body).encode() != words[3]:
        return None
    import json

    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not all(type(fields.get(name)) in kinds for name, kinds in _KINDS.items()):
        return None
    return Owner(**fields) if 0 < fields["pid"] < _PID_LIMIT else None


def read(fd: int) -> Owner | None:
    """The record in an open lock file."""
    return decode(os.pread(fd, _LIMIT, 0))


def read_path(path: str) -> Owner | None:
    """The record in a lock file, or None where there is no such file, or nothing that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return read(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def write(fd: int, owner: Owner) -> None:
    """Put the record into the locked file, in one write."""
    data = owner.encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def erase(fd: int) -> None:
    """Say that the lease was let go on purpose."""
    try:
        os.ftruncate(fd, 0)
    except OSError:  # the record then names one who is not there any more; it only explains
        pass


def start_ticks(pid: int | str) -> int:
    """Start of a process in clock ticks since boot; ``"self"`` is the caller, whichever numbers /proc goes by.

    Raises:
        ProcessLookupError: there is no such process in this PID namespace, or it is dead and waits to be reaped.
    """
    letter, start = _stat(pid)
    if letter in _DEAD:
        raise ProcessLookupError(pid)
    return start


def _stat(pid: int | str) -> tuple[bytes, int]:
    """State and start of a process, from /proc; ProcessLookupError where it shows none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(pid) from error
    return fields[0], int(fields[19])


def namespaces() -> str:
    """The PID and the time namespace of this process: in others its number and its start are other numbers."""
    found = []
    for kind in ("pid", "time"):
        try:
            found.append(str(os.stat(f"/proc/self/ns/{kind}").st_ino))
        except OSError:  # a kernel, or a /proc, without such namespaces
            found.append("-")
    return ".".join(found)


def _can_see() -> bool:
    """Whether /proc numbers processes as this process does: a container may have its host's /proc mounted."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def state(owner: Owner) -> str:
    """What can be told of the owner: ``running``, ``stopped``, ``dead`` or ``unknown``.

    ``dead`` is proof: in the same boot and PID namespace, no process has that number and start. ``unknown`` says that
    it cannot be seen from here. A host's name proves nothing, because two machines may share it.
    """
    from nodecache.launchers import node

    boot_id, mine = node().boot_id, namespaces()
    # Where /proc does not tell the boot or the PID namespace, two processes that agree on it may still be strangers.
    if not boot_id or mine.startswith("-") or owner.boot_id != boot_id or owner.pidns != mine or not _can_see():
        return "unknown"
    try:
        letter, start = _stat(owner.pid)
    except ProcessLookupError:
        return "dead" if _is_gone(owner.pid) else "unknown"
    except OSError:
        return "unknown"
    if start != owner.start or letter in _DEAD:
        return "dead"
    return "stopped" if letter in _STOPPED else "running"


def _is_gone(pid: int) -> bool:
    """Whether the kernel has no such process: /proc hides other users' (hidepid), a signal's answer does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is there, and another user's
        pass
    return False


def lives(owner: Owner) -> bool:
    """Whether an owner certainly lives though its lock was granted to somebody else.

    The kernel closes a dying process's descriptors a little before it is seen to be dead: that is waited for.
    """
    for pause in (0.0, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.08):
        time.sleep(pause)
        if state(owner) not in ("running", "stopped"):
            return False
    return True
