"""The test bed's machines are what they claim to be, and nothing is left of them."""

import pytest

from tests.testbed.faults import traced
from tests.testbed.nodes import Nodes, container
from tests.testbed.processes import Running, run, state, until
from tests.testbed.slurm import Cluster

pytestmark = pytest.mark.integration


def test_fake_machines_differ_in_all_that_makes_a_node():
    tell = ["sh", "-c", "uname -n; cat /proc/sys/kernel/random/boot_id; touch /tmp/mine; ls /tmp; echo $$"]
    with Nodes(2) as nodes:
        told = [run(nodes.on(name, *tell), timeout=20).split() for name in nodes.names]
        assert run(nodes.on_head("uname", "-n"), timeout=20).split() == ["head"]
    hostnames, boot_ids, *files, _pids = zip(*told, strict=True)
    assert hostnames == ("node1", "node2")
    assert len(set(boot_ids)) == 2
    assert files == [("mine", "mine")]


def test_a_crash_takes_every_process_of_a_machine_and_no_other():
    with Nodes(2) as nodes:
        with Running(nodes.on("node1", "sh", "-c", "setsid sleep 600 & echo up; wait")) as lost:
            until(lambda: "up" in lost.output(), 20, "the command on node1")
            nodes.crash("node1")
            lost.wait(10)
        assert run(nodes.on("node2", "echo", "here"), timeout=20) == "here\n"


def test_a_pulled_cable_cuts_a_machine_off():
    ask = ["bash", "-c", "exec 3<>/dev/tcp/node2/9"]
    with Nodes(2) as nodes:
        nodes.cable("node2", plugged=False)
        run(nodes.on("node1", "timeout", "1", *ask), timeout=20, status=124)
        nodes.cable("node2", plugged=True)
        assert "refused" in run(nodes.on("node1", *ask), timeout=60, status=1)


def test_killing_the_way_in_kills_the_command_inside():
    with Nodes(1) as nodes:
        with Running(nodes.on("node1", "sh", "-c", "echo $$; exec sleep 600")) as running:
            pid = until(lambda: running.output().split(), 20, "the command's pid")[0]
        alive = nodes.on("node1", "grep", "-s", "^State:.[^Z]", f"/proc/{pid}/status")
        until(lambda: run(alive, timeout=20, status=None) == "", 20, "its end")


def test_containers_have_their_own_pids_and_share_tmp(tmp_path):
    tell = ["sh", "-c", f"echo $$ >> {tmp_path}/pids"]
    for _ in range(2):
        run(container(*tell), timeout=20)
    assert (tmp_path / "pids").read_text().split() == ["1", "1"]


def test_a_cluster_runs_ranks_on_nodes_with_their_own_tmp_and_leaves_nothing():
    with Cluster(nodes=2, cpus=2) as cluster:
        script = "touch /tmp/$SLURM_LOCALID; echo $(uname -n) $SLURMD_NODENAME; setsid sleep 600 & echo pid $!"
        told = cluster.run("srun", "-N2", "--ntasks-per-node=2", "sh", "-c", script).split("\n")
        names = sorted(line for line in told if line and not line.startswith("pid"))
        assert names == sorted(f"{name} {name}" for name in cluster.names for _ in range(2))
        listing = cluster.run("srun", "-N2", "ls", "/tmp").split()
        assert listing == ["0", "1", "0", "1"]
    daemons = [line.split()[1] for line in told if line.startswith("pid")]
    assert len(daemons) == 4
    assert {state(pid) for pid in daemons} <= {None, "Z"}


def test_faults_are_injected_into_the_command_and_its_children(tmp_path):
    flock = ["sh", "-c", f"flock {tmp_path} true; echo $?"]
    assert run(flock, timeout=20).split() == ["0"]
    assert "No locks available" in run(traced(*flock, inject="flock:error=ENOLCK"), timeout=20)
