"""Staging: a builder's private folder, locked through its own descriptor.

It is dead only if that lock is free; then whoever builds next removes it, ends what is left of its compilers, and
removes their temporary files. A folder of another node that shares the root is left alone: locks may not reach there.
"""

from __future__ import annotations

import os
import shutil
import stat
import time

from nodecache import lock
from nodecache.digest import digest_bytes
from nodecache.errors import RootError
from nodecache.root import Root, ensure_folders

MARK = "NODECACHE_ATTEMPT"
"""Environment variable by which every process of an attempt can be found."""


class Staging:
    """One attempt's folder.

    Attributes:
        path: the folder.
        entry: folder below it that becomes the entry by one rename.
        tmp: where compilers put their temporary files: below the user's TMPDIR where that is set.
        mark: value of :data:`MARK` in the environment of this build's processes.
    """

    def __init__(self, path: str, mark: str, fd: int) -> None:
        self.path = path
        self.mark = mark
        self.entry = f"{path}/entry"
        self.tmp = f"{path}/tmp"
        self._fd = fd
        self._pid = os.getpid()

    def remove(self) -> None:
        """Remove it. In a child that was forked meanwhile: nothing, it is the parent's."""
        if os.getpid() != self._pid:
            return
        _remove_tree(self.path)
        lock.close(self._fd)


def create(root: Root, attempt: str) -> Staging:
    """Make and lock an attempt's folder.

    Between making and locking it a sweeper may take it for dead and remove it; then another is made, under another
    name, because that sweeper goes on to end whatever carries the first one's mark.
    """
    for number in range(100):
        mark = f"{attempt}.{number}"
        path = root.at("staging", f"{_node_tag()}.{mark}")
        ensure_folders(root)
        try:
            os.mkdir(path, 0o700)
            fd = lock.open_lock(f"{path}/lock")
        except FileNotFoundError:
            continue
        try:
            mine = lock.try_exclusive(fd, f"{path}/lock")
        except lock.LocksUnsupported:
            mine = True
        if mine and lock.is_current(fd, f"{path}/lock"):
            break
        lock.close(fd)
    else:
        raise RootError(f"{path} keeps vanishing while it is made. Stop whatever is cleaning {root.path}.")
    staging = Staging(path, mark, fd)
    os.mkdir(staging.entry, 0o700)
    user = os.environ.get("TMPDIR")
    if user and os.path.isdir(user) and os.access(user, os.W_OK | os.X_OK):
        target = os.path.join(os.path.realpath(user), f"nodecache-{os.getuid()}-{mark}")
        # The link first: whoever cleans up after a kill at this very point must find the folder.
        os.symlink(target, staging.tmp)
        os.mkdir(target, 0o700)
    else:
        os.mkdir(staging.tmp, 0o700)
    return staging


def sweep(root: Root) -> list[str]:
    """Clean up after dead builders. Returns their marks.

    Concurrency: called under a lease, of any recipe. It never touches a folder whose builder lives: the builder's
    lock on it is the proof, whatever happened to the lock file of the lease.
    """
    dead = []
    tag = _node_tag()
    for name in os.listdir(root.at("staging")):
        host, _, rest = name.partition("-")
        boot, _, mark = rest.partition(".")
        path = root.at("staging", name)
        if f"{host}-{boot}" == tag:
            if _sweep_one(path):
                dead.append(mark)
        elif boot == tag.partition("-")[2] and _sweep_one(path):  # another container of this kernel
            dead.append(mark)
        elif host == tag.partition("-")[0] and boot != tag.partition("-")[2]:  # this host before it was booted
            _remove_tree(path)
            dead.append(mark)
    if dead:
        reap(dead)
        for mark in dead:  # what their compilers wrote before they were ended
            for name in os.listdir(root.at("staging")):
                if name.partition(".")[2] == mark:
                    _remove_tree(root.at("staging", name))
    return dead


def _sweep_one(path: str) -> bool:
    """Remove a folder if its lock is free; whether a builder had it when it died."""
    try:
        fd = lock.note(os.open, f"{path}/lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # being made, being removed, or its builder died in between: nothing is running there
        _remove_tree(path)
        return False
    except NotADirectoryError:
        return False
    try:
        if not lock.try_exclusive(fd, f"{path}/lock") or not lock.is_current(fd, f"{path}/lock"):
            return False
        _remove_tree(path)
    except lock.LocksUnsupported:
        return False
    finally:
        lock.close(fd)
    return True


def reap(marks: list[str]) -> None:
    """End every process that carries one of the marks; what its supervisor could not end, say."""
    import psutil

    for _ in range(50):
        found = False
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) in marks:
                    process.kill()
                    found = found or process.status() != psutil.STATUS_ZOMBIE
            except (psutil.NoSuchProcess, psutil.AccessDenied):
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
                shutil.rmtree(target, ignore_errors=True)
    except (FileNotFoundError, NotADirectoryError):
        pass
    for _ in range(5):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return


def _node_tag() -> str:
    """``<host>-<boot>``, hashed: whose locks reach this process, and which folders an earlier boot left."""
    from nodecache.node import node

    here = node()
    return f"{digest_bytes(here.hostname.encode())[:8]}-{digest_bytes(here.boot_id.encode())[:8]}"
