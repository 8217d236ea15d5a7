"""Many processes, one node: one compile, everyone imports."""

from __future__ import annotations

import pytest

IN_A_LOOP = """\
import sys, time
from pathlib import Path
import nodecache
go, ready, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for number in range(rounds):
    (ready / f"{number}.{sys.argv[4]}").touch()
    while not (go / str(number)).exists():
        time.sleep(0.002)
    name = f"tiny{number}"
    assert nodecache.load(name, [f"{sys.argv[5]}/{name}.cpp"]).add(2, 3) == 5
print("done")
"""

MANY = """\
import json, resource, sys, time
import nodecache, nodecache.lease
# CPU from the start of the wait to the wake-up, without the interpreter's start and the import that follows.
used, take = [], nodecache.lease.take
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
def timed(*arguments, **named):
    before = cpu()
    try:
        return take(*arguments, **named)
    finally:
        used.append(cpu() - before)
nodecache.lease.take = timed
module = nodecache.load("tiny", [sys.argv[1]])
print(json.dumps({"sum": module.add(2, 3), "role": module.__nodecache__.role, "cpu": sum(used)}))
"""


def test_one_process_compiles_and_the_others_import_what_it_made(start, tiny, compiler, load_program):
    source = tiny()
    children = [start(load_program, "tiny", source) for _ in range(8)]
    results = [child.wait(60) for child in children]
    assert [result.status for result in results] == [0] * 8, [result.err for result in results]
    assert [result.json["sum"] for result in results] == [5] * 8
    assert [result.json["role"] for result in results].count("built") == 1
    assert compiler.compiles == 1
    assert [result.err for result in results] == [""] * 8


def test_thirty_cold_rounds_of_eight_processes_are_thirty_compiles(start, tiny, compiler, tmp_path, wait_until):
    """Case 12. The eight processes are the same over all rounds, so that only the loads are repeated."""
    go, ready = tmp_path / "go", tmp_path / "ready"
    go.mkdir()
    ready.mkdir()
    rounds = 30
    for number in range(rounds):
        tiny(f"tiny{number}")
    children = [start(IN_A_LOOP, go, ready, rounds, rank, tmp_path / "src") for rank in range(8)]
    for number in range(rounds):
        wait_until(lambda n=number: len(list(ready.glob(f"{n}.*"))) == 8, 60, f"start of round {number}")
        (go / str(number)).touch()
    results = [child.wait(60) for child in children]
    assert [result.out for result in results] == ["done\n"] * 8, [result.err for result in results]
    assert compiler.compiles == rounds


def test_sixty_four_processes_import_after_one_compile_and_wait_without_burning_cpu(start, tiny, compiler):
    """Case 19."""
    compiler.set(before="sleep 8")
    source = tiny()
    children = [start(MANY, source) for _ in range(64)]
    results = [child.wait(60) for child in children]
    assert [result.status for result in results] == [0] * 64, [result.err for result in results if result.status]
    assert {result.json["sum"] for result in results} == {5}
    assert compiler.compiles == 1
    assert sum(result.json["cpu"] for result in results if result.json["role"] == "waited") < 5


@pytest.mark.parametrize("variables", [{}, {"LOCAL_RANK": "0"}, {"RANK": "x", "LOCAL_RANK": "-1"}], ids=str)
def test_rank_variables_never_change_who_builds_or_how_often(start, tiny, compiler, load_program, variables):
    source = tiny()
    children = [start(load_program, "tiny", source, env=variables) for _ in range(4)]
    assert [child.wait(60).json["sum"] for child in children] == [5] * 4
    assert compiler.compiles == 1


def test_unrelated_jobs_on_one_host_share_one_compile(start, tiny, compiler, load_program):
    """Case 8, first half: no launcher, different devices."""
    source = tiny()
    children = [start(load_program, "tiny", source, env={"CUDA_VISIBLE_DEVICES": str(device)}) for device in range(2)]
    assert [child.wait(60).json["sum"] for child in children] == [5, 5]
    assert compiler.compiles == 1


def test_two_nodes_without_a_common_root_compile_once_each(start, tiny, compiler, load_program, tmp_path):
    """Case 63, per node: separate roots stand for separate nodes."""
    source = tiny()
    nodes = {"a": 3, "b": 1}
    children = [
        start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / node)})
        for node, ranks in nodes.items()
        for _ in range(ranks)
    ]
    results = [child.wait(60).json for child in children]
    assert [result["sum"] for result in results] == [5] * 4
    assert [result["role"] for result in results].count("built") == 2
    assert compiler.compiles == 2
