"""Activity: the processes of a build that do its work now, the state each is in, and the age of its last output.

Read from /proc when somebody is about to be told, never before. What cannot be seen from here (another node or PID
namespace, a /proc that hides processes) is left out, never guessed.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from nodecache import owner
from nodecache.digest import read_bytes
from nodecache.printable import one_line
from nodecache.staging import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nodecache.owner import Owner

# Source: proc(5), /proc/PID/stat, field 3. A sleeping process may run again at any moment, a halted one may not.
_STATES = {b"R": "running", b"S": "sleeping", b"D": "blocked", b"T": "stopped", b"t": "traced"}
_HALTED = ("stopped", "traced", "blocked")
_PHRASES = {
    "blocked": "blocked in the kernel, as by a slow disk or file server",
    "stopped": "stopped (kill -CONT {pid} continues it)",
    "traced": "stopped by a debugger",
}
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST = 3
"""Processes that text names."""


class Process(NamedTuple):
    """One process of a build.

    Attributes:
        pid: its number.
        program: name of what it runs, cut to 15 characters by the kernel.
        state: ``running``, ``sleeping``, ``blocked`` in the kernel, ``stopped``, ``traced``, or ``other``.
        cpu_seconds: CPU time of the process and of the children that it has waited for.
    """

    pid: int
    program: str
    state: str
    cpu_seconds: float

    @property
    def halted(self) -> bool:
        """Whether it cannot go on by itself."""
        return self.state in _HALTED

    @property
    def label(self) -> str:
        """The process in a message, such as ``cc1plus (pid 71) sleeping, 0.4 s of CPU time``."""
        state = "" if self.state == "running" else f" {_PHRASES.get(self.state, self.state).format(pid=self.pid)}"
        return f"{self.program} (pid {self.pid}){state}, {self.cpu_seconds:.1f} s of CPU time"


def processes(holder: Owner) -> list[Process]:
    """What works for a builder now: its tools without children of their own, and whatever is halted, that one first.

    Empty where the builder's processes cannot be seen from here, or none runs.
    """
    if owner.state(holder) not in ("running", "stopped"):  # in both, /proc numbers processes as this process does
        return []
    below = _children()
    # Only the builder's own children are asked for their environment: to read that of a blocked process may block too.
    roots = [pid for pid in below(holder.pid) if _works_for(pid, holder.attempt)]
    found, queue = [], list(roots)
    while queue:
        pid = queue.pop()
        read = _read(pid)
        if read is None:
            continue
        children = [child for child in below(pid) if _read(child) is not None]
        queue += children
        if read.halted or not (children or pid in roots):
            found.append(read)
    return sorted(found, key=lambda each: (not each.halted, -each.cpu_seconds))


def output_age(holder: Owner) -> float | None:
    """Seconds since something was written to a build's log; None where there is no log."""
    try:
        return max(0.0, time.time() - os.stat(holder.log).st_mtime)  # clocks of two nodes may differ
    except OSError:
        return None


def lines(found: list[Process]) -> list[str]:
    """A line for each of the first few processes, and one for how many more there are."""
    more = len(found) - _MOST
    return [*(each.label for each in found[:_MOST]), *([f"{more} more"] if more > 0 else [])]


def phrase(holder: Owner) -> str:
    """A builder's activity, for the middle of a message, such as ``; cc1plus (pid 71) ..., last output 5 s ago``."""
    found = processes(holder)
    age = output_age(holder)
    said = [f"it is stopped (kill -CONT {holder.pid} continues it)"] if owner.state(holder) == "stopped" else []
    said += lines(found[:1])
    if len(found) > 1:
        said.append(f"{len(found) - 1} more")
    if age is not None:
        said.append(f"last output {age:.0f} s ago")
    return f"; {', '.join(said)}" if said else ""


def _children() -> Callable[[int], list[int]]:
    """What tells a process's children: the kernel, or a look at all processes where it has no such file."""
    if os.path.exists("/proc/thread-self/children"):
        return _children_of
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = _fields(name) if name.isdecimal() else None
        if fields is not None:
            parents.setdefault(int(fields[2]), []).append(int(name))
    return lambda pid: parents.get(pid, [])


def _children_of(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in read_bytes(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:  # it has ended, or is hidden from this user
        pass
    return found


def _read(pid: int) -> Process | None:
    """A process that is there and not dead; None otherwise, and where it is hidden."""
    fields = _fields(pid)
    if fields is None or fields[1] in (b"Z", b"X"):
        return None
    program = one_line(fields[0].decode("utf-8", "replace"))
    ticks = sum(int(field) for field in fields[12:16])
    return Process(pid, program, _STATES.get(fields[1], "other"), ticks / _TICKS)


def _fields(pid: int | str) -> list[bytes] | None:
    """``/proc/PID/stat`` from the program's name on, which may hold blanks and parentheses."""
    try:
        head, _, tail = read_bytes(f"/proc/{pid}/stat").rpartition(b")")
    except OSError:
        return None
    return [head.partition(b"(")[2], *tail.split()] if tail else None


def _works_for(pid: int, attempt: str) -> bool:
    """Whether a process carries an attempt's mark in its environment."""
    try:
        variables = read_bytes(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False
    return any(each.startswith(f"{MARK}={attempt}.".encode()) for each in variables)
