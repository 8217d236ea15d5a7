"""The supervisor: one small process a build, which ends the build's whole process tree when its builder is gone.

Run as a program, with nothing imported but the standard library:

    python -I -S supervise.py BUILDER_PIDFD CONTROL STATUS STAGING COMMAND...

Killing ``g++`` leaves ``cc1plus``, ninja gives every command a process group of its own, and a wrapper may start a
session: no group or session holds the tree together. So the supervisor is the tree's subreaper. Whatever loses its
parent becomes its child, and it kills and reaps until it has none.

It learns that the builder is gone from a pidfd, which no forked child of the builder can keep open for it, and that the
builder is done or has given up from a byte in the control pipe. It runs in a session of its own, so a Ctrl-C at the
terminal reaches the builder, not the compilers. When the builder is dead it removes the staging folder as well; the
next builder would, but after a death behind the publishing rename there may never be one.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
_LIMIT_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Run the command under supervision; the exit status is for nobody."""
    builder, control, status = (int(word) for word in arguments[:3])
    staging, command = arguments[3], arguments[4:]
    parent = os.getppid()
    os.umask(0o077)
    for fd in (builder, control, status):
        if fd >= 0:
            os.set_inheritable(fd, False)  # positional only
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)  # positional only
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a mask is inherited, and the tools are to have none either
    try:
        child = _start(command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", flush=True)  # noqa: T201  # stdout is the build's log
        os.write(status, b"exit 127\n")
        child = 0
    poll = select.poll()
    for fd in (builder, control, ended):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    while True:
        # The parent's number changes when it dies: the only sign where the kernel has no pidfd.
        events = dict(poll.poll(_POLL_SECONDS * 1000 if builder < 0 else None))
        if ended in events:
            os.read(ended, 4096)
            child = _reap(child, status)
        if builder in events or os.getppid() != parent:
            _end_tree()
            _remove(staging)
            return 1
        if control in events:
            told = os.read(control, 1)
            if child or not told:
                _end_tree()
            # A dying process's pipes are closed before it counts as dead: an end without a word is a death, in general.
            if not told and _dies(builder, parent):
                _remove(staging)
                return 1
            return 0


def _dies(builder: int, parent: int) -> bool:
    """Whether the builder, which has closed its pipe without a word, is dead in a moment."""
    poll = select.poll()
    if builder >= 0:
        poll.register(builder, select.POLLIN)
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        if poll.poll(_POLL_SECONDS * 1000) or os.getppid() != parent:
            return True
    return False


def _start(command: list[str]) -> int:
    """Start the command with default signals."""
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE],
    )


def _reap(child: int, status: int) -> int:
    """Reap what has ended; tell the builder when the command itself has. Returns the command's id while it runs."""
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            return child
        if pid == child:
            child = 0
            ended = os.waitstatus_to_exitcode(code)
            if ended < 0:  # what it had started is nobody's now
                _end_tree()
            try:
                os.write(status, f"exit {ended}\n".encode() if ended >= 0 else f"signal {-ended}\n".encode())
            except BrokenPipeError:  # the builder is going; its pidfd will say so
                pass


def _end_tree() -> None:
    """Kill and reap until there is no child left; an orphan becomes a child, so this ends.

    It gives up on what cannot be killed: another user's process, one that hangs in the kernel. Such a one can still
    write, but only into a folder that is gone.
    """
    wait = 0.001
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        for pid in _descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(wait)  # until the kernel has ended them; a process in the kernel's hands gives no other sign
        wait = min(wait * 2, 0.1)


def _descendants() -> list[int]:
    """All processes below this one, from their parents' numbers."""
    parents: dict[int, list[int]] = {}
    numbers: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            said = _status(name)
            if said is not None:
                parents.setdefault(said[0], []).append(int(name))
                numbers[int(name)] = said[1]
    me = int(os.readlink("/proc/self"))
    level = len(numbers[me]) - 1
    found, queue = [], [me]
    while queue:
        below = parents.get(queue.pop(), [])
        found += [numbers[pid][level] for pid in below]
        queue += below
    return found


def _status(name: str) -> tuple[int, list[int]] | None:
    """A process's parent, and its own number in each PID namespace, from the one of /proc's mount inwards.

    A container may have its host's /proc, which numbers processes as the host does. Source: proc(5), PPid and NSpid.
    """
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except OSError:  # it has ended, or is hidden from this user
        return None
    return int(lines[b"PPid"]), [int(word) for word in lines.get(b"NSpid", name.encode()).split()]


def number_here(name: int) -> int | None:
    """The number that a process which /proc calls so has in this process's namespace; None where it has none."""
    said, mine = _status(str(name)), _status("self")
    if said is None or mine is None or len(said[1]) < len(mine[1]):
        return None
    return said[1][len(mine[1]) - 1]


def _remove(staging: str) -> None:
    """Remove the dead builder's folder and the temporary folder that it links to."""
    import shutil

    link = os.path.join(staging, "tmp")
    if os.path.islink(link) and os.path.basename(os.readlink(link)).startswith(f"nodecache-{os.getuid()}-"):
        shutil.rmtree(os.readlink(link), ignore_errors=True)
    shutil.rmtree(staging, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
