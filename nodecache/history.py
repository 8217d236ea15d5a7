"""History: what builds and waits there were. A hit leaves no trace unless NODECACHE_STATS is set: it writes nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from nodecache.attempt import HISTORY_LIMIT, log_path
from nodecache.contents import Held, entries
from nodecache.digest import read_bytes
from nodecache.errors import SpecError
from nodecache.status import builds

if TYPE_CHECKING:
    from nodecache.root import Root

_NEEDED: dict[str, tuple[type, ...]] = {"started": (int, float), "seconds": (int, float), "pid": (int,), "host": (str,)}


class Event(NamedTuple):
    """One line of the history.

    Attributes:
        event: ``build``, ``wait`` or ``hit``.
        outcome: of a build ``built``, ``fetched`` (from another node) or ``failed``; of a wait ``waited`` (and got the
            entry), ``took over`` (and built itself, because the builder died or built something else), ``failed`` (and
            was told), ``timeout`` or ``left``; of a hit ``hit``.
        name, kind, recipe, key: of what; ``key`` is empty for what has none (a failure, a wait).
        attempt: whose; of a wait that of the builder, empty where it left no record.
        started: when it began, in seconds since the epoch.
        seconds: how long it took.
        pid, host, rank: who.
    """

    event: str
    outcome: str
    name: str
    kind: str
    recipe: str
    key: str
    attempt: str
    started: float
    seconds: float
    pid: int
    host: str
    rank: int | None

    @property
    def who(self) -> str:
        """``rank 3, pid 4711 on node17``."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"{rank}pid {self.pid} on {self.host}"


class Stats(NamedTuple):
    """Sums over the history and the root.

    Attributes:
        builds, failures, seconds_built: builds that ended well and those that failed, and how long both took.
        waits, seconds_waited: calls that waited for another's build.
        hits: hits; None where they are not recorded.
        seconds_saved: what the builds would have taken that waiters and recorded hits did not have to do themselves.
        entries, bytes: what the root holds now.
    """

    builds: int
    failures: int
    seconds_built: float
    waits: int
    seconds_waited: float
    hits: int | None
    seconds_saved: float
    entries: int
    bytes: int


def events(root: Root) -> list[Event]:
    """All that the history has, oldest first; without lines that are damaged, or from a version that is not known."""
    found = []
    for name in ("history.1", "history"):
        try:
            lines = read_bytes(root.at("attempts", name), 16 * HISTORY_LIMIT).splitlines()
        except OSError:
            continue
        found += [event for line in lines if (event := _parse(line)) is not None]
    return sorted(found, key=lambda event: event.started)


def _parse(line: bytes) -> Event | None:
    try:
        said: dict[str, Any] = json.loads(line)
        if not all(isinstance(said.get(name), kinds) for name, kinds in _NEEDED.items()):
            return None
        texts = {name: str(said.get(name, "")) for name in ("outcome", "name", "kind", "recipe", "key", "attempt")}
        rank = said.get("rank")
        return Event(
            event=str(said.get("event", "build")),
            **texts,
            started=said["started"],
            seconds=said["seconds"],
            pid=said["pid"],
            host=said["host"],
            rank=rank if isinstance(rank, int) else None,
        )
    except (ValueError, AttributeError, RecursionError):
        return None


def find_log(root: Root, said: str) -> str:
    """The log that a name, a key or an attempt's id means; else the first digits of those: of several the newest.

    Raises:
        SpecError: there is none.
    """
    held, noted = entries(root), events(root)
    exact = [build.owner.log for build in builds(root) if said in (build.owner.name, build.owner.attempt)]
    exact += [f"{each.path}/build.log" for each in held if said in (each.name, each.key, each.manifest.get("attempt"))]
    exact += [log_path(root, event.recipe, event.attempt) for event in noted if said in (event.name, event.attempt)]
    begun = [f"{each.path}/build.log" for each in held if each.key.startswith(said)]
    begun += [log_path(root, event.recipe, event.attempt) for event in noted if event.attempt.startswith(said)]
    there = [path for path in exact if os.path.isfile(path)] or [path for path in begun if os.path.isfile(path)]
    if not said or not there:
        raise SpecError(f"No log in {root.path} belongs to {said!r}. See nodecache history.")
    return max(there, key=os.path.getmtime)


def sums(found: list[Event], held: list[Held]) -> Stats:
    """Add it up."""
    builds = [event for event in found if event.event == "build"]
    waits = [event for event in found if event.event == "wait"]
    hits = [event for event in found if event.event == "hit"]
    by_attempt = {event.attempt: event.seconds for event in builds}
    by_key = {event.key: event.seconds for event in builds if event.key}
    saved = sum(by_attempt.get(event.attempt, 0.0) for event in waits if event.outcome in ("waited", "failed"))
    return Stats(
        builds=sum(event.outcome == "built" for event in builds),
        failures=sum(event.outcome == "failed" for event in builds),
        seconds_built=sum(event.seconds for event in builds),
        waits=len(waits),
        seconds_waited=sum(event.seconds for event in waits),
        hits=len(hits) or None,
        seconds_saved=saved + sum(by_key.get(event.key, 0.0) for event in hits),
        entries=len(held),
        bytes=sum(each.size for each in held),
    )
