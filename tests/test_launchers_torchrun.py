"""torchrun on one node and on several: one compile on each, whatever the ranks."""

import os
import signal
import sys
import time
from contextlib import ExitStack

import pytest

from tests.testbed.nodes import Nodes
from tests.testbed.processes import Running, parent, until
from tests.testbed.requirements import needs

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture
def env(job):
    needs(modules=["torch"])
    return {**job.env, "OMP_NUM_THREADS": "1"}


def test_eight_ranks_of_one_node_compile_once(job, env, saw):
    job.hold()
    with Running([*TORCHRUN, "--standalone", "--nproc-per-node=8", *job.rank()[1:]], env=env) as running:
        seconds = job.meet(8, running)
    reports = job.check(nodes=1, ranks=8)
    assert [(each["launcher"], each["rank"], each["local_rank"]) for each in reports] == [
        ("torchrun", rank, rank) for rank in range(8)
    ]
    saw("torchrun", job, seconds)


def test_three_nodes_compile_once_each(job, env, saw):
    options = [
        "--nnodes=3",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1:29400",
        "--rdzv-id=job",
    ]
    job.hold()
    with Nodes(3) as nodes, ExitStack() as stack:
        commands = [nodes.on(name, *TORCHRUN, *options, *job.rank()[1:]) for name in nodes.names]
        agents = [stack.enter_context(Running(command, env=env)) for command in commands]
        seconds = job.meet(6, *agents)
    reports = job.check(nodes=3, ranks=6)
    assert [each["rank"] for each in reports] == list(range(6))
    places = {(each["hostname"], each["node_rank"], each["local_rank"]) for each in reports}
    assert len(places) == 6
    assert {(each["world_size"], each["local_world_size"]) for each in reports} == {(6, 2)}
    saw("torchrun, c10d", job, seconds)


def test_a_restart_after_the_builders_death_goes_on_by_itself(job, env, saw):
    """The agent kills all workers when one dies, here the builder in mid-build, and starts them anew.

    Until it notices, a waiter takes over and compiles, which may be for nothing.
    """
    job.hold_one()
    options = ["--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    with Running([*TORCHRUN, *options, *job.rank()[1:]], env=env) as running:
        job.await_compiles()
        worker = until(lambda: worker_above(job.compilers()[0], running.process.pid), 20, "the builder")
        os.kill(worker, signal.SIGKILL)
        assert running.wait(100) == 0, running.output()
        seconds = time.monotonic() - running.began
    job.check(nodes=1, ranks=4, compiles=job.compiles().total())
    assert 2 <= job.compiles().total() <= 3
    saw("torchrun, restarted", job, seconds)


def worker_above(pid, agent):
    """The agent's child that a process descends from."""
    while pid and parent(pid) != agent:
        pid = parent(pid)
    return pid
