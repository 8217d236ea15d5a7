"""The entry: the published, immutable result for a key.

Written in staging, sealed (digests in a manifest, read-only, flushed to disk), then renamed in one step. An entry is
either absent or complete. Nothing ever writes to a published file: replacing a damaged entry moves it aside first, so a
process that has mapped it goes on with the inode that it has.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from nodecache.digest import digest_file, read_own
from nodecache.errors import RootError
from nodecache.root import Root, ensure_folders, is_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1


class Entry:
    """A finished entry.

    Attributes:
        key: its key; empty for a result that was used and not published.
        path: its folder.
        published: whether it is in the root for everybody.
    """

    __slots__ = ("key", "path", "published")

    def __init__(self, key: str, path: str, *, published: bool = True) -> None:
        self.key = key
        self.path = path
        self.published = published

    def file(self, name: str) -> str:
        """Path of one of its files."""
        return f"{self.path}/{name}"


def entry_path(root: Root, key: str) -> str:
    """Where the entry of a key is."""
    return root.at("entries", key)


def seal(path: str, about: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a staged folder, make all of it read-only, flush it to disk.

    Args:
        path: the staged folder.
        about: what else the manifest says.

    Returns:
        The manifest: ``about``, and under ``files`` for each relative path its size in bytes and its digest.
    """
    import json

    wrong = unfit(path)
    if wrong is not None:
        raise RootError(f"What was built cannot be kept in {os.path.dirname(path)}: {wrong}.")
    files = {}
    folders = [path]
    for folder, below, names in os.walk(path):
        folders += [os.path.join(folder, name) for name in below]
        for name in names:
            file = os.path.join(folder, name)
            if os.stat(file).st_nlink > 1:
                _unlink_others(file)
            executable = os.stat(file).st_mode & stat.S_IXUSR
            os.chmod(file, 0o500 if executable else 0o400)
            _flush(file)
            files[os.path.relpath(file, path)] = {"size": os.stat(file).st_size, "digest": digest_file(file)}
    manifest = {"format": FORMAT, **about, "files": files}
    target = f"{path}/{MANIFEST}"
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    try:
        raw = json.dumps(manifest, indent=1).encode()
        while raw:
            raw = raw[os.write(fd, raw) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    for folder in folders:
        os.chmod(folder, 0o700)
        _flush(folder)
    return manifest


def unfit(path: str) -> str | None:
    """Why a folder cannot become an entry, or None: it holds anything but plain files and folders."""
    if not os.path.lexists(path):
        return "its folder was removed"
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return "its folder was replaced by something else; write into the folder that is given"
    if os.path.lexists(f"{path}/{MANIFEST}"):
        return f"it has a {MANIFEST}, which every entry gets; name it otherwise"
    for folder, below, names in os.walk(path):
        for name in [*below, *names]:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"{os.path.relpath(os.path.join(folder, name), path)} is no plain file; write a copy"
    return None


def _unlink_others(file: str) -> None:
    """Give a file that has names elsewhere an inode of its own: those are not to become read-only with it."""
    import shutil

    copy = f"{file}.{os.urandom(6).hex()}"
    shutil.copyfile(file, copy)
    shutil.copymode(file, copy)
    os.rename(copy, file)


def flush_folders(path: str) -> None:
    """Flush a staged folder's names to disk; its files are."""
    for folder, _, _ in os.walk(path):
        _flush(folder)


def _flush(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# What rename says where something was in its way, or the folder was not there; a moment later that may be otherwise.
_IN_THE_WAY = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})

HIDDEN = 60.0
"""Seconds for which a network file system may hide what another node has just published; NFS does for half a minute."""


def publish(root: Root, staged: str, key: str) -> Entry:
    """Rename a sealed folder into place.

    A sound entry that is there already, from the loser of a double build, is adopted; a damaged one is moved aside.

    Raises:
        RootError: something is in the way that cannot be moved aside, or cannot be seen from here.
    """
    target = entry_path(root, key)
    began = time.monotonic()
    delay = 0.001
    number = 0
    while True:
        try:
            os.rename(staged, target)
        except OSError as error:
            if not os.path.lexists(target):
                if error.errno not in _IN_THE_WAY or not os.path.isdir(staged):
                    raise
                if time.monotonic() - began > HIDDEN:
                    raise RootError(
                        f"{target} is there and cannot be seen from this node: {error.strerror}. Call again; if that "
                        f"does not help, set NODECACHE_ROOT to a folder on a local disk."
                    ) from error
                ensure_folders(root)
                os.listdir(root.at("entries"))  # an NFS client then asks its server again
                time.sleep(delay)
                delay = min(2 * delay, 1.0)
                continue
            if damage(target, key) is None:
                return Entry(key, target)
            _move_aside(target, f"{os.path.dirname(staged)}/damaged{number}")
            number += 1
        else:
            _flush(root.at("entries"))
            return Entry(key, target)


def _move_aside(path: str, aside: str) -> None:
    try:
        os.rename(path, aside)
    except FileNotFoundError:  # a pruner or another builder was quicker
        pass
    except OSError as error:
        raise RootError(
            f"{path} is damaged and cannot be moved aside ({error.strerror}). Remove it: rm -rf {path}"
        ) from error


def unsafe(path: str) -> str | None:
    """Why what is in an entry's place is not to be opened, or None: it is no folder, or others could write to it.

    Raises:
        FileNotFoundError: there is nothing.
    """
    status = os.lstat(path)
    if is_private(status):
        return None
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    from nodecache.trust import open_to_others

    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to uid {status.st_uid}"
    fault = open_to_others(path, status, os.geteuid())
    return f"others may write to it ({fault[0]})" if fault else None


def damage(path: str, key: str) -> str | None:
    """What is wrong with an entry, every digest checked; None when it is sound."""
    try:
        wrong = unsafe(path)
        if wrong is not None:
            return wrong
        manifest = read_manifest(path)
        if manifest is None:
            return "its manifest is damaged"
        if manifest.get("key") != key:
            return "its manifest belongs to another key"
        for name, said in manifest["files"].items():
            file = os.path.join(path, name)
            status = os.lstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
                return f"{name} is not a plain file of yours"
            if status.st_size != said["size"]:
                return f"{name} has {status.st_size} bytes instead of {said['size']}"
            if digest_file(file) != said["digest"]:
                return f"{name} has another digest"
    except FileNotFoundError as error:
        return f"{os.path.basename(str(error.filename))} is missing"
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        return f"it cannot be read ({error})"
    return None


def read_manifest(path: str) -> dict[str, Any] | None:
    """An entry's manifest; None when it is damaged or from a version that is not known.

    Raises:
        OSError: it cannot be read.
    """
    import json

    try:
        manifest = json.loads(read_own(f"{path}/{MANIFEST}"))
    except (ValueError, RecursionError, MemoryError):
        return None
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or not isinstance(manifest.get("files"), dict)
    ):
        return None
    return manifest
