"""The index: for a recipe, the keys built so far and what each build read.

One small text file a key, added after publishing. It is all that a hit reads besides its inputs and the loader's file:
it knows each file of the entry by size, times, inode and digest. A size that differs is a miss; a time or inode that
differs lets the digest decide, and a pass is written down here, never in the entry.
"""

from __future__ import annotations

import os
import stat
import time

from nodecache.digest import digest_bytes, digest_file, read_own_with_time
from nodecache.entry import MANIFEST, Entry, entry_path, unsafe
from nodecache.errors import RootError
from nodecache.inputs import Inputs, quote, unquote
from nodecache.root import Root, check_folder, make_folder, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.inputs import Eyes

_HEAD = b"nodecache-index 4"
DAY = 86400.0
"""Seconds after which a use is noted anew."""

KEEP = 32
"""Keys that a recipe's index remembers; with more states of the headers than this, the oldest is built again."""


_LAST = 9 * 10**19
"""No number that was ever given out comes near; one above it is damage."""


class Record:
    """One key's file in the index.

    Attributes:
        name: the file's name: when it was added, and the key.
        inputs: what the build read.
        outputs: per file of the entry its digest, size in bytes, ``mtime.ctime.inode`` and name.
        used: its file's time: when the entry was last used, to the day.
    """

    __slots__ = ("inputs", "name", "outputs", "used")

    def __init__(self, name: str, inputs: Inputs, outputs: list[tuple[str, int, str, str]]) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.used = 0.0

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.name.partition("-")[2]


def look(root: Root, recipe: str, eyes: Eyes, *, keep: bool = True) -> Entry | None:
    """The sound entry whose inputs are as they are now, or None.

    Writes only to remember what digests have shown, and not where ``keep`` is false. A damaged index file, or entry,
    is as good as none.
    """
    names = _names(root, recipe)
    if not (names and _is_private(root, recipe)):
        return None
    for name in names:
        record = read(root, recipe, name)
        if record is None:
            continue
        renewed = eyes.same(record.inputs)
        if renewed is None:
            continue
        sound, fresh = _outputs(root, record)
        if not sound:
            continue
        if keep:
            if renewed or not fresh:
                _refresh(root, recipe, record)
            _note_use(root.at("recipes", recipe, name), record.used)
        return Entry(record.key, entry_path(root, record.key))
    return None


def _is_private(root: Root, recipe: str) -> bool:
    """Whether the folders that a hit goes through are there; an error where others could have moved things in them."""
    try:
        check_folder(root, root.at("recipes"))
        check_folder(root, root.at("recipes", recipe))
        check_folder(root, root.at("entries"))
    except FileNotFoundError:
        return False
    return True


def _note_use(path: str, used: float) -> None:
    """Let an index file's time say when its entry was last used, to the day: a look that writes costs more than all."""
    try:
        if time.time() - used > DAY:
            os.utime(path)
    except OSError:  # pruned meanwhile, or a root that is read-only
        pass


def records(root: Root, recipe: str) -> list[Record]:
    """All that can be read of a recipe's index, newest first."""
    return [record for name in _names(root, recipe) if (record := read(root, recipe, name)) is not None]


def _names(root: Root, recipe: str) -> list[str]:
    """Names of a recipe's index files, newest first."""
    try:
        names = os.listdir(root.at("recipes", recipe))
    except OSError:  # there is none, or none that can be read
        return []
    return sorted((name for name in names if not name.endswith(".tmp")), reverse=True)


def read(root: Root, recipe: str, name: str) -> Record | None:
    """An index file; None when it is gone, damaged, or from a version that is not known."""
    try:
        raw, used = read_own_with_time(root.at("recipes", recipe, name))
        head, check, body = raw.split(b"\n", 2)
        if head != _HEAD or check != digest_bytes(body).encode():
            return None
        record = parse(name, os.fsdecode(body))  # paths, in whatever locale this process runs
    except (OSError, ValueError):
        return None
    record.used = used
    return record


def parse(name: str, body: str) -> Record:
    """The inverse of what :func:`add` writes.

    Raises:
        ValueError: it is none, or does not speak of a manifest.
    """
    lines = body.split("\n")
    outputs = []
    for line in lines:  # they are the first
        if not line.startswith("out\t"):
            break
        _, digest, size, print_, file = line.split("\t", 4)
        outputs.append((digest, int(size), print_, unquote(file)))
    if not any(file == MANIFEST for _, _, _, file in outputs):
        raise ValueError("no manifest")
    return Record(name, Inputs.parse(lines), outputs)


def _outputs(root: Root, record: Record) -> tuple[bool, bool]:
    """Whether an entry's files are as published, and whether that showed without digests."""
    fresh = True
    folder = entry_path(root, record.key)
    owners = (os.geteuid(), 0)
    try:
        if unsafe(folder):
            return False, False
        for digest, size, print_, name in record.outputs:
            path = f"{folder}/{name}"
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size != size or status.st_uid not in owners:
                return False, False
            if print_ != _print(status):
                fresh = False
                if digest_file(path) != digest:
                    return False, False
    except OSError:
        return False, False
    return True, fresh


def _print(status: os.stat_result) -> str:
    """What changes when an entry's file is written to or replaced, also where its modification time is restored."""
    return f"{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}"


def add(root: Root, recipe: str, entry: Entry, inputs: Inputs, files: dict[str, dict[str, object]]) -> None:
    """Add a published entry.

    Args:
        root, recipe, entry: what was published, and for which recipe.
        inputs: what its build read.
        files: the manifest's ``files``.
    """
    outputs = [(name, str(said["digest"])) for name, said in files.items()]
    outputs.append((MANIFEST, digest_file(entry.file(MANIFEST))))
    _write(root, recipe, f"{_next_number(root, recipe):020d}-{entry.key}", entry.key, inputs, outputs)
    seen: set[str] = set()
    for name in _names(root, recipe):
        key = name.partition("-")[2]
        if key in seen or len(seen) >= KEEP or _number(name) < 0:
            _drop(root.at("recipes", recipe, name))
            continue
        seen.add(key)


def _number(name: str) -> int:
    """The number in an index file's name; -1 where no such number was ever given out."""
    number, dash, key = name.partition("-")
    return int(number) if dash and key and len(number) == 20 and number.isdecimal() and int(number) < _LAST else -1


def _next_number(root: Root, recipe: str) -> int:
    """A number above all in use: the order to look in, and to forget in. The clock alone may once have been ahead."""
    return max(time.time_ns(), *(_number(name) + 1 for name in _names(root, recipe)), 0)


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # gone, or no file: then it is none that is read
        pass


def _refresh(root: Root, recipe: str, record: Record) -> None:
    """Write down what the digests have shown, so that the next look need not compute them."""
    outputs = [(name, digest) for digest, _, _, name in record.outputs]
    try:
        _write(root, recipe, record.name, record.key, record.inputs, outputs)
    except (OSError, RootError) as error:  # a root that is full or read-only still serves hits
        from nodecache.printable import logger

        logger().debug("the index of %s was not refreshed: %s", record.key, error)


def _write(root: Root, recipe: str, name: str, key: str, inputs: Inputs, outputs: list[tuple[str, str]]) -> None:
    lines = []
    for file, digest in outputs:
        status = os.lstat(f"{entry_path(root, key)}/{file}")
        lines.append(f"out\t{digest}\t{status.st_size}\t{_print(status)}\t{quote(file)}")
    lines += inputs.lines()
    raw = os.fsencode("\n".join(lines))
    folder = root.at("recipes", recipe)
    make_folder(root, folder)
    replace_file(root, f"{folder}/{name}", b"%s\n%s\n%s" % (_HEAD, digest_bytes(raw).encode(), raw))
