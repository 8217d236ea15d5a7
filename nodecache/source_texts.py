"""Source texts: kept in the manifest, so that ``explain`` can show which lines of a source differ.

They are compressed, and left out where they are long: they only serve people.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodecache.spec import Source

LIMIT = 1 << 20
"""Bytes of all sources of an entry together, above which none is kept."""

_SHOWN = 3
"""Differing lines that are shown of each source."""

_WIDTH = 100


def pack(sources: Sequence[Source]) -> str | None:
    """The texts as one ASCII string; None if they are too long."""
    import base64
    import json
    import zlib

    if sum(len(source.data) for source in sources) > LIMIT:
        return None
    texts = json.dumps([source.data.decode("utf-8", "replace") for source in sources])
    return base64.b85encode(zlib.compress(texts.encode(), 6)).decode()


def unpack(packed: object) -> list[str]:
    """The texts by the source's number; empty where there are none, or where they are damaged or too long."""
    import base64
    import json
    import zlib

    if not isinstance(packed, str) or len(packed) > 2 * LIMIT:
        return []
    try:
        data = zlib.decompressobj().decompress(base64.b85decode(packed), 8 * LIMIT)
        texts = json.loads(data)
    except (ValueError, RecursionError, zlib.error):
        return []
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else []


def differing_lines(before: str, after: str) -> str:
    """What differs between two texts, one short line each: ``line 3: 'old' -> 'new'``."""
    found = list(_differing(before.split("\n"), after.split("\n")))
    more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join([*found[:_SHOWN], *more])


def _differing(old: list[str], new: list[str]) -> Iterator[str]:
    """Pairs of lines from outside in: what is equal at both ends is skipped, which is linear in the texts' length."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    for k in range(max(len(old), len(new))):
        if k >= len(old):
            yield f"line {first + k + 1}: {_cut(new[k])} added"
        elif k >= len(new):
            yield f"line {first + k + 1}: {_cut(old[k])} removed"
        elif old[k] != new[k]:
            yield f"line {first + k + 1}: {_around(old[k], new[k])}"


def _around(old: str, new: str) -> str:
    """Two lines, cut around the first character that differs."""
    if max(len(old), len(new)) > _WIDTH:
        at = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        begin = max(0, at - _WIDTH // 3)
        old, new = ("..." * (begin > 0) + line[begin:] for line in (old, new))
    return f"{_cut(old)} -> {_cut(new)}"


def _cut(line: str) -> str:
    return repr(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}...")
