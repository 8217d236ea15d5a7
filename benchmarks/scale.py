"""Many nodes: what it costs to have an extension on all of them, measured for a few and simulated for many.

    python benchmarks/scale.py                       # the simulation's tables, in Markdown
    python benchmarks/scale.py --plot docs/scale.svg
    python benchmarks/scale.py --measure             # 2, 4 and 8 fake machines; needs root and torch, and installs s3fs

The simulation follows the code: which requests a node sends to the tier and when it looks again, which rounds a shared
transfer takes. Its assumptions are the fields of :class:`Assumptions`; what it leaves out is said in docs/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import shlex
import shutil
import sys
import time
from collections import deque
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testbed.nodes import Nodes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the fake machines of the tests

BLOCK = 4 << 20
"""Bytes of one ranged read from the tier (nodecache.store), and of one round of a shared transfer (nodecache.share)."""

ROUND = 0.2
TIMEOUT = 60.0
WAYS = ("every node compiles", "tier, empty", "tier, full", "share")


class Assumptions(NamedTuple):
    """What the simulated cluster is like."""

    size: float = 10e6
    """Bytes of the archive."""
    build: float = 60.0
    """Seconds of a build, the median over nodes."""
    spread: float = 0.1
    """Standard deviation of its logarithm: nodes are not equally fast."""
    link: float = 1.25e9
    """Bytes per second of a node's link (10 Gbit/s)."""
    tier: float = 10e9
    """Bytes per second that the tier can send to all nodes together."""
    rate: float = 5000.0
    """Requests per second that the tier answers."""
    latency: float = 0.02
    """Seconds from a request to its answer, on an idle tier."""
    hop: float = 50e-6
    """Seconds for a small message between two processes of a group."""


class Cost(NamedTuple):
    """What one way costs on so many nodes."""

    compiles: int
    busiest: float
    """Bytes through the busiest link: a node's, or the tier's to all nodes."""
    seconds: float
    """Until the last node has it."""
    requests: int
    """To the tier."""


def simulate(way: str, nodes: int, a: Assumptions) -> Cost:
    """One run of a way."""
    if way == "share":
        return share(nodes, a)
    if way == "every node compiles":
        dice = random.Random(nodes)
        return Cost(nodes, 0, max(a.build * math.exp(dice.gauss(0, a.spread)) for _ in range(nodes)), 0)
    return tier(nodes, a, full=way == "tier, full")


def share(nodes: int, a: Assumptions) -> Cost:
    """One rank a node in the group; a round ends with a ring all-reduce of twice as many messages as ranks."""
    meeting = 2 * (nodes - 1) * a.hop
    gather = 2 * (nodes - 1) * a.hop  # sizes, then objects, each once around the ring
    depth = nodes.bit_length() - 1
    rounds = math.ceil(a.size / BLOCK) + depth - 1
    fanout = min(2, nodes - 1)
    transfer = rounds * (min(a.size, BLOCK) * fanout / a.link + meeting)
    # probe, gather, build, pack, gather, transfer, receive, probe, gather; what runs in a thread ends on a meeting
    seconds = a.build + ROUND / 2 + 5 * meeting + 3 * gather + transfer
    return Cost(1, fanout * a.size, seconds, 0)


class _Requests:
    """The tier's front: answers in order, so many a second."""

    def __init__(self, a: Assumptions) -> None:
        self._step = 1 / a.rate
        self._latency = a.latency
        self._free = 0.0
        self.count = 0

    def answered(self, now: float) -> float:
        self.count += 1
        self._free = max(now, self._free) + self._step
        return self._free + self._latency


def tier(nodes: int, a: Assumptions, *, full: bool) -> Cost:
    """A tier with NODECACHE_REMOTE_WAIT: of an empty one, one node builds, the others look again until it is there."""
    front = _Requests(a)
    dice = random.Random(nodes)
    published = [0.0 if full else math.inf]
    claimed = [False]
    begun: list[float] = []  # when each look that found it began
    starts: list[float] = []  # and when its transfer began
    last = 0.0

    def node(now: float) -> Iterator[float]:
        """Yields when it has its next answer; is gone on with at that time."""
        nonlocal last
        began = now
        yield (now := front.answered(now))  # list the recipe's records
        if now < published[0]:
            yield (now := front.answered(now))  # claim
            if not claimed[0]:
                claimed[0] = True
                yield (now := now + a.build)
                for _ in range(2):  # another one's record? its archive?
                    yield (now := front.answered(now))
                yield (now := front.answered(now) + a.size / a.link)
                yield (now := front.answered(now))  # the record
                published[0] = last = now
                for _ in range(2):  # the claim is read and removed
                    yield (now := front.answered(now))
                return
            pause = 0.5
            while True:
                yield (now := now + pause * dice.uniform(0.8, 1.2))
                pause = min(pause * 1.5, 10.0)
                began = now
                for _ in range(2):  # the claim, the records
                    yield (now := front.answered(now))
                if now >= published[0]:
                    break
        for _ in range(2 + math.ceil(a.size / BLOCK)):  # the record; the archive's size; its blocks
            yield (now := front.answered(now))
        begun.append(began)
        starts.append(now)

    running: list[tuple[float, int, Iterator[float]]] = [(0.0, number, node(0.0)) for number in range(nodes)]
    heapq.heapify(running)
    while running:
        _, number, each = heapq.heappop(running)
        now = next(each, None)
        if now is not None:
            heapq.heappush(running, (now, number, each))
    compiles = 0 if full else 1
    ends = transfers(sorted(starts), a)
    for began, end in zip(sorted(begun), ends, strict=True):
        late = end - began > TIMEOUT
        compiles += late
        last = max(last, began + TIMEOUT + a.build if late else end)
    return Cost(compiles, a.size * len(ends), last, front.count)


def transfers(starts: list[float], a: Assumptions) -> list[float]:
    """When equal transfers end that share the tier's link evenly, each limited by its node's."""
    ends: list[float] = []
    active: deque[float] = deque()  # by how many bytes sent to each since the beginning one ends
    now = sent = 0.0
    coming = deque(starts)
    while coming or active:
        speed = min(a.link, a.tier / max(1, len(active)))
        ending = now + (active[0] - sent) / speed if active else math.inf
        if coming and coming[0] <= ending:
            sent += (coming[0] - now) * speed if active else 0.0
            now = coming.popleft()
            active.append(sent + a.size)
        else:
            sent, now = active.popleft(), ending
            ends.append(now)
    return ends


def shown(number: float) -> str:
    """Bytes, readable."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} GB"


def table(counts: list[int], a: Assumptions) -> str:
    """The simulation as a Markdown table."""
    lines = ["| nodes | way | compiles | busiest link | last node after | requests |", "|--:|---|--:|--:|--:|--:|"]
    for nodes in counts:
        for way in WAYS:
            cost = simulate(way, nodes, a)
            busiest = shown(cost.busiest)
            lines.append(
                f"| {nodes:,} | {way} | {cost.compiles:,} | {busiest} | {cost.seconds:.1f} s | {cost.requests:,} |"
            )
    return "\n".join(lines)


# Measuring

SOURCE = """
#include <Python.h>
static PyObject* twice(PyObject*, PyObject* x) { return PyNumber_Add(x, x); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "scale", nullptr, -1, methods};
unsigned char weight[20000000] = {1};
PyMODINIT_FUNC PyInit_scale() { return weight[0] ? PyModule_Create(&def) : nullptr; }
"""
COMPILER = """\
#!/bin/sh
for word; do [ "$word" != -c ] || {{ echo >> {folder}/compiles; sleep 3; }}; done
exec c++ "$@"
"""
RANK = """\
import json, os, sys, time
from datetime import timedelta
from pathlib import Path
import nodecache
folder, rank, share = Path(sys.argv[1]), os.environ["RANK"], sys.argv[2] == "share"
if share:
    import torch.distributed as dist
    from nodecache.torch import share as shared
    import nodecache.share
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    dist.barrier()
elif "NODECACHE_REMOTE" in os.environ:
    import s3fs  # noqa: F401
(folder / f"ready{rank}").touch()
while not (folder / "go").exists():
    time.sleep(0.002)
load = lambda: nodecache.load("scale", [folder.parent / "scale.cpp"])
module = shared(load) if share else load()
ended = time.time()
assert module.twice(4) == 8
if share:
    dist.barrier()
    dist.destroy_process_group()
(folder / f"{rank}.part").write_text(json.dumps(ended))
(folder / f"{rank}.part").rename(folder / f"{rank}.json")
"""
HERE = Assumptions(size=20e6, build=3.4, spread=0.0, link=1e9, tier=4e8, rate=150.0, latency=0.01, hop=0.3e-3)
"""The machine that is measured on: its server is a Python program, and two cores do the work of all nodes."""


def measure(counts: list[int]) -> None:
    """Each way on fake machines with a bridge between them, an S3 server beside them, and a compile that takes 3 s."""
    print("| nodes | way | compiles | busiest link | last node after | requests | simulated |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for count in counts:
        for way in WAYS:
            cost = _measured(way, count)
            print(
                f"| {count} | {way} | {cost.compiles} | {shown(cost.busiest)} | {cost.seconds:.1f} s | "
                f"{cost.requests} | {simulate(way, count, HERE).seconds:.1f} s |",
                flush=True,
            )


def _measured(way: str, count: int) -> Cost:
    from tests.s3_server import Server
    from tests.testbed.job import shared_folder
    from tests.testbed.nodes import Nodes

    folder = shared_folder()
    try:
        (folder / "scale.cpp").write_text(SOURCE)
        (folder / "c++").write_text(COMPILER.format(folder=shlex.quote(str(folder))))
        (folder / "c++").chmod(0o755)
        with Nodes(count + 1) as nodes, ExitStack() as stack:
            env = {"CXX": str(folder / "c++"), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
            env |= {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "NODECACHE_ROOT": "/tmp/scale"}
            server = None
            if way.startswith("tier"):
                server = stack.enter_context(Server(nodes, folder / "server"))
                env |= {**server.env, "NODECACHE_REMOTE_WAIT": "60"}
            if way == "tier, full":
                _run(way, nodes, nodes.names[count:], folder / "before", env)
            asked = len(server.requests()) if server else 0
            compiled = _compiles(folder)
            before = _carried(nodes)
            seconds = _run(way, nodes, nodes.names[:count], folder / "ranks", env)
            busiest = _busiest(way, before, _carried(nodes))
            requests = len(server.requests()) - asked if server else 0
        return Cost(_compiles(folder) - compiled, busiest, seconds, requests)
    finally:
        shutil.rmtree(folder)


def _run(way: str, nodes: Nodes, names: list[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds from the moment at which all may begin until the last one has its module."""
    from tests.testbed.processes import Running, until

    folder.mkdir()
    program = folder / "rank.py"
    program.write_text(RANK)
    with ExitStack() as stack:
        running = []
        for rank, name in enumerate(names):
            place = ["env", f"RANK={rank}", f"WORLD_SIZE={len(names)}"]
            command = nodes.on(name, *place, sys.executable, str(program), str(folder), way)
            running.append(stack.enter_context(Running(command, env=env)))
        until(lambda: len(list(folder.glob("ready*"))) == len(names), 60, running[0].output)
        began = time.time()
        (folder / "go").touch()
        for each in running:
            if each.wait(120):
                raise SystemExit(each.output())
    return max(json.loads(path.read_text()) for path in folder.glob("*.json")) - began


def _compiles(folder: Path) -> int:
    counted = folder / "compiles"
    return len(counted.read_text().splitlines()) if counted.exists() else 0


def _carried(nodes: Nodes) -> dict[str, tuple[int, int]]:
    """Bytes that each machine has sent and received."""
    from tests.testbed.processes import run

    links = json.loads(run(nodes.on_head("ip", "-s", "-j", "link"), timeout=10))
    return {
        link["ifname"]: (link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"])  # of the cable's other end
        for link in links
        if link["ifname"] in nodes.names
    }


def _busiest(way: str, before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> int:
    """Bytes through the busiest link in its busier direction; the server's has what all machines have."""
    each = [(sent - before[name][0], received - before[name][1]) for name, (sent, received) in after.items()]
    return max(map(sum, zip(*each, strict=True))) if way.startswith("tier") else max(map(max, each))


# Plotting

COLOURS = ("#888888", "#c0392b", "#2e7d32", "#1f5fa8")
WIDTH, HEIGHT, LEFT, TOP = 360, 260, 70, 40


def plot(path: str, a: Assumptions) -> None:
    """Seconds and bytes over nodes, both axes logarithmic, as SVG."""
    counts = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10000]
    costs = {way: [simulate(way, nodes, a) for nodes in counts] for way in WAYS}
    panels = [
        ("seconds to the last node", lambda cost: cost.seconds, 0.01, 1000),
        ("MB through the busiest link", lambda cost: cost.busiest / 1e6, 10, 1e6),
    ]
    whole = 2 * (WIDTH + LEFT) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{TOP + HEIGHT + 90}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{whole}" height="{TOP + HEIGHT + 90}" fill="#ffffff"/>',
    ]
    for number, (title, of, low, high) in enumerate(panels):
        left = LEFT + number * (WIDTH + LEFT)
        decades = math.log10(high / low)

        def across(nodes: float, left: int = left) -> float:
            return left + WIDTH * math.log10(nodes) / 4

        def up(value: float, low: float = low, decades: float = decades) -> float:
            return TOP + HEIGHT * (1 - math.log10(value / low) / decades)

        lines.append(f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>')
        for power in range(5):
            x = across(10**power)
            lines.append(f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="#dddddd"/>')
            lines.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{10**power:,}</text>')
        for power in range(round(decades) + 1):
            value = low * 10**power
            y, label = up(value), f"{value:,.0f}" if value >= 1 else f"{value:g}"
            lines.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#dddddd"/>')
            lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        lines.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">nodes</text>')
        for way, colour in zip(WAYS, COLOURS, strict=True):
            values = [(across(nodes), of(cost)) for nodes, cost in zip(counts, costs[way], strict=True)]
            points = [(x, up(value)) for x, value in values if value >= low]
            for (x1, y1), (x2, y2) in pairwise(points):
                lines.append(
                    f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="2" fill="none"/>'
                )
    for number, (way, colour) in enumerate(zip(WAYS, COLOURS, strict=True)):
        x, y = LEFT + number * 190, TOP + HEIGHT + 66
        lines.append(f'<path d="M{x} {y - 4}h22" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{x + 28}" y="{y}">{way}</text>')
    lines.append("</svg>")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--nodes", type=int, nargs="+")
    given = parser.parse_args()
    if given.measure:
        measure(given.nodes or [2, 4, 8])
    elif given.plot:
        plot(given.plot, Assumptions())
    else:
        print(table(given.nodes or [64, 1000, 10000], Assumptions()))


if __name__ == "__main__":
    main()
