"""The shared tier on a real S3 server with a network between: one compile in all, and every fault costs one line."""

import json
import sys
import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.s3_server import Server
from tests.testbed.nodes import NETWORK, Nodes
from tests.testbed.processes import Running, run, until

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # the first installs the packages

TIMEOUT = 10
WAIT = 40
BUILD_SECONDS = 15
BIG = 24 << 20
"""More than the buffers between a client and a server hold."""


class Told(NamedTuple):
    """What a node's process told: its role, its seconds, and all other lines it wrote."""

    role: str
    seconds: float
    said: list[str]


class Cluster:
    """Machines with an S3 server among them, and processes on them that load the job's extension."""

    def __init__(self, stack, job, program, count):
        self._stack = stack
        self._job = job
        self._program = program
        self.nodes = stack.enter_context(Nodes(count))
        self.server = stack.enter_context(Server(self.nodes, job.folder / "s3"))

    def start(self, name, **env):
        """Begin to load it on one machine."""
        command = self.nodes.on(name, sys.executable, "-c", self._program, "tiny", str(self._job.source))
        return self._stack.enter_context(Running(command, env={**self._job.env, **self.server.env, **env}))

    def load(self, name, **env):
        """Load it on one machine: its role, and the lines it wrote."""
        found = told(self.start(name, **env))
        return found.role, found.said

    def asked(self, name, method, folder):
        """How often a machine asked the server for something in a folder."""
        address = f"{NETWORK}.{name.removeprefix('node')}"
        return sum(by == address and how == method and folder in path for by, how, path in self.server.requests())

    def files(self, name, folder):
        """Names in a folder of a machine's root."""
        return run(self.nodes.on(name, "ls", f"{self._job.root}/{folder}"), timeout=20).split()


def told(running):
    assert running.wait(90) == 0, running.output()
    lines = running.output().splitlines()
    [report] = [json.loads(line) for line in lines if line.startswith("{")]
    assert report["sum"] == 5
    return Told(report["role"], report["seconds"], [line for line in lines if not line.startswith("{")])


@pytest.fixture
def cluster(job, load_program):
    """``cluster(count)``: that many machines and a server."""
    with ExitStack() as stack:
        yield lambda count: Cluster(stack, job, load_program, count)


@pytest.fixture
def big(job):
    """Make the extension a big one."""
    text = job.source.read_text(encoding="utf-8")
    job.source = job.folder / "tiny.cpp"
    job.source.write_text(f"{text}\nchar big[{BIG}] = {{1}};\n", encoding="utf-8")


def test_the_second_node_fetches_and_its_hit_does_not_ask_the_server(job, cluster):
    here = cluster(2)
    assert here.load("node1") == ("built", [])
    assert here.load("node2") == ("fetched", [])
    before = here.server.requests()
    assert here.asked("node2", "GET", "/archives/")
    assert here.load("node2") == ("hit", [])
    assert here.server.requests() == before
    assert job.compiles() == {"node1": 1}


@pytest.mark.parametrize("terse", [False, True], ids=["as AWS", "terse"])
def test_of_four_cold_nodes_one_compiles_and_the_others_wait_and_fetch(job, cluster, terse):
    here = cluster(4)
    if terse:
        here.server.be("terse")
    job.hold()
    running = [here.start(name, NODECACHE_REMOTE_WAIT="60") for name in here.nodes.names]
    for name, each in zip(here.nodes.names, running, strict=True):
        until(lambda name=name: here.asked(name, "PUT", "/claims/"), 60, each.output)
    job.release()
    each = [told(process) for process in running]
    assert sorted(one.role for one in each) == ["built", "fetched", "fetched", "fetched"]
    assert [one.said for one in each] == [[]] * 4
    assert job.compiles().total() == 1
    assert not any("/claims/" in name for name in here.server.objects())


@pytest.fixture
def eight_nodes(job, cluster):
    """Eight nodes with a server 200 ms away: one of them is in the middle of its compile, the others wait for it."""
    here = cluster(8)
    here.server.answer_after(0.2)
    job.hold()
    running = {name: here.start(name, NODECACHE_REMOTE_WAIT=str(WAIT)) for name in here.nodes.names}
    for name, each in running.items():
        until(lambda name=name: here.asked(name, "PUT", "/claims/"), 60, each.output)
    job.await_compiles()
    return here, running


def test_of_eight_nodes_far_from_the_server_one_compiles_and_the_last_has_it_soon_after(job, eight_nodes):
    _, running = eight_nodes
    began = min(each.began for each in running.values())
    job.release()
    found = [told(process) for process in running.values()]
    seconds = time.monotonic() - began
    assert sorted(one.role for one in found) == ["built", *["fetched"] * 7]
    assert job.compiles().total() == 1
    built = next(one.seconds for one in found if one.role == "built")
    print(f"built after {built:.1f} s, the last node had it after {max(one.seconds for one in found):.1f} s")
    assert seconds < WAIT  # nobody waited for the limit


def test_when_the_node_that_builds_for_eight_crashes_the_others_build_for_themselves_within_the_limit(job, eight_nodes):
    here, running = eight_nodes
    ((builder, _),) = job.compiles().items()
    here.nodes.crash(builder)
    running.pop(builder).wait(20)
    job.release()
    found = [told(process) for process in running.values()]
    roles = sorted(one.role for one in found)
    print(roles, sorted(round(one.seconds, 1) for one in found))
    assert set(roles) <= {"built", "fetched"}
    assert job.compiles().total() == 1 + roles.count("built")
    assert max(one.seconds for one in found) < WAIT + BUILD_SECONDS * len(found)


def test_where_the_server_knows_no_conditions_a_node_that_comes_later_waits_and_fetches(job, cluster):
    here = cluster(2)
    here.server.be("unaware")
    job.hold()
    builder = here.start("node1", NODECACHE_REMOTE_WAIT="60")
    job.await_compiles()
    waiter = here.start("node2", NODECACHE_REMOTE_WAIT="60")
    until(lambda: here.asked("node2", "GET", "/claims/") > 1, 60, waiter.output)
    job.release()
    each = [told(builder), told(waiter)]
    assert [(one.role, one.said) for one in each] == [("built", []), ("fetched", [])]
    assert job.compiles() == {"node1": 1}


def test_a_node_whose_cable_is_pulled_while_it_fetches_builds_in_bounded_time(job, cluster, big):
    here = cluster(2)
    assert here.load("node1") == ("built", [])
    here.server.hold("GET")
    running = here.start("node2", NODECACHE_REMOTE_TIMEOUT=str(TIMEOUT))
    until(lambda: here.server.is_held("GET"), 30, running.output)
    here.nodes.cable("node2", plugged=False)
    here.server.let_go("GET")
    role, seconds, said = told(running)
    assert role == "built"
    assert seconds < TIMEOUT + BUILD_SECONDS
    [line] = said
    assert "has not answered in time (NODECACHE_REMOTE_TIMEOUT); building here" in line
    assert job.compiles() == {"node1": 1, "node2": 1}
    assert len(here.files("node2", "entries")) == 1
    assert here.files("node2", "staging") == []


def test_a_node_that_crashes_in_the_middle_of_its_upload_leaves_nothing_half(job, cluster, big):
    here = cluster(3)
    here.server.hold("PUT")
    running = here.start("node1")
    until(lambda: here.server.is_held("PUT"), 60, running.output)
    here.nodes.crash("node1")
    running.wait(20)
    here.server.let_go("PUT")
    until(lambda: not here.server.is_held("PUT"), 30, "the end of the dead node's request")
    assert here.server.objects() == {}
    assert here.load("node2") == ("built", [])
    assert here.load("node3") == ("fetched", [])
    assert job.compiles() == {"node1": 1, "node2": 1}


FAULTS = {
    "killed": (Server.kill, "building here"),
    "500": (Server.fail, "building here"),
    "no bucket": (Server.remove_bucket, "not putting it there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_is_of_no_use_costs_each_node_a_line_and_a_build(job, cluster, fault):
    here = cluster(2)
    act, so = FAULTS[fault]
    act(here.server)
    running = [here.start(name, AWS_MAX_ATTEMPTS="2") for name in here.nodes.names]
    for role, seconds, said in map(told, running):
        assert role == "built"
        assert seconds < BUILD_SECONDS + TIMEOUT
        [line] = said
        assert line.startswith("NODECACHE_REMOTE (s3://bucket/path) is of no use for 'tiny': ")
        assert line.endswith(so)
    assert job.compiles() == {"node1": 1, "node2": 1}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_breaks_while_a_node_builds_costs_a_line(job, cluster, fault):
    here = cluster(1)
    job.hold()
    running = here.start("node1", AWS_MAX_ATTEMPTS="2")
    job.await_compiles()
    FAULTS[fault][0](here.server)
    job.release()
    role, seconds, said = told(running)
    assert role == "built"
    assert seconds < BUILD_SECONDS + TIMEOUT
    [line] = said
    assert line.endswith("not putting it there")


def test_what_was_signed_with_another_key_is_refused(job, cluster):
    here = cluster(4)
    assert here.load("node1", NODECACHE_REMOTE_KEY="first") == ("built", [])
    assert here.load("node2", NODECACHE_REMOTE_KEY="first") == ("fetched", [])
    role, [line] = here.load("node3", NODECACHE_REMOTE_KEY="second")
    assert role == "built"
    assert "is not signed with NODECACHE_REMOTE_KEY; building here" in line
    assert here.load("node4", NODECACHE_REMOTE_KEY="second") == ("fetched", [])
    assert job.compiles() == {"node1": 1, "node3": 1}


def test_a_node_that_waits_says_once_that_it_refuses_what_is_there(job, cluster):
    here = cluster(3)
    assert here.load("node1", NODECACHE_REMOTE_KEY="first") == ("built", [])
    job.hold()
    env = {"NODECACHE_REMOTE_KEY": "second", "NODECACHE_REMOTE_WAIT": "60"}
    builder = here.start("node2", **env)
    job.await_compiles(2)
    waiter = here.start("node3", **env)
    until(lambda: here.asked("node3", "GET", "/recipes/") > 2, 60, waiter.output)
    job.release()
    each = [told(builder), told(waiter)]
    assert [one.role for one in each] == ["built", "fetched"]
    assert [len(one.said) for one in each] == [1, 1], each


def test_a_node_that_cannot_put_its_entry_there_keeps_nobody_waiting(job, cluster):
    here = cluster(2)
    here.server.fail("/archives/")
    for name in here.nodes.names:
        role, seconds, said = told(here.start(name, AWS_MAX_ATTEMPTS="2", NODECACHE_REMOTE_WAIT="60"))
        assert (role, len(said)) == ("built", 1), said
        assert seconds < BUILD_SECONDS + TIMEOUT
        assert here.server.objects() == {}
    assert job.compiles() == {"node1": 1, "node2": 1}


@pytest.mark.parametrize(
    ("folder", "empty", "why"),
    [
        ("/archives/", False, "is damaged"),
        ("/recipes/", False, "makes no sense"),
        ("/recipes/", True, "makes no sense"),
    ],
    ids=["archive", "record", "empty record"],
)
def test_what_is_garbled_in_the_bucket_is_refused_and_replaced(job, cluster, folder, empty, why):
    here = cluster(3)
    assert here.load("node1") == ("built", [])
    [(name, size)] = [(name, size) for name, size in here.server.objects().items() if folder in name]
    here.server.garble(name, 0 if empty else size)
    role, [line] = here.load("node2")
    assert role == "built"
    assert why in line
    assert line.endswith("building here")
    assert len(here.files("node2", "entries")) == 1
    assert here.load("node3") == ("fetched", [])
    assert job.compiles() == {"node1": 1, "node2": 1}
