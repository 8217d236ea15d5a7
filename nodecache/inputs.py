"""Inputs: what a build really read, besides its sources.

The compiler's own dependency output tells; the sorts are:

- *file*: a header or linked file of the user's. Its content counts, and is read again at every look.
- *shadow*: a path at which a file would be found before the one that was. It must still be absent.
- *package*: torch, pybind11 or the CUDA toolkit, covered by its identity.
- *system*: everything below the folders that the compiler searches by itself, such as ``/usr/include``. Contents count,
  but they are only read where one of their folders has changed since the last look.
- the compiler's and Python's own headers are covered by the recipe.

Where a file lies is said relative to the recipe's numbered roots, so the same inputs in another checkout are the same.
"""

from __future__ import annotations

import os

from nodecache.digest import digest_file, digest_items
from nodecache.packages import COVERED, identity, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.recipe import Recipe


class Inputs:
    """What one build read.

    Attributes:
        files: ``(place, digest)``; a place is ``<root number>:<relative path>`` or an absolute path.
        shadows: places that must be absent.
        packages: ``(name, identity)``.
        system: ``(absolute path, digest)``.
        folders: ``(absolute path, mtime in ns)`` of the folders of ``system``: a guard, not part of the key.
    """

    __slots__ = ("files", "folders", "packages", "shadows", "system")

    def __init__(self) -> None:
        self.files: list[tuple[str, str]] = []
        self.shadows: list[str] = []
        self.packages: list[tuple[str, str]] = []
        self.system: list[tuple[str, str]] = []
        self.folders: list[tuple[str, int]] = []

    def key(self, recipe: str) -> str:
        """The key of what a recipe makes of these inputs."""
        parts = [("file", f"{place} {digest}") for place, digest in self.files]
        parts += [("package", f"{name} {digest}") for name, digest in self.packages]
        parts += [("system", f"{path} {digest}") for path, digest in self.system]
        return digest_items([("recipe", recipe), *sorted(parts)])

    def lines(self) -> list[str]:
        """As text, one input a line."""
        return [
            *(f"file\t{digest}\t{_quote(place)}" for place, digest in self.files),
            *(f"shadow\t{_quote(place)}" for place in self.shadows),
            *(f"package\t{digest}\t{name}" for name, digest in self.packages),
            *(f"system\t{digest}\t{_quote(path)}" for path, digest in self.system),
            *(f"folder\t{mtime}\t{_quote(path)}" for path, mtime in self.folders),
        ]

    @classmethod
    def parse(cls, lines: list[str]) -> Inputs:
        """The inverse of :meth:`lines`; lines of other sorts are left out."""
        found = cls()
        for line in lines:
            sort, _, rest = line.partition("\t")
            first, _, second = rest.partition("\t")
            if sort == "file":
                found.files.append((_unquote(second), first))
            elif sort == "shadow":
                found.shadows.append(_unquote(first))
            elif sort == "package":
                found.packages.append((second, first))
            elif sort == "system":
                found.system.append((_unquote(second), first))
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
        self._gone.clear()

    def path(self, place: str) -> str:
        """Where a place is in this call."""
        number, colon, relative = place.partition(":")
        return os.path.join(self._roots[int(number)], relative) if colon and number.isdigit() else place

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

    def same(self, inputs: Inputs) -> tuple[bool, bool]:
        """Whether these inputs are unchanged, and whether their guards are."""
        try:
            if any(self.digest(self.path(place)) != digest for place, digest in inputs.files):
                return False, False
            if not all(self._is_gone(self.path(place)) for place in inputs.shadows):
                return False, False
        except IndexError:  # fewer roots than then: not the same recipe after all
            return False, False
        if any(self.identity(name) != token for name, token in inputs.packages):
            return False, False
        if all(_mtime(folder) == mtime for folder, mtime in inputs.folders):
            return True, True
        return all(self.digest(path) == digest for path, digest in inputs.system), False


def _mtime(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -1


def learn(recipe: Recipe, read: list[str], private: str) -> tuple[Inputs, list[str]]:
    """Sort what the tools read.

    Args:
        recipe: the recipe that was built.
        read: absolute paths that the compilers and the linker read.
        private: the build's own folder; what lies below it does not count.

    Returns:
        The inputs, and the paths of those whose contents count.
    """
    import sysconfig

    packages = {name: folder for name in COVERED if (folder := locate(name)) is not None}
    python = {os.path.realpath(sysconfig.get_path(name)) for name in ("include", "platinclude")}
    own = [*recipe.compiler.own, *python]
    system = [*recipe.compiler.system, "/usr/include", "/usr/lib", "/usr/lib64", "/lib", "/lib64"]
    roots = sorted(range(len(recipe.roots)), key=lambda number: -len(recipe.roots[number]))
    found = Inputs()
    used: set[str] = set()
    counted: list[str] = []
    for path in sorted(set(read)):
        if _below(path, [private]):
            continue
        real = os.path.realpath(path)
        package = next((name for name, folder in packages.items() if _below(real, [folder])), None)
        if package is not None:
            used.add(package)
        elif _below(real, own) or real.startswith("/dev/"):
            continue
        elif _below(real, system):
            found.system.append((real, digest_file(real)))
        else:
            counted.append(path)
            root = next((number for number in roots if _below(path, [recipe.roots[number]])), None)
            relative = path if root is None else os.path.relpath(path, recipe.roots[root])
            found.files.append((path if root is None else f"{root}:{relative}", digest_file(path)))
            if root is not None:
                found.shadows += [
                    f"{earlier}:{relative}"
                    for earlier in range(root)
                    if not os.path.lexists(os.path.join(recipe.roots[earlier], relative))
                ]
    found.packages = [(name, identity(name)) for name in sorted(used)]
    found.system = sorted(set(found.system))
    found.folders = [(folder, _mtime(folder)) for folder in sorted({os.path.dirname(path) for path, _ in found.system})]
    return found, counted


def _below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _quote(path: str) -> str:
    return path.replace("%", "%25").replace("\n", "%0A").replace("\t", "%09")


def _unquote(path: str) -> str:
    return path.replace("%09", "\t").replace("%0A", "\n").replace("%25", "%")


def parse_dependencies(text: str) -> list[str]:
    """Prerequisites in a dependency file as compilers and linkers write it.

    Source: GNU make's syntax as GCC's ``-MD`` writes it: a backslash ends a line that goes on, or stands before a space
    or a hash of the name; a dollar is doubled.
    """
    found: list[str] = []
    for rule in text.replace("\\\n", " ").splitlines():
        _, colon, rest = rule.partition(": ")
        if not colon:
            continue
        word = ""
        characters = iter(rest + " ")
        for character in characters:
            if character == "\\":
                following = next(characters)
                word += following if following in " #\\:" else character + following
            elif character == "$":
                word += next(characters)
            elif character.isspace():
                if word:
                    found.append(word)
                word = ""
            else:
                word += character
    return found
