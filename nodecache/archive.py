"""The archive: entries as one tar file, for another node, another day or an image.

Its members are ``<key>/manifest.json`` and, after it, the files that this manifest names, sorted, without times and
owners: the same entry gives the same bytes, so an archive of one entry has a digest to be called by. Nothing in one is
believed: only plain files are taken, none that the manifest does not name, none larger than it says; the manifest must
agree with itself (items with recipe, recipe and inputs with key) and each file with its digest, and all of it is
checked in a staging folder before anything is published.

The format is the ustar subset of POSIX.1-1988: regular files only, names of at most 255 bytes. ``tar tf`` reads it.
"""

from __future__ import annotations

import os
import stat
from tarfile import BLOCKSIZE, REGTYPE, USTAR_FORMAT, HeaderError, TarInfo

from nodecache import attempt, entry, index, staging
from nodecache.digest import Digester, digest_items
from nodecache.entry import MANIFEST, Entry
from nodecache.errors import ArchiveError
from nodecache.inputs import UNKNOWN, Inputs
from nodecache.root import Root, ensure_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

CHUNK = 1 << 20
"""Bytes that are held in memory at a time."""

MANIFEST_LIMIT = 64 << 20
SIZE_LIMIT = 16 << 30
"""Bytes that one entry's files may have together."""

_KEY_DIGITS = 40
_LATEST = float(1 << 33)  # seconds since the epoch that clocks and their tools can still show


class Unpacked:
    """An entry in staging, checked.

    Attributes:
        path: its folder.
        manifest: its manifest.
        inputs: what its build read, without the guards of the node that built it.
    """

    __slots__ = ("inputs", "manifest", "path")

    def __init__(self, path: str, manifest: dict[str, Any], inputs: Inputs) -> None:
        self.path = path
        self.manifest = manifest
        self.inputs = inputs

    @property
    def key(self) -> str:
        """Its key."""
        return str(self.manifest["key"])

    @property
    def recipe(self) -> str:
        """The key of its recipe."""
        return str(self.manifest["recipe"])

    @property
    def name(self) -> str:
        """What was built."""
        return str(self.manifest["name"])


def pack(entries: Iterable[Entry], write: Callable[[bytes], object]) -> None:
    """Write entries as an archive.

    Args:
        entries: published entries.
        write: takes the next bytes, at most :data:`CHUNK` at a time.

    Raises:
        ArchiveError: an entry is damaged, or was pruned meanwhile; a name is too long for the format.
        OSError: it cannot be read, or ``write`` raised it.
    """
    for each in entries:
        try:
            _pack_one(each, write)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArchiveError(f"Entry {each.key} is not there any more ({error.filename}). Build it again.") from error
        except (KeyError, TypeError) as error:
            raise ArchiveError(f"The manifest of entry {each.key} makes no sense ({error!r}). Remove it.") from error
    write(b"\0" * (2 * BLOCKSIZE))


def _pack_one(each: Entry, write: Callable[[bytes], object]) -> None:
    manifest = entry.read_manifest(each.path)
    if manifest is None or manifest.get("key") != each.key:
        raise ArchiveError(f"The manifest of entry {each.key} is damaged. Load it once more; that replaces it.")
    size = os.stat(each.file(MANIFEST)).st_size
    _pack_file(each, MANIFEST, size, None, write)
    for name in sorted(manifest["files"]):
        said = manifest["files"][name]
        _pack_file(each, name, said["size"], said["digest"], write)


def _pack_file(each: Entry, name: str, size: int, digest: str | None, write: Callable[[bytes], object]) -> None:
    damaged = ArchiveError(f"{name} of entry {each.key} is damaged. Load it once more; that replaces it.")
    with open(each.file(name), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise damaged
        info = TarInfo(f"{each.key}/{name}")
        info.size = size
        info.mode = 0o500 if status.st_mode & stat.S_IXUSR else 0o400
        try:
            write(info.tobuf(USTAR_FORMAT, "utf-8", "surrogateescape"))
        except ValueError as error:
            raise ArchiveError(f"{name} of entry {each.key} cannot be archived: {error}. Use shorter names.") from error
        state, left = Digester(), size
        while left:
            block = file.read(min(CHUNK, left))
            if not block:
                raise damaged
            state.update(block)
            left -= len(block)
            if not left and digest is not None and state.digest() != digest:
                raise damaged
            write(block)
    write(b"\0" * (-size % BLOCKSIZE))


def unpack(read: Callable[[int], bytes], folder: str) -> Iterator[Unpacked]:
    """Read an archive, and check it.

    Args:
        read: gives the next bytes, at most as many as asked for, and none at the end.
        folder: an empty private folder; each entry gets a folder in it that can be published.

    Yields:
        The entries, one after the other, each whole and checked.

    Raises:
        ArchiveError: it is cut short, damaged, or not what it says.
        OSError: it cannot be written here, or ``read`` raised it.
    """
    source = _Source(read)
    info = source.member()
    while info is not None:
        key, _, name = info.name.partition("/")
        if name != MANIFEST or len(key) != _KEY_DIGITS or set(key) - set("0123456789abcdef"):
            raise ArchiveError(f"{info.name!r} is not where an entry begins. Get the archive again.")
        if info.size > MANIFEST_LIMIT:
            raise ArchiveError(f"{info.name!r} has {info.size} bytes: no manifest has. Get the archive again.")
        place = f"{folder}/{key}"
        os.mkdir(place, 0o700)  # twice the same key: FileExistsError
        _take(source, info, place, MANIFEST)
        manifest, inputs = _agreed(place, key)
        info = _take_files(source, place, key, manifest["files"])
        fault = entry.damage(place, key)
        if fault is not None:
            raise ArchiveError(f"Entry {key} of the archive is damaged: {fault}. Get the archive again.")
        entry.flush_folders(place)
        yield Unpacked(place, manifest, inputs)


def _take_files(source: _Source, place: str, key: str, files: dict[str, Any]) -> TarInfo | None:
    """Take the files that a manifest names; returns the member after them."""
    left = dict(files)
    while (info := source.member()) is not None and info.name.startswith(f"{key}/"):
        name = info.name[len(key) + 1 :]
        said = left.pop(name, None)
        if said is None or said["size"] != info.size:
            raise ArchiveError(f"{info.name!r} is not what the manifest says. Get the archive again.")
        os.makedirs(os.path.dirname(f"{place}/{name}"), 0o700, exist_ok=True)
        _take(source, info, place, name)
    if left:
        raise ArchiveError(f"{min(left)} of entry {key} is missing. Get the archive again.")
    return info


def _agreed(place: str, key: str) -> tuple[dict[str, Any], Inputs]:
    """A manifest that agrees with itself."""
    try:
        manifest = entry.read_manifest(place)
        if manifest is None:
            raise ValueError("it cannot be read")
        for name in ("name", "kind", "recipe", "key"):
            if not isinstance(manifest[name], str) or not manifest[name].isprintable():
                raise ValueError(f"its {name} is no text of one line")
        if not isinstance(manifest["builder"], dict) or not {"pid", "host", "rank"} <= set(manifest["builder"]):
            raise ValueError("it does not say who built it")
        for name in ("started", "seconds"):
            if type(manifest[name]) not in (int, float) or not 0 <= manifest[name] < _LATEST:  # NaN is in no order
                raise ValueError(f"{name} is no number")
        items = [(str(name), str(value)) for name, value in manifest["items"]]
        inputs = Inputs.parse([str(line) for line in manifest["inputs"]])
        if digest_items(items) != manifest["recipe"]:
            raise ValueError("its items are not its recipe's")
        if inputs.key(manifest["recipe"]) != key or manifest["key"] != key:
            raise ValueError("its inputs are not its key's")
        total = 0
        for name, said in manifest["files"].items():
            if not _is_inside(name) or type(said["size"]) is not int or said["size"] < 0:
                raise ValueError(f"{name!r} is no file of an entry")
            total += said["size"]
        if total > SIZE_LIMIT:
            raise ValueError(f"{total} bytes are more than an entry may have")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ArchiveError(f"The manifest of {key} is not to be believed: {error}. Get the archive again.") from error
    return manifest, without_guards(inputs)


def without_guards(inputs: Inputs) -> Inputs:
    """Inputs as another node must look at them: times and inode numbers mean nothing there, digests decide."""
    inputs.folders = [(folder, UNKNOWN) for folder, _ in inputs.folders]
    inputs.veils = [(number, UNKNOWN, names) for number, _, names in inputs.veils]
    inputs.seen = dict.fromkeys(inputs.seen, UNKNOWN)
    return inputs


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return name != MANIFEST and "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def _take(source: _Source, info: TarInfo, place: str, name: str) -> None:
    """Write one member's bytes into a new file, read-only and flushed to disk."""
    mode = 0o500 if info.mode & stat.S_IXUSR else 0o400
    fd = os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        left = info.size
        while left:
            view = memoryview(source.exactly(min(CHUNK, left)))
            left -= len(view)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    source.exactly(-info.size % BLOCKSIZE)


class _Source:
    """The archive's bytes, and how far it was read."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def exactly(self, count: int) -> bytes:
        """That many bytes."""
        parts = []
        while count:
            block = self._read(count)
            if not block:
                raise ArchiveError("The archive is cut short. Get it again.")
            parts.append(block)
            count -= len(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def member(self) -> TarInfo | None:
        """The next member's header; None at the end."""
        block = self.exactly(BLOCKSIZE)
        if not block.strip(b"\0"):
            while more := self._read(CHUNK):
                if more.strip(b"\0"):
                    raise ArchiveError("There is something behind the archive's end. Get it again.")
            return None
        try:
            info = TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except HeaderError as error:
            raise ArchiveError(f"This is no archive, or it is damaged ({error}). Get it again.") from error
        if info.type != REGTYPE or info.size < 0:
            raise ArchiveError(f"{info.name!r} is no plain file. Get the archive from somebody else.")
        return info


def install(root: Root, unpacked: Unpacked) -> Entry:
    """Publish and index an entry that was unpacked below the root's staging folder.

    Concurrency: safe beside builders, pruners and others who install the same: one is published, the others adopt it.

    Raises:
        OSError, RootError: the root cannot be written.
    """
    found = entry.publish(root, unpacked.path, unpacked.key)
    manifest = entry.read_manifest(found.path) or unpacked.manifest
    index.add(root, unpacked.recipe, found, unpacked.inputs, manifest["files"])
    return found


def receive(root: Root, read: Callable[[int], bytes], recipe: str | None = None) -> list[Unpacked]:
    """Unpack, check, publish and index all that an archive holds.

    Args:
        root: where.
        read: as for :func:`unpack`.
        recipe: the only recipe that may be in it, or None for any.

    Returns:
        What was in it; the folders are in place.

    Raises:
        ArchiveError: it is damaged, or not what was asked for. What came whole before the damage is published.
        RootError: the root cannot be written.
    """
    ensure_folders(root)
    place = staging.create(root, attempt.new_id())
    try:
        done = []
        for each in unpack(read, place.entry):
            if recipe not in (None, each.recipe):
                raise ArchiveError(
                    f"The archive holds another recipe ({each.recipe}) than {recipe}. Get the right one."
                )
            install(root, each)
            done.append(each)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArchiveError(f"The archive holds something twice ({error.filename}). Get it again.") from error
    except OSError as error:
        raise root.failed(error, "unpacking an archive") from error
    finally:
        place.remove()
    if not done:
        raise ArchiveError("The archive is empty, as a copy that was cut off may be. Get it again.")
    return done
