"""mpirun of Open MPI and of MPICH, on one node and on two."""

import pytest

from tests.testbed.nodes import NETWORK, Nodes
from tests.testbed.processes import Running
from tests.testbed.requirements import needs

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def on_two_nodes(launcher, nodes, env):
    """mpirun's command line up to the ranks' own."""
    if launcher == "openmpi":
        passed = [word for name in env for word in ("-x", name)]
        reach = ["--mca", "plm_rsh_agent", nodes.agent, "--mca", "oob_tcp_if_include", f"{NETWORK}.0/24"]
        return ["mpirun.openmpi", "--oversubscribe", *reach, "--host", "node1:2,node2:2", *passed]
    return [
        "mpirun.mpich",
        "-launcher",
        "rsh",
        "-launcher-exec",
        nodes.agent,
        "-hosts",
        "node1,node2",
        "-ppn",
        "2",
        "-n",
        "4",
    ]


@pytest.mark.parametrize(
    ("launcher", "mpirun"),
    [("openmpi", ["mpirun.openmpi", "--oversubscribe", "-n", "4"]), ("hydra", ["mpirun.mpich", "-n", "4"])],
)
def test_four_ranks_of_one_node_compile_once(job, saw, launcher, mpirun):
    needs(mpirun[0])
    job.hold()
    with Running([*mpirun, *job.rank()], env={**job.env, **AS_ROOT}) as running:
        seconds = job.meet(4, running)
    reports = job.check(nodes=1, ranks=4)
    assert [(each["launcher"], each["rank"], each["local_rank"], each["local_world_size"]) for each in reports] == [
        (launcher, rank, rank, 4) for rank in range(4)
    ]
    saw(mpirun[0], job, seconds)


@pytest.mark.parametrize("launcher", ["openmpi", "hydra"])
def test_two_nodes_compile_once_each(job, saw, launcher):
    needs("mpirun.openmpi" if launcher == "openmpi" else "mpirun.mpich")
    job.hold()
    with Nodes(2) as nodes:
        mpirun = on_two_nodes(launcher, nodes, job.env)
        with Running(nodes.on_head(*mpirun, *job.rank()), env={**job.env, **AS_ROOT}) as running:
            seconds = job.meet(4, running)
    reports = job.check(nodes=2, ranks=4)
    assert [(each["launcher"], each["rank"], each["local_rank"], each["local_world_size"]) for each in reports] == [
        (launcher, rank, rank % 2, 2) for rank in range(4)
    ]
    saw(mpirun[0], job, seconds)
