"""The index: for a recipe, the keys built so far and what each build read.

One small text file a key, added after publishing. It is all that a hit reads besides its inputs and the loader's file:
it knows each file of the entry by size, time, inode and digest. A size that differs is a miss; a time or inode that
differs lets the digest decide, and a pass is written down here, never in the entry.
"""

from __future__ import annotations

import os
import stat
import time

from nodecache.digest import digest_bytes, digest_file, read_bytes
from nodecache.entry import MANIFEST, Entry, entry_path
from nodecache.errors import RootError
from nodecache.inputs import Inputs
from nodecache.root import Root, make_folder, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.inputs import Eyes

_HEAD = "nodecache-index 1"


def look(root: Root, recipe: str, eyes: Eyes) -> Entry | None:
    """The sound entry whose inputs are as they are now, or None.

    Reads only. A damaged index file, or entry, is as good as none.
    """
    folder = root.at("recipes", recipe)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    for name in sorted(names, reverse=True):  # newest first
        if name.endswith(".tmp"):
            continue
        lines = _read(f"{folder}/{name}")
        if lines is None:
            continue
        inputs = Inputs.parse(lines)
        same, guarded = eyes.same(inputs)
        if not same:
            continue
        key = name.partition("-")[2]
        sound, fresh = _outputs(root, key, lines)
        if not sound:
            continue
        if not (guarded and fresh):
            _refresh(root, recipe, name, key, inputs, lines)
        return Entry(key, entry_path(root, key))
    return None


def _read(path: str) -> list[str] | None:
    """The lines of an index file; None when it is gone, damaged, or from a version that is not known."""
    try:
        head, check, body = read_bytes(path).decode("utf-8", "surrogateescape").split("\n", 2)
        if head != _HEAD or check != digest_bytes(body.encode("utf-8", "surrogateescape")):
            return None
    except (OSError, ValueError):
        return None
    return body.split("\n")


def _outputs(root: Root, key: str, lines: list[str]) -> tuple[bool, bool]:
    """Whether an entry's files are as published, and whether that showed without digests."""
    fresh = True
    folder = entry_path(root, key)
    owner = os.geteuid()
    for line in lines:
        if not line.startswith("out\t"):
            continue
        _, digest, size, print_, name = line.split("\t")
        path = f"{folder}/{name}"
        try:
            status = os.stat(path, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_size != int(size) or status.st_uid != owner:
                return False, False
            if print_ != f"{status.st_mtime_ns}.{status.st_ino}":
                fresh = False
                if digest_file(path) != digest:
                    return False, False
        except (OSError, ValueError):
            return False, False
    return True, fresh


def add(root: Root, recipe: str, entry: Entry, inputs: Inputs, files: dict[str, dict[str, object]]) -> None:
    """Add a published entry.

    Args:
        files: the manifest's ``files``.
    """
    outputs = [(name, str(said["digest"])) for name, said in files.items()]
    outputs.append((MANIFEST, digest_file(entry.file(MANIFEST))))
    # The time is only an order to look in.
    _write(root, recipe, f"{time.time_ns():020d}-{entry.key}", entry.key, inputs, outputs)
    folder = root.at("recipes", recipe)
    newest = max(name for name in os.listdir(folder) if name.endswith(f"-{entry.key}"))
    for name in os.listdir(folder):
        if name.endswith(f"-{entry.key}") and name != newest:
            _drop(f"{folder}/{name}")


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _refresh(root: Root, recipe: str, name: str, key: str, inputs: Inputs, lines: list[str]) -> None:
    """Write down what the digests have shown, so that the next look need not compute them."""
    inputs.folders = [(folder, os.stat(folder).st_mtime_ns) for folder, _ in inputs.folders if os.path.isdir(folder)]
    outputs = [(line.split("\t")[4], line.split("\t")[1]) for line in lines if line.startswith("out\t")]
    try:
        _write(root, recipe, name, key, inputs, outputs)
    except (OSError, RootError) as error:  # a root that is full or read-only still serves hits
        import logging

        logging.getLogger("nodecache").debug("the index of %s was not refreshed: %s", key, error)


def _write(root: Root, recipe: str, name: str, key: str, inputs: Inputs, outputs: list[tuple[str, str]]) -> None:
    lines = inputs.lines()
    for file, digest in outputs:
        status = os.stat(f"{entry_path(root, key)}/{file}")
        lines.append(f"out\t{digest}\t{status.st_size}\t{status.st_mtime_ns}.{status.st_ino}\t{file}")
    raw = "\n".join(lines).encode("utf-8", "surrogateescape")
    folder = root.at("recipes", recipe)
    make_folder(root, folder)
    replace_file(root, f"{folder}/{name}", f"{_HEAD}\n{digest_bytes(raw)}\n".encode() + raw)
