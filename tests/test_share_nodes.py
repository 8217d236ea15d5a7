"""Sharing between machines with a network between them: one compile in all, and a lost machine ends nothing half."""

import json
import sys
import time
from contextlib import ExitStack

import pytest

from tests.testbed.nodes import Nodes
from tests.testbed.processes import Running, run
from tests.testbed.requirements import needs

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

RANK = """
import json, os, sys, time
from datetime import timedelta
import torch.distributed as dist
import nodecache
from nodecache.torch import share

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
began = time.monotonic()
said = {**nodecache.node()._asdict()}
try:
    module = share(lambda: nodecache.load("tiny", [sys.argv[1]]))
    with open(module.__nodecache__.path, "rb") as file:
        digest = nodecache.digest.Digester()
        digest.update(file.read())
    said.update(sum=module.add(2, 3), role=module.__nodecache__.role, digest=digest.digest())
except Exception as error:
    said.update(error=f"{type(error).__name__}: {error}")
said["seconds"] = time.monotonic() - began
path = os.path.join(os.environ["TESTBED_REPORTS"], os.environ["RANK"])
with open(f"{path}.part", "w") as file:
    json.dump(said, file)
os.rename(f"{path}.part", f"{path}.json")
os._exit(0)  # a lost peer is not to be said goodbye to
"""


@pytest.fixture
def program(job):
    needs(modules=["torch"])
    path = job.folder / "share.py"
    path.write_text(RANK.replace("import nodecache\n", "import nodecache\nimport nodecache.digest\n"))
    return str(path)


@pytest.fixture
def env(job):
    return {**job.env, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


def test_three_nodes_compile_once_in_all_under_torchrun(job, program, env, saw):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=2"]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=share"]
    with Nodes(3) as nodes, ExitStack() as stack:
        commands = [nodes.on(name, *torchrun, *meeting, program, str(job.source)) for name in nodes.names]
        agents = [stack.enter_context(Running(command, env=env)) for command in commands]
        for agent in agents:
            assert agent.wait(100) == 0, agent.output()
        seconds = time.monotonic() - agents[0].began
        for name in nodes.names:  # each has it in its own /tmp
            assert len(run(nodes.on(name, "ls", f"{job.root}/entries"), timeout=20).split()) == 1
    reports = job.reports()
    assert [each.get("sum") for each in reports] == [5] * 6, reports
    assert len({each["hostname"] for each in reports}) == 3
    assert len({each["digest"] for each in reports}) == 1
    assert job.compiles().total() == 1
    saw("torchrun, share", job, seconds)


def test_a_node_whose_cable_is_pulled_is_told_to_the_others_and_has_nothing_half(job, program, env):
    job.hold()
    meeting = ["env", "MASTER_ADDR=node1", "MASTER_PORT=29500", "WORLD_SIZE=3"]
    with Nodes(3) as nodes, ExitStack() as stack:
        running = []
        for rank, name in enumerate(nodes.names):
            command = nodes.on(name, *meeting, f"RANK={rank}", sys.executable, program, str(job.source))
            running.append(stack.enter_context(Running(command, env=env)))
        job.await_compiles()
        nodes.cable("node3", plugged=False)
        for each in running:
            assert each.wait(60) == 0, each.output()
        job.release()
        for name in nodes.names[1:]:
            assert run(nodes.on(name, "find", job.root, "-name", "*.so"), timeout=20) == ""
    reports = [json.loads(path.read_text()) for path in sorted((job.folder / "reports").glob("*.json"))]
    assert len(reports) == 3
    assert all("error" in each and each["seconds"] < 30 for each in reports), reports
