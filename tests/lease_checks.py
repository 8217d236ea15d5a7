"""What the lease's tests share: programs that stop or die at a named step, and what must be true after a death."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import psutil

from nodecache import entry
from nodecache.staging import MARK

if TYPE_CHECKING:
    from pathlib import Path

SOFT = """\
import errno, fcntl, os
def _no_locks(*_): raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = _no_locks
"""
"""In front of a program: no file system has kernel locks."""

SAY_WHEN_WAITING = """\
import os, sys
from pathlib import Path
import nodecache.bell
def _wait(self, seconds, wait=nodecache.bell.Ear.wait):
    Path(os.environ["SIGNS"], f"waiting.{os.getpid()}").touch()
    return wait(self, seconds)
nodecache.bell.Ear.wait = _wait
"""
"""In front of a program: it makes ``$SIGNS/waiting.<pid>`` when it waits for a builder."""

STOP_AT = """\
import importlib, os, signal, time
from pathlib import Path
def _stop_at(step, when):
    *path, name = step.split(".")
    holder = importlib.import_module("nodecache." + path[0])
    for part in path[1:]:
        holder = getattr(holder, part)
    real = getattr(holder, name)
    def stop():
        signs = Path(os.environ["SIGNS"])
        (signs / "reached").touch()
        while not (signs / "die").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    def stopping(*arguments, **named):
        if when == "before":
            stop()
        result = real(*arguments, **named)
        stop()
        return result
    setattr(holder, name, stopping)
_stop_at(os.environ["STEP"], os.environ["WHEN"])
"""
"""In front of a program: at ``$STEP`` (a function) it makes ``$SIGNS/reached``, and dies at ``$SIGNS/die``."""


def marked(root: Path) -> list[psutil.Process]:
    """Processes that belong to a build in this root, whoever started them."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            environment = process.environ()
            if MARK in environment and environment.get("NODECACHE_ROOT") == str(root):
                found.append(process)
        except psutil.Error:
            continue
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def damaged(root: Path) -> list[str]:
    """What is wrong with the entries that can be seen."""
    faults = []
    for key in names(root / "entries"):
        fault = entry.damage(str(root / "entries" / key), key)
        if fault is not None:
            faults.append(f"{key}: {fault}")
    return faults


class Watch:
    """Looks at the entries all the time; ``faults`` has every half one that was ever visible."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.faults: list[str] = []

    def _look(self) -> None:
        seen: list[str] = []
        while not self._ended.wait(0.002):
            now = names(self._root / "entries")
            if now != seen:
                self.faults += damaged(self._root)
                seen = now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def nothing_is_left(root: Path, temporary: Path, seconds: float = 10) -> None:
    """Within ten seconds no process of a dead build runs, and no staging or temporary folder is there."""
    deadline = time.monotonic() + seconds
    while True:
        left = [f"{process.pid} {process.info['name']}" for process in marked(root) if process.is_running()]
        folders = names(root / "staging") + names(temporary)
        if not left and not folders:
            return
        assert time.monotonic() < deadline, (left, folders)
        time.sleep(0.02)


def began(counter: Path) -> list[float]:
    """When each compile began, in seconds since the epoch."""
    return [float(line.split()[1]) for line in counter.read_text().splitlines()] if counter.exists() else []


def environment(signs: Path, temporary: Path, **more: str) -> dict[str, str]:
    """The environment of a program of this module."""
    signs.mkdir(exist_ok=True)
    temporary.mkdir(exist_ok=True)
    return {"SIGNS": str(signs), "TMPDIR": str(temporary), **more}


def waiting(signs: Path) -> int:
    """How many processes wait."""
    return sum(name.startswith("waiting.") for name in names(signs))


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def text(path: Path) -> str:
    """A file's text; nothing where there is none yet."""
    return path.read_text() if path.exists() else ""


def open_files(pid: int) -> list[str]:
    """What a process's descriptors lead to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:  # it has closed this one meanwhile
            continue
    return found


class Scene:
    """One test's folders and programs; compilers wait until they are told to go."""

    def __init__(self, start, tiny, compiler, root, tmp_path, load, wait_until):
        self._start, self._load = start, load
        self.compiler, self.root, self.until = compiler, root, wait_until
        self.signs, self.temporary = tmp_path / "signs", tmp_path / "temporary"
        self.environment = environment(self.signs, self.temporary)
        self.source = tiny()

    def hold(self, *, first_only=False):
        """Compiles wait for :meth:`go`; or only the first does."""
        self.compiler.set(before=f"{self.first if first_only else ''}{{ {self.gate}; }}")

    @property
    def gate(self):
        return f"i=0; while [ ! -e {self.signs}/go ] && [ $i -lt 1800 ]; do sleep 0.05; i=$((i+1)); done"

    @property
    def first(self):
        return f"mkdir {self.signs}/held 2> /dev/null && "

    def wait_for_held(self):
        """The first compile has begun, and is known to be the first: the wrapper counts before it looks."""
        self.until((self.signs / "held").exists, 30, "held compile")

    def go(self):
        (self.signs / "go").touch()

    def start(self, before="", program=None, **options):
        return self._start(
            before + SAY_WHEN_WAITING + (program or self._load), "tiny", self.source, env=self.environment, **options
        )

    def wait_for_waiters(self, number):
        self.until(lambda: waiting(self.signs) >= number, 30, f"{number} waiters")

    def kill_builder(self, *, waiters):
        """A builder is killed while others wait for its first compile; it, they, and when it was dead."""
        self.hold(first_only=True)
        builder = self.start()
        self.wait_for_held()
        others = [self.start() for _ in range(waiters)]
        self.wait_for_waiters(waiters)
        builder.kill()
        builder.process.wait(10)
        return builder, others, time.time()

    def ends(self, *ranks, seconds=30):
        """Results of ranks that all got a right module."""
        results = [rank.wait(seconds) for rank in ranks]
        assert [result.status for result in results] == [0] * len(ranks), [result.err for result in results]
        assert [result.json["sum"] for result in results] == [5] * len(ranks)
        assert damaged(self.root) == []
        return results
