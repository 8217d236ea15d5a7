"""Prune: take entries away that nobody has used for long, while jobs run.

An entry goes under its recipe's lease, so never under a build or a waiter's look: it leaves the index, is renamed aside
in one step, and then removed. Whoever has loaded it goes on, for what is mapped stays; whoever has found it and not yet
opened it finds it gone, which is a miss. A folder that a living process got stays (:mod:`nodecache.hold`). When an
entry was last used is known to the day.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from typing import NamedTuple

from nodecache import hold, lease, lock, mark, staging
from nodecache.contents import PRUNED, Held, entries
from nodecache.digest import read_own
from nodecache.entry import FORMAT, MANIFEST
from nodecache.errors import NodecacheError, SpecError
from nodecache.spec import seconds, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.digest import Handle
    from nodecache.root import Root

FRESH = 60.0
"""Seconds for which the automatic limit leaves a new entry alone: those who waited for it are about to load it."""

ATTEMPTS = 3600.0
"""Seconds for which a failure and its log stay at least, for people and for those who are still to be told."""

PATIENCE = 5.0
"""Seconds to wait for a file system's answer to a lock call."""

_KEY = re.compile(r"[0-9a-f]{40}")
SIZE_LIMIT = 1 << 62
"""Bytes; the largest size that is understood, more than a file system holds."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Pruned(NamedTuple):
    """What a prune did, or would do.

    Attributes:
        removed: the entries that went, least recently used first.
        busy: entries that were to go and stayed, each with the reason.
        kept: bytes of the entries that stay.
        logs: recipes whose old failures and logs went.
    """

    removed: list[Held]
    busy: list[tuple[Held, str]]
    kept: int
    logs: int

    @property
    def freed(self) -> int:
        """Bytes of the entries that went."""
        return sum(held.size for held in self.removed)


def parse_size(text: str, what: str) -> int:
    """Bytes in ``5GB``, ``300M``, ``2.5GiB`` or ``1000``; units are powers of 1024.

    Args:
        text: a size, as a user wrote it.
        what: the option or variable that has it, for messages.

    Raises:
        SpecError: it is no size, or is more than :data:`SIZE_LIMIT`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise SpecError(f"{what}: {text!r:.80} is no size. Write a number and a unit, such as 500MB or 5GB.")
    return _size(what, float(found[1]) * _UNITS[found[2].upper()])


def parse_age(text: str, what: str) -> float:
    """Seconds in ``30d``, ``12h``, ``90m``, ``2w`` or ``45s``.

    Args:
        text: an age, as a user wrote it.
        what: the option that has it, for messages.

    Raises:
        SpecError: it is no age, or is more than :data:`nodecache.spec.TIME_LIMIT`.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if found is None:
        raise SpecError(
            f"{what}: {text!r:.80} is no length of time. Write a number and one of s m h d w, such as 12h or 30d."
        )
    return seconds(what, float(found[1]) * _SECONDS[found[2]]) or 0.0


def _size(what: str, value: float) -> int:
    # A comparison with NaN is false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SIZE_LIMIT:
        raise SpecError(f"{what} is not between 0 and {SIZE_LIMIT} bytes: {shown(value)}. Give such a number.")
    return int(value)


def prune(
    root: Root,
    *,
    max_size: int | None = None,
    older_than: float | None = None,
    everything: bool = False,
    dry_run: bool = False,
    fresh: float = 0.0,
) -> Pruned:
    """Remove entries, least recently used first, and those that are too damaged for any version of nodecache to use.

    Args:
        root: the root, as :func:`nodecache.contents.find_root` gives it.
        max_size: bytes that the entries may take together.
        older_than: seconds; entries last used longer ago go. A use is noted once a day, so give a day or more.
        everything: all entries go.
        dry_run: only say what would go.
        fresh: seconds for which a new entry stays whatever the limit.

    Raises:
        SpecError: ``max_size`` or ``older_than`` is no number, not finite, negative or too large. Nothing is removed.
        RootError: the root is not nodecache's.

    Concurrency: safe while jobs run, and beside another prune. An entry whose recipe is being built stays, and so
    does a folder that a living process got from get_or_build.
    """
    max_size = None if max_size is None else _size("max_size", max_size)
    older_than = seconds("older_than", older_than)
    if not dry_run:
        mark.check(root)
    held = entries(root)
    total = sum(each.size for each in held)
    now = time.time()
    removed: list[Held] = []
    busy: list[tuple[Held, str]] = []
    for each in reversed(held):
        over = max_size is not None and total > max_size
        old = older_than is not None and now - each.used > older_than
        if not (everything or over or old or _is_broken(each.path)) or now - each.used < fresh:
            continue
        reason = _reason(root, each) if dry_run else _remove(root, each)
        if reason:
            busy.append((each, reason))
        else:
            removed.append(each)
            total -= each.size
    logs = 0
    if not dry_run:
        _finish(root)
        age = 0.0 if everything else older_than
        logs = 0 if age is None else _forget_attempts(root, max(age, ATTEMPTS))
    return Pruned(removed, busy, total, logs)


def _is_broken(path: str) -> bool:
    """Whether an entry has no readable manifest, or a file is missing or cut; another version's format is no damage."""
    import json

    try:
        manifest = json.loads(read_own(f"{path}/{MANIFEST}"))
        if not isinstance(manifest, dict):
            return True
        if manifest.get("format") != FORMAT:
            return False
        return any(os.lstat(f"{path}/{name}").st_size != said["size"] for name, said in manifest["files"].items())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return True
    except OSError:  # it cannot be read now
        return False


def keep_within(root: Root, limit: str) -> None:
    """Keep to NODECACHE_MAX_SIZE after a build. Whatever goes wrong is a warning: the build is as good."""
    from nodecache.printable import logger

    log = logger()
    try:
        done = prune(root, max_size=parse_size(limit, "NODECACHE_MAX_SIZE"), fresh=FRESH)
    except (NodecacheError, OSError) as error:
        log.warning("the root was not pruned after this build: %s", error)
        return
    if done.removed:
        log.info("pruned %d entries, %d bytes, for NODECACHE_MAX_SIZE", len(done.removed), done.freed)


def _claim(root: Root, recipe: str) -> lease.Claim | None:
    try:
        return lease.claim(root, recipe, PATIENCE)
    except lock.LockSilent:
        return None


def _shut(root: Root, held: Held) -> tuple[Handle | None, str]:
    """Keep others from taking an entry; or why it has to stay."""
    try:
        handle = hold.shut(root, held.key)
    except hold.HoldsUnknown as error:
        # What is loaded from a module stays mapped; only a folder's files are opened later.
        return None, f"it may be in use ({error})" if held.kind.startswith("folder ") else ""
    return handle, "" if handle else "it is in use by a living process"


def _reason(root: Root, held: Held) -> str:
    """Why an entry would stay, without a lease; nothing where it would go."""
    handle, reason = _shut(root, held)
    if handle is not None:
        handle.close()
    return reason


def _remove(root: Root, held: Held) -> str:
    """Remove one entry under its recipe's lease; or why it stays."""
    recipe = held.recipe if re.fullmatch(r"[0-9a-f]{40}", held.recipe) else _recipe_of(root, held.key)
    # Without a recipe nobody can find it: its manifest is damaged, and no index speaks of it.
    claim = _claim(root, recipe) if recipe else None
    if recipe and claim is None:
        return "it is being built"
    handle = None
    try:
        handle, reason = _shut(root, held)
        if reason:
            return reason
        if claim is not None and claim.previous() is not None:
            staging.sweep(root)  # letting go will erase the record of a dead builder: clean up after it first
        if recipe:
            _leave_index(root, recipe, held.key)
        aside = f"{held.path}.{os.urandom(4).hex()}{PRUNED}"
        try:
            os.rename(held.path, aside)
        except FileNotFoundError:  # another prune was quicker
            return ""
        _clear(aside)
        if os.path.lexists(aside):
            return f"it cannot be removed as a whole; what is left of it is {aside}"
    finally:
        if handle is not None:
            handle.close()
        if claim is not None:
            claim.release()
    return ""


def _recipe_of(root: Root, key: str) -> str:
    """The recipe whose index speaks of a key, or nothing."""
    for recipe in _names(root.at("recipes")):
        if any(name.endswith(f"-{key}") for name in _names(root.at("recipes", recipe))):
            return recipe
    return ""


def _leave_index(root: Root, recipe: str, key: str) -> None:
    folder = root.at("recipes", recipe)
    for name in _names(folder):
        if name.endswith(f"-{key}"):
            _unlink(f"{folder}/{name}")
    try:
        os.rmdir(folder)
    except OSError:  # others of the recipe's keys are there
        pass


def _clear(path: str) -> None:
    """Remove what lies in an entry's place: a folder, as a rule, or a file that somebody put there."""
    if _is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        _unlink(path)


def _finish(root: Root) -> None:
    """Remove what a prune that was killed has left aside."""
    for name in _names(root.at("entries")):
        if name.endswith(PRUNED) and mark.is_ours("entries", name):
            _clear(root.at("entries", name))


def _forget_attempts(root: Root, age: float) -> int:
    """Remove the failures and logs of recipes in which nothing has happened for ``age`` seconds."""
    count = 0
    for recipe in _names(root.at("attempts")):
        folder = root.at("attempts", recipe)
        if not _KEY.fullmatch(recipe) or not _is_folder(folder) or time.time() - _newest(folder) < age:
            continue
        claim = _claim(root, recipe)
        if claim is None:
            continue
        try:
            if time.time() - _newest(folder) >= age:
                shutil.rmtree(folder, ignore_errors=True)
                count += 1
        finally:
            claim.release()
    return count


def _newest(folder: str) -> float:
    times = [os.lstat(folder).st_mtime] if os.path.lexists(folder) else [0.0]
    for name in _names(folder):
        try:
            times.append(os.lstat(f"{folder}/{name}").st_mtime)
        except FileNotFoundError:
            continue
    return max(times)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
