"""srun on four nodes of a real SLURM cluster: one compile on each, and no end of a job that leaves anything behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.testbed.processes import until
from tests.testbed.requirements import needs
from tests.testbed.slurm import Cluster

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parent.parent / "examples" / "slurm"
EVERYWHERE = ["-N4", "--ntasks-per-node=4"]


@pytest.fixture(scope="module")
def cluster():
    with Cluster(nodes=4, cpus=4) as running:
        yield running


@pytest.fixture
def step(cluster, job):
    """An srun of all ranks that is in the middle of a compile on each node."""
    job.hold()
    with cluster.start("srun", *EVERYWHERE, *job.rank(), env=job.env) as running:
        job.await_compiles(4)
        (running.job_id,) = cluster.queue("--states=running")
        yield running


def srun_everywhere(cluster, job):
    """A run of all ranks to its end; returns the seconds."""
    job.hold()
    with cluster.start("srun", *EVERYWHERE, *job.rank(), env=job.env) as running:
        return job.meet(16, running)


def check_resubmission(cluster, job, saw, launcher):
    """Nothing of the ended job works on, and the same command goes through with one compile on each node."""
    until(lambda: cluster.queue() == [], 30, "end of the job")
    until(lambda: job.processes() == [], 10, lambda: f"still there: {job.processes()}")
    assert job.reports() == []
    job.forget()
    seconds = srun_everywhere(cluster, job)
    job.check(nodes=4, ranks=16)
    assert cluster.run("srun", "-N4", "ls", "-A", f"{job.root}/staging") == ""
    saw(launcher, job, seconds)


def test_sixteen_ranks_on_four_nodes_compile_once_each(cluster, job, saw):
    seconds = srun_everywhere(cluster, job)
    reports = job.check(nodes=4, ranks=16)
    assert [(each["launcher"], each["rank"], each["local_rank"], each["node_rank"]) for each in reports] == [
        ("slurm", rank, rank % 4, rank // 4) for rank in range(16)
    ]
    assert {(each["world_size"], each["local_world_size"]) for each in reports} == {(16, 4)}
    saw("srun", job, seconds)


def test_the_batch_script_itself_is_no_rank(cluster, job):
    script = job.folder / "alone.sh"
    script.write_text(f"#!/bin/sh\nexec {' '.join(job.rank())}\n")
    cluster.submit("-N2", "-n4", f"--output={job.folder}/output", script, env=job.env)
    (report,) = job.check(nodes=1, ranks=1)
    assert (report["launcher"], report["rank"], report["local_rank"]) == ("none", None, None)
    assert "SLURM_PROCID" in report["notes"][0]


def test_torchrun_inside_srun_is_what_started_the_ranks(cluster, job, saw):
    """SLURM's local id is the agent's there: 0 in every worker."""
    needs(modules=["torch"])
    job.hold()
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", "--rdzv-id=job"]
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", *rendezvous]
    command = ["srun", "-N2", "--ntasks-per-node=1", *agent, *job.rank()[1:]]
    with cluster.start(*command, env={**job.env, "OMP_NUM_THREADS": "1"}) as running:
        seconds = job.meet(4, running)
    reports = job.check(nodes=2, ranks=4)
    assert [(each["launcher"], each["rank"], each["local_rank"]) for each in reports] == [
        ("torchrun", rank, rank % 2) for rank in range(4)
    ]
    saw("srun, torchrun", job, seconds)


@pytest.mark.parametrize(("launcher", "mpirun"), [("hydra", "mpirun.mpich"), ("openmpi", "mpirun.openmpi")])
def test_mpirun_inside_an_allocation_is_what_started_the_ranks(cluster, job, saw, launcher, mpirun):
    """SLURM's own numbers are those of mpirun's daemons there."""
    needs(mpirun)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    job.hold()
    command = ["salloc", "-N2", "--ntasks-per-node=2", mpirun, "-n", "4", *job.rank()]
    with cluster.start(*command, env={**job.env, **root}) as running:
        seconds = job.meet(4, running)
    reports = job.check(nodes=2, ranks=4)
    assert [(each["launcher"], each["rank"], each["local_rank"]) for each in reports] == [
        (launcher, rank, rank % 2) for rank in range(4)
    ]
    saw(f"salloc, {mpirun}", job, seconds)


def test_a_step_killed_in_mid_build_can_be_submitted_again(cluster, job, step, saw):
    cluster.run("scancel", "--signal=KILL", f"{step.job_id}.0")
    assert step.wait(30) != 0
    check_resubmission(cluster, job, saw, "srun, killed before")


def test_a_cancelled_job_can_be_submitted_again(cluster, job, step, saw):
    cluster.run("scancel", step.job_id)
    assert step.wait(30) != 0
    check_resubmission(cluster, job, saw, "srun, cancelled before")


def test_a_preempted_job_can_be_submitted_again(cluster, job, step, saw):
    """The other job takes all CPUs of all nodes."""
    cluster.run("srun", "--partition=high", *EVERYWHERE, "true")
    assert step.wait(30) != 0
    check_resubmission(cluster, job, saw, "srun, preempted before")


def test_a_job_over_its_time_limit_can_be_submitted_again(cluster, job, step, saw):
    """The controller looks for such jobs twice a minute."""
    cluster.run("scontrol", "update", f"JobId={step.job_id}", "EndTime=now+1second")
    assert step.wait(90) != 0
    assert "TIME LIMIT" in step.output()
    check_resubmission(cluster, job, saw, "srun, time limit before")


def test_a_suspended_builder_keeps_its_lease(cluster, job, step, saw):
    """A gap is no death: another job on the node waits as long as it is told to, and the build goes on afterwards."""
    cluster.run("scontrol", "suspend", step.job_id)
    job.release()
    output = cluster.run("srun", f"--nodelist={cluster.names[0]}", *job.rank("3"), env=job.env, status=1)
    assert "LeaseTimeout" in output
    assert job.reports() == []
    cluster.run("scontrol", "resume", step.job_id)
    assert step.wait(60) == 0, step.output()
    job.check(nodes=4, ranks=16)
    saw("srun, suspended", job, time.monotonic() - step.began)


def test_the_example_batch_script_warms_every_node_before_its_step(cluster, job, saw):
    began = time.monotonic()
    output = job.folder / "output"
    activated = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    env = {**job.env, **activated}
    cluster.submit(f"--output={output}", "train.sbatch", env=env, cwd=EXAMPLE)
    seconds = time.monotonic() - began
    text = output.read_text()
    told = [line.split() for line in text.splitlines() if line.startswith("rank ")]
    assert len(told) == 8, text
    assert job.compiles() == dict.fromkeys({words[-1] for words in told}, 1), text
    saw("sbatch", job, seconds, nodes=2, ranks=len(told), **{"longest wait": "-"})
