"""Inputs: what a build really read, besides its sources.

The compiler's own dependency output tells; the sorts are:

- *file*: a header or linked file of the user's. Its content counts, and is read again at every look.
- *shadow*: a path at which a file would be found before the one that was. It must still be absent.
- *veil*: names that would hide a system's or package's header, were they in an include folder of the user's. They must
  still be absent; the folder is only listed where its time has changed.
- *package*: torch, pybind11 or the CUDA toolkit, covered by its identity.
- *system*: everything below the folders that the compiler searches by itself, such as ``/usr/include`` (not
  ``/usr/local``, where people put headers of their own). Contents count, but they are only read where one of their
  folders has changed since the last look.
- the compiler's and Python's own headers are covered by the recipe.

Where a file lies is said relative to the recipe's numbered roots, so the same inputs in another checkout are the same.
"""

from __future__ import annotations

import os
import stat
import time

from nodecache.digest import digest_file, digest_items
from nodecache.packages import COVERED, identity, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.recipe import Recipe

_LOCAL = "/usr/local"
_TICKS = 50_000_000  # ns; five ticks of the slowest kernel clock
BIG = 1 << 20
"""Bytes from which a file is only digested anew when its status has changed."""
LIBRARIES = 1000
"""Rank from which a root is a folder of libraries; below it, one of headers, in the order of search."""


class Inputs:
    """What one build read.

    Attributes:
        files: ``(place, digest)``; a place is ``<root number>:<relative path>`` or an absolute path.
        shadows: places that must be absent.
        veils: ``(root number, mtime in ns, names)`` that must be absent from a root.
        packages: ``(name, identity)``.
        system: ``(absolute path, digest)``.
        folders: ``(absolute path, mtime in ns)`` of the folders of ``system``: a guard, not part of the key.
        seen: by place, how the status of a big file looked when it was digested: a guard likewise.
    """

    __slots__ = ("_system", "_system_lines", "files", "folders", "packages", "seen", "shadows", "veils")

    def __init__(self) -> None:
        self.files: list[tuple[str, str]] = []
        self.shadows: list[str] = []
        self.veils: list[tuple[int, int, list[str]]] = []
        self.packages: list[tuple[str, str]] = []
        self.folders: list[tuple[str, int]] = []
        self.seen: dict[str, str] = {}
        self._system: list[tuple[str, str]] = []
        self._system_lines: list[str] = []

    @property
    def system(self) -> list[tuple[str, str]]:
        """Hundreds, of which a hit needs none: their lines are only read when asked for."""
        if self._system_lines:
            for line in self._system_lines:
                digest, _, path = line.partition("\t")[2].partition("\t")
                self._system.append((_unquote(path), digest))
            self._system_lines = []
        return self._system

    @system.setter
    def system(self, value: list[tuple[str, str]]) -> None:
        self._system, self._system_lines = value, []

    def key(self, recipe: str) -> str:
        """The key of what a recipe makes of these inputs."""
        parts = [("file", f"{place} {digest}") for place, digest in self.files]
        parts += [("package", f"{name} {digest}") for name, digest in self.packages]
        parts += [("system", f"{path} {digest}") for path, digest in self.system]
        return digest_items([("recipe", recipe), *sorted(parts, key=lambda part: (part[0], os.fsencode(part[1])))])

    def lines(self) -> list[str]:
        """As text, one input a line."""
        return [
            *(f"file\t{digest}\t{_quote(place)}" for place, digest in self.files),
            *(f"shadow\t{_quote(place)}" for place in self.shadows),
            *(f"veil\t{number} {mtime}\t{_quote('/'.join(names))}" for number, mtime, names in self.veils),
            *(f"package\t{digest}\t{name}" for name, digest in self.packages),
            *(f"folder\t{mtime}\t{_quote(path)}" for path, mtime in self.folders),
            *(f"seen\t{print_}\t{_quote(place)}" for place, print_ in self.seen.items()),
            *(f"system\t{digest}\t{_quote(path)}" for path, digest in self.system),  # the last, see parse
        ]

    @classmethod
    def parse(cls, lines: list[str]) -> Inputs:
        """The inverse of :meth:`lines`; lines of other sorts are left out.

        Raises:
            ValueError: a number is none.
        """
        found = cls()
        for at, line in enumerate(lines):
            sort, _, rest = line.partition("\t")
            first, _, second = rest.partition("\t")
            if sort == "system":  # by far the most, and the last
                found._system_lines = lines[at:]
                break
            if sort == "file":
                found.files.append((_unquote(second), first))
            elif sort == "shadow":
                found.shadows.append(_unquote(first))
            elif sort == "veil":
                number, _, mtime = first.partition(" ")
                found.veils.append((int(number), int(mtime), _unquote(second).split("/")))
            elif sort == "package":
                found.packages.append((second, first))
            elif sort == "seen":
                found.seen[_unquote(second)] = first
            elif sort == "folder":
                found.folders.append((_unquote(second), int(first)))
        return found


class Eyes:
    """Looks at inputs as they are now; within one call each file is read once."""

    def __init__(self, roots: list[str]) -> None:
        self._roots = roots
        self._digests: dict[str, str] = {}
        self._identities: dict[str, str] = {}
        self._gone: set[str] = set()

    def forget(self) -> None:
        """Before another look, some time later."""
        self._digests.clear()
        self._identities.clear()
        self._gone.clear()

    def path(self, place: str) -> str:
        """Where a place is in this call.

        Raises:
            IndexError: there are fewer roots than then, so it is not the same recipe after all.
        """
        if place[:1] == "/":
            return place
        number, _, relative = place.partition(":")
        return os.path.join(self._roots[int(number)], relative)

    def digest(self, path: str) -> str:
        """A file's digest; empty when it cannot be read."""
        found = self._digests.get(path)
        if found is None:
            try:
                found = digest_file(path)
            except OSError:
                found = ""
            self._digests[path] = found
        return found

    def identity(self, package: str) -> str:
        """A package's identity."""
        found = self._identities.get(package)
        if found is None:
            found = self._identities[package] = identity(package)
        return found

    def _is_gone(self, path: str) -> bool:
        parent = os.path.dirname(path)
        if parent in self._gone:
            return True
        if os.path.lexists(path):
            return False
        if not os.path.isdir(parent):
            self._gone.add(parent)
        return True

    def _is_clear(self, folder: str, mtime: int, names: list[str]) -> bool:
        if _mtime(folder) == mtime:
            return True
        try:
            return set(names).isdisjoint(os.listdir(folder))
        except OSError:  # gone, and nothing in it
            return True

    def _is_same(self, inputs: Inputs, place: str, digest: str) -> bool:
        path = self.path(place)
        print_ = inputs.seen.get(place)
        if print_ is None:
            return self.digest(path) == digest
        now = _print(path)
        if now and now == print_:
            return True
        if self.digest(path) != digest:
            return False
        inputs.seen[place] = now
        return True

    def same(self, inputs: Inputs) -> bool | None:
        """Whether these inputs are unchanged.

        Returns:
            None where they are not; else whether the guards in ``inputs`` are new and worth writing down.
        """
        seen = dict(inputs.seen)
        try:
            if not all(self._is_same(inputs, place, digest) for place, digest in inputs.files):
                return None
            if not all(self._is_gone(self.path(place)) for place in inputs.shadows):
                return None
            if not all(self._is_clear(self._roots[number], mtime, names) for number, mtime, names in inputs.veils):
                return None
            if any(self.identity(name) != token for name, token in inputs.packages):
                return None
            # Before the digests, so that what changes in between shows at the next look.
            folders = [(folder, _mtime(folder)) for folder, _ in inputs.folders]
            if folders != inputs.folders:
                if any(self.digest(path) != digest for path, digest in inputs.system):
                    return None
                inputs.folders = [(folder, _settled(mtime)) for folder, mtime in folders]
                return True
        except (IndexError, ValueError):
            return None
        return seen != inputs.seen


def _mtime(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -1


def _settled(mtime: int) -> int:
    """A time to compare with, or one that never is: within one tick of the kernel's clock changes look alike."""
    return mtime if mtime < time.time_ns() - _TICKS else -2


def _print(path: str) -> str:
    """What of a file's status changes with its content, and cannot be set back; empty when it is too new to tell."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    if newest >= time.time_ns() - _TICKS:
        return ""
    return f"{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}.{status.st_dev}"


def learn(
    recipe: Recipe, read: list[str], linked: list[str], private: list[str], began: int
) -> tuple[Inputs, str | None]:
    """Sort what the tools read.

    Args:
        recipe: the recipe that was built.
        read: absolute paths that the compilers read, as they spell them.
        linked: absolute paths that the linker read.
        private: the build's own folders; what lies below them does not count.
        began: file time at which the tools began, in ns since the epoch.

    Returns:
        The inputs; and what of them changed after ``began``, as a sentence's beginning, or None.
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
    folders: dict[str, int] = {}
    changed: str | None = None
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
                changed = f"{path} changed"
            if _below(real, system) and not _below(real, [_LOCAL]):
                folders.setdefault(os.path.dirname(real), _settled(_mtime(os.path.dirname(real))))
                found.system.append((real, digest_file(real)))
                continue
            place, before = _place(recipe, path, linked=path in linked)
            if os.path.getsize(path) >= BIG:
                found.seen[place] = _print(path)
            found.files.append((place, digest_file(path)))
        except OSError:
            changed = f"{path} vanished"
            continue
        for shadow in before:
            spot = Eyes(recipe.roots).path(shadow)
            if not os.path.lexists(spot):
                found.shadows.append(shadow)
            elif _is_as_new(spot, began):
                changed = f"{spot} appeared"
    found.veils, late = _veils(recipe, names, began)
    found.packages = [(name, identity(name)) for name in sorted(used)]
    found.system = sorted(set(found.system))
    found.folders = sorted(folders.items())
    return found, changed or late


def _veils(recipe: Recipe, names: set[str], began: int) -> tuple[list[tuple[int, int, list[str]]], str | None]:
    """For each include folder the names that it must not get; and what it got since the build began."""
    found = []
    late: str | None = None
    for number, (low, _) in enumerate(recipe.ranks):
        folder = recipe.roots[number]
        if low >= LIBRARIES or not names:
            continue
        mtime = _settled(_mtime(folder))
        there = names & set(os.listdir(folder)) if os.path.isdir(folder) else set()
        for name in there:
            if _is_as_new(os.path.join(folder, name), began):
                late = f"{folder}/{name} appeared"
        found.append((number, mtime, sorted(names - there)))
    return found, late


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


def _is_as_new(path: str, began: int) -> bool:
    """Whether a file, or a link on the way to it, changed at or after a file time."""
    status = os.stat(path)
    # A file system that keeps whole seconds cannot tell within the one in which the build began.
    whole = status.st_ctime_ns % 10**9 == 0
    if status.st_ctime_ns >= (began - began % 10**9 if whole else began):
        return True
    while len(path) > 1:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and status.st_ctime_ns >= began:
            return True
        path = os.path.dirname(path)
    return False


def _below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _quote(path: str) -> str:
    return path.replace("%", "%25").replace("\n", "%0A").replace("\t", "%09").replace("\r", "%0D")


def _unquote(path: str) -> str:
    if "%" not in path:
        return path
    return path.replace("%0D", "\r").replace("%09", "\t").replace("%0A", "\n").replace("%25", "%")


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
            blank = character.isspace()
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
