"""Trace: one build and those who waited for it, in the trace event format that Perfetto and Chrome's tracing read.

Source: "Trace Event Format" (complete events ``X``, metadata events ``M``, times in microseconds).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodecache.contents import Held
    from nodecache.history import Event

_MICRO = 1e6


def trace(held: Held, found: list[Event]) -> dict[str, Any]:
    """A build as trace events.

    Args:
        held: the entry; its manifest tells of the steps.
        found: the history.

    Returns:
        A JSON document: the builder is process 0, with a track for the build and one for each compiler that ran beside
        others; each waiter, and whoever fetched it from another node, is a process of its own. Times are microseconds
        since the build began.
    """
    said = held.manifest
    attempt = said.get("attempt", "")
    began = held.built
    builder = said.get("builder", {})
    rank = "" if builder.get("rank") is None else f"rank {builder['rank']}, "
    out = [*_names(0, f"builder: {rank}pid {builder.get('pid')} on {builder.get('host')}")]
    out.append(_event(f"build {held.name}", 0, 0, 0.0, float(said.get("seconds", 0.0)), {"key": held.key}))
    for lane, step in lanes(said.get("steps", [])):
        start, end = step["start_ms"] / 1000, step["end_ms"] / 1000
        out.append(_event(step["step"], 0, lane + 1, start, end - start, {}))
    transfers = [event for event in found if event.outcome == "fetched" and event.key == held.key]
    attempts = {attempt, *(event.attempt for event in transfers)}
    waits = [event for event in found if event.attempt in attempts and event.event != "build"]
    for number, event in enumerate([*transfers, *waits], 1):
        what = "transfer of" if event in transfers else f"{event.event} for"
        out += _names(number, f"{what.partition(' ')[0]}: {event.who}")
        out.append(
            _event(
                f"{what} {event.name}",
                number,
                0,
                event.started - began,
                event.seconds,
                {"outcome": event.outcome},
            )
        )
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "name": held.name,
            "key": held.key,
            "attempt": attempt,
            "root": os.path.dirname(os.path.dirname(held.path)),
        },
        "traceEvents": out,
    }


def lanes(steps: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Steps with the first track that is free when each begins."""
    ends: list[int] = []
    found = []
    for step in sorted(steps, key=lambda each: (each["start_ms"], each["end_ms"])):
        lane = next((number for number, end in enumerate(ends) if end <= step["start_ms"]), len(ends))
        ends[lane:] = [step["end_ms"], *ends[lane + 1 :]]
        found.append((lane, step))
    return found


def _event(name: str, pid: int, tid: int, start: float, seconds: float, about: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": round(start * _MICRO),
        "dur": round(seconds * _MICRO),
        "args": about,
    }


def _names(pid: int, name: str) -> list[dict[str, Any]]:
    """A process's name, and its place among the others."""
    about = (("process_name", {"name": name}), ("process_sort_index", {"sort_index": pid}))
    return [{"name": kind, "ph": "M", "pid": pid, "tid": 0, "args": said} for kind, said in about]
