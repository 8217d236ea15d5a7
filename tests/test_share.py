"""Sharing in a process group: one build for all nodes, whatever the group's timeout, and errors on every rank.

A node is a root of its own here; `tests/test_share_nodes.py` does the same on machines with a network between them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

import nodecache
from nodecache import share
from nodecache.__main__ import main
from nodecache.share import CHUNK, CHUNKS, _depth, _sizes, _Transfer
from nodecache.torch import share as shared

PROGRAM = Path(__file__).with_name("share_ranks.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "wrong", ["5", float("nan"), float("inf"), 10**19, pytest.param(10**5000, id="huge"), -1, True, [1]]
)
def test_a_time_limit_that_cannot_be_is_an_error_that_names_the_argument_before_anything_is_called(wrong):
    called = []
    with pytest.raises(nodecache.SpecError, match=r"^timeout is not"):
        shared(lambda: called.append(1), timeout=wrong)
    assert called == []


@pytest.fixture
def ranks(start, tmp_path):
    """``ranks([{...}, ...], timeout=30)``: start the ranks; see ``share_ranks.py``. ``root`` is a name."""
    count = iter(range(100))

    def begin(plans, timeout=30.0, share_timeout=None, backend="gloo"):
        folder = tmp_path / f"group{next(count)}"
        folder.mkdir()
        plan = [{**each, "root": str(tmp_path / each["root"])} for each in plans]
        said = {"folder": str(folder), "timeout": timeout, "share_timeout": share_timeout, "backend": backend}
        said["ranks"] = plan
        child = start(PROGRAM, json.dumps(said))
        child.folder = folder
        return child

    return begin


def entries(root):
    return sorted(path.name for path in (root / "entries").iterdir()) if (root / "entries").exists() else []


def test_case_63_two_nodes_without_a_common_path_share_one_compile(
    ranks, tiny, compiler, tmp_path, start, load_program
):
    source = str(tiny())
    plan = [{"root": "a", "source": source}] * 3 + [{"root": "b", "source": source}]
    said = ranks(plan).wait().json
    assert [each.get("sum") for each in said] == [5] * 4, said
    assert compiler.compiles == 1
    assert [Path(each["path"]).parents[2].name for each in said] == ["a", "a", "a", "b"]
    digests = {open(each["path"], "rb").read() for each in said}  # noqa: SIM115
    assert len(digests) == 1
    lines = [json.loads(line) for line in (tmp_path / "b/attempts/history").read_text().splitlines()]
    assert [(line["outcome"], line["name"], line["key"]) for line in lines] == [("fetched", "tiny", said[0]["key"])]
    shutil.rmtree(tmp_path / "a")
    again = start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / "b")}).wait().json
    assert (again["role"], again["sum"]) == ("hit", 5)
    assert compiler.compiles == 1
    assert not any((tmp_path / "b" / "staging").iterdir())


def test_case_63_without_sharing_each_node_compiles_once(ranks, tiny, compiler):
    source = str(tiny())
    plan = [{"root": root, "source": source, "instead": "nodecache.load('tiny', [source])"} for root in "aaab"]
    said = ranks(plan).wait().json
    assert not any("error" in each for each in said)
    assert compiler.compiles == 2


@pytest.mark.integration
def test_case_61_a_build_that_takes_longer_than_the_groups_timeout_succeeds(ranks, tiny, compiler):
    compiler.set(before="sleep 20")
    source = str(tiny())
    said = ranks([{"root": root, "source": source} for root in "ab"], timeout=5).wait(90).json
    assert [each.get("sum") for each in said] == [5, 5], said
    assert min(each["seconds"] for each in said) > 19
    assert compiler.compiles == 1


def test_a_build_that_fails_raises_on_every_rank_with_the_compilers_words(ranks, tiny, compiler):
    compiler.set(before="sleep 1", instead="echo 'broken.h:7: error: no way' >&2; exit 1")
    source = str(tiny())
    said = ranks([{"root": root, "source": source} for root in "aabc"]).wait().json
    assert [each["error"] for each in said] == ["BuildError"] * 4
    assert all("broken.h:7: error: no way" in each["text"] for each in said)
    assert max(each["seconds"] for each in said) < 20
    assert compiler.compiles == 1
    assert "rank 0 of the group" in said[3]["text"]


def test_a_node_that_has_it_compiles_nothing_and_provides_it(ranks, tiny, compiler, monkeypatch, tmp_path):
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "b"))
    nodecache.load("tiny", [tiny()])
    assert compiler.compiles == 1
    source = str(tiny())
    said = ranks([{"root": root, "source": source} for root in "abc"]).wait().json
    assert [each.get("sum") for each in said] == [5] * 3, said
    assert compiler.compiles == 1
    assert entries(tmp_path / "a") == entries(tmp_path / "b") == entries(tmp_path / "c")


def test_nodes_with_another_recipe_get_their_own_build(ranks, tiny, compiler, tmp_path):
    source = str(tiny())
    other = {"CXXFLAGS": "-O1"}  # as another processor, torch or compiler would
    plan = [{"root": root, "source": source, "env": other if root in "bd" else {}} for root in "abcd"]
    said = ranks(plan).wait().json
    assert [each.get("sum") for each in said] == [5] * 4, said
    assert compiler.compiles == 2
    assert entries(tmp_path / "a") == entries(tmp_path / "c") != entries(tmp_path / "b") == entries(tmp_path / "d")


def test_a_call_that_loads_two_modules_and_ranks_that_load_different_ones(ranks, tiny, compiler, tmp_path):
    one, two = str(tiny()), str(tiny("other"))
    both = f"[nodecache.load('other', [{two!r}]), nodecache.load('tiny', [source])][1]"
    plan = [{"root": "a", "source": one, "call": both}, {"root": "b", "source": one}, {"root": "c", "source": one}]
    plan[2]["call"] = both
    said = ranks(plan).wait().json
    assert [each.get("sum") for each in said] == [5] * 3, said
    assert compiler.compiles == 2
    assert [len(entries(tmp_path / root)) for root in "abc"] == [2, 1, 2]


def test_an_entry_that_does_not_fit_the_headers_of_a_node_is_built_there(ranks, tiny, compiler, tmp_path):
    sources = []
    for name, value in (("a", 0), ("b", 1)):
        source = tiny(folder=tmp_path / name / "src", extra='#include "x.h"', expression="a + b + X")
        (source.parent / "x.h").write_text(f"#define X {value}\n")
        sources.append(str(source))
    said = ranks([{"root": f"r{n}", "source": source} for n, source in enumerate(sources)]).wait().json
    assert [each.get("sum") for each in said] == [5, 6], said
    assert compiler.compiles == 2


def test_what_is_no_failure_of_a_build_raises_on_every_rank_too(ranks, tiny, tmp_path):
    source = str(tiny())
    said = ranks([{"root": "a", "source": source}, {"root": "b", "source": str(tmp_path / "none.cpp")}]).wait().json
    assert [each["error"] for each in said] == ["BuildError", "SpecError"]
    assert "none.cpp" in said[0]["text"]


def test_share_names_its_own_limit(ranks, tiny, compiler):
    compiler.set(before="sleep 30")
    source = str(tiny())
    said = ranks([{"root": root, "source": source} for root in "ab"], share_timeout=2).wait(25).json
    assert [each["error"] for each in said] == ["LeaseTimeout"] * 2
    assert all("share's own limit" in each["text"] for each in said)


def test_a_rank_that_is_killed_during_the_build_surfaces_as_the_groups_error(ranks, tiny, compiler, tmp_path):
    compiler.set(before="sleep 3")
    source = str(tiny())
    child = ranks([{"root": root, "source": source} for root in "abc"], timeout=20)
    compiler.wait_for(1, 60)
    os.kill(json.loads((child.folder / "2.pid").read_text()), signal.SIGKILL)
    said = child.wait(60).json
    assert said[2] is None
    for each in said[:2]:
        assert each["error"] == "RuntimeError" or "Error" in each["error"]
        assert each["seconds"] < 30
    assert entries(tmp_path / "b") == []


DIES_SENDING = """
from nodecache import share as module
read = module._Way._read
def dies(self, number):
    if number == 1:
        os.kill(os.getpid(), 9)
    return read(self, number)
module._Way._read = dies
module.CHUNK = 1024
"""


def test_a_provider_that_dies_in_the_middle_of_a_transfer_leaves_nothing_half(
    ranks, tiny, compiler, tmp_path, start, load_program
):
    source = str(tiny())
    plan = [{"root": root, "source": source, "before": DIES_SENDING} for root in "abc"]
    said = ranks(plan, timeout=10).wait(60).json
    assert said[0] is None
    assert all("error" in each for each in said[1:]), said
    for root in "bc":
        assert entries(tmp_path / root) == []
        assert not any((tmp_path / root / "staging").iterdir())
    again = start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / "b")}).wait().json
    assert again["role"] == "built"


SPOILS = """
from nodecache import share as module
read = module._Way._read
def spoil(self, number):
    found = read(self, number)
    for piece in found:
        piece[len(piece) // 2] ^= 1
    return found
module._Way._read = spoil
"""


def test_what_arrives_damaged_is_built_where_it_arrived(ranks, tiny, compiler, tmp_path):
    source = str(tiny())
    plan = [{"root": root, "source": source, "before": SPOILS} for root in "ab"]
    child = ranks(plan)
    result = child.wait()
    assert [each.get("sum") for each in result.json] == [5, 5], result
    assert compiler.compiles == 2
    assert "did not come whole" in result.err


FULL = """
import builtins
from nodecache import share as module
def full(path, mode="r", *rest, **options):
    if rank == 1 and mode == "xb":
        raise OSError(28, "No space left on device", path)
    return builtins.open(path, mode, *rest, **options)
module.open = full
"""


def test_a_node_that_cannot_keep_it_passes_it_on_and_builds(ranks, tiny, compiler, tmp_path):
    source = str(tiny())
    plan = [{"root": root, "source": source, "before": FULL} for root in "abcd"]  # 1 is between 0 and 3
    result = ranks(plan).wait()
    assert [each.get("sum") for each in result.json] == [5] * 4, result
    assert compiler.compiles == 2
    assert "No space left" in result.err


SMALL = """
from nodecache import share as module
module.CHUNK, module.CHUNKS = 1000, 2
"""


def test_nine_nodes_get_it_through_the_tree_in_small_pieces(ranks, tiny, compiler, tmp_path):
    source = str(tiny())
    said = ranks([{"root": f"r{n}", "source": source, "before": SMALL} for n in range(9)]).wait(90).json
    assert [each.get("sum") for each in said] == [5] * 9, said
    assert compiler.compiles == 1
    assert len({open(each["path"], "rb").read() for each in said}) == 1  # noqa: SIM115


def test_a_group_of_some_ranks_shares_and_the_others_go_on(ranks, tiny, compiler):
    source = str(tiny())
    instead = """
g = dist.new_group([0, 2])
if rank != 1:
    assert share(lambda: nodecache.load('tiny', [source]), group=g).add(1, 2) == 3
"""
    said = ranks([{"root": root, "source": source, "instead": instead} for root in "abc"]).wait().json
    assert not any("error" in each for each in said), said
    assert compiler.compiles == 1


def test_where_the_group_is_not_gloos_one_is_made_for_the_time_of_the_call(ranks, tiny, compiler):
    source = str(tiny())
    after = "from torch.distributed import distributed_c10d as c; said['groups'] = len(c._world.pg_map)"
    plan = [{"root": root, "source": source, "after": after} for root in "ab"]
    said = ranks(plan, backend="cpu:gloo,cuda:gloo").wait().json
    assert [(each.get("sum"), each["groups"]) for each in said] == [(5, 1)] * 2, said
    assert compiler.compiles == 1


def test_without_a_process_group_the_remedy_is_named():
    with pytest.raises(nodecache.SpecError, match="init_process_group"):
        shared(lambda: None)


@pytest.mark.parametrize("size", [1, CHUNK, CHUNK * CHUNKS, CHUNK * CHUNKS + 1, 10 * CHUNK * CHUNKS - 7])
@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 9, 100])
def test_the_pieces_of_all_rounds_are_the_whole_for_every_node(size, nodes):
    transfer = _Transfer("", list(range(nodes)))
    transfer.size = size
    for position in range(1, nodes):
        depth = _depth(position)
        sizes = [_sizes(size, number - depth + 1) for number in range(transfer.rounds())]
        assert sum(map(sum, sizes)) == size
        assert max(map(len, sizes)) <= CHUNKS
        # a parent has a round's pieces one round before its children ask for them
        parent = [_sizes(size, number - _depth((position - 1) // 2) + 1) for number in range(transfer.rounds())]
        if depth > 1:
            assert parent[:-1] == sizes[1:]


def test_importing_the_drop_ins_does_not_import_share(start):
    code = "import sys, nodecache.torch; assert 'nodecache.share' not in sys.modules; nodecache.torch.share"
    result = start(code).wait()
    assert (result.status, result.err) == (0, "")
    assert share.share is shared


REDUCE = """
import torch
whole = torch.ones(1)
dist.all_reduce(whole)
"""


def in_a_collective(source, first):
    """Four ranks that reduce a tensor, rank 0 after it has made the call ``first``."""
    plan = []
    for number in range(4):
        own = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
        call = first if number == 0 or first.startswith("share") else ""
        each = {"root": "a", "source": source, "env": own, "instead": f"{call}\n{REDUCE}"}
        plan.append({**each, "after": "said['whole'] = whole.item()"})
    return plan


def test_a_rank_that_builds_while_the_others_are_in_a_collective_is_named_from_outside(
    ranks, tiny, compiler, monkeypatch, tmp_path, capsys, wait_until
):
    go = tmp_path / "go"
    compiler.set(before=f"until [ -e {go} ]; do sleep 0.1; done")
    child = ranks(in_a_collective(str(tiny("lazy")), "nodecache.load('lazy', [source])"), timeout=4)
    compiler.wait_for(1, 60)
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "a"))
    others = [child.folder / f"{number}.json" for number in (1, 2, 3)]
    wait_until(lambda: all(path.exists() for path in others), 60, "end of the others' collective")
    assert {json.loads(path.read_text())["error"] for path in others} == {"RuntimeError"}  # the group's own limit
    assert main(["status", "--json"]) == 0
    (build,) = json.loads(capsys.readouterr().out)["builds"]
    assert (build["name"], build["rank"], build["state"]) == ("lazy", 0, "running")
    assert (build["pid"], build["waiters"]) == (int((child.folder / "0.pid").read_text()), 0)
    assert build["seconds"] > 3
    assert main(["status"]) == 0
    assert re.search(rf"lazy: running\n.*pid {build['pid']} \(rank 0\) on .*\(\d+ s\)", capsys.readouterr().out)
    go.touch()
    child.wait(60)
    assert main(["report"]) == 0
    found = re.search(r"build of lazy by rank 0, pid (\d+) on \S+: built, ([\d.]+) s", capsys.readouterr().out)
    assert int(found[1]) == build["pid"]
    assert float(found[2]) > 3


@pytest.mark.parametrize("remedy", ["share", "warm"])
def test_a_module_that_is_shared_or_warmed_keeps_no_rank_waiting_in_a_collective(
    remedy, ranks, tiny, compiler, monkeypatch, tmp_path
):
    """The build takes twice as long as the group's limit."""
    compiler.set(before="sleep 8")
    source = tiny("lazy")
    call = "nodecache.load('lazy', [source])"
    if remedy == "warm":
        monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "a"))
        assert main(["warm", str(source)]) == 0
    else:
        call = f"share(lambda: {call})"
    said = ranks(in_a_collective(str(source), call), timeout=4).wait(120).json
    assert [each.get("whole") for each in said] == [4.0] * 4, said
    assert compiler.compiles == 1
