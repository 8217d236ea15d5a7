"""Elsewhere: notices that another process of this node builds the same recipe in a root of the same path.

In containers with a private ``/tmp`` each, ``/tmp/nodecache_<uid>`` is one path and many folders, so each process
builds for itself. They share no file, but usually the network namespace, and in it the kernel's abstract socket names:
while a process builds, it holds one name for its root's path and one for the folder that this path leads to. If the
first is taken and the second is not, somebody else has another folder there. The kernel frees both names when the
process ends.

This only serves a warning: the names decide nothing, and where a sandbox refuses sockets there is none.
"""

from __future__ import annotations

import errno
import os

from nodecache import lock
from nodecache.digest import digest_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.owner import Owner
    from nodecache.root import Root

_SHARED = ("/dev/shm", "/var/tmp", "/run/shm")
"""Folders that containers of a node often share when they do not share ``/tmp``."""


class Presence:
    """The names that say where this process builds a recipe; close it when the build has ended."""

    def __init__(self, root: Root, owner: Owner) -> None:
        self._names: list[lock.Descriptor] = []
        self.elsewhere = False
        """Whether another process builds the same in another folder of this path."""
        try:
            found = os.stat(root.path)
        except FileNotFoundError:  # somebody removes it; the build will find out
            return
        path = digest_bytes(os.fsencode(f"{owner.host}\0{owner.boot_id}\0{owner.recipe}\0{root.path}"))
        # The folder's name first: who finds the path's name taken knows that its holder has the other one, too.
        mine = self._take(f"{path}.{found.st_dev}.{found.st_ino}")
        self.elsewhere = not self._take(path) and mine

    def _take(self, name: str) -> bool:
        """Take a name; false when another process has it. Without sockets nobody has any."""
        try:
            self._names.append(lock.note(_bound, f"\0nodecache-{os.getuid()}-{name}"))
        except ImportError:  # a Python without sockets, or no descriptor left to load their module with
            return True
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True

    def close(self) -> None:
        """Give the names back."""
        while self._names:
            lock.close(self._names.pop())


def _bound(name: str) -> int:
    """A socket that holds an abstract name (unix(7)); closed with the process, and not inherited by programs."""
    import _socket

    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        made.bind(name)
        return made.detach()
    finally:
        made.close()


def warn(root: Root, name: str) -> None:
    """Say what is going on, and where a root could be shared."""
    from nodecache.printable import logger

    logger().warning(
        "another process of this node is building %r too, in another folder that it also sees as %s, so each compiles "
        "for itself: they have a private %s each. Set NODECACHE_ROOT to a folder that all of them mount%s.",
        name,
        root.path,
        _mount_point(root.path),
        _candidates(root.path),
    )


def _mount_point(path: str) -> str:
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _candidates(path: str) -> str:
    """Other places on this node where code may run and this user may write."""
    here = os.stat(path).st_dev
    found = []
    for place in _SHARED:
        try:
            usable = os.stat(place).st_dev != here and not os.statvfs(place).f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        except OSError:
            continue
        if usable and os.access(place, os.W_OK | os.X_OK):
            found.append(f"{place}/nodecache_{os.getuid()}")
    return f" (if it is shared, {' or '.join(found)})" if found else ""
