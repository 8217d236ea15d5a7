"""Holds: the folder that get_or_build gave to a process stays for as long as that process lives.

What is mapped outlives a prune; files that are opened later do not. So a process locks one byte of the root's mark, far
beyond its end, for each folder that it gets, and prune needs that byte for itself before it removes the folder. The
lock belongs to the open file description: one descriptor serves any number of folders, a forked child keeps them, and
the last of those processes to die frees them. A process that closes descriptors wholesale gives its holds up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from nodecache.digest import Handle
from nodecache.entry import MANIFEST, entry_path
from nodecache.lock import LOCAL, file_system
from nodecache.root import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.root import Root

_BUSY = (errno.EAGAIN, errno.EACCES)
_marks: dict[str, tuple[int, bool]] = {}
"""Per path of a mark: this process's descriptor of it, and whether locks are seen by all who use the root."""


class HoldsUnknown(Exception):
    """Nobody can tell here who holds an entry. Its text is the cause."""


def take(root: Root, key: str) -> bool:
    """Hold an entry's folder for this process's life; false where a prune was quicker.

    Where the file system's locks cannot be relied on this does nothing: there, prune leaves folders alone.
    """
    try:
        fd, local = _mark(root)
        if not local:
            return True
        _lock(fd, fcntl.F_RDLCK, key)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        from nodecache.printable import logger

        logger().warning("%s is not protected from prune: %s", entry_path(root, key), error)
        return True
    return os.path.lexists(f"{entry_path(root, key)}/{MANIFEST}")


def shut(root: Root, key: str) -> Handle | None:
    """Let nobody take an entry until the handle is closed; None while a living process holds it.

    Raises:
        HoldsUnknown: the file system's locks cannot be relied on.
    """
    path = root.at(MARK)
    handle = Handle()
    try:
        kind = file_system(path)
        if kind not in LOCAL:
            raise HoldsUnknown(f"a file system of type {kind} does not tell who uses it")
        _lock(handle.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), fcntl.F_WRLCK, key)
    except OSError as error:
        handle.close()
        if error.errno in _BUSY:
            return None
        raise HoldsUnknown(f"{path} cannot be locked: {error.strerror}") from error
    return handle


def _mark(root: Root) -> tuple[int, bool]:
    """This process's descriptor of the root's mark; opened again where the root was removed and made again."""
    path = root.at(MARK)
    known = _marks.get(path)
    if known is not None:
        try:
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(known[0])):
                return known
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
        _marks.pop(path, None)
    local = file_system(path) in LOCAL
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    kept = _marks.setdefault(path, (fd, local))
    if kept[0] != fd:  # another thread was quicker, and its holds are on that one
        os.close(fd)
    return kept


def _lock(fd: int, how: int, key: str) -> None:
    """Lock an entry's byte: struct flock of fcntl(2), with a process id of 0, as open file descriptions need it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", how, os.SEEK_SET, int(key[:15], 16), 1, 0))
