"""Carry: entries from one root to another by hand, as an archive: ``nodecache export`` and ``nodecache import``."""

from __future__ import annotations

import os
import sys

from nodecache import archive
from nodecache.contents import entries, find_entry, find_root
from nodecache.entry import Entry, entry_path, read_manifest
from nodecache.errors import ArchiveError, SpecError, ToolchainError
from nodecache.printable import logger, printable
from nodecache.root import VARIABLE, default_root, open_root, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodecache.archive import Unpacked
    from nodecache.contents import Held
    from nodecache.root import Root


def export(path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> list[Held]:
    """Write entries of the root into an archive.

    Args:
        path: the archive; it appears whole, or not at all, in place of what was there.
        keys: keys, first digits of keys, or names; None or none for all entries.

    Returns:
        The entries that are in it.

    Raises:
        SpecError: there is no root, or no such entry.
        ArchiveError: an entry is damaged, or the archive cannot be written.
        RootError, UnsafeRoot: the root cannot be used.

    Concurrency: safe while jobs run; an entry that is pruned meanwhile is an error.
    """
    root = find_root()
    if root is None:
        raise SpecError(
            f"There is no root at {setting(VARIABLE) or default_root()}: nothing has been built. "
            f"Build something, or set {VARIABLE}."
        )
    if keys:
        wanted = list({held.key: held for held in (find_entry(root, key) for key in keys)}.values())
    else:
        wanted = [held for held in entries(root) if held.recipe]  # those that nothing can be said of are damaged
    if not wanted:
        raise SpecError(f"There are no entries in {root.path}. Build something first.")
    wanted.sort(key=lambda held: held.key)
    target = os.fspath(path)
    temporary = f"{target}.{os.urandom(6).hex()}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with open(fd, "wb") as file:
                archive.pack((Entry(held.key, held.path) for held in wanted), file.write)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ArchiveError(f"{target} cannot be written: {error.strerror}. Check the path and its disk.") from error
    return wanted


def import_(path: str | os.PathLike[str]) -> list[Unpacked]:
    """Publish the entries of an archive in the root, as if they had been built there.

    Their code will be run: import only what comes from a place that you would run programs from.

    Args:
        path: the archive.

    Returns:
        The entries that were in it. A warning names those that cannot be a hit on this node, and what differs.

    Raises:
        ArchiveError: it cannot be read, is damaged, cut short, or holds what no archive of ours does. Entries that came
            whole before the damage are published.
        RootError, UnsafeRoot: the root cannot be used.

    Concurrency: safe while jobs run, and beside other imports.
    """
    root = open_root()
    try:
        file = open(path, "rb")  # noqa: SIM115  # an error of reading is another one than of writing
    except OSError as error:
        raise ArchiveError(f"{os.fspath(path)} cannot be read: {error.strerror}. Check the path.") from error
    with file:
        done = archive.receive(root, file.read)
    for each in done:
        what = _misfit(root, each.key)
        if what:
            logger().warning("%r (%s) cannot be a hit on this node: %s", each.name, each.key[:12], what)
    return done


def _misfit(root: Root, key: str) -> str:
    """What of this node differs from the one that built an entry, so that no call here computes its recipe key."""
    from nodecache.compiler import find_compiler
    from nodecache.recipe import node_items

    manifest = read_manifest(entry_path(root, key)) or {}
    made = {str(name): str(value) for name, value in manifest.get("items", [])}
    if "compiler" not in made:  # a folder that a program made
        return ""
    here = node_items()
    try:
        found = find_compiler(root)
    except ToolchainError:  # without a compiler, an entry's own is believed
        pass
    else:
        here += [("compiler", found.version), ("compiler path", " ".join(found.programs)), ("linker", found.linker)]
    for name, value in here:
        if made.get(name) != value:
            return f"its {name} is {_first_line(made.get(name))}, and this node's is {_first_line(value)}"
    return ""


def _first_line(value: str | None) -> str:
    return repr((value or "unknown").partition("\n")[0])


def export_command(path: str, keys: Sequence[str]) -> int:
    """``nodecache export ARCHIVE [KEY...]``; returns its exit status."""
    done = export(path, keys)
    for held in done:
        _say(f"{held.key[:12]} {held.name}")
    _say(f"{_count(len(done))} in {path}, {os.stat(path).st_size} bytes.")
    return 0


def import_command(path: str) -> int:
    """``nodecache import ARCHIVE``; returns its exit status."""
    done = import_(path)
    for each in done:
        _say(f"{each.key[:12]} {each.name}")
    _say(f"{_count(len(done))} imported.")
    return 0


def _count(number: int) -> str:
    return f"{number} entr{'y' if number == 1 else 'ies'}"


def _say(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
