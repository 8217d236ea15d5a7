"""How fast waiters wake, beside a chain of bare ``flock`` calls in the same run, and what their wait costs.

    python benchmarks/lease.py [seconds of the long build]

A wake-up is the time from the moment at which the builder lets go, its entry published, to the moment at which a
waiter has found the entry. In the chains each waiter blocks in ``flock``, and lets go for the next one when it has been
granted the lock and has looked: a *bare* one whether a folder is there, a *looking* one for the entry in the index, as
the lease's waiters do.
"""

from __future__ import annotations

import fcntl
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nodecache import bell, folder, index, lease
from nodecache.inputs import Eyes
from nodecache.root import open_root

SETTLE = 0.3
"""Seconds between the last waiter's word that it waits and the wake-up."""


class Crowd:
    """Forked processes that begin together, say when they wait, and tell when they woke and what it cost."""

    def __init__(self, number: int, wait) -> None:
        self.number = number
        go_read, self._go = os.pipe()
        self._said, say = os.pipe()
        self._told, tell = os.pipe()
        self._pids = []
        for _ in range(number):
            pid = os.fork()
            if pid == 0:
                os.close(self._go)
                os.read(go_read, 1)
                cpu = time.process_time()
                try:
                    wait(lambda: os.write(say, b"."))
                    woke = time.monotonic()
                    os.write(tell, f"{woke} {time.process_time() - cpu}\n".encode())
                finally:
                    os._exit(0)
            self._pids.append(pid)
        for fd in (go_read, say, tell):
            os.close(fd)

    def begin(self) -> None:
        """Let them begin; return when all wait."""
        os.close(self._go)
        left = self.number
        while left:
            left -= len(os.read(self._said, left))
        time.sleep(SETTLE)

    def results(self) -> tuple[list[float], float]:
        """When each woke, and their CPU seconds together."""
        with os.fdopen(self._told) as file:
            lines = [line.split() for line in file]
        os.close(self._said)
        for pid in self._pids:
            os.waitpid(pid, 0)
        if len(lines) != self.number:
            raise SystemExit(f"{self.number - len(lines)} of {self.number} waiters failed")
        return [float(woke) for woke, _ in lines], sum(float(cpu) for _, cpu in lines)


def by_lease(number: int, mark: str, seconds: float = 0.0) -> tuple[list[float], float, str]:
    """Wake-ups of waiters for one entry, in seconds, the CPU seconds of their waits, and the entry's recipe."""
    inputs = {"mark": mark}

    def wait(say) -> None:
        real = bell.Ear.wait

        def saying(self, patience: float) -> bool:
            bell.Ear.wait = real
            say()
            return real(self, patience)

        # Forked processes copy each page that they write to first; a job's have pages of their own. So get them now.
        folder.get_or_build("bench", {"mark": "before"}, lambda _: None)
        bell.Ear.wait = saying
        folder.get_or_build("bench", inputs, lambda _: None)

    crowd = Crowd(number, wait)
    ended: list[float] = []
    recipes: list[str] = []
    release = lease.Lease.release

    def stamped(self) -> None:
        recipes.append(self.recipe)
        ended.append(time.monotonic())
        release(self)

    def build(place: Path) -> None:
        crowd.begin()
        time.sleep(seconds)
        (place / "value").write_text("right")

    lease.Lease.release = stamped
    try:
        folder.get_or_build("bench", inputs, build)
    finally:
        lease.Lease.release = release
    woken, cpu = crowd.results()
    # A tick may find the entry before the bell rings.
    return [max(0.0, woke - ended[0]) for woke in woken], cpu, recipes[0]


def by_flock(number: int, path: Path, look) -> list[float]:
    """The same of a chain of bare locks; each waiter calls ``look`` while it has the lock."""

    def wait(say) -> None:
        fd = os.open(path, os.O_RDWR)
        say()
        fcntl.flock(fd, fcntl.LOCK_EX)
        look()
        os.close(fd)

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    crowd = Crowd(number, lambda say: (os.close(fd), wait(say)))
    fcntl.flock(fd, fcntl.LOCK_EX)
    crowd.begin()
    ended = time.monotonic()
    os.close(fd)
    return [woke - ended for woke in crowd.results()[0]]


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def main() -> None:
    """Print the figures."""
    long_build = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    logging.getLogger("nodecache").setLevel(logging.ERROR)  # two hundred voices without ranks
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["NODECACHE_ROOT"] = str(place / "root")
        folder.get_or_build("bench", {"mark": "before"}, lambda place: (place / "value").write_text("right"))
        print(f"{os.cpu_count()} cores; milliseconds from the builder's release to a waiter with the entry")
        print(f"{'waiters':>8} {'rounds':>7} {'':>10} {'p50':>8} {'p99':>8} {'last':>8}")
        for number, rounds in ((16, 40), (200, 16)):
            taken: dict[str, list[list[float]]] = {"lease": [], "bare": [], "looking": []}
            for turn in range(rounds):  # by turns, so that all meet the same machine
                woken, _, recipe = by_lease(number, f"{number}-{turn}")
                taken["lease"].append(woken)
                root = open_root()
                looks = {"bare": place.stat, "looking": lambda: index.look(root, recipe, Eyes([])).path}  # noqa: B023
                for what, look in looks.items():
                    taken[what].append(by_flock(number, place / f"{number}-{turn}-{what}.lock", look))
            figures = {}
            for what, found in taken.items():
                values = [value for one in found for value in one]
                figures[what] = (
                    statistics.median(values),
                    p99(values),
                    statistics.median(max(one) for one in found),
                )
                shown = " ".join(f"{value * 1e3:8.2f}" for value in figures[what])
                print(f"{number:8} {rounds:7} {what:>10} {shown}")
            for what in ("bare", "looking"):
                ratios = (mine / theirs for mine, theirs in zip(figures["lease"], figures[what], strict=True))
                print(f"{number:8} {rounds:7} {f'/ {what}':>10} " + " ".join(f"{ratio:8.2f}" for ratio in ratios))
        _, cpu, _ = by_lease(200, "long", long_build)
        print(f"200 waiters of a build of {long_build:g} s: {cpu:.2f} s of CPU together, {cpu / 200 * 1e3:.1f} ms each")


if __name__ == "__main__":
    main()
