"""Digests: 160 bits of BLAKE2b, written as 40 hexadecimal digits."""

from __future__ import annotations

import os

# The same class as hashlib.blake2b. hashlib itself also loads OpenSSL, which costs a hit a millisecond.
from _blake2 import blake2b

SIZE = 20


def digest_bytes(data: bytes) -> str:
    """Digest of ``data``."""
    return blake2b(data, digest_size=SIZE).hexdigest()


def read_bytes(path: str) -> bytes:
    """The whole file, in four system calls for a file that nobody is writing."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        data = os.read(fd, size + 1)
        if len(data) == size:
            return data
        parts = [data]
        while more := os.read(fd, 1 << 20):
            parts.append(more)
        return b"".join(parts)
    finally:
        os.close(fd)


def digest_file(path: str) -> str:
    """Digest of a file's content, in bounded memory."""
    state = blake2b(digest_size=SIZE)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while block := os.read(fd, 1 << 16):  # small enough for malloc not to ask the kernel each time
            state.update(block)
    finally:
        os.close(fd)
    return state.hexdigest()


def digest_items(items: list[tuple[str, str]]) -> str:
    """Digest of named values; no two different lists can give the same bytes."""
    state = blake2b(digest_size=SIZE)
    for name, value in items:
        raw = os.fsencode(value)
        state.update(b"%s %d\n%s\n" % (os.fsencode(name), len(raw), raw))
    return state.hexdigest()
