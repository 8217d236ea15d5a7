"""Contents: what a root holds, for the commands that list, check and prune. Reads only."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NamedTuple

from nodecache import entry
from nodecache.errors import RootError, SpecError
from nodecache.mark import foreign
from nodecache.printable import logger
from nodecache.root import VARIABLE, Root, default_root, open_root, setting

_KEY = re.compile(r"[0-9a-f]{40}")
PRUNED = ".pruned"
"""Ending of an entry's folder on its way out."""


class Held(NamedTuple):
    """One entry of a root.

    Attributes:
        key, name, kind, recipe: as its manifest says; all but ``key`` empty where that is damaged.
        path: its folder.
        size: bytes of its files.
        built: when its build began, in seconds since the epoch.
        used: when it was last used, in seconds since the epoch, to the day.
        manifest: all that its manifest says; empty where it is damaged.
    """

    key: str
    name: str
    kind: str
    recipe: str
    path: str
    size: int
    built: float
    used: float
    manifest: dict[str, Any]


def root_path() -> str:
    """Where the root is or would be, by the environment."""
    return os.path.abspath(setting(VARIABLE) or default_root())


def find_root() -> Root | None:
    """The root, if it is there; nothing is made, and no folder is touched that is not a root.

    Raises:
        RootError: there is a folder, and it is none of nodecache's.
        UnsafeRoot: as :func:`nodecache.root.open_root`.
    """
    path = root_path()
    if not os.path.lexists(path):
        return None
    strangers = foreign(path)
    if strangers:
        raise RootError(
            f"{path} is not nodecache's: it has {', '.join(strangers[:3])} in it. "
            f"Set {VARIABLE} to the root, or unset it."
        )
    if _is_empty(path):  # nothing has been built there, and a look marks nothing
        open_root(mark=False)
        return None
    return open_root()


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False


def entries(root: Root) -> list[Held]:
    """The entries, the most recently used first. What goes away meanwhile is left out."""
    used = _uses(root)
    found = []
    for key in _names(root.at("entries")):
        if not _KEY.fullmatch(key):
            continue
        try:
            found.append(_held(root, key, used.get(key, 0.0)))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sorted(found, key=lambda held: (held.used, held.key), reverse=True)


def find_entry(root: Root, said: str) -> Held:
    """The entry that a key, a name, or the first digits of a key means; of a name's the most recently used.

    A name that could also be the beginning of a key means the name; that is logged.

    Raises:
        SpecError: none, or several keys begin so.
    """
    held = entries(root)
    by_name = [each for each in held if said and each.name == said]
    by_key = [each for each in held if said and each.key.startswith(said)]
    exact = [each for each in by_key if each.key == said]
    others = [each for each in by_key if each.name != said]
    if by_name and not exact:
        if others:
            logger().warning(
                "%r is a name, and %d keys of other names begin so; the name is meant. For a key, give more digits.",
                said,
                len(others),
            )
        return by_name[0]
    if len(by_key) > 1:
        raise SpecError(f"{said!r} begins {len(by_key)} keys. Give more of it: nodecache list --full.")
    if not by_key:
        raise SpecError(f"No entry in {root.path} is called {said!r} or has such a key. See nodecache list.")
    return by_key[0]


def _uses(root: Root) -> dict[str, float]:
    """When each key was last used: the time of its file in the index."""
    found: dict[str, float] = {}
    for recipe in _names(root.at("recipes")):
        for name in _names(root.at("recipes", recipe)):
            key = name.partition("-")[2]
            try:
                found[key] = max(found.get(key, 0.0), os.stat(root.at("recipes", recipe, name)).st_mtime)
            except OSError:
                continue
    return found


def _held(root: Root, key: str, used: float) -> Held:
    path = entry.entry_path(root, key)
    made = os.lstat(path).st_mtime
    try:
        manifest = entry.read_manifest(path) or {}
    except OSError:
        manifest = {}
    said = {name: value for name in ("name", "kind", "recipe") if isinstance(value := manifest.get(name), str)}
    started = manifest.get("started")
    return Held(
        key,
        said.get("name", ""),
        said.get("kind", ""),
        said.get("recipe", ""),
        path,
        size_of(path),
        started if isinstance(started, float) else made,
        max(used, made),
        manifest,
    )


def size_of(path: str) -> int:
    """Bytes that a folder's files have, or a file; of a link its own, not those of what it leads to."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
