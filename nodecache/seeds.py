"""Seeds: read-only roots that are looked in after the root, such as one that came with a container image.

``NODECACHE_SEEDS=/opt/seed:/site/seed``. Nothing is written there and no lock is taken. A hit needs no compiler and no
CUDA toolkit, here and in the root: where this node has none, the recipe is computed with what the tools that built the
entries said of themselves.
"""

from __future__ import annotations

import os
import stat

from nodecache import entry
from nodecache.errors import NotBuilt, RootError, ToolchainError
from nodecache.index import look
from nodecache.inputs import Eyes
from nodecache.recipe import Recipe
from nodecache.root import Root, setting
from nodecache.trust import check_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.compiler import Compiler
    from nodecache.entry import Entry
    from nodecache.spec import Spec

VARIABLE = "NODECACHE_SEEDS"
NO_BUILD = "NODECACHE_NO_BUILD"
"""Environment variable that makes a miss an error: any value but ``0`` and nothing."""

_told: set[str] = set()


def builds_are_off() -> bool:
    """Whether NODECACHE_NO_BUILD is set."""
    return setting(NO_BUILD).strip() not in ("", "0")


def seeds() -> list[Root]:
    """The seeds that can be used, in order; of any other a warning says why, once a process."""
    found = []
    for path in setting(VARIABLE).split(":"):
        if not path.strip():
            continue
        try:
            found.append(_open(path))
        except (OSError, RootError) as error:
            if path not in _told:
                from nodecache.printable import logger

                _told.add(path)
                logger().warning("the seed %s (%s) is not used: %s", path, VARIABLE, error)
    return found


def _open(path: str) -> Root:
    """A checked seed: its owner is this user or root, and nobody else can write to it."""
    seed = Root(os.path.realpath(path), VARIABLE)
    uid = os.geteuid()
    at = ""
    for part in ["", *seed.path.strip("/").split("/")]:
        at = f"{at}/{part}" if part else "/"
        status = os.lstat(at)
        if at == seed.path:
            break
        check_above(seed, at, status, uid)
        at = at.rstrip("/")
    for folder in (seed.path, seed.at("recipes"), seed.at("entries")):
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (uid, 0) or status.st_mode & 0o022:
            raise RootError(
                f"{folder} must be a folder that belongs to you or root and that nobody else may write to. "
                f"chown root and chmod go-w it."
            )
    return seed


def look_in_seeds(recipe: Recipe) -> Entry | None:
    """The first sound entry for a recipe in the seeds, or None."""
    eyes = Eyes(recipe.roots)
    return next((found for seed in seeds() if (found := look(seed, recipe.key, eyes, keep=False)) is not None), None)


def without_compiler(root: Root, spec: Spec, missing: ToolchainError) -> tuple[Recipe, Entry]:
    """Recipe and entry where this node has no compiler, by the compilers that the entries of that name tell of.

    Raises:
        ToolchainError: ``missing``: none of them fits.
        NotBuilt: the same, where nothing may be built.
    """
    places = [root, *seeds()]
    recipes: list[Recipe] = []
    for compiler, told in _tools(places, spec):
        try:
            recipe = Recipe(root, spec, compiler, told)
        except ToolchainError:  # not only a compiler is missing here, or that entry tells of none for CUDA
            continue
        recipes.append(recipe)
        eyes = Eyes(recipe.roots, compiles=False)
        for place in places:
            found = look(place, recipe.key, eyes, keep=place is root)
            if found is not None:
                return recipe, found
    if not builds_are_off():
        raise missing
    if recipes:
        raise not_built(root, spec, recipes[0], compiles=False)
    raise NotBuilt(
        f"{spec.name!r} is not built, {NO_BUILD} is set, and no entry of that name tells of a compiler to compute its "
        f"key with: {missing}"
    )


_COMPILER = ("compiler", "compiler path", "compiler flags", "target", "linker", "dependency output")
_CUDA = ("cuda compiler", "cuda architectures", "cuda native", "cuda host compiler", "framework cuda")


def _tools(places: list[Root], spec: Spec) -> list[tuple[Compiler, dict[str, str]]]:
    """The tools that built entries of a spec's name: the compiler as it said it is, and the items that tell of CUDA."""
    from nodecache.compiler import Compiler

    found: dict[tuple[str, ...], tuple[Compiler, dict[str, str]]] = {}
    for place in places:
        try:
            keys = sorted(os.listdir(place.at("entries")))
        except OSError:
            continue
        for key in keys:
            try:
                manifest = entry.read_manifest(entry.entry_path(place, key)) or {}
                if (manifest.get("name"), manifest.get("kind")) != (spec.name, spec.kind):
                    continue
                items = {str(name): str(value) for name, value in manifest["items"]}
                version, path, flags, target, linker, output = said = tuple(items[field] for field in _COMPILER)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            told = {field: items[field] for field in _CUDA if field in items}
            answers = {
                "program": path.split(" "),
                "version": version.split("\n"),
                "target": [target],
                "linker": [linker],
                "own": [],
                "system": [],
                "headers": [],
                "libraries": [],
                "link_deps": ["yes"] if "linker" in output else [],
                "as_deps": ["yes"] if "assembler" in output else [],
            }
            compiler = Compiler([path], [flag for flag in flags.split("\n") if flag], answers)
            found.setdefault((*said, *told.values()), (compiler, told))
    return list(found.values())


def not_built(root: Root, spec: Spec, recipe: Recipe, *, compiles: bool = True) -> NotBuilt:
    """What to raise on a miss where nothing may be built: what differs from the nearest entry."""
    from nodecache.explanation import explain_miss

    said = explain_miss([root, *seeds()], spec, recipe, Eyes(recipe.roots, compiles=compiles))
    head = f"{spec.name!r} is not built, and {NO_BUILD} is set."
    if said.nearest is None:
        why = f"No entry of that name is in {root.path} or a seed ({VARIABLE})."
    elif not said.changes:
        why = f"The nearest entry, {said.nearest.path}, has the same parts: it is damaged, or does not fit any more."
    else:
        changes = "\n".join(f"  {change}" for change in said.changes)
        why = f"It differs from the nearest entry, {said.nearest.path}, in:\n{changes}"
    return NotBuilt(f"{head} {why}\nBuild it where that is allowed (nodecache warm), or unset {NO_BUILD}.")
