"""The compiler: found, and known by what it says of itself.

What it says (version, target, folders that it searches by itself) is remembered under the root by the path,
size, times and inode of every program involved, so a hit starts no process. Only answers are remembered: what could not
be asked, because a program was missing or could not be started, is asked again.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from nodecache.digest import digest_bytes, digest_items, read_own
from nodecache.errors import RootError, ToolchainError, of_the_kernel
from nodecache.inputs import stamp
from nodecache.root import Root, make_folder, replace_file
from nodecache.spec import split_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Answer = TypeVar("Answer")

PATIENCE = 3.0
"""Seconds for which a process waits for what another one is asking."""

_HEAD = b"nodecache-tool 4"
# Variables that make a compiler another one.
_CHANGES_IT = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "CCC_OVERRIDE_OPTIONS")
# Variables that add search folders or make the compiler write files: not part of what it is by itself.
_NOT_ITS_OWN = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
)


class Compiler:
    """A compiler and its linker.

    Attributes:
        command: how it is called: a program, or a wrapper and a program.
        programs: resolved paths of ``command``.
        words: flags that CXX brings along.
        version: what ``--version`` prints.
        target: the machine it compiles for.
        own: folders whose headers and libraries are its own; its version answers for them.
        system: other folders that it searches by itself, such as ``/usr/include``.
        header_folders, library_folders: those of ``system`` with headers, and with libraries, in the order of search.
        linker: the linker's version line.
        link_deps: whether the linker can write down what it read.
        as_deps: whether the assembler can (``.incbin`` shows nowhere else).
    """

    __slots__ = (
        "as_deps",
        "command",
        "header_folders",
        "library_folders",
        "link_deps",
        "linker",
        "own",
        "programs",
        "system",
        "target",
        "version",
        "words",
    )

    def __init__(self, command: list[str], words: list[str], said: dict[str, list[str]]) -> None:
        self.command = command
        self.programs = said["program"]
        self.words = words
        self.version = "\n".join(said["version"])
        self.target = said["target"][0]
        self.own = tuple(said["own"])
        self.system = tuple(said["system"])
        self.header_folders = tuple(said["headers"])
        self.library_folders = tuple(said["libraries"])
        self.linker = said["linker"][0]
        self.link_deps = said["link_deps"] == ["yes"]
        self.as_deps = said["as_deps"] == ["yes"]

    @property
    def dependency_output(self) -> str:
        """Which tools besides the compiler write down what they read; edits of what others read are not seen."""
        tools = [("assembler", self.as_deps), ("linker", self.link_deps)]
        return " ".join(tool for tool, can in tools if can)


def which(program: str) -> str | None:
    """Absolute path of a program as the shell would find it, or None."""
    return _find(program, {})


def _find(program: str, prints: dict[str, str]) -> str | None:
    """As :func:`which`, and note the fingerprint of what was found."""
    if "/" in program:
        candidates = [program]
    else:
        candidates = [
            os.path.join(folder, program) for folder in os.environ.get("PATH", os.defpath).split(":") if folder
        ]
    for candidate in candidates:
        try:
            status = os.stat(candidate)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode) and os.access(candidate, os.X_OK):
            path = candidate if candidate[0] == "/" else os.path.abspath(candidate)
            prints[path] = _print(path, status)
            return path
    return None


def find_compiler(root: Root, linker: str | None = None) -> Compiler:
    """The C++ compiler: CXX where set, else the first of ``c++``, ``g++`` and ``clang++``.

    Args:
        root: where what it said is remembered.
        linker: the name that a ``-fuse-ld=`` flag chose, or None for the compiler's default.

    Raises:
        ToolchainError: there is none, or it does not answer.
    """
    chosen = os.environ.get("CXX")
    words = [split_words(chosen)] if chosen and chosen.strip() else [["c++"], ["g++"], ["clang++"]]
    for command in words:
        prints: dict[str, str] = {}
        first = _find(command[0], prints)
        if first is not None:
            return _identify(root, [first, *command[1:]], linker, prints)
    if chosen:
        raise ToolchainError(f"CXX={chosen!r} is not a program on PATH. Correct CXX, or unset it to use c++.")
    raise ToolchainError(
        "No C++ compiler is on PATH (looked for c++, g++ and clang++). Install one (apt-get install g++), "
        "load your cluster's compiler module, or set CXX."
    )


def find_host_compiler(root: Root, path: str) -> Compiler:
    """The compiler that nvcc is told to use instead of CXX: a program, or the folder that it is in.

    Raises:
        ToolchainError: it is not there, or does not answer.
    """
    prints: dict[str, str] = {}
    found = _find(os.path.join(path, "g++") if os.path.isdir(path) else path, prints)
    if found is None:
        raise ToolchainError(f"nvcc's host compiler {path!r} is not a program. Correct -ccbin or NVCC_CCBIN.")
    return _identify(root, [found], None, prints)


def _identify(root: Root, command: list[str], linker: str | None, prints: dict[str, str]) -> Compiler:
    """What the compiler says of itself, from memory where nothing changed."""
    # "ccache g++ -m32": the leading words that are programs take part; a relative one is found from elsewhere, too.
    programs, words = command[:1], command[1:]
    while words and words[0][:1] != "-" and (path := _find(words[0], prints)) is not None:
        programs.append(path if "/" in words[0] else words[0])
        del words[0]
    linker = linker or _chosen_linker(words)
    memory = root.at(
        "tools",
        digest_items(
            [
                ("command", "\0".join(command)),
                ("programs", "\0".join(programs)),
                ("linker", linker or ""),
                ("found", "\0".join(prints)),
                *((name, os.environ[name]) for name in _CHANGES_IT if name in os.environ),
            ]
        ),
    )

    def recall() -> dict[str, list[str]] | None:
        said = _recall(memory, prints)
        if said is None or any(which(program) for program in said["missing"]):
            return None
        # A wrapper may choose another compiler behind another PATH.
        return said if said["path"] in ([], [_path_digest()]) else None

    def ask() -> dict[str, list[str]]:
        said = _Questions([*programs, *words]).ask(list(prints), linker)
        if not said.pop("unanswered"):
            _remember(root, memory, said, [*prints, *said["linker path"], *said["behind"]])
        return said

    return Compiler(programs, words, recall() or _ask_once(root, memory, recall, ask))


def _ask_once(root: Root, memory: str, recall: Callable[[], Answer | None], ask: Callable[[], Answer]) -> Answer:
    """Ask in one process, while others that begin at the same moment wait for what it remembers.

    It only spares work: where locks do not work, or may not answer at once, or that process takes long, everybody asks.
    """
    from nodecache import lock

    path = f"{memory}.lock"
    deadline = time.monotonic() + PATIENCE
    if lock.file_system(root.path) not in lock.LOCAL:
        return ask()
    try:
        make_folder(root, root.at("tools"))
        while not lock.try_exclusive(fd := lock.open_lock(path), path):
            time.sleep(0.005)
            said = recall()
            if said is not None:
                return said
            if time.monotonic() > deadline:
                return ask()
    except (OSError, RootError, lock.LocksUnsupported) as error:
        if isinstance(error, OSError) and not of_the_kernel(error):
            raise
        return ask()
    try:
        return recall() or ask()
    finally:
        lock.close(fd)


def _chosen_linker(words: list[str]) -> str | None:
    """The linker that ``-fuse-ld=`` or ``--ld-path=`` chooses, or None."""
    chosen = [word.partition("=")[2] for word in words if word.startswith(("-fuse-ld=", "--ld-path="))]
    return chosen[-1] if chosen else None


def _path_digest() -> str:
    return digest_bytes(os.fsencode(os.environ.get("PATH", os.defpath)))


def _print(path: str, status: os.stat_result) -> str:
    """What changes when a program is replaced; its first block too, which tells the build, where a status may not."""
    times = stamp(path, status)
    if not times:
        with open(path, "rb") as file:
            times = f"{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}.{digest_bytes(file.read(1 << 16))}"
    return f"{status.st_size} {times}"


def _fingerprint(path: str) -> str:
    return _print(path, os.stat(path))


def recall_lines(memory: str, prints: dict[str, str] | None = None) -> list[str] | None:
    """The lines of a remembered answer, or None when there is none, it is damaged, or a program changed.

    Args:
        memory: path of the memory.
        prints: fingerprints that are known already, by path.
    """
    known = prints or {}
    try:
        head, check, body = read_own(memory).split(b"\n", 2)
        if head != _HEAD or check != digest_bytes(body).encode():
            return None
        lines = os.fsdecode(body).split("\n")
        guards = [line.split("\t", 2) for line in lines if line.startswith("guard\t")]
        if any((known.get(path) or _fingerprint(path)) != print_ for _, print_, path in guards):
            return None
    except (OSError, ValueError):
        return None
    return [line for line in lines if not line.startswith("guard\t")]


def remember_lines(root: Root, memory: str, lines: list[str], guards: list[str]) -> None:
    """Remember an answer for as long as the programs ``guards`` stay the same; a root that is full forgets it."""
    body = "\n".join([*lines, *(f"guard\t{_fingerprint(path)}\t{path}" for path in guards)])
    raw = os.fsencode(body)
    try:
        make_folder(root, root.at("tools"))
        replace_file(root, memory, b"%s\n%s\n%s" % (_HEAD, digest_bytes(raw).encode(), raw))
    except RootError as error:
        from nodecache.printable import logger

        logger().debug("%s is not remembered: %s", lines[:1], error)


_FIELDS = (
    "program",
    "version",
    "target",
    "own",
    "system",
    "headers",
    "libraries",
    "linker",
    "linker path",
    "link_deps",
    "as_deps",
    "behind",
    "path",
    "missing",
)


def _recall(memory: str, prints: dict[str, str]) -> dict[str, list[str]] | None:
    lines = recall_lines(memory, prints)
    if lines is None:
        return None
    said: dict[str, list[str]] = {field: [] for field in _FIELDS}
    for line in lines:
        field, _, value = line.partition("\t")
        if field not in said:
            return None
        said[field].append(value)
    return said if said["target"] and said["linker"] and said["program"] else None


def _remember(root: Root, memory: str, said: dict[str, list[str]], guards: list[str]) -> None:
    lines = [f"{field}\t{value}" for field in _FIELDS for value in said[field]]
    remember_lines(root, memory, lines, guards)


def run_tool(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a short command, with the compiler's own defaults and English messages.

    Raises:
        ToolchainError: it cannot be started or does not end within a minute.
    """
    import subprocess

    from nodecache import lock

    environment = {k: v for k, v in os.environ.items() if k not in _NOT_ITS_OWN} | {"LC_ALL": "C"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        with lock.spawn(command, env=environment, **streams) as process:
            try:
                said, _ = process.communicate(timeout=60)
            except BaseException:
                process.kill()
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError) and not of_the_kernel(error):
            raise
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            raise _no_processes(command) from error
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise ToolchainError(
                f"{' '.join(command)} could not be started: too many files are open. Allow more: ulimit -n 4096."
            ) from error
        raise ToolchainError(f"{' '.join(command)} does not work: {error}. Correct CXX or your PATH.") from error
    if process.returncode and any(words in said for words in (b"Resource temporarily unavailable", b"Cannot fork")):
        raise _no_processes(command)
    # Bytes that are no text are kept as what they were, and paths in any locale.
    return process.returncode, os.fsdecode(said)


def _no_processes(command: list[str]) -> ToolchainError:
    """The error of a tool that could not start a process."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = "unlimited; a control group may have a limit" if limit == resource.RLIM_INFINITY else str(limit)
    return ToolchainError(
        f"{' '.join(command)} could not start a process: this user or job has as many as it may have "
        f"(RLIMIT_NPROC is {allowed}). Allow more (ulimit -u, or the job's limit), or use fewer at once "
        f"(NODECACHE_JOBS=1, fewer ranks)."
    )


class _Questions:
    """What a compiler is asked about itself, and which questions it could not be asked."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._missing: list[str] = []
        self._unanswered: list[str] = []

    def ask(self, found: list[str], linker: str | None) -> dict[str, list[str]]:
        """Ask everything.

        Args:
            found: paths of the programs that the command names.
            linker: the name of a linker that a flag chose, or None.

        Returns:
            The answers by field, and in ``unanswered`` the questions that failed for another reason than that the
            compiler has no answer: those may have one later.
        """
        status, version = run_tool([*self._command, "--version"])
        if status:
            raise ToolchainError(
                f"{' '.join(self._command)} --version failed with exit status {status}: {version.strip()[:200]!r}. "
                f"Correct CXX, or unset it to use c++."
            )
        verbose = self._output([*self._command, "-E", "-v", "-x", "c++", "/dev/null"])
        target = next(
            (line[8:].strip() for line in verbose.splitlines() if line.startswith("Target: ")), os.uname().machine
        )
        headers, libraries = _search_folders(verbose)
        everywhere = list(dict.fromkeys([*headers, *libraries]))
        path = self._linker(linker)
        line = (path and self._output([path, "--version"]).strip().partition("\n")[0]) or "unknown"
        link_deps = path is not None and "--dependency-file" in self._output([path, "--help"])
        assembler = None if "clang" in version else self._program("as")
        as_deps = assembler is not None and "--MD" in self._output([assembler, "--help"])
        # What a wrapper such as ccache runs in the end: an upgrade of it leaves the wrapper as it was.
        behind = self._program("cc1plus", optional=True)
        wrapped = any(_is_wrapper(path) for path in found)
        return {
            "program": [os.path.realpath(path) for path in found],
            "version": version.strip().splitlines(),
            "target": [target],
            "own": [folder for folder in everywhere if _is_its_own(folder)],
            "system": [folder for folder in everywhere if not _is_its_own(folder)],
            "headers": [folder for folder in headers if not _is_its_own(folder)],
            "libraries": [folder for folder in libraries if not _is_its_own(folder)],
            "linker": [line],
            "linker path": [path] if path else [],
            "link_deps": ["yes" if link_deps else "no"],
            "as_deps": ["yes" if as_deps else "no"],
            "behind": [behind] if behind else [],
            "path": [_path_digest()] if wrapped else [],
            "missing": self._missing,
            "unanswered": self._unanswered,
        }

    def _output(self, command: list[str]) -> str:
        """What a command prints; noted as unanswered where it does not end well."""
        try:
            status, text = run_tool(command)
        except ToolchainError as error:
            status, text = -1, str(error)
        if status:
            self._unanswered.append(f"{' '.join(command)}: {text.strip()[:200]}")
        return text if status >= 0 else ""

    def _linker(self, chosen: str | None) -> str | None:
        if chosen is None:
            path = self._program("ld")
        else:
            path = which(chosen if "/" in chosen else f"ld.{chosen}") or which(chosen)
            if path is None:
                self._missing += [f"ld.{chosen}", chosen]
        return path and os.path.realpath(path)

    def _program(self, name: str, *, optional: bool = False) -> str | None:
        """Path of a program that the compiler calls; None where it names none, or one that is missing."""
        status, said = run_tool([*self._command, f"-print-prog-name={name}"])
        if status < 0:
            self._unanswered.append(name)
        if status or not said.strip():
            return None
        program = said.strip().splitlines()[-1]
        path = which(program)
        if path is None and not optional:
            self._missing.append(program)
        return path


def _is_wrapper(path: str) -> bool:
    """Whether a program is a script, or one of the caches that look the real compiler up on PATH."""
    if {"ccache", "sccache", "distcc", "icecc"} & {os.path.basename(os.path.realpath(path)), os.path.basename(path)}:
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) != b"\x7fELF"
    except OSError:
        return True


def _search_folders(verbose: str) -> tuple[list[str], list[str]]:
    """The folders that the compiler searches by itself for headers and for libraries, in its order."""
    headers: dict[str, None] = {}
    libraries: dict[str, None] = {}
    listing = False
    for line in verbose.splitlines():
        if line.startswith(("#include <...>", '#include "..."')):
            listing = True
        elif line.startswith("End of search list"):
            listing = False
        elif listing and line.startswith(" "):
            headers[os.path.realpath(line.strip().removesuffix(" (framework directory)"))] = None
        elif line.startswith("LIBRARY_PATH="):
            libraries.update((os.path.realpath(folder), None) for folder in line.partition("=")[2].split(":") if folder)
    return [folder for folder in headers if os.path.isdir(folder)], [each for each in libraries if os.path.isdir(each)]


def _is_its_own(folder: str) -> bool:
    return bool({"c++", "gcc", "clang"} & set(folder.split("/")))
