"""Inputs: what a build really read, besides its sources.

The compiler's own dependency output tells; the sorts are:

- *file*: a header or linked file of the user's. Its content counts, and is read again at every look.
- *shadow*: a path at which a file would be found before the one that was. It must still be absent.
- *veil*: names that would hide a system's or package's header, were they in an include folder of the user's. They must
  still be absent; the folder is only listed where its time has changed.
- *package*: torch, pybind11 or the CUDA toolkit, covered by its identity.
- *system*: everything below the folders that the compiler searches by itself, such as ``/usr/include`` (not
  ``/usr/local``, where people put headers of their own). Contents count, but they are only read where a guarded folder
  has changed since the last look: one that holds such a file or a link on the way to it, or is searched before it. No
  file may then have appeared that would be found before one that was read (:class:`SearchOrder`).
- the compiler's and Python's own headers are covered by the recipe.

Where a file lies is said relative to the recipe's numbered roots, so the same inputs in another checkout are the same.
"""

from __future__ import annotations

import os
import time

from nodecache.digest import digest_file, digest_items
from nodecache.packages import ABSENT, UNTOLD, identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TICKS = 50_000_000  # ns; five ticks of the slowest kernel clock
BIG = 1 << 20
"""Bytes from which a file is only digested anew when its status has changed."""
MOST = 200_000
"""Inputs that a record may list; a build of all of torch reads some ten thousand files."""
LARGEST = 1 << 34
"""Bytes of an input that are read to compare it."""
LIBRARIES = 1000
"""Rank from which a root is a folder of libraries; below it, one of headers, in the order of search."""


class SearchOrder:
    """Where the tools look by themselves for headers and libraries, in their order.

    Attributes:
        headers: folders of headers.
        libraries: folders of libraries.
        known: paths that come before a file that was read and were there all the same: a header that includes the next
            one of its own name, as compilers' own do.
    """

    __slots__ = ("headers", "known", "libraries")

    def __init__(self, headers: Sequence[str] = (), libraries: Sequence[str] = (), known: Sequence[str] = ()) -> None:
        self.headers = tuple(headers)
        self.libraries = tuple(libraries)
        self.known = frozenset(known)

    def before(self, paths: Iterable[str]) -> list[str]:
        """The places where something would be found before one of ``paths``."""
        real: dict[str, str] = {}
        places: dict[str, None] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            if folder not in real:
                real[folder] = os.path.realpath(folder)
            file = f"{real[folder]}/{name}"
            library = name.endswith((".a", ".so")) and name.startswith("lib")
            searched = self.libraries if library else self.headers
            within = max((each for each in searched if file.startswith(f"{each}/")), key=len, default=None)
            if within is None:
                continue
            relative = file[len(within) + 1 :]
            earlier = searched[: searched.index(within)]
            places.update(dict.fromkeys(f"{each}/{relative}" for each in earlier))
            if library and name.endswith(".a"):
                places.update(dict.fromkeys(f"{each}/{relative[:-2]}.so" for each in (*earlier, within)))
        return [place for place in places if place not in self.known]


class Inputs:
    """What one build read.

    Attributes:
        files: ``(place, digest)``; a place is ``<root number>:<relative path>`` or an absolute path.
        shadows: places that must be absent.
        veils: ``(root number, stamp, names)`` that must be absent from a root.
        packages: ``(name, identity)``.
        system: ``(absolute path as the tools spell it, digest)``.
        order: where the tools search by themselves for the files of ``system``.
        folders: ``(absolute path, stamp)`` of the folders of ``system``: a guard, not part of the key. See
            :func:`folder_stamp`.
        seen: by place, how the status of a big file looked when it was digested: a guard likewise.
    """

    __slots__ = ("_system", "_system_lines", "files", "folders", "order", "packages", "seen", "shadows", "veils")

    def __init__(self) -> None:
        self.files: list[tuple[str, str]] = []
        self.shadows: list[str] = []
        self.veils: list[tuple[int, str, list[str]]] = []
        self.packages: list[tuple[str, str]] = []
        self.folders: list[tuple[str, str]] = []
        self.seen: dict[str, str] = {}
        self.order = SearchOrder()
        self._system: list[tuple[str, str]] = []
        self._system_lines: list[str] = []

    @property
    def system(self) -> list[tuple[str, str]]:
        """Hundreds, of which a hit needs none: their lines are only read when asked for."""
        if self._system_lines:
            order: dict[str, list[str]] = {"headers": [], "libraries": [], "known": []}
            for line in self._system_lines:
                sort, _, rest = line.partition("\t")
                first, _, second = rest.partition("\t")
                if sort == "system":
                    self._system.append((unquote(second), first))
                elif sort in order:
                    order[sort].append(unquote(first))
            self._system_lines = []
            self.order = SearchOrder(order["headers"], order["libraries"], order["known"])
        return self._system

    @system.setter
    def system(self, value: list[tuple[str, str]]) -> None:
        self._system, self._system_lines = value, []

    def searched(self) -> list[str]:
        """Paths of the files that the tools found by searching where they search by themselves."""
        return [path for path, _ in self.system] + [place for place, _ in self.files if place[:1] == "/"]

    def key(self, recipe: str) -> str:
        """The key of what a recipe makes of these inputs."""
        parts = [("file", f"{place} {digest}") for place, digest in self.files]
        parts += [("package", f"{name} {digest}") for name, digest in self.packages]
        parts += [("system", f"{path} {digest}") for path, digest in self.system]
        return digest_items([("recipe", recipe), *sorted(parts, key=lambda part: (part[0], os.fsencode(part[1])))])

    def lines(self) -> list[str]:
        """As text, one input a line."""
        return [
            *(f"file\t{digest}\t{quote(place)}" for place, digest in self.files),
            *(f"shadow\t{quote(place)}" for place in self.shadows),
            *(f"veil\t{number} {stamp}\t{quote('/'.join(names))}" for number, stamp, names in self.veils),
            *(f"package\t{digest}\t{name}" for name, digest in self.packages),
            *(f"folder\t{stamp}\t{quote(path)}" for path, stamp in self.folders),
            *(f"seen\t{print_}\t{quote(place)}" for place, print_ in self.seen.items()),
            *(f"system\t{digest}\t{quote(path)}" for path, digest in self.system),  # from here on: see parse
            *(f"headers\t{quote(folder)}" for folder in self.order.headers),
            *(f"libraries\t{quote(folder)}" for folder in self.order.libraries),
            *(f"known\t{quote(path)}" for path in sorted(self.order.known)),
        ]

    @classmethod
    def parse(cls, lines: list[str]) -> Inputs:
        """The inverse of :meth:`lines`; lines of other sorts are left out.

        Raises:
            ValueError: a number is none, or there are too many lines.
        """
        if len(lines) > MOST:
            raise ValueError(f"{len(lines)} inputs are more than any build has")
        found = cls()
        for at, line in enumerate(lines):
            sort, _, rest = line.partition("\t")
            first, _, second = rest.partition("\t")
            if sort in ("system", "headers"):  # by far the most, and the last
                found._system_lines = lines[at:]
                break
            if sort == "file":
                found.files.append((unquote(second), first))
            elif sort == "shadow":
                found.shadows.append(unquote(first))
            elif sort == "veil":
                number, _, stamp = first.partition(" ")
                found.veils.append((int(number), stamp, unquote(second).split("/")))
            elif sort == "package":
                found.packages.append((second, first))
            elif sort == "seen":
                found.seen[unquote(second)] = first
            elif sort == "folder":
                found.folders.append((unquote(second), first))
        return found


class Eyes:
    """Looks at inputs as they are now; within one call each file is read once.

    Args:
        roots: the recipe's.
        compiles: whether this node could compile at all. Where it cannot, headers of the system or of a package that
            are not there say nothing: only a compiler reads them.
    """

    def __init__(self, roots: list[str], *, compiles: bool = True) -> None:
        self._roots = roots
        self._compiles = compiles
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
                found = digest_file(path, LARGEST)
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

    def _is_clear(self, folder: str, stamp: str, names: list[str]) -> bool:
        if stamp and folder_stamp(folder) == stamp:
            return True
        return not any(os.path.lexists(os.path.join(folder, name)) for name in names)

    def _is_same(self, inputs: Inputs, place: str, digest: str) -> bool:
        path = self.path(place)
        print_ = inputs.seen.get(place)
        if print_ is None:
            return self.digest(path) == digest
        now = status_print(path)
        if now and now == print_:
            return True
        if self.digest(path) != digest:
            return False
        inputs.seen[place] = now
        return True

    def _is_system(self, path: str, digest: str) -> bool:
        return self.digest(path) == digest or not (self._compiles or os.path.lexists(path))

    def _is_package(self, name: str, token: str) -> bool:
        now = self.identity(name)
        return now == token or (not self._compiles and now in (ABSENT, UNTOLD))

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
            if not all(self._is_clear(self._roots[number], stamp, names) for number, stamp, names in inputs.veils):
                return None
            if not all(self._is_package(name, token) for name, token in inputs.packages):
                return None
            # Before the digests, so that what changes in between shows at the next look.
            folders = [(folder, folder_stamp(folder)) for folder, _ in inputs.folders]
            if folders != inputs.folders or not all(stamp for _, stamp in folders):
                if not all(self._is_system(path, digest) for path, digest in inputs.system):
                    return None
                if self._compiles and any(map(os.path.lexists, inputs.order.before(inputs.searched()))):
                    return None
                renewed = folders != inputs.folders
                inputs.folders = folders
                return renewed or seen != inputs.seen
        except (IndexError, ValueError):
            return None
        return seen != inputs.seen


UNKNOWN = ""
"""The stamp of what cannot be told apart by its status."""


def folder_stamp(folder: str) -> str:
    """What of a folder's status changes with its list of names.

    Returns:
        :data:`UNKNOWN` where an unchanged status proves nothing (:func:`stamp`); ``-`` where there is no such folder.
    """
    try:
        return stamp(folder, os.stat(folder))
    except OSError:
        return "-"


def stamp(path: str, status: os.stat_result) -> str:
    """What of a status changes with the content, and cannot be set back: both times and the inode.

    The time of modification alone proves nothing: images are made with all of them set to one value (ostree, Nix,
    SOURCE_DATE_EPOCH), and anybody may restore it. A kernel's time of change cannot be set. The device is left out: it
    differs between two containers of one image.

    Returns:
        :data:`UNKNOWN` within one tick of the kernel's clock, where two changes look alike; and for what an image was
        made with, on a file system that cannot be written to: squashfs has no time of change of its own.
    """
    modified, changed = status.st_mtime_ns, status.st_ctime_ns
    if max(modified, changed) >= time.time_ns() - _TICKS:
        return UNKNOWN
    times = f"{modified}.{changed}.{status.st_ino}"
    if changed % 10**9:
        return times
    # A whole second: no kernel, but the tool that made the image wrote this time. Another image has another identity.
    if status.st_dev not in _file_systems:
        try:
            file_system = os.statvfs(path)
        except OSError:  # a sandbox refuses the question
            return UNKNOWN
        _file_systems[status.st_dev] = "" if file_system.f_flag & os.ST_RDONLY else f"{file_system.f_fsid:x}"
    image = _file_systems[status.st_dev]
    return f"{times}.{image}" if image else UNKNOWN


_file_systems: dict[int, str] = {}
"""By device, the identity of a file system that can be written to; empty for others."""


def status_print(path: str) -> str:
    """What of a file's status changes with its content; :data:`UNKNOWN` where an unchanged one proves nothing."""
    try:
        status = os.stat(path)
        times = stamp(path, status)
    except OSError:
        return UNKNOWN
    return times and f"{status.st_size}.{times}.{status.st_dev}"


def quote(path: str) -> str:
    """A path as one field of one line."""
    return path.replace("%", "%25").replace("\n", "%0A").replace("\t", "%09").replace("\r", "%0D")


def unquote(path: str) -> str:
    """The inverse of :func:`quote`."""
    if "%" not in path:
        return path
    return path.replace("%0D", "\r").replace("%09", "\t").replace("%0A", "\n").replace("%25", "%")
