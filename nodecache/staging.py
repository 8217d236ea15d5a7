"""Staging: a builder's private folder, locked through its own descriptor.

It is dead only if that lock is free; then whoever builds next removes it, ends what is left of its compilers, and
removes their temporary files. A folder of another node that shares the root is left alone: locks may not reach there.
A record of its owner lies in the lock file. Where there are no kernel locks, proof of the owner's death is needed: no
process of that number and start, or the lease's own verdict on that attempt. Where there are, but
not decided in this kernel, proof of its life keeps the folder: some file systems give one lock to two mounts.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time

from nodecache import lock, owner
from nodecache.digest import digest_bytes
from nodecache.errors import RootError, StagingCleaned, of_the_kernel
from nodecache.root import Root, ensure_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.owner import Owner

MARK = "NODECACHE_ATTEMPT"
"""Environment variable by which every process of an attempt can be found."""

_NAME = re.compile(r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})\.(?P<mark>(?P<attempt>[0-9a-f]{16})\.[0-9]+)")


class Staging:
    """One attempt's folder.

    Attributes:
        path: the folder.
        entry: folder below it that becomes the entry by one rename.
        tmp: where compilers put their temporary files: below the user's TMPDIR where that is set.
        mark: value of :data:`MARK` in the environment of this build's processes.
    """

    def __init__(self, path: str, mark: str, fd: lock.Descriptor | None) -> None:
        self.path = path
        self.mark = mark
        self.entry = f"{path}/entry"
        self.tmp = f"{path}/tmp"
        self._fd = fd
        self._pid = os.getpid()

    def was_cleaned(self) -> bool:
        """Whether somebody else has removed it, or its lock file, so that the next sweep will."""
        return not os.path.lexists(f"{self.path}/lock")

    def cleaned(self, root: Root, name: str) -> StagingCleaned:
        """What to raise when files of it are gone."""
        return StagingCleaned(
            f"Files of {name!r} were removed from its staging folder during the build ({self.path}). "
            f"Keep temp cleaners away from {root.path}, and call again."
        )

    def remove(self) -> None:
        """Remove it. In a child that was forked meanwhile: nothing, it is the parent's."""
        if os.getpid() != self._pid:
            return
        _remove_tree(self.path)
        if self._fd is not None:
            lock.close(self._fd)


def create(root: Root, attempt: str, patience: float | None = None) -> Staging:
    """Make and lock an attempt's folder. Raises LockSilent where its lock is not answered for ``patience`` seconds.

    Then the folder stays for the next sweep: on such a file system its removal could hang as well.

    Between making and locking it a sweeper may take it for dead and remove it; then another is made, under another
    name, because that sweeper goes on to end whatever carries the first one's mark.
    """
    for number in range(100):
        mark = f"{attempt}.{number}"
        path = root.at("staging", f"{_node_tag()}.{mark}")
        ensure_folders(root)
        try:
            os.mkdir(path, 0o700)
            fd: lock.Descriptor | None = _lock_new(path, attempt, patience)
        except (FileNotFoundError, _Swept):
            continue
        break
    else:
        raise RootError(f"{path} keeps vanishing while it is made. Stop whatever is cleaning {root.path}.")
    staging = Staging(path, mark, fd)
    try:
        os.mkdir(staging.entry, 0o700)
        _make_tmp(staging)
    except BaseException:
        staging.remove()
        raise
    return staging


def _make_tmp(staging: Staging) -> None:
    user = os.environ.get("TMPDIR")
    if user and os.path.isdir(user) and os.access(user, os.W_OK | os.X_OK):
        target = os.path.join(os.path.realpath(user), f"nodecache-{os.getuid()}-{staging.mark}")
        # The link first: whoever cleans up after a kill at this very point must find the folder.
        os.symlink(target, staging.tmp)
        os.mkdir(target, 0o700)
    else:
        os.mkdir(staging.tmp, 0o700)


class _Swept(Exception):
    """A sweeper took the folder for dead before it was locked."""


def _lock_new(path: str, attempt: str, patience: float | None) -> lock.Descriptor | None:
    """Lock a folder that was just made; None where only a record can say whose it is."""
    file = f"{path}/lock"
    record = owner.this_process(
        attempt=attempt, recipe="", name="", log=""
    )  # it opens files, and may find no room for one
    fd = lock.open_lock(file)
    try:
        if not lock.try_exclusive(fd, file, patience):
            raise _Swept
    except lock.LocksUnsupported:
        fd = lock.open_lock(file)
        try:
            owner.write(fd, record)
        finally:
            lock.close(fd)
        return None
    try:
        if not lock.is_current(fd, file):
            raise _Swept
        owner.write(fd, record)
    except BaseException:
        lock.close(fd)
        raise
    return fd


def sweep(root: Root, succeeded: Owner | None = None, patience: float | None = None) -> list[str]:
    """Clean up after dead builders. Returns their marks.

    Args:
        succeeded: the dead holder of the lease that the caller has now.
        patience: seconds after which a folder is left whose lock is not answered; None for ever.

    Concurrency: called under a lease, of any recipe. It never touches a folder whose builder lives: the builder's
    lock on it is the proof, whatever happened to the lock file of the lease.
    """
    dead = []
    place = root.at("staging")
    host, boot = _node_tag().split("-")
    for name in _names(place):
        found = _NAME.fullmatch(name)
        if found is None or not _reaches(place, own=found["boot"] == boot, same_host=found["host"] == host):
            continue
        known = succeeded is not None and found["attempt"] == succeeded.attempt
        if _sweep_one(f"{place}/{name}", known=known, patience=patience):
            dead.append(found["mark"])
    if dead:
        reap(dead)
        for name in _names(place):  # what their compilers wrote before they were ended
            if name.partition(".")[2] in dead:
                _remove_tree(f"{place}/{name}")
    return dead


def _reaches(place: str, *, own: bool, same_host: bool) -> bool:
    """Whether a free lock proves that a builder is dead: in this boot, or on a disk that only this kernel has mounted.

    Two machines may have one name, and share a file system that keeps their locks apart.
    """
    from nodecache.launchers import node

    if own and node().boot_id:
        return True
    return same_host and lock.is_local(place)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _sweep_one(path: str, *, known: bool, patience: float | None) -> bool:
    """Remove a dead builder's folder; whether a builder had it when it died.

    Args:
        known: the builder is known to be dead, where a record alone could not prove it.
    """
    file = f"{path}/lock"
    try:
        fd = lock.note(os.open, file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # being made, being removed, or its builder died in between: nothing is running there
        _remove_tree(path)
        return False
    except NotADirectoryError:
        return False
    try:
        if not lock.try_exclusive(fd, file, patience):
            return False
    except lock.LockSilent:
        return False
    except lock.LocksUnsupported:
        record = owner.read_path(file)
        if not known and (record is None or owner.state(record) != "dead"):
            return False
        _remove_tree(path)
        return True
    try:
        if not lock.is_current(fd, file):
            return False
        record = owner.read(fd)
        # Elsewhere a file system may give the lock to two. Here its owner let go, alive or not: by an exec, say.
        if record is not None and not lock.is_local(path) and owner.lives(record):
            return False
        _remove_tree(path)
    finally:
        lock.close(fd)
    return True


def reap(marks: list[str]) -> None:
    """End every process that carries one of the marks; what its supervisor could not end, say."""
    import signal

    import psutil

    from nodecache.supervise import number_here

    for _ in range(50):
        found = False
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) not in marks:
                    continue
                number = number_here(process.pid)
                if number is not None and number != os.getpid():
                    os.kill(number, signal.SIGKILL)
                    found = found or process.status() != psutil.STATUS_ZOMBIE
            except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
                continue
        if not found:
            return
        time.sleep(0.01)  # a killed process is gone when the kernel says so; there is nothing to wait on


def _remove_tree(path: str) -> None:
    """Remove a staging folder and the temporary folder it links to; a compiler that is dying may still write there."""
    link = f"{path}/tmp"
    try:
        if stat.S_ISLNK(os.lstat(link).st_mode):
            target = os.readlink(link)
            if os.path.basename(target).startswith(f"nodecache-{os.getuid()}-"):
                _remove(target)
    except OSError as error:  # a server that is away, too: what is being told already is not to be hidden by it
        if not of_the_kernel(error):
            raise
    for _ in range(5):
        _remove(path)
        if not os.path.lexists(path):
            return


def _remove(folder: str) -> None:
    """Remove a folder as far as that goes. Another process may be at it, which rmtree does not always ignore."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass


def _node_tag() -> str:
    """``<host>-<boot>``, hashed: whose locks reach this process, and which folders an earlier boot left."""
    from nodecache.launchers import node

    here = node()
    return f"{digest_bytes(here.hostname.encode())[:8]}-{digest_bytes(here.boot_id.encode())[:8]}"
