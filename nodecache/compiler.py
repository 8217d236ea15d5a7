"""The compiler: found, and known by what it says of itself.

What it says (version, target, folders that it searches by itself) is remembered under the root by the path,
size, time and inode of every program involved, so a hit starts no process.
"""

from __future__ import annotations

import os
import stat

from nodecache.digest import digest_bytes, digest_items, read_bytes
from nodecache.errors import ToolchainError
from nodecache.root import Root, make_folder, replace_file
from nodecache.spec import split_words

_HEAD = "nodecache-tool 1"
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
        command: how it is called, one string a word.
        programs: resolved path of each program that the words name.
        version: what ``--version`` prints.
        target: the machine it compiles for.
        own: folders whose headers and libraries are its own; its version answers for them.
        system: other folders that it searches by itself, such as ``/usr/include``.
        linker: the linker's version line.
        link_deps: whether the linker can write down what it read.
    """

    __slots__ = ("command", "link_deps", "linker", "own", "programs", "system", "target", "version")

    def __init__(self, command: list[str], programs: list[str], said: dict[str, list[str]]) -> None:
        self.command = command
        self.programs = programs
        self.version = "\n".join(said["version"])
        self.target = said["target"][0]
        self.own = tuple(said["own"])
        self.system = tuple(said["system"])
        self.linker = said["linker"][0]
        self.link_deps = said["link_deps"] == ["yes"]


def which(program: str) -> str | None:
    """Absolute path of a program as the shell would find it, or None."""
    if "/" in program:
        candidates = [os.path.abspath(program)]
    else:
        candidates = [
            os.path.join(folder, program) for folder in os.environ.get("PATH", os.defpath).split(":") if folder
        ]
    for candidate in candidates:
        try:
            status = os.stat(candidate)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and os.access(candidate, os.X_OK):
            return candidate
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
        first = which(command[0])
        if first is not None:
            return _identify(root, [first, *command[1:]], linker)
    if chosen:
        raise ToolchainError(f"CXX={chosen!r} is not a program on PATH. Correct CXX, or unset it to use c++.")
    raise ToolchainError(
        "No C++ compiler is on PATH (looked for c++, g++ and clang++). Install one (apt-get install g++), "
        "load your cluster's compiler module, or set CXX."
    )


def _identify(root: Root, command: list[str], linker: str | None) -> Compiler:
    """What the compiler says of itself, from memory where nothing changed."""
    # "ccache g++": every word that is a program takes part.
    found = [command[0], *(p for word in command[1:] if word[:1] != "-" and (p := which(word)))]
    programs = [os.path.realpath(path) for path in found]
    memory = root.at(
        "tools", digest_items([("command", "\0".join(command)), ("linker", linker or ""), ("", "\0".join(found))])
    )
    said = _recall(memory)
    if said is None or said["program"] != programs:
        said = _ask(command, linker)
        said["program"] = programs
        _remember(root, memory, said, [*programs, *said["linker path"]])
    return Compiler(command, programs, said)


def _fingerprint(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def recall_lines(memory: str) -> list[str] | None:
    """The lines of a remembered answer, or None when there is none, it is damaged, or a program changed."""
    try:
        text = read_bytes(memory).decode("utf-8", "surrogateescape")
        head, check, *lines = text.split("\n")
        if head != _HEAD or check != digest_bytes("\n".join(lines).encode("utf-8", "surrogateescape")):
            return None
        guards = [line.split("\t") for line in lines if line.startswith("guard\t")]
        if any(_fingerprint(path) != print_ for _, print_, path in guards):
            return None
    except (OSError, ValueError):
        return None
    return [line for line in lines if not line.startswith("guard\t")]


def remember_lines(root: Root, memory: str, lines: list[str], guards: list[str]) -> None:
    """Remember an answer for as long as the programs ``guards`` stay the same."""
    make_folder(root, root.at("tools"))
    body = "\n".join([*lines, *(f"guard\t{_fingerprint(path)}\t{path}" for path in guards)])
    raw = body.encode("utf-8", "surrogateescape")
    replace_file(root, memory, f"{_HEAD}\n{digest_bytes(raw)}\n".encode() + raw)


_FIELDS = ("program", "version", "target", "own", "system", "linker", "linker path", "link_deps")


def _recall(memory: str) -> dict[str, list[str]] | None:
    lines = recall_lines(memory)
    if lines is None:
        return None
    said: dict[str, list[str]] = {field: [] for field in _FIELDS}
    for line in lines:
        field, _, value = line.partition("\t")
        said[field].append(value)
    return said


def _remember(root: Root, memory: str, said: dict[str, list[str]], guards: list[str]) -> None:
    lines = [f"{field}\t{value}" for field in _FIELDS for value in said[field]]
    remember_lines(root, memory, lines, guards)


def run_tool(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a short command, with the compiler's own defaults and English messages.

    Raises:
        ToolchainError: it cannot be started or does not end within a minute.
    """
    import subprocess

    environment = {k: v for k, v in os.environ.items() if k not in _NOT_ITS_OWN} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{' '.join(command)} does not work: {error}. Correct CXX or your PATH.") from error
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _ask(command: list[str], linker: str | None) -> dict[str, list[str]]:
    """Ask the compiler what it is."""
    status, version = run_tool([*command, "--version"])
    if status:
        raise ToolchainError(
            f"{' '.join(command)} --version failed with exit status {status}: {version.strip()[:200]!r}. "
            f"Correct CXX, or unset it to use c++."
        )
    _, verbose = run_tool([*command, "-E", "-v", "-x", "c++", "/dev/null"])
    target = next(
        (line[8:].strip() for line in verbose.splitlines() if line.startswith("Target: ")), os.uname().machine
    )
    own, system = _search_folders(verbose)
    if linker is None:
        _, named = run_tool([*command, "-print-prog-name=ld"])
        path = which(named.strip().splitlines()[-1]) if named.strip() else None
    else:
        path = which(linker) if "/" in linker else which(f"ld.{linker}") or which(linker)
    line, deps = "unknown", "no"
    if path:
        path = os.path.realpath(path)
        _, text = run_tool([path, "--version"])
        line = text.strip().partition("\n")[0] or "unknown"
        deps = "yes" if "--dependency-file" in run_tool([path, "--help"])[1] else "no"
    return {
        "version": version.strip().splitlines(),
        "target": [target],
        "own": own,
        "system": system,
        "linker": [line],
        "linker path": [path] if path else [],
        "link_deps": [deps],
    }


def _search_folders(verbose: str) -> tuple[list[str], list[str]]:
    """Split the folders that the compiler searches by itself into its own and the system's."""
    own: list[str] = []
    system: list[str] = []
    listing = False
    for line in verbose.splitlines():
        if line.startswith(("#include <...>", '#include "..."')):
            listing = True
        elif line.startswith("End of search list"):
            listing = False
        elif listing and line.startswith(" "):
            _sort_folder(line.strip().removesuffix(" (framework directory)"), own, system)
        elif line.startswith("LIBRARY_PATH="):
            for folder in line.partition("=")[2].split(":"):
                _sort_folder(folder, own, system)
    return own, system


def _sort_folder(folder: str, own: list[str], system: list[str]) -> None:
    place = os.path.realpath(folder)
    kind = own if {"c++", "gcc", "clang"} & set(place.split("/")) else system
    if os.path.isdir(place) and place not in kind:
        kind.append(place)
