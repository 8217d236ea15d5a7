"""Learning: sorts what the tools wrote down that they read into :class:`nodecache.inputs.Inputs`."""

from __future__ import annotations

import os
import stat

from nodecache.digest import digest_file
from nodecache.inputs import BIG, LIBRARIES, Eyes, Inputs, SearchOrder, folder_stamp, status_print
from nodecache.packages import COVERED, identity, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.recipe import Recipe

_LOCAL = "/usr/local"


class Began:
    """When the tools began, by the clocks that stamp files: this kernel's, and that of the staging folder's server.

    Attributes:
        device: number of the file system that the staging folder is on.
        there: file time on it, in ns since the epoch.
        here: file time on local file systems.
    """

    __slots__ = ("device", "here", "there")

    def __init__(self, device: int, there: int, here: int) -> None:
        self.device = device
        self.there = there
        self.here = here

    def by_clock_of(self, status: os.stat_result) -> int:
        """The time to compare a file's with."""
        return self.there if status.st_dev == self.device else self.here


def learn(
    recipe: Recipe, read: list[str], linked: list[str], private: list[str], began: Began
) -> tuple[Inputs, dict[str, str]]:
    """Sort what the tools read.

    Args:
        recipe: the recipe that was built.
        read: absolute paths that the compilers read, as they spell them.
        linked: absolute paths that the linker read.
        private: the build's own folders; what lies below them does not count.
        began: when the tools began.

    Returns:
        The inputs; and by path what happened to those that look as if they changed after ``began``.
    """
    import sysconfig

    packages = {name: folder for name in COVERED if (folder := locate(name)) is not None}
    python = {os.path.realpath(sysconfig.get_path(name)) for name in ("include", "platinclude")}
    own = [*recipe.compiler.own, *python]
    system = [*recipe.compiler.system, "/usr/include", "/usr/lib", "/usr/lib64", "/lib", "/lib64"]
    searched = [*own, *system, *(f"{folder}/include" for folder in packages.values())]
    found = Inputs()
    used: set[str] = set()
    names: set[str] = set()  # first parts of the names by which headers outside the roots were asked for
    folders: dict[str, str] = {}
    late: dict[str, str] = {}
    for path in sorted({*read, *linked}):
        real = os.path.realpath(path)
        if _below(real, private) or real.startswith("/dev/"):
            continue
        package = next((name for name, folder in packages.items() if _below(real, [folder])), None)
        if path not in linked:
            within = max((folder for folder in searched if _below(real, [folder])), key=len, default=None)
            names.update([] if within is None else [real[len(within) :].strip("/").partition("/")[0]])
        if package is not None:
            used.add(package)
            continue
        if _below(real, own):
            continue
        try:
            if _is_as_new(path, began):
                late[path] = "changed"
            if _below(real, system) and not _below(real, [_LOCAL]):
                for folder in folders_on_the_way(path):
                    folders.setdefault(folder, folder_stamp(folder))
                found.system.append((path, digest_file(path)))
                continue
            place, before = _place(recipe, path, linked=path in linked)
            if os.path.getsize(path) >= BIG:
                found.seen[place] = status_print(path)
            found.files.append((place, digest_file(path)))
        except OSError:
            late[path] = "vanished"
            continue
        for shadow in before:
            spot = Eyes(recipe.roots).path(shadow)
            if not os.path.lexists(spot):
                found.shadows.append(shadow)
            elif _is_as_new(spot, began):
                late[spot] = "appeared"
    found.veils, hiding = _veils(recipe, names, began)
    late.update(dict.fromkeys(hiding, "appeared"))
    found.packages = [(name, identity(name)) for name in sorted(used)]
    found.system = sorted(set(found.system))
    found.order, appeared = _search_order(recipe, found, folders, began)
    late.update(dict.fromkeys(appeared, "appeared"))
    found.folders = sorted(folders.items())
    return found, late


def _search_order(
    recipe: Recipe, found: Inputs, folders: dict[str, str], began: Began
) -> tuple[SearchOrder, list[str]]:
    """Where the tools search by themselves, and what appeared there; adds guards of those places to ``folders``."""
    order = SearchOrder(recipe.compiler.header_folders, recipe.compiler.library_folders)
    before = order.before(found.searched())
    for folder in {_nearest_folder(place) for place in before}:
        folders.setdefault(folder, folder_stamp(folder))
    there = [place for place in before if os.path.lexists(place)]
    appeared = [place for place in there if _is_as_new(place, began)]
    return SearchOrder(order.headers, order.libraries, there), appeared


def _veils(recipe: Recipe, names: set[str], began: Began) -> tuple[list[tuple[int, str, list[str]]], list[str]]:
    """For each include folder the names that it must not get; and the paths that it got since the build began."""
    found = []
    appeared: list[str] = []
    for number, (low, _) in enumerate(recipe.ranks):
        folder = recipe.roots[number]
        if low >= LIBRARIES or not names:
            continue
        stamp = folder_stamp(folder)
        there = {name for name in names if os.path.lexists(os.path.join(folder, name))}
        paths = [os.path.join(folder, name) for name in there]
        appeared += [path for path in paths if _is_as_new(path, began)]
        found.append((number, stamp, sorted(names - there)))
    return found, appeared


def _place(recipe: Recipe, path: str, *, linked: bool) -> tuple[str, list[str]]:
    """How the key says a path, and the places where the same name would have been found before it."""
    within = [number for number, root in enumerate(recipe.roots) if _below(path, [root])]
    if not within:
        return path, []
    number = max(within, key=lambda number: len(recipe.roots[number]))
    # As the compiler spells it: "../x.h" below a root stays relative to it, and ".." after a link means what it meant.
    relative = path[len(recipe.roots[number].rstrip("/")) + 1 :]
    _, mine = recipe.ranks[number]
    if not linked:
        before = [other for other, (low, _) in enumerate(recipe.ranks) if other != number and low < mine]
        return f"{number}:{relative}", [f"{other}:{relative}" for other in before]
    before = [other for other, (_, high) in enumerate(recipe.ranks) if LIBRARIES <= high < mine]
    shadows = [f"{other}:{relative}" for other in before]
    if relative.endswith(".a"):
        shadows += [f"{other}:{relative[:-2]}.so" for other in (number, *before)]
    return f"{number}:{relative}", shadows


def folders_on_the_way(path: str) -> list[str]:
    """The folders whose names decide where a path leads: that of the file, and those of the links on the way to it."""
    found = []
    todo = [part for part in path.split("/") if part]
    at = "/"
    for _ in range(1000):  # the kernel follows forty links; a path has at most some hundred parts besides
        if not todo:
            break
        part = todo.pop(0)
        step = os.path.dirname(at) if part == ".." else os.path.join(at, part)
        if part not in (".", "..") and os.path.islink(step):
            found.append(at)
            target = os.readlink(step)
            todo = [*(part for part in target.split("/") if part), *todo]
            at = "/" if target[:1] == "/" else at
        elif part != ".":
            at = step
    return [*found, os.path.dirname(at)]


def _nearest_folder(path: str) -> str:
    """The folder that must change before ``path`` can appear."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _is_as_new(path: str, began: Began) -> bool:
    """Whether a file, or a link on the way to it, changed when the tools began, or after that."""
    status = os.stat(path)
    time = began.by_clock_of(status)
    # A file system that keeps whole seconds cannot tell within the one in which the build began.
    whole = status.st_ctime_ns % 10**9 == 0
    if status.st_ctime_ns >= (time - time % 10**9 if whole else time):
        return True
    while True:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and status.st_ctime_ns >= began.by_clock_of(status):
            return True
        parent = os.path.dirname(path)
        if parent in (path, ""):  # "/" is its own parent, and so is "//"
            return False
        path = parent


def state(path: str) -> str:
    """What changes when a file is written to or replaced, or a link on the way to it is led elsewhere.

    Two of these are compared with each other, and with no clock. Empty when there is no such file.
    """
    try:
        status = os.stat(path)
        parts = [f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"]
        parent = os.path.dirname(path)
        while path != parent:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                parts.append(f"{status.st_ino} {status.st_ctime_ns}")
            path, parent = parent, os.path.dirname(parent)
    except OSError:
        return ""
    return "\n".join(parts)


def _below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def parse_dependencies(text: str) -> list[str]:
    """Prerequisites in a dependency file as compilers and assemblers write it.

    Source: GNU make's syntax as GCC's ``-MD`` writes it: a backslash ends a line that goes on; a space or tab of the
    name has a backslash before it, and backslashes before that are doubled; a hash has one backslash; a dollar is
    doubled (nvcc leaves it single).
    """
    found: list[str] = []
    for rule in text.replace("\\\n", " ").split("\n"):
        _, colon, rest = rule.partition(": ")
        if not colon:
            continue
        word, slashes, dollar = "", 0, False
        for character in f"{rest} ":
            if character == "\\":
                slashes += 1
                continue
            blank = character in " \t"
            if slashes:
                escaped = (blank and slashes % 2 == 1) or character == "#"
                word += "\\" * (slashes // 2 if blank else slashes - escaped)
                slashes = 0
                if escaped:
                    word += character
                    continue
            if blank:
                if word:
                    found.append(word)
                word = ""
            elif not (dollar and character == "$"):
                word += character
            dollar = character == "$" and not dollar
    return found


def parse_link_dependencies(text: str, folder: str) -> list[str]:
    """Prerequisites in a dependency file as linkers write it, as absolute paths; the linker ran in ``folder``.

    Source: GNU ld and gold write one name a line, as it is; lld does the same and escapes as make wants it.
    """
    found = []
    for line in text.split("\n\n", 1)[0].split("\n")[1:]:
        name = line.strip().removesuffix("\\").rstrip(" ")
        if not name:
            continue
        if not os.path.exists(os.path.join(folder, name)) and ("\\" in name or "$$" in name):
            name = (parse_dependencies(f": {name}") or [name])[0]
        found.append(os.path.join(folder, name))
    return found
