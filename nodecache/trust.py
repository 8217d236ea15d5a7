"""Trust: whether anybody but the user and root could change what lies in a folder.

The kernel decides by owner, mode and access control list. With a list, the group bits of the mode are only the most
that it grants to anybody but the owner and the others, so a group that is the user's alone says nothing there.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from nodecache.errors import RootError, UnsafeRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.root import Root

_OVERFLOW_UID = 65534
_USER, _GROUP = 0x02, 0x08
"""Tags of named users and groups in an access control list; see acl(5) and linux/posix_acl_xattr.h."""


def check_above(root: Root, folder: str, status: os.stat_result, uid: int) -> None:
    """Nobody but the user and root may be able to rename what lies in ``folder``."""
    if status.st_uid not in (0, uid) and not (status.st_uid == _OVERFLOW_UID and _inside_user_namespace()):
        raise UnsafeRoot(
            f"The root {root.path} lies below {folder}, which belongs to uid {status.st_uid}: "
            f"they could swap it for their own code. {root.remedy()}"
        )
    if status.st_mode & stat.S_ISVTX:
        return
    fault = open_to_others(folder, status, uid)
    if fault:
        how, remedy = fault
        raise UnsafeRoot(
            f"The root {root.path} lies below {folder}, where others may write ({how}): "
            f"they could swap it for their own code. {remedy}, or set NODECACHE_ROOT to a folder of your own."
        )


def check_inside(root: Root, path: str, status: os.stat_result) -> None:
    """Refuse what is in a folder's place below the root: no folder, another user's, or one that others may write to.

    Closing it is not enough: whoever could write there may have moved the user's own files about in it.
    """
    if not stat.S_ISDIR(status.st_mode):
        raise not_a_folder(path)
    if status.st_uid not in (os.geteuid(), 0):
        raise UnsafeRoot(f"{path} belongs to uid {status.st_uid}: its content is not yours. Remove it: rm -rf {path}")
    fault = open_to_others(path, status, os.geteuid())
    if fault:
        raise UnsafeRoot(
            f"Others may write to {path} ({fault[0]}), and could have changed what is in it. "
            f"Remove the root (rm -rf {root.path}), or set NODECACHE_ROOT to a folder of your own."
        )


def not_a_folder(path: str) -> RootError:
    """The error for a file where one of the root's folders should be."""
    return RootError(f"{path} is not a folder, as it should be. Move it away: mv {path} {path}.old")


def open_to_others(path: str, status: os.stat_result, uid: int) -> tuple[str, str] | None:
    """How others than the user and root may write to a folder, and the remedy; None where they may not."""
    mode = status.st_mode
    if mode & 0o002 or (mode & 0o020 and not only_mine(status.st_gid, uid)):
        return f"mode {stat.S_IMODE(mode):04o}", f"chmod go-w {path}"
    if mode & 0o020 and _list_lets_others_write(path, uid):
        return "its access control list lets them", f"Remove the list (setfacl -b {path})"
    return None


def only_mine(gid: int, uid: int) -> bool:
    """Whether a group holds nobody but root, or is the private group that user tools make: same number, same name."""
    if gid == 0:
        return True
    if gid != uid:
        return False
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _list_lets_others_write(path: str, uid: int) -> bool:
    """Whether an access control list names a user or group that may write and is not the user's own or root's."""
    try:
        raw = os.getxattr(path, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS)  # else there may be a list
    for tag, permissions, number in struct.iter_unpack("<HHI", raw[4:]):
        if permissions & 2 and (
            (tag == _USER and number not in (0, uid)) or (tag == _GROUP and not only_mine(number, uid))
        ):
            return True
    return False


def _inside_user_namespace() -> bool:
    """Whether unmapped owners show as the overflow uid here."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().split() != [b"0", b"0", b"4294967295"]
