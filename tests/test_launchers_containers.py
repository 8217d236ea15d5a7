"""Containers: own process numbers and mounts, perhaps an own hostname, and one /tmp."""

import time
from contextlib import ExitStack

import pytest

from tests.testbed.nodes import container
from tests.testbed.processes import Running, until

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration


def named(hostname, *command):
    """The command in a container with a hostname of its own, or with the machine's for None."""
    if hostname is None:
        return container(*command)
    return container("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', hostname, *command)


@pytest.mark.parametrize("hostnames", [(None, None), ("c1", "c2")], ids=["same hostname", "own hostnames"])
def test_containers_on_one_tmp_compile_once(job, saw, hostnames):
    """Each container's first rank is its pid 1, so pids are equal and tell nothing."""
    ranks = 'echo $$ >> "$1"; shift; "$@" & "$@" & wait'
    job.hold()
    with ExitStack() as stack:
        commands = [
            named(hostname, "sh", "-c", ranks, "sh", str(job.folder / "pids"), *job.rank()) for hostname in hostnames
        ]
        running = [stack.enter_context(Running(command, env=job.env)) for command in commands]
        seconds = job.meet(4, *running)
    assert (job.folder / "pids").read_text().split() == ["1", "1"]
    assert len(job.reports()) == 4
    assert job.compiles().total() == 1
    saw("containers", job, seconds)


def test_a_container_that_dies_in_mid_build_is_followed_by_the_other(job, saw):
    """Both ranks are pid 1 of their namespace: the dead builder's pid is the waiter's own."""
    job.hold_one()
    began = time.monotonic()
    with Running(container(*job.rank()), env=job.env) as builder:
        job.await_compiles()
        with Running(container(*job.rank()), env=job.env) as waiter:
            builder.kill()
            assert waiter.wait(60) == 0, waiter.output()
    (report,) = job.reports()
    assert report["pid"] == 1
    assert job.compiles().total() == 2
    saw("containers, builder killed", job, time.monotonic() - began)


def test_a_killed_containers_compiler_dies_with_it(job):
    job.hold_one()
    with Running(container(*job.rank()), env=job.env) as builder:
        job.await_compiles()
        assert job.processes() != []
        builder.kill()
    until(lambda: job.processes() == [], 10, job.processes)
