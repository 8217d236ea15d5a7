"""Limits: what this machine refused a build, such as space or descriptors. It says nothing about the sources.

Whoever waited for that build would most likely meet the same limit, one after another, each after a whole compile. So
the limit is recorded like a failure and told to the calls that began before it, while its cause still holds: for space,
until some has been freed; for anything else, and in any case, once :data:`TRIES` builds in a row have met a limit.
A call that begins later tries again.
"""

from __future__ import annotations

import errno
import os

from nodecache import attempt
from nodecache.errors import RootError
from nodecache.root import LEAST_BYTES, LEAST_INODES, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMITS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    | {errno.EROFS, errno.EIO, errno.ESTALE}
)
_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

TRIES = 2
"""Builds in a row that may meet a limit before everybody who waits is told, whatever the cause."""


def limit_in(root: Root, error: BaseException) -> RootError | None:
    """The limit that an exception of a build tells of, as an error for other processes; None where it tells of none."""
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if isinstance(error, OSError) and error.errno in LIMITS:
        found = root.failed(error, "building")
        found.place = ""  # a caller's build function may have written anywhere
        return found
    return error if isinstance(error, RootError) and error.number in LIMITS else None


def record(root: Root, recipe: str, limit: RootError, *, builder: str, attempt_id: str, seen: str | None) -> None:
    """Record a limit before the lease is let go, and after the staging folder was removed.

    Args:
        seen: id of the last failure or limit when the call began that met this one.
    """
    before = attempt.read_failure(root, recipe)
    in_a_row = 1
    if before is not None and before[0] != seen and before[1].get("limit"):
        in_a_row += int(before[1]["limit"]["in_a_row"])
    said = {
        "cause": str(limit).removesuffix(limit.remedy).strip(),
        "remedy": limit.remedy,
        "number": limit.number,
        "place": limit.place,
        "free": _free(limit.place),
        "boot": _boot(),
        "in_a_row": in_a_row,
    }
    attempt.write_failure(root, recipe, attempt_id, {"builder": builder, "limit": said})


def told(root: Root, said: dict[str, Any]) -> RootError | None:
    """The limit that a caller must be told, which began before it was recorded; None where it is worth another try."""
    limit = said["limit"]
    if not _concerns(root, limit):
        return None
    if limit["in_a_row"] < TRIES and not _is_still_full(limit):
        return None
    error = RootError(
        f"{limit['cause']} {said['builder']} met this while this process waited for that build, so it was not tried "
        f"again here. {limit['remedy']}"
    )
    error.number = limit["number"]
    return error


def _concerns(root: Root, limit: dict[str, Any]) -> bool:
    """Whether this process uses what ran out: the same root or TMPDIR, or else the same machine."""
    place = limit["place"]
    if place == root.path:
        return True
    return limit["boot"] == _boot() and place in ("", os.path.realpath(os.environ.get("TMPDIR", "")))


def _is_still_full(limit: dict[str, Any]) -> bool:
    """Whether space ran out and has not grown since."""
    if limit["number"] not in _SPACE or not limit["place"]:
        return False
    then, now = limit["free"], _free(limit["place"])
    return bool(now[0] < then[0] + LEAST_BYTES and now[1] < then[1] + LEAST_INODES)


def _free(place: str) -> tuple[int, int]:
    """Bytes and inodes that are left where ``place`` is."""
    try:
        disk = os.statvfs(place)
    except OSError:
        return 0, 0
    return disk.f_bavail * disk.f_frsize, disk.f_favail


def _boot() -> str:
    from nodecache.launchers import node

    return node().boot_id
