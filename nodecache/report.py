"""Report: one HTML page with the timelines of builds and waits. Self-contained: no script, and nothing is fetched."""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING, Any

from nodecache.history import sums
from nodecache.tables import size
from nodecache.trace import lanes

if TYPE_CHECKING:
    from nodecache.contents import Held
    from nodecache.history import Event

GAP = 60.0
"""Seconds without anything after which another timeline begins."""

TIMELINES = 12
"""Timelines that a page has at most, the newest."""

ROWS = 80
"""Rows that a timeline has at most; of the waits that are left out it says how many."""

_LEFT, _RIGHT, _WIDTH, _ROW = 240, 90, 1000, 22
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --soft: #5b6570; --line: #d8dee4; --stripe: #f4f6f8;
  --built: #2369b8; --step: #7db4ec; --failed: #c0362c; --waited: #d9a430; --other: #8b6fc0; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --text: #e4e8ec; --soft: #9aa5b1; --line: #333b44;
  --stripe: #1b2027; --built: #4f9bea; --step: #265a8f; --failed: #ef6a5f; --waited: #d6a63c; --other: #a78fdc; } }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .25rem; } p { margin: .25rem 0; }
.soft { color: var(--soft); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(6.2rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.1rem; white-space: nowrap; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--text); font-size: 12px; }
svg .soft { fill: var(--soft); } .grid { stroke: var(--line); } .stripe { fill: var(--stripe); }
.built { fill: var(--built); } .step { fill: var(--step); } .failed { fill: var(--failed); }
.waited { fill: var(--waited); } .other { fill: var(--other); }
.key span { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin: 0 .35rem 0 1rem; }
.key span:first-child { margin-left: 0; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def page(found: list[Event], held: list[Held], *, root: str, host: str) -> str:
    """The page.

    Args:
        found: the history, or a part of it, oldest first.
        held: the root's entries; their manifests tell of the builds' steps.
        root, host: for the headline.

    Returns:
        HTML, readable in light and in dark.
    """
    steps = {each.manifest.get("attempt"): each.manifest.get("steps", []) for each in held}
    shown = [event for event in found if event.event != "hit"]
    lines = [_timeline(group, steps) for group in reversed(_groups(shown)[-TIMELINES:])]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>nodecache on {html.escape(host)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Builds and waits on {html.escape(host)}</h1>",
            f'<p class="soft">Root {html.escape(root)}, as of {time.strftime("%Y-%m-%d %H:%M:%S %z")}</p>',
            _sums(found, held),
            (
                '<p class="key"><span style="background:var(--built)"></span>build'
                '<span style="background:var(--step)"></span>one of its steps'
                '<span style="background:var(--failed)"></span>failed'
                '<span style="background:var(--waited)"></span>wait'
                '<span style="background:var(--other)"></span>wait that ended otherwise</p>'
            ),
            *(lines or ["<p>Nothing has been built yet.</p>"]),
            _table(shown),
            "</body></html>",
            "",
        ]
    )


def _groups(found: list[Event]) -> list[list[Event]]:
    """Events that belong to one timeline: those without a long gap between them."""
    groups: list[list[Event]] = []
    end = 0.0
    for event in found:
        if not groups or event.started > end + GAP:
            groups.append([])
            end = 0.0
        groups[-1].append(event)
        end = max(end, event.started + event.seconds)
    return groups


def _sums(found: list[Event], held: list[Held]) -> str:
    total = sums(found, held)
    shown = [
        ("builds", str(total.builds)),
        ("failures", str(total.failures)),
        ("waits", str(total.waits)),
        ("time built", _span(total.seconds_built)),
        ("time waited", _span(total.seconds_waited)),
        ("time saved", _span(total.seconds_saved)),
        ("entries", str(total.entries)),
        ("space", size(total.bytes)),
    ]
    return "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown) + "</dl>"


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _timeline(group: list[Event], steps: dict[Any, list[dict[str, Any]]]) -> str:
    """One timeline: each build with its steps, and below it those who waited for it."""
    began = min(event.started for event in group)
    length = max(0.001, max(event.started + event.seconds for event in group) - began)
    rows = _rows(group)
    left_out = len(rows) - ROWS
    rows = rows[:ROWS]
    height = (len(rows) + 1) * _ROW + 8
    scale = (_WIDTH - _LEFT - _RIGHT) / length
    names = ", ".join(dict.fromkeys(event.name for event in group))
    title = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(began))}: {names}"
    parts = [
        f"<h2>{html.escape(_short(title, 110))}</h2>",
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}">',
    ]
    parts += [
        f'<rect class="stripe" x="0" y="{_top(number)}" width="{_WIDTH}" height="{_ROW}"/>'
        for number in range(1, len(rows), 2)
    ]
    tick = next((each for each in _TICKS if length / each <= 8), _TICKS[-1] * max(1, round(length / _TICKS[-1] / 8)))
    for number in range(int(length / tick) + 1):
        at = _LEFT + number * tick * scale
        parts.append(
            f'<line class="grid" x1="{at:.1f}" y1="{_ROW}" x2="{at:.1f}" y2="{height - 8}"/>'
            f'<text class="soft" x="{at:.1f}" y="14" text-anchor="middle">{number * tick:g} s</text>'
        )
    for number, event in enumerate(rows):
        parts.append(_bar(number, event, _LEFT + (event.started - began) * scale, scale, steps.get(event.attempt, [])))
    parts.append("</svg>")
    if left_out > 0:
        parts.append(f'<p class="soft">and {left_out} more waits, which the table has.</p>')
    return "\n".join(parts)


def _rows(group: list[Event]) -> list[Event]:
    """Builds in their order, and below each its waits."""
    waits: dict[str, list[Event]] = {}
    for event in group:
        if event.event != "build":
            waits.setdefault(event.attempt, []).append(event)
    found = []
    for event in group:
        if event.event == "build":
            found += [event, *sorted(waits.pop(event.attempt, []), key=_order)]
    return found + [event for rest in waits.values() for event in rest]


def _order(event: Event) -> tuple[int, float]:
    return (1 << 31 if event.rank is None else event.rank, event.started)


def _bar(number: int, event: Event, x: float, scale: float, steps: list[dict[str, Any]]) -> str:
    top = _top(number)
    width = max(2.0, event.seconds * scale)
    kind = {"built": "built", "failed": "failed", "waited": "waited"}.get(event.outcome, "other")
    if event.event == "wait" and event.outcome == "failed":
        kind = "other"
    who = f"rank {event.rank}, pid {event.pid}" if event.rank is not None else f"pid {event.pid}"
    label = f"{event.name} · {who}" if event.event == "build" else who
    about = f"{event.event} of {event.name} by {event.who}: {event.outcome}, {event.seconds:.2f} s"
    parts = [
        f'<text x="{8 if event.event == "build" else 24}" y="{top + 15}">{html.escape(_short(label, 34))}</text>',
        (
            f'<g><title>{html.escape(about)}</title><rect class="{kind}" x="{x:.1f}" y="{top + 4}" width="{width:.1f}" '
            f'height="{_ROW - 8}" rx="2"/></g>'
        ),
    ]
    placed = lanes(steps) if event.event == "build" else []
    tracks = max((lane for lane, _ in placed), default=0) + 1
    tall = (_ROW - 12) / tracks
    for lane, step in placed:
        start, end = step["start_ms"] / 1000, step["end_ms"] / 1000
        parts.append(
            f"<g><title>{html.escape(step['step'])}: {end - start:.2f} s</title>"
            f'<rect class="step" x="{x + start * scale:.1f}" y="{top + 6 + lane * tall:.1f}" '
            f'width="{max(1.0, (end - start) * scale - 0.8):.1f}" height="{tall - 0.6:.1f}"/></g>'
        )
    parts.append(
        f'<text class="soft" x="{x + width + 6:.1f}" y="{top + 15}">{event.seconds:.1f} s'
        f"{'' if event.outcome in ('built', 'waited') else ', ' + event.outcome}</text>"
    )
    return "".join(parts)


def _top(number: int) -> int:
    return (number + 1) * _ROW


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _table(found: list[Event]) -> str:
    if not found:
        return ""
    head = (
        "<h2>All of it, newest first</h2><table><thead><tr><th>began</th><th>what</th><th>name</th><th>outcome</th>"
        '<th class="number">seconds</th><th>who</th><th>key</th></tr></thead><tbody>'
    )
    rows = [
        f"<tr><td>{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(event.started))}</td><td>{event.event}</td>"
        f"<td>{html.escape(event.name)}</td><td>{event.outcome}</td>"
        f'<td class="number">{event.seconds:.2f}</td><td>{html.escape(event.who)}</td><td>{event.key[:12]}</td></tr>'
        for event in reversed(found[-1000:])
    ]
    return "\n".join([head, *rows, "</tbody></table>"])
