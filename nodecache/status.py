"""Status: the builds going on in a root, and whether those who hold them live."""

from __future__ import annotations

import fcntl
import os
import time

from nodecache import activity, attempt, entry, index, lease, owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.owner import Owner
    from nodecache.root import Root

WELL, DEAD, UNSURE = 0, 1, 3
"""Exit statuses of ``nodecache status``: all builders run, or there is none; one is dead; one is stopped or unseen."""

_SAID = {
    "finished": "finished; its builder ended after it had published the entry",
    "dead": "dead; its lease is free, and the next call that needs it builds: there is nothing to delete",
    "unknown": "holds the lease; its process cannot be seen from here",
}


class Build:
    """One lease that is held, or was not let go by its dead holder.

    Attributes:
        owner: who holds it.
        state: ``running``, ``stopped``, ``dead``, ``finished`` where its holder died after publishing, or ``unknown``
            where its process cannot be seen from here.
        step: the last step that the log tells of.
        commands: the tools' commands that run now, as far as the log tells.
        processes: the processes that do its work now, halted ones first, where they can be seen from here.
        output_age: seconds since its log was last written to; None where there is no log.
        seconds: seconds since the lease was taken, by the wall clock.
        waiters: how many calls wait for it in processes that can be seen from here; None where that cannot be told.
    """

    __slots__ = ("commands", "output_age", "owner", "processes", "seconds", "state", "step", "waiters")

    def __init__(self, holder: Owner, state: str, waiters: int | None) -> None:
        self.owner = holder
        self.state = state
        self.step = attempt.progress(holder.log)
        self.commands = attempt.running_commands(holder.log)
        self.processes = activity.processes(holder) if state in ("running", "stopped") else []
        self.output_age = activity.output_age(holder)
        self.seconds = max(0.0, time.time() - holder.since)
        self.waiters = waiters

    def record(self) -> dict[str, object]:
        """As plain values, for JSON."""
        fields = {name: getattr(self.owner, name) for name in self.owner.__slots__}
        shown = ("state", "step", "commands", "output_age", "seconds", "waiters")
        processes = [each._asdict() for each in self.processes]
        return {**fields, **{name: getattr(self, name) for name in shown}, "processes": processes}

    def lines(self, width: int | None) -> list[str]:
        """As text: a headline, and what belongs to it; commands cut to ``width`` columns."""
        since = time.strftime("%H:%M:%S", time.localtime(self.owner.since))
        step = f", {self.step}" if self.step else ""
        waiters = "unknown" if self.waiters is None else str(self.waiters)
        found = [
            f"{self.owner.name}: {_SAID.get(self.state, self.state)}",
            f"  builder  {self.owner.label}, since {since} ({self.seconds:.0f} s){step}",
            f"  waiters  {waiters}",
            f"  recipe   {self.owner.recipe}",
            *(f"  command  {_cut(command, width)}" for command in self.commands),
            *(f"  process  {line}" for line in activity.lines(self.processes)),
            *([] if self.output_age is None else [f"  output   last {self.output_age:.0f} s ago"]),
            f"  log      {self.owner.log}",
        ]
        return [
            line
            for line in found
            if self.state not in ("dead", "finished") or not line.startswith(("  waiters", "  command", "  output"))
        ]


def builds(root: Root) -> list[Build]:
    """The builds going on, the oldest first. Reads only; a root that is not there has none.

    Concurrency: safe at any time. Where the owner's process cannot be seen, its lock is tried for an instant; a waiter
    that tries in the same instant finds it busy once more.
    """
    try:
        names = os.listdir(root.at("leases"))
    except (FileNotFoundError, NotADirectoryError):  # the latter is told by whoever needs the folder, and by doctor
        return []
    recipes = {name.rpartition(".")[0] for name in names if name.endswith((".lock", ".soft"))}
    holders = [(recipe, holder) for recipe in recipes if (holder := lease.holder(root, recipe)) is not None]
    ears = _ears(root) if holders else {}
    found = []
    for recipe, holder in holders:
        state = owner.state(holder)
        soft = os.path.isdir(root.at("leases", f"{recipe}.soft"))
        if state == "unknown" and not soft and not _is_locked(lease.lock_path(root, recipe)):
            state = "dead"
        if state == "dead" and _has_published(root, recipe, holder.attempt):
            state = "finished"
        visible = state in ("running", "stopped") and ears is not None
        # One end of the bell is the builder's own.
        found.append(Build(holder, state, max(0, ears.get(recipe, 0) - 1) if visible and ears else None))
    return sorted(found, key=lambda build: -build.seconds)


def _has_published(root: Root, recipe: str, attempt_id: str) -> bool:
    """Whether an attempt's entry is in the index and whole enough to be read."""
    for record in index.records(root, recipe):
        try:
            manifest = entry.read_manifest(entry.entry_path(root, record.key))
        except OSError:  # pruned meanwhile, or damaged
            continue
        if manifest is not None and manifest.get("attempt") == attempt_id:
            return True
    return False


def exit_status(found: list[Build]) -> int:
    """What ``nodecache status`` ends with."""
    states = {build.state for build in found}
    return DEAD if "dead" in states else UNSURE if states - {"running", "finished"} else WELL


def record(found: list[Build], root: str) -> dict[str, object]:
    """Builds as a JSON document."""
    return {"root": root, "builds": [build.record() for build in found]}


def text(found: list[Build], root: str, width: int | None) -> str:
    """The builds for people, in so many columns; None cuts nothing."""
    if not found:
        return f"Nothing is being built in {root}."
    return "\n".join(line for build in found for line in build.lines(width))


def _cut(command: str, width: int | None) -> str:
    """A command's program and its end, which says what is compiled to what."""
    room = 10_000 if width is None else max(20, width - 11)
    if width is None or len(command) <= room:
        return command
    program = command.partition(" ")[0]
    program = program if len(program) < room // 2 else program.rpartition("/")[2][: room // 2]
    return f"{program} ... {command[-(room - len(program) - 5) :].partition(' ')[2]}"


def _ears(root: Root) -> dict[str, int] | None:
    """How many descriptors lead to each recipe's bell, in the processes that can be seen from here."""
    bells = {}
    for name in os.listdir(root.at("leases")):
        if name.endswith(".bell"):
            try:
                status = os.stat(root.at("leases", name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            bells[status.st_dev, status.st_ino] = name.removesuffix(".bell")
    counts: dict[str, int] = {}
    try:
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return None
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if os.readlink(path).endswith(".bell"):
                    status = os.stat(path)
                    recipe = bells.get((status.st_dev, status.st_ino))
                    if recipe is not None:
                        counts[recipe] = counts.get(recipe, 0) + 1
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return counts


def _is_locked(path: str) -> bool:
    """Whether anybody holds the lock; true where that cannot be told."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
