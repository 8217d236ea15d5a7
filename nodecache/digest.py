"""Digests: 160 bits of BLAKE2b, written as 40 hexadecimal digits."""

from __future__ import annotations

import errno
import os
import stat
import sys

# The same class as hashlib.blake2b. hashlib itself also loads OpenSSL, which costs a hit a millisecond.
from _blake2 import blake2b

SIZE = 20
LIMIT = 1 << 30
"""Bytes that are read of any file that is held in memory."""
BLOCK = 1 << 16
"""Bytes that are digested at a time: few enough for malloc not to ask the kernel each time."""

_NULL = os.makedev(1, 3)
"""/dev/null, which people give where an empty file is meant; on Linux its numbers are fixed."""


class Digester:
    """A digest of what comes in pieces."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = blake2b(digest_size=SIZE)

    def update(self, data: bytes) -> None:
        """Take the next piece."""
        self._state.update(data)

    def digest(self) -> str:
        """Digest of all so far."""
        return self._state.hexdigest()


def digest_bytes(data: bytes) -> str:
    """Digest of ``data``."""
    return blake2b(data, digest_size=SIZE).hexdigest()


class Handle(list[int]):
    """A descriptor that is closed with its last reference, whatever interrupts the lines that use it.

    ``open`` runs in C from the system call to this list: no instruction lies between, at which a signal handler could
    raise and lose the descriptor.
    """

    __slots__ = ()

    def open(self, path: str, flags: int) -> int:
        """Open a file; the descriptor stays this object's."""
        self.extend(map(os.open, (path,), (flags,)))
        return self[0]

    def close(self) -> None:
        """Close it; again is no error."""
        while self:
            os.close(self.pop())

    __del__ = close


def read_bytes(path: str, limit: int = LIMIT) -> bytes:
    """The whole plain file, in four system calls for a file that nobody is writing.

    Raises:
        OSError: it cannot be read, is not a plain file, or has more than ``limit`` bytes.
    """
    handle = Handle()
    try:
        fd, status = _open_plain(handle, path, limit)
        return _rest(fd, status.st_size, path, limit)
    finally:
        handle.close()


def read_own(path: str) -> bytes:
    """As :func:`read_bytes`, of a file that nobody but this user or root can have put there.

    Raises:
        PermissionError: it belongs to somebody else.
    """
    return read_own_with_time(path)[0]


def read_own_with_time(path: str) -> tuple[bytes, float]:
    """The same, and the file's modification time."""
    handle = Handle()
    try:
        fd, status = _open_plain(handle, path, LIMIT, os.O_NOFOLLOW)
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EACCES, "not a plain file of yours", path)
        return _rest(fd, status.st_size, path, LIMIT), status.st_mtime
    finally:
        handle.close()


def _open_plain(handle: Handle, path: str, limit: int, flags: int = 0) -> tuple[int, os.stat_result]:
    """Open a file whose reading ends: a pipe or a device may never, and may be named in a record that others wrote."""
    fd = handle.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    return fd, _check_plain(fd, path, limit)


def _check_plain(fd: int, path: str, limit: int) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) and not (stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, "It is not a plain file", path)
    if status.st_size > limit:
        raise _too_big(path, limit)
    return status


def _too_big(path: str, limit: int) -> OSError:
    return OSError(errno.EOVERFLOW, f"It has more than {limit} bytes", path)


def _rest(fd: int, size: int, path: str, limit: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    left = limit - len(data)
    while more := os.read(fd, 1 << 20):
        parts.append(more)
        left -= len(more)
        if left < 0:
            raise _too_big(path, limit)
    return b"".join(parts)


def digest_file(path: str, limit: int = sys.maxsize) -> str:
    """Digest of a plain file's content, in bounded memory.

    Raises:
        OSError: as :func:`read_bytes`.
    """
    state = blake2b(digest_size=SIZE)
    handle = Handle()
    left = limit
    try:
        fd = handle.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        block = os.read(fd, BLOCK)
        if len(block) in (0, BLOCK):  # else it is a small file, as nearly all are, and a hit saves a system call
            _check_plain(fd, path, limit)
        while block:
            state.update(block)
            left -= len(block)
            block = os.read(fd, BLOCK)
            if left < 0:
                raise _too_big(path, limit)
    finally:
        handle.close()
    return state.hexdigest()


def digest_items(items: list[tuple[str, str]]) -> str:
    """Digest of named values; no two different lists can give the same bytes."""
    state = blake2b(digest_size=SIZE)
    for name, value in items:
        raw = os.fsencode(value)
        state.update(b"%s %d\n%s\n" % (os.fsencode(name), len(raw), raw))
    return state.hexdigest()
