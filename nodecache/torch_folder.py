"""Torch's own build folder: what programs that look into it, without asking torch, must find there."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def leave_link(folder: str, found: Any) -> None:
    """Leave a link to what was loaded where torch would have built it.

    Programs ask that folder whether it is their first build and remove it when it is empty, or import from it. A plain
    file there is torch's own, and stays. A failure costs those programs what they would save, so it is not an error.

    Args:
        folder: torch's build folder; it may have been removed meanwhile.
        found: what ``load`` returned: a module or a path.

    Concurrency: the link is put in place whole; any number of processes may do so and may remove the folder.
    """
    path = found if isinstance(found, str) else str(found.__file__)
    if not isinstance(found, str) and not found.__nodecache__.key:
        return  # used, but not kept: its file is about to go
    link = f"{folder}/{os.path.basename(path)}"
    try:
        if os.readlink(link) == path:
            return
    except OSError:
        if os.path.lexists(link):
            return
    temporary = f"{link}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        os.makedirs(folder, exist_ok=True)
        os.symlink(path, temporary)
        try:
            os.rename(temporary, link)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        from nodecache.printable import logger

        logger().debug("no link to %s was left in %s: %s", path, folder, error)
