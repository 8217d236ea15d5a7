"""Ranks with a root each: they build one time each, as they were told to, and the log says that they do."""

from __future__ import annotations

import os

import pytest

from nodecache.rank_roots import siblings

LOAD = """\
import logging, os, sys
import nodecache
logging.basicConfig()
place = sys.argv[2].format(rank=os.environ["RANK"])
print(nodecache.load("tiny", [sys.argv[1]], root=place).add(2, 3))
"""


@pytest.fixture
def rank(start):
    """Run one of four ranks of this node to its end; returns what it said."""

    def run(number, *arguments, env=None):
        numbers = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
        result = start(LOAD, *arguments, env={**numbers, **(env or {})}).wait()
        assert result.out == "5\n", result.err
        return result.err

    return run


def test_a_folder_for_each_rank_is_told_once_with_the_remedy(rank, tiny, compiler, tmp_path, monkeypatch):
    monkeypatch.delenv("NODECACHE_ROOT")
    source, place = tiny(), f"{tmp_path}/rank{{rank}}/root"
    said = [rank(number, source, place) for number in (3, 2, 1, 0)]
    assert compiler.compiles == 4
    assert [text.count("ranks of this node use") for text in said] == [0, 0, 0, 1]
    assert "4 ranks of this node use 4 roots, because the folder that was chosen (build_directory" in said[-1]
    assert f"{tmp_path}/rank0/root, {tmp_path}/rank1/root" in said[-1]
    assert "set NODECACHE_ROOT to one" in said[-1]
    assert "ranks of this node" not in rank(0, source, place)  # a hit


def test_with_one_root_for_all_there_is_one_build_and_nothing_is_told(rank, tiny, compiler, root, tmp_path):
    source = tiny()
    said = [rank(number, source, f"{tmp_path}/rank{{rank}}/root") for number in (3, 2, 1, 0)]
    assert compiler.compiles == 1
    assert not any("ranks of this node" in text for text in said)


def test_folders_that_differ_by_something_else_are_not_taken_for_ranks(tmp_path):
    for name in ("job0/rank0/nodecache_0", "job0/rank1/nodecache_0", "job0/rank10/nodecache_0"):
        (tmp_path / name / "entries").mkdir(parents=True)
    (tmp_path / "job1/rank0").mkdir(parents=True)
    path = f"{tmp_path}/job0/rank0/nodecache_0"
    assert siblings(path, 0, range(4)) == [path, path.replace("rank0", "rank1")]
    assert len(siblings(f"{tmp_path}/job0/rank10/nodecache_0", 1, range(1, 4))) < 2


def test_roots_of_other_users_are_not_taken_for_those_of_ranks(tmp_path):
    uid = os.getuid()
    for number in (uid, uid + 1):
        (tmp_path / f"nodecache_{number}/entries").mkdir(parents=True)
    assert len(siblings(f"{tmp_path}/nodecache_{uid}", uid, range(uid, uid + 4))) < 2


def test_numbers_with_leading_zeros_are_ranks_too(tmp_path):
    for name in ("rank_007", "rank_010"):
        (tmp_path / name / "entries").mkdir(parents=True)
    assert siblings(f"{tmp_path}/rank_007", 7, range(12)) == [f"{tmp_path}/rank_007", f"{tmp_path}/rank_010"]
