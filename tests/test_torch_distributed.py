"""Waiting for a build is no collective: a process group's timeout does not end it."""

from __future__ import annotations

RANK = """\
import datetime, json, sys
import torch, torch.distributed as dist
import nodecache
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=5))
module = nodecache.load("tiny", [sys.argv[3]])
total = torch.tensor([module.add(rank, 1)])
dist.all_reduce(total)
print(json.dumps({"role": module.__nodecache__.role, "total": total.item()}))
dist.destroy_process_group()
"""


def test_a_build_may_take_longer_than_the_groups_timeout(start, tiny, compiler, tmp_path):
    """Case 61, on one node: the ranks meet within the group's five seconds after a build of eight."""
    compiler.set(before="sleep 8")
    source = tiny()
    ranks = [start(RANK, rank, tmp_path / "meet", source) for rank in range(2)]
    results = [rank.wait(90) for rank in ranks]
    assert [result.status for result in results] == [0, 0], [result.err for result in results]
    assert sorted(result.json["role"] for result in results) == ["built", "waited"]
    assert {result.json["total"] for result in results} == {3}
    assert compiler.compiles == 1
