"""Diagnosis: what a build's log says went wrong, in words for people."""

from __future__ import annotations

import errno
import os
import re
import signal

from nodecache.digest import read_bytes
from nodecache.errors import RootError
from nodecache.plan import SIGNALS, STATUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.root import Root
    from nodecache.staging import Staging

TAIL_LINES = 200
"""Lines of output that the builder's exception carries at most."""

LINE_LENGTH = 2000
"""Characters of a line of output that it carries."""

# What a shell's status is after a program that was asked to end.
_ASKED_TO_END = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
_KILLED = 128 + signal.SIGKILL

# GCC says so of a header at the line that includes it; the programmer's own words stand behind other ones.
_STALE = re.compile(
    r"^[^:\n]+:\d+:(?:\d+:)? (?:fatal )?error: (?!#error|static assertion failed)[^:\n]+: Stale file handle$",
    re.MULTILINE,
)

# What the log holds besides the tools' output: its head, the steps and their commands, and ninja's own words.
_OURS = re.compile(r"# |> |\[\d+/\d+\] |FAILED: |\. \./step/\d+\.sh|ninja: build stopped")


def endings(staging: Staging) -> set[int]:
    """How the tools ended that failed: exit statuses, and 128 and a signal's number.

    Nothing here comes from what the tools print: source text may quote any message.
    """
    found: set[int] = set()
    for name in (SIGNALS, STATUSES):
        try:
            words = read_bytes(f"{staging.path}/{name}").split()
        except OSError:  # nothing ended so
            continue
        found.update(int(word) for word in words if word.isdigit() and len(word) < 4)
    return found


def ended_from_outside(ended: set[int]) -> bool:
    """Whether a tool was asked to end: whoever ends a whole job signals the compilers first, or alone."""
    return not _ASKED_TO_END.isdisjoint(ended)


def raise_if_limited(root: Root, staging: Staging, output: str) -> None:
    """A tool that could not write did not fail; this machine refused it something."""
    said = "\n".join(line for line in output.splitlines() if not _quotes_the_source(line))
    stale = _STALE.search(output) or re.search(r"^.*Stale file handle", said, re.MULTILINE)
    if stale is not None:
        raise RootError(
            f"A file on a network file system was replaced on its server while a compiler read it (ESTALE): "
            f"{_shortened(stale[0].strip())}. Nothing was published. Call again."
        )
    for sentence, number in (
        ("No space left on device", errno.ENOSPC),
        ("Disk quota exceeded", errno.EDQUOT),
        ("File size limit exceeded", errno.EFBIG),
        ("Resource temporarily unavailable", errno.EAGAIN),
        ("Cannot fork", errno.EAGAIN),
        ("Cannot allocate memory", errno.ENOMEM),
        ("File too large", errno.EFBIG),
        ("Read-only file system", errno.EROFS),
        ("Too many open files", errno.EMFILE),
        ("Stale file handle", errno.ESTALE),
    ):
        if sentence not in said:
            continue
        temporary = os.path.realpath(staging.tmp)
        elsewhere = os.stat(temporary).st_dev != os.stat(root.path).st_dev
        if number == errno.ENOSPC and elsewhere and _free(temporary) < _free(root.path):
            remedy = "Free some, or set TMPDIR to a folder with more."
            full = RootError(
                f"No space for the compilers' temporary files in {temporary} (ENOSPC, {_free(temporary)} bytes are "
                f"left). Nothing was published. {remedy}"
            )
            full.number, full.place, full.remedy = number, os.path.dirname(temporary), remedy
            raise full
        raise root.failed(OSError(number, os.strerror(number)), "compiling")


def _quotes_the_source(line: str) -> bool:
    """Whether a line repeats the programmer's own words: a command, a marked line of source, ``#error``."""
    return bool(re.match(r"\[\d|> |\s*\d* \||[^:]+:\d+:(\d+:)? (error|warning|note):", line))


def _free(path: str) -> int:
    """Bytes that this user may still write where ``path`` is."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


def first_error(output: str, ended: set[int]) -> str:
    """The first error in a compiler's output, with its file and line; else the first line that says something."""
    lines = [line for line in output.splitlines() if line.strip()]
    if was_killed(output, ended):
        killed = next((line.strip() for line in lines if _says_killed(line)), f"exit status {_KILLED}")
        return f"a compiler was killed, most often for memory ({killed.removeprefix('> ')})"
    for mark in (": error: ", ": fatal error: ", "error: ", "undefined reference", "cannot find ", " error", "Error"):
        for line in lines:
            if mark in line and not line.startswith((">", "[", "#")):
                return _shortened(line.strip())
    said = [line for line in lines if not _OURS.match(line)]
    return _shortened(said[0].strip()) if said else "the tool said nothing"


def _shortened(line: str) -> str:
    return line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]} ({len(line) - LINE_LENGTH} characters more)"


def was_killed(output: str, ended: set[int]) -> bool:
    """Whether SIGKILL ended a tool, which is the kernel's way out of memory.

    The linker's own parent hides its signal, and is no compiler: no source text reaches its messages.
    """
    linker = "collect2: fatal error: ld terminated with signal 9"
    return _KILLED in ended or any(line.startswith(linker) for line in output.splitlines())


def _says_killed(line: str) -> bool:
    """Whether a line of output tells of SIGKILL; it is only quoted, where the kill itself is known."""
    return line == "> exit status 137" or "Killed signal terminated" in line or "ld terminated with signal 9" in line


def failure_text(name: str, output: str, log: str, ended: set[int]) -> str:
    """What the builder's exception says: cause, the tail of the tools' output, where the rest is, remedy."""
    said = output.splitlines()
    lines = [line for line in said if not _OURS.match(line)] or [line for line in said if line.startswith("> exit")]
    remedy = "Correct the cause and call again."
    if was_killed(output, ended):
        remedy = "Run fewer compilers at once (NODECACHE_JOBS=1), or give the job more memory, and call again."
    cut = f"(the last {TAIL_LINES} lines)\n" if len(lines) > TAIL_LINES else ""
    tail = "\n".join(map(_shortened, lines[-TAIL_LINES:]))
    head = f"Error building extension {name!r}: {first_error(output, ended)}"
    return f"{head}\n\n{cut}{tail}\n\nThe full log is {log}. {remedy}"
