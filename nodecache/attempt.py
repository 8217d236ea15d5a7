"""Attempts: how builds went. A failure is recorded here, and so reaches everybody who waited for it."""

from __future__ import annotations

import errno
import os
import stat

from nodecache.digest import digest_bytes, read_bytes
from nodecache.errors import BuildError, NodecacheError
from nodecache.root import Root, make_folder, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from nodecache.launchers import Node

    class Named(Protocol):
        """What the history calls by a name."""

        @property
        def name(self) -> str:
            """For messages."""

        @property
        def kind(self) -> str:
            """What sort of thing it is."""


_HEAD = "nodecache-failure 2"
KEEP_LOGS = 5
HISTORY_LIMIT = 4 << 20
"""Bytes after which a new history is begun; the one before is kept."""


def new_id() -> str:
    """A new attempt's id: unique, and nothing else."""
    return os.urandom(8).hex()


def folder(root: Root, recipe: str) -> str:
    """Where a recipe's failure and logs are."""
    return root.at("attempts", recipe)


def log_path(root: Root, recipe: str, attempt: str) -> str:
    """The log of an attempt, from its first line on."""
    return root.at("attempts", recipe, f"{attempt}.log")


def last_failure(root: Root, recipe: str) -> str | None:
    """Id of the recipe's last recorded failure.

    Read before anything else in a call: a failure with another id was recorded after the call began.
    """
    try:
        head = read_bytes(root.at("attempts", recipe, "failure")).partition(b"\n")[0].decode()
    except (OSError, UnicodeDecodeError):
        return None
    words = head.split(" ")
    return words[2] if len(words) == 4 and " ".join(words[:2]) == _HEAD else None


def record_failure(root: Root, recipe: str, error: BuildError, builder: str, inputs: str) -> None:
    """Record that an attempt failed, before its lease is let go.

    Args:
        inputs: what the recipe does not say of the attempt's inputs (header digests); a waiter whose own differ
            is not told.
    """
    said: dict[str, object] = {
        "message": str(error),
        "first_error": error.first_error,
        "log": error.log,
        "builder": builder,
        "inputs": inputs,
    }
    write_failure(root, recipe, error.attempt, said)


def write_failure(root: Root, recipe: str, attempt: str, said: dict[str, object]) -> None:
    """Put a failure's record in the place of the one before."""
    import json

    where = folder(root, recipe)
    make_folder(root, where)
    raw = json.dumps(said).encode()
    replace_file(root, f"{where}/failure", f"{_HEAD} {attempt} {digest_bytes(raw)}\n".encode() + raw)
    _prune_logs(where)


def read_failure(root: Root, recipe: str) -> tuple[str, dict[str, Any]] | None:
    """The last failure's id and what is recorded of it; None where there is none, or it is damaged."""
    import json

    try:
        head, _, raw = read_bytes(root.at("attempts", recipe, "failure")).partition(b"\n")
        *words, attempt, check = head.decode().split(" ")
        if " ".join(words) != _HEAD or digest_bytes(raw) != check:
            return None
        return attempt, json.loads(raw)
    except (OSError, ValueError):
        return None


def told(root: Root, recipe: str, seen: str | None, same_inputs: Callable[[str], bool]) -> NodecacheError | None:
    """The failure that a caller must be told: recorded after its call began (``seen``), with the same inputs.

    A limit of the machine (:mod:`nodecache.limit`) depends on no inputs, and is told while its cause holds.
    """
    if last_failure(root, recipe) in (None, seen):
        return None
    found = read_failure(root, recipe)
    if found is None or found[0] == seen:
        return None
    attempt, said = found
    if "limit" in said:
        from nodecache import limit

        return limit.told(root, said)
    if not same_inputs(said["inputs"]):
        return None
    first = said["first_error"]
    return BuildError(
        f"{first}\nThis is what {said['builder']} was told when it built this while this process waited; "
        f"it was not tried again here.\nThe full log is {said['log']}. Correct the cause and call again.",
        attempt=attempt,
        first_error=first,
        log=said["log"],
    )


def forget_failure(root: Root, recipe: str, attempt: str) -> None:
    """After an entry was published: the failure before it is history, and the entry has its own log."""
    where = folder(root, recipe)
    for name in ("failure", f"{attempt}.log"):
        try:
            os.unlink(f"{where}/{name}")
        except FileNotFoundError:
            pass
    _prune_logs(where)


def _prune_logs(where: str) -> None:
    """Keep the last few logs: failures', and those of attempts whose builder died."""
    ages = []
    for name in os.listdir(where):
        if name.endswith(".log"):
            try:
                ages.append((os.stat(f"{where}/{name}").st_mtime_ns, name))
            except FileNotFoundError:
                continue
    for _, name in sorted(ages)[:-KEEP_LOGS]:
        try:
            os.unlink(f"{where}/{name}")
        except FileNotFoundError:
            pass


def progress(log: str) -> str:
    """The last step that a running build's log tells of, such as ``step 1 of 2: compile a.cpp``, or nothing."""
    return next((line[2:] for line in reversed(_lines(log)) if line.startswith("> step ")), "")


def count(step: str) -> tuple[int, int | None]:
    """Steps that lie behind a step, and how many there are in all: ``step 2 of 5: ...`` is 1 of 5."""
    words = step.split(" ", 4)
    if len(words) < 4 or not words[1].isdecimal() or not words[3].rstrip(":").isdecimal():
        return 0, None
    return int(words[1]) - 1, int(words[3].rstrip(":"))


def running_commands(log: str) -> list[str]:
    """The commands that a running build's log has begun and not ended, oldest first."""
    begun: dict[str, str] = {}
    what = ""
    for line in _lines(log):
        if line.startswith("> step "):
            what = line.partition(": ")[2]
        elif line.startswith("> ") and what:
            begun[what] = line[2:]
            what = ""
        elif line.startswith("["):  # ninja's word of a step that has ended
            begun.pop(line.partition("] ")[2], None)
    return list(begun.values())


def _lines(log: str) -> list[str]:
    try:
        return read_bytes(log).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def append_history(root: Root, event: dict[str, object]) -> None:
    """Add one line to the history; lines of other processes stay whole (one appending write each).

    A file that has grown past :data:`HISTORY_LIMIT` becomes the one before, in place of the last of those.
    """
    import json

    line = json.dumps(event).encode() + b"\n"
    path = root.at("attempts", "history")
    # A pipe without a reader would block, and one with a reader take the line away.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "It is not a plain file", path)
        os.write(fd, line)
        if os.fstat(fd).st_size > HISTORY_LIMIT:
            _turn_over(fd, path)
    finally:
        os.close(fd)


def note(
    root: Root,
    what: Named,
    event: str,
    outcome: str,
    *,
    recipe: str,
    started: float,
    seconds: float,
    key: str = "",
    attempt: str = "",
    here: Node | None = None,
) -> None:
    """Add something of this process's that has ended to the history (:class:`nodecache.history.Event` has the fields).

    Args:
        what: the extension or folder that was built, waited for or hit.
        here: this node, where the caller has asked already: the question takes longer than the answer to write.
    """
    if here is None:
        from nodecache.launchers import node

        here = node()
    try:
        append_history(
            root,
            {
                "event": event,
                "outcome": outcome,
                "attempt": attempt,
                "name": what.name,
                "kind": what.kind,
                "recipe": recipe,
                "key": key,
                "started": started,
                "seconds": seconds,
                "pid": os.getpid(),
                "host": here.hostname,
                "rank": here.rank,
            },
        )
    except OSError as error:  # history is for people; the result is as good without
        from nodecache.printable import logger

        logger().debug("the history of %s was not written: %s", root.path, error)


def _turn_over(fd: int, path: str) -> None:
    """Rename the file that ``fd`` has open, once: a second renaming would put the new file over the old one's lines."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.lstat(path), os.fstat(fd)):
            os.replace(path, f"{path}.1")
    except OSError:  # somebody else is doing it, or the next writer will
        pass
