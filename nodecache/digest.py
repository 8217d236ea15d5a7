"""Digests: 160 bits of BLAKE2b, written as 40 hexadecimal digits."""

from __future__ import annotations

import errno
import os
import stat

# The same class as hashlib.blake2b. hashlib itself also loads OpenSSL, which costs a hit a millisecond.
from _blake2 import blake2b

SIZE = 20


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


def read_bytes(path: str) -> bytes:
    """The whole file, in four system calls for a file that nobody is writing."""
    handle = Handle()
    try:
        fd = handle.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(fd)
        if stat.S_ISFIFO(status.st_mode):
            raise OSError(errno.ESPIPE, "It is a pipe", path)
        return _rest(fd, status.st_size)
    finally:
        handle.close()


def read_own(path: str) -> bytes:
    """As :func:`read_bytes`, of a file that nobody but this user or root can have put there.

    Raises:
        PermissionError: it belongs to somebody else, or is no plain file.
    """
    handle = Handle()
    try:
        fd = handle.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(fd)
        if status.st_uid not in (os.geteuid(), 0) or not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EACCES, "not a plain file of yours", path)
        return _rest(fd, status.st_size)
    finally:
        handle.close()


def _rest(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while more := os.read(fd, 1 << 20):
        parts.append(more)
    return b"".join(parts)


def digest_file(path: str) -> str:
    """Digest of a file's content, in bounded memory."""
    state = blake2b(digest_size=SIZE)
    handle = Handle()
    try:
        fd = handle.open(path, os.O_RDONLY | os.O_CLOEXEC)
        while block := os.read(fd, 1 << 16):  # small enough for malloc not to ask the kernel each time
            state.update(block)
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
