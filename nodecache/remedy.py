"""Remedies: what a user can do about a system call that failed, by its error number.

Another root helps only where the root's file system is the cause. A call that a sandbox refuses is refused everywhere.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.root import Root

REFUSED = (
    "The kernel or a sandbox refuses this call in any folder: allow it in the container's or job's security profile "
    "(seccomp, AppArmor, SELinux)."
)
"""For a call that no other folder would allow."""

# With {place}, the path at fault, and {root}, how to get another root.
_BY_NUMBER = {
    errno.EPERM: f"{REFUSED} Or the file may not be changed (lsattr -d {{place}}).",
    errno.ENOSYS: REFUSED,
    errno.EACCES: "Give yourself access to it (ls -ld {place}, chmod u+rwx), or {root}",
    errno.ENOTDIR: "Remove what is there in place of a folder (ls -ld {place}), and call again.",
    errno.EISDIR: "Remove the folder that is there in place of a file (ls -ld {place}), and call again.",
    errno.ELOOP: "Remove the link that is there (ls -ld {place}), and call again.",
    errno.ENXIO: "Remove what is there in place of a file (ls -ld {place}), and call again.",
    errno.E2BIG: "Make the flags shorter, or the environment smaller (env | wc -c).",
    errno.ENAMETOOLONG: "Give the build a shorter name, or {root}",
    errno.EBUSY: "Wait until whatever uses it has ended (fuser -v {place}), and call again.",
    errno.ETXTBSY: "Wait until whatever writes it has closed it (fuser -v {place}), and call again.",
    errno.EINTR: "Call again.",
    errno.EIO: "The disk or file server failed (dmesg): mend it, or {root}",
}
_OUTSIDE = "Make sure that it is there and that you can use it (ls -ld {place}), then call again."


def fitting(error: OSError, root: Root) -> str:
    """What to do about an error met while working in a root; ends with a full stop."""
    place = at(error, root)
    another = root.remedy()
    known = _BY_NUMBER.get(error.errno or 0)
    if known is None and not _below(place, root.path):
        known = _OUTSIDE
    return (known or another).format(place=place, root=another[0].lower() + another[1:])


def at(error: OSError, root: Root) -> str:
    """Where it happened: the path that the kernel names, or else the root."""
    return error.filename if isinstance(error.filename, str) else root.path


def _below(path: str, folder: str) -> bool:
    return path == folder or os.path.abspath(path).startswith(f"{folder.rstrip('/')}/")
