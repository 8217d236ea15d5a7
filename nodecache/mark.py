"""The mark: the file by which a folder is a root of nodecache's, and not one of the user's that looks like it.

It is made while the folder is empty, so nothing that lay there before can ever be taken for nodecache's own.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from nodecache.errors import RootError
from nodecache.root import MARK as NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.root import Root

TAG = "CACHEDIR.TAG"
_HEAD = b"nodecache-root 1 "
_TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache made by nodecache. Backups may leave it out: https://bford.info/cachedir/
"""
_TEMPORARY = re.compile(rf"{NAME}\.[0-9a-f]{{12}}\.tmp")

_KEY = "[0-9a-f]{40}"
_OURS = {
    "recipes": re.compile(_KEY),
    "entries": re.compile(rf"{_KEY}(\.[0-9a-f]{{8}}\.pruned)?"),
    "leases": re.compile(rf"{_KEY}\.(lock|bell|soft)"),
    "staging": re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}\.[0-9a-f]{16}\.[0-9]+|doctor-[0-9a-f]{12}"),
    "attempts": re.compile(rf"{_KEY}|history(\.1)?"),
    "tools": re.compile(rf"{_KEY}(\.lock)?(\.[0-9a-f]{{12}}\.tmp)?"),
}
"""What each folder of a root may hold: the names that nodecache itself makes there."""


def is_ours(folder: str, name: str) -> bool:
    """Whether nodecache itself could have made that name in one of a root's folders."""
    return _OURS[folder].fullmatch(name) is not None


def foreign(path: str) -> list[str]:
    """Names at the top of a folder that no root has, sorted; none for a folder that cannot be read."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(name for name in names if name not in {*_OURS, NAME, TAG} and not _TEMPORARY.fullmatch(name))


def claim(root: Root) -> None:
    """Mark a folder that has no mark: an empty one, or a root of a version that made none.

    Raises:
        RootError: it holds other things.

    Concurrency: any number of processes may do it at once; one mark stays. One that is killed in between leaves an
    empty folder, or a temporary file that nobody minds.
    """
    strange = _strange(root.path)
    if strange and not os.path.lexists(root.at(NAME)):  # else another process was quicker
        raise RootError(
            f"The folder {root.path} ({root.source}) is not nodecache's: it has {', '.join(strange[:3])} in it. "
            f"Set NODECACHE_ROOT to a folder that is new or empty, such as {root.path.rstrip('/')}/nodecache."
        )
    try:
        _put(root)
    except FileNotFoundError:  # the root went away; whoever writes there makes it again
        pass
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT):
            raise root.failed(error, f"writing {NAME}") from error
        # Hits need no mark. What cannot be written cannot be pruned either, and the next call looks again.


def check(root: Root) -> None:
    """Refuse to delete anything below a folder whose mark is not one that nodecache wrote.

    Raises:
        RootError: as it says.
    """
    from nodecache.digest import read_own

    try:
        fine = read_own(root.at(NAME)).startswith(_HEAD)
    except OSError:
        fine = False
    if not fine:
        raise RootError(
            f"{root.at(NAME)} is not there or not nodecache's, so nothing is deleted in {root.path}. "
            f"Remove the folder yourself, if it is a root."
        )


def _put(root: Root) -> None:
    path = root.at(NAME)
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    _write(temporary, _HEAD + os.urandom(16).hex().encode() + b"\n")
    try:
        try:
            os.link(temporary, path)  # never in place of another's
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            os.rename(temporary, path)  # a file system without hard links
            return
    finally:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
    try:
        _write(root.at(TAG), _TAG_TEXT)
    except FileExistsError:
        pass


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _strange(path: str) -> list[str]:
    """What no root without a mark can hold, as relative paths."""
    found = foreign(path)
    for folder in _OURS:
        try:
            names = os.listdir(f"{path}/{folder}")
        except FileNotFoundError:
            continue
        except OSError:  # a file, or closed: damage that is told where it is met
            continue
        found += [f"{folder}/{name}" for name in sorted(names) if not is_ours(folder, name)]
        if folder == "entries":
            found += [f"{folder}/{name}" for name in sorted(names) if is_ours(folder, name) and not _entry(path, name)]
    return found


def _entry(path: str, name: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(f"{path}/entries/{name}/manifest.json").st_mode)
    except FileNotFoundError:
        return False
