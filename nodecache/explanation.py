"""Explain: what went into a key, and what differs between two; "why did this rebuild?" in one call."""

from __future__ import annotations

import os
import time

from nodecache import entry
from nodecache.errors import SpecError
from nodecache.index import look
from nodecache.inputs import Eyes, Inputs
from nodecache.recipe import Recipe
from nodecache.root import open_root
from nodecache.source_texts import differing_lines, unpack
from nodecache.spec import Spec, arguments, paths, read_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from nodecache.root import Root

_SHOWN = 60
_MISSING = "(absent)"


class Change:
    """One thing that differs.

    Attributes:
        name: what it is, such as ``cflags``, ``source 0`` or ``file 1:sub/b.h`` (a path below the recipe's root 1).
        before: its value in the other key, ``(absent)`` where it has none.
        after: its value in the key that is explained.
        lines: of a source, which of its lines differ; empty where the texts were too long to be kept.
    """

    __slots__ = ("after", "before", "lines", "name")

    def __init__(self, name: str, before: str, after: str, lines: str = "") -> None:
        self.name = name
        self.before = before
        self.after = after
        self.lines = lines

    def __repr__(self) -> str:
        return f"Change({self.name!r}, {self.before!r}, {self.after!r})"

    def __str__(self) -> str:
        if self.lines:
            return f"{self.name}: {_short(self.after.rpartition(' ')[0])}, {self.lines}"
        if "\n" in self.before + self.after or self.name.endswith("flags"):
            old, new = self.before.split("\n"), self.after.split("\n")
            lost = [line for line in old if line not in new and line != _MISSING]
            got = [line for line in new if line not in old and line != _MISSING]
            said = ", ".join([*(f"without {_short(line)}" for line in lost), *(f"with {_short(line)}" for line in got)])
            return f"{self.name}: {said or 'in another order'}"
        return f"{self.name}: {_short(self.before)} -> {_short(self.after)}"


class Explanation:
    """What went into a key.

    Attributes:
        key: the entry's key; empty for a call that would build.
        name, kind, recipe: of what was built.
        path: the entry's folder; empty for a call that would build.
        built: when, in seconds since the epoch; None for a call that would build.
        seconds: how long the build took.
        builder: who built it, for people.
        parts: all that went in, by name: the recipe's items, and per input its digest.
        nearest: the entry that it is compared with: the one asked for, or that of the same name with the fewest
            differences; None where there is no other.
        changes: what differs from ``nearest``; a call that would hit has none.
        texts: the sources, in the order of the call; empty where they were too long to be kept.
    """

    __slots__ = (
        "builder",
        "built",
        "changes",
        "key",
        "kind",
        "name",
        "nearest",
        "parts",
        "path",
        "recipe",
        "seconds",
        "texts",
    )

    def __init__(self, **fields: Any) -> None:
        self.key: str = fields["key"]
        self.name: str = fields["name"]
        self.kind: str = fields["kind"]
        self.recipe: str = fields["recipe"]
        self.path: str = fields["path"]
        self.built: float | None = fields["built"]
        self.seconds: float = fields["seconds"]
        self.builder: str = fields["builder"]
        self.parts: dict[str, str] = fields["parts"]
        self.texts: list[str] = fields["texts"]
        self.nearest: Explanation | None = None
        self.changes: list[Change] = []

    @property
    def headline(self) -> str:
        """One line: name, key, when, by whom."""
        if self.built is None:
            return f"{self.name}: this call would build (recipe {self.recipe})"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.built))
        return f"{self.name}: key {self.key}, built {when} in {self.seconds:.1f} s by {self.builder}"

    def __repr__(self) -> str:
        return f"Explanation({self.name!r}, key={self.key!r}, changes={[change.name for change in self.changes]})"

    def __str__(self) -> str:
        lines = [self.headline]
        if self.nearest is not None:
            lines += [f"differs from key {self.nearest.key} in:", *(f"  {change}" for change in self.changes)]
            if not self.changes:
                lines[-1] = f"has the same parts as key {self.nearest.key}"
        if self.nearest is None or self.built is not None:
            lines.append("made of:")
            system = [name for name in self.parts if name.startswith("system ")]
            lines += [f"  {name}: {_short(value)}" for name, value in self.parts.items() if name not in set(system)]
            if system:
                lines.append(f"  {len(system)} headers and libraries of the system")
        return os.fsencode("\n".join(lines)).decode("utf-8", "replace")


def explain(
    what: ModuleType | str | dict[str, Any],
    other: ModuleType | str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
) -> Explanation:
    """Say what went into a key, and what differs from another; nothing is built.

    Args:
        what: a module that ``load`` returned, a key, the first digits of one, or a dict of ``load``'s arguments: then
            the call is looked up and not made, and ``changes`` says why it would build.
        other: a module or key to compare with. Without it, the entry of the same name that differs least.
        root: another root than the default. NODECACHE_ROOT, where set, wins.

    Returns:
        The explanation; its text is made for people.

    Raises:
        SpecError: there is no such entry, or the digits begin several keys.
        RootError, UnsafeRoot: the root cannot be used.
    """
    place = open_root(root)
    if isinstance(what, dict):
        return _explain_call(place, what, other)
    said = _entry(place, what)
    others = [_entry(place, other)] if other is not None else _of_name(place, said.name, said.kind)
    _compare(said, [(each, each.parts, said.parts) for each in others if each.key != said.key or other is not None])
    return said


def _explain_call(place: Root, call: dict[str, Any], other: ModuleType | str | None) -> Explanation:
    """What a call of ``load`` is made of, beside the entries that it does not hit."""
    spec = Spec(
        call["name"],
        read_sources(call["sources"]),
        cflags=arguments("extra_cflags", call.get("extra_cflags")),
        cuda_cflags=arguments("extra_cuda_cflags", call.get("extra_cuda_cflags")),
        ldflags=arguments("extra_ldflags", call.get("extra_ldflags")),
        include_paths=paths("extra_include_paths", call.get("extra_include_paths")),
        frameworks=arguments("frameworks", call.get("frameworks", ())),
    )
    recipe = Recipe(place, spec)
    eyes = Eyes(recipe.roots)
    hit = look(place, recipe.key, eyes)
    if hit is not None and other is None:
        return _read(place, hit.key) or _entry(place, hit.key)
    return explain_miss([place], spec, recipe, eyes, _entry(place, other) if other is not None else None)


def explain_miss(
    places: list[Root], spec: Spec, recipe: Recipe, eyes: Eyes, other: Explanation | None = None
) -> Explanation:
    """What a call that misses is made of, beside an entry of these roots, or beside ``other``."""
    parts = dict(recipe.items)
    fields = {"key": "", "name": spec.name, "kind": spec.kind, "recipe": recipe.key, "path": "", "parts": parts}
    texts = [source.data.decode("utf-8", "replace") for source in spec.sources]
    said = Explanation(**fields, built=None, seconds=0.0, builder="", texts=texts)
    others = [each for place in places for each in _of_name(place, spec.name, spec.kind)] if other is None else [other]
    _compare(said, [(each, each.parts, parts | _as_now(each, eyes)) for each in others])
    return said


def _as_now(of: Explanation, eyes: Eyes) -> dict[str, str]:
    """An entry's inputs as they are now."""
    manifest = entry.read_manifest(of.path) or {}
    inputs = Inputs.parse(manifest.get("inputs", []))
    now = {}
    for name in of.parts:
        sort, _, where = name.partition(" ")
        try:
            if sort in ("file", "system") and (":" in where or where[:1] == "/"):
                now[name] = eyes.digest(eyes.path(where)) or _MISSING
            elif sort == "package":
                now[name] = eyes.identity(where)
        except (IndexError, ValueError):
            now[name] = _MISSING
    for shadow in inputs.shadows:
        try:
            if os.path.lexists(eyes.path(shadow)):
                now[f"found before it: {shadow}"] = "there"
        except (IndexError, ValueError):
            continue
    return now


def _compare(said: Explanation, others: list[tuple[Explanation, dict[str, str], dict[str, str]]]) -> None:
    """Keep the entry that differs least, and what differs; of equals the newest."""
    best: list[Change] | None = None
    for each, before, after in sorted(others, key=lambda found: -(found[0].built or 0)):
        changes = [
            Change(name, before.get(name, _MISSING), after.get(name, _MISSING))
            for name in [*after, *(name for name in before if name not in after)]
            if before.get(name) != after.get(name)
        ]
        if best is None or len(changes) < len(best):
            best, said.nearest, said.changes = changes, each, changes
    if said.nearest is not None:
        for number, (old, new) in enumerate(zip(said.nearest.texts, said.texts, strict=False)):
            for change in said.changes:
                if change.name == f"source {number}":
                    change.lines = differing_lines(old, new)


def _entry(place: Root, what: ModuleType | str) -> Explanation:
    """The entry that a module came from, or that a key's first digits name."""
    if not isinstance(what, str):
        loaded = getattr(what, "__nodecache__", None)
        if loaded is None:
            raise SpecError(f"{what!r} does not come from nodecache.load. Give a module that does, or a key.")
        if not loaded.key:
            raise SpecError(f"{what!r} was used and not kept, so it has no key. See the log for the reason.")
        what = str(loaded.key)
    found = [key for key in _keys(place) if what and key.startswith(what)]
    if len(found) != 1:
        many = f"{len(found)} entries begin" if found else "No entry begins"
        raise SpecError(f"{many} with {what!r} in {place.path}. Give more digits of a key, or load the module again.")
    said = _read(place, found[0])
    if said is None:
        raise SpecError(f"The manifest of {found[0]} is damaged. Load the module again; that replaces it.")
    return said


def _of_name(place: Root, name: str, kind: str) -> list[Explanation]:
    found = [said for key in _keys(place) if (said := _read(place, key)) is not None]
    return [said for said in found if (said.name, said.kind) == (name, kind)]


def _keys(place: Root) -> list[str]:
    try:
        return sorted(os.listdir(place.at("entries")))
    except FileNotFoundError:
        return []


def _read(place: Root, key: str) -> Explanation | None:
    """An entry's explanation; None when its manifest is gone or damaged."""
    path = entry.entry_path(place, key)
    try:
        manifest = entry.read_manifest(path)
        if manifest is None or manifest["key"] != key:
            return None
        inputs = Inputs.parse([str(line) for line in manifest["inputs"]])
        parts = {str(name): str(value) for name, value in manifest["items"]}
        parts |= {f"file {where}": digest for where, digest in inputs.files}
        parts |= {f"package {name}": digest for name, digest in inputs.packages}
        parts |= {f"system {where}": digest for where, digest in inputs.system}
        who = manifest["builder"]
        rank = "" if who["rank"] is None else f" (rank {who['rank']})"
        return Explanation(
            key=key,
            name=str(manifest["name"]),
            kind=str(manifest["kind"]),
            recipe=str(manifest["recipe"]),
            path=path,
            built=float(manifest["started"]),
            seconds=float(manifest["seconds"]),
            builder=f"pid {who['pid']}{rank} on {who['host']}",
            parts=parts,
            texts=unpack(manifest.get("sources")),
        )
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _short(value: str) -> str:
    line = value.replace("\n", " ")
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
