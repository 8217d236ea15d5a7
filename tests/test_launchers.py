"""node() names the node and the innermost launcher, and no environment makes it fail."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecache.launchers import LAUNCHERS, Node, node

node_module = importlib.import_module("nodecache.launchers")
NUMBERS = ("rank", "local_rank", "world_size", "local_world_size", "node_rank")

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "3",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
RAY = {
    "RAY_RAYLET_PID": "811",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
}
DEEPSPEED = {
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
LIGHTNING = {
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "NODE_RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
}
HOROVOD = {
    "HOROVOD_HOSTNAME": "node2",
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
}
OPENMPI = {  # 4.1.4
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "2065367041",
    "PMIX_HOSTNAME": "node2",
}
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}  # 4.0.2
XDIST = {"PYTEST_XDIST_WORKER": "gw3", "PYTEST_XDIST_WORKER_COUNT": "4", "PYTEST_XDIST_TESTRUNUID": "f00"}
TORCH_ENV = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
PALS = {
    "PALS_APID": "9f0c",
    "PALS_RANKID": "3",
    "PALS_LOCAL_RANKID": "1",
    "PALS_NODEID": "1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "2",
}
FLUX = {
    "FLUX_JOB_ID": "f23",
    "FLUX_JOB_SIZE": "4",
    "FLUX_JOB_NNODES": "2",
    "FLUX_TASK_RANK": "3",
    "FLUX_TASK_LOCAL_ID": "1",
}
JSM = {
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "LSB_JOBID": "77",
}
PMIX = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-node1-2290@1", "PMIX_HOSTNAME": "node2"}
SLURM = {  # srun 22.05.8, -N2 -n4
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
BATCH_SCRIPT = {  # sbatch 22.05.8, -N2 -n4, not below srun
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_ID": "3",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "3,1",
}

RECORDED = {
    "torchrun": (TORCHRUN, (3, 1, 4, 2, 1)),
    "ray": (RAY, (3, 1, 4, 2, 1)),
    "deepspeed": (DEEPSPEED, (3, 1, 4, 2, 1)),
    "lightning": (LIGHTNING, (None, 1, 4, None, 1)),
    "horovod": (HOROVOD, (3, 1, 4, 2, 1)),
    "openmpi": (OPENMPI, (3, 1, 4, 2, None)),
    "mvapich2": (MVAPICH2, (3, 1, 4, 2, None)),
    "hydra": (HYDRA, (3, 1, 4, 2, None)),
    "xdist": (XDIST, (3, 3, 4, 4, None)),
    "env": (TORCH_ENV, (3, 1, 4, 2, 1)),
    "pals": (PALS, (3, 1, 4, 2, 1)),
    "flux": (FLUX, (3, 1, 4, None, None)),
    "jsm": (JSM, (3, 1, 4, 2, None)),
    "pmix": (PMIX, (3, None, None, None, None)),
    "slurm": (SLURM, (3, 1, 4, 2, 1)),
}
VARIABLES = sorted({variable for env, _ in RECORDED.values() for variable in env})


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    """The tests themselves may run below a launcher."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def under(monkeypatch):
    """node() under the given environments, outermost first."""

    def seen(*environments: dict[str, str], **changes: str | None) -> Node:
        with monkeypatch.context() as patch:
            for env in (*environments, changes):
                for variable, value in env.items():
                    patch.delenv(variable, raising=False) if value is None else patch.setenv(variable, value)
            return node()

    return seen


def numbers(seen: Node) -> tuple[int | None, ...]:
    return tuple(getattr(seen, field) for field in NUMBERS)


@pytest.mark.parametrize("launcher", RECORDED)
def test_each_launcher_is_known_by_its_environment(under, launcher):
    env, expected = RECORDED[launcher]
    seen = under(env)
    assert (seen.launcher, numbers(seen), seen.notes) == (launcher, expected, ())


def test_every_launcher_of_the_table_is_tested_and_documented():
    assert tuple(RECORDED) == LAUNCHERS
    page = (Path(__file__).parent.parent / "docs" / "launchers.md").read_text()
    rows = re.findall(r"^\| (?:\d+|-) \| `(\w+)`", page, re.MULTILINE)
    assert rows == [*LAUNCHERS, "none"]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("slurm", "torchrun"),
        ("slurm", "ray"),
        ("slurm", "deepspeed"),
        ("slurm", "lightning"),
        ("slurm", "openmpi"),
        ("slurm", "hydra"),
        ("slurm", "xdist"),
        ("slurm", "env"),
        ("slurm", "pmix"),
        ("openmpi", "torchrun"),
        ("pals", "torchrun"),
        ("flux", "torchrun"),
        ("jsm", "horovod"),
        ("flux", "xdist"),
        ("env", "xdist"),
        ("xdist", "torchrun"),
        ("xdist", "openmpi"),
        ("xdist", "hydra"),
    ],
)
def test_the_innermost_launcher_wins(under, outer, inner):
    seen = under({**RECORDED[outer][0], **RECORDED[inner][0]})
    assert (seen.launcher, numbers(seen)) == (inner, RECORDED[inner][1])


def test_torchrun_inside_srun_does_not_take_the_agents_local_id(under):
    agent = {**SLURM, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert numbers(under(agent, TORCHRUN)) == (3, 1, 4, 2, 1)


def test_mpirun_inside_salloc_does_not_take_the_daemons_numbers(under):
    daemon = {**SLURM, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    assert numbers(under(daemon, HYDRA)) == (3, 1, 4, 2, None)
    assert numbers(under(daemon, OPENMPI)) == (3, 1, 4, 2, None)


def test_a_batch_script_is_no_rank_of_srun(under):
    seen = under(BATCH_SCRIPT)
    assert (seen.launcher, numbers(seen)) == ("none", (None,) * 5)
    assert "batch script" in seen.notes[0]


def test_the_shell_of_salloc_is_no_rank_of_srun(under):
    seen = under(SLURM, SLURM_PROCID="0", SLURM_STEP_ID="4294967290")
    assert (seen.launcher, seen.rank) == ("none", None)
    assert seen.notes


def test_srun_with_pmix_is_srun(under):
    seen = under(SLURM, PMIX_RANK="3", PMIX_NAMESPACE="slurm.pmix.1.0")
    assert (seen.launcher, seen.local_rank) == ("slurm", 1)


def test_a_local_rank_exported_by_hand_is_no_launcher(under):
    seen = under(LOCAL_RANK="0")
    assert (seen.launcher, seen.local_rank) == ("none", None)
    assert seen.notes == ("LOCAL_RANK='0' comes from no known launcher: ignored",)


def test_a_local_rank_exported_by_hand_below_srun_is_told_only_if_it_differs(under):
    assert under(SLURM, LOCAL_RANK="1").notes == ()
    seen = under(SLURM, LOCAL_RANK="0")
    assert (seen.launcher, seen.local_rank) == ("slurm", 1)
    assert seen.notes == ("LOCAL_RANK='0' contradicts SLURM_LOCALID=1: ignored",)


def test_the_controller_of_xdist_is_no_worker(under):
    assert under(PYTEST_XDIST_WORKER="master").launcher == "none"


def test_a_replaced_xdist_worker_keeps_its_number(under):
    seen = under(XDIST, PYTEST_XDIST_WORKER="gw4")
    assert (seen.rank, seen.world_size, seen.label) == (4, None, f"worker gw4 on {seen.hostname}")


def test_an_empty_variable_counts_as_unset(under):
    assert under(TORCHRUN, TORCHELASTIC_RUN_ID="").launcher == "env"
    assert under(TORCHRUN, LOCAL_WORLD_SIZE="").notes == ()


@pytest.mark.parametrize(
    ("text", "node_id", "tasks"),
    [
        ("2(x3),1", "0", 2),
        ("2(x3),1", "2", 2),
        ("2(x3),1", "3", 1),
        ("2(x3),1", "4", None),
        ("3,1", "1", 1),
        ("4", "0", 4),
        ("5(x999999999999),1", "1", 5),
        ("", "0", None),
        ("2(x3", "0", None),
        ("2(y3),1", "3", None),
        ("2(x),1", "0", None),
        ("(x2)", "0", None),
        (",", "0", None),
        ("2(x3),1", "abc", None),
    ],
)
def test_tasks_per_node_is_read_at_this_nodes_place(under, text, node_id, tasks):
    seen = under({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, SLURM_STEP_TASKS_PER_NODE=text, SLURM_NODEID=node_id)
    assert seen.local_world_size == tasks
    assert bool(seen.notes) == (tasks is None and text != "")


@pytest.mark.parametrize("nonsense", ["abc", "-1", "1e3", "+1", "1_0", "0x1", "\u0663", "99999999999", "9" * 5000])
def test_a_nonsense_number_is_ignored_and_told(under, nonsense):
    seen = under(TORCHRUN, LOCAL_RANK=nonsense)
    assert numbers(seen) == (3, None, 4, 2, 1)
    (note,) = seen.notes
    assert note.startswith("LOCAL_RANK=")
    assert note.endswith("is not a valid local rank: ignored")
    assert note.isascii()
    assert len(note) < 120


def test_a_size_of_zero_is_ignored_and_told(under):
    seen = under(RANK="0", LOCAL_RANK="0", WORLD_SIZE="0")
    assert numbers(seen) == (0, 0, None, None, None)
    assert seen.notes == ("WORLD_SIZE='0' is not a valid world size: ignored",)


def test_of_two_numbers_that_contradict_each_other_neither_is_believed(under):
    seen = under(TORCHRUN, RANK="9")
    assert numbers(seen) == (None, 1, None, 2, 1)
    assert seen.notes == ("RANK=9 does not fit WORLD_SIZE=4: both ignored",)


def test_the_second_variable_serves_where_the_first_is_nonsense(under):
    seen = under(SLURM, SLURM_STEP_NUM_TASKS="many")
    assert seen.world_size == 4
    assert seen.notes == ("SLURM_STEP_NUM_TASKS='many' is not a valid world size: ignored",)


VALUES = st.one_of(
    st.integers(-3, 9).map(str),
    st.sampled_from(
        ["", " 1", "abc", "gw", "gw3", "gw-1", "master", "2(x3),1", "2(x", "4294967290", "9" * 30, "\udcff"]
    ),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20),
)


@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES))
def test_no_environment_makes_it_fail(env):
    with pytest.MonkeyPatch.context() as patch:
        for variable in VARIABLES:
            patch.delenv(variable, raising=False)
        for variable, value in env.items():
            patch.setenv(variable, value)
        seen = node()
    assert seen.launcher in (*LAUNCHERS, "none")
    for field in NUMBERS:
        value = getattr(seen, field)
        assert value is None or (type(value) is int and int(field.endswith("size")) <= value < 2**31)
    for small, large in (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "world_size")):
        if None not in (getattr(seen, small), getattr(seen, large)):
            assert getattr(seen, small) < getattr(seen, large)
    assert all(note.isascii() for note in seen.notes)
    assert seen.label.endswith(f" on {seen.hostname}")


def test_the_node_is_hostname_and_boot_id_whatever_the_ranks(under):
    here = (os.uname().nodename, Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert {under(env)[:2] for env, _ in RECORDED.values()} == {here}


def test_no_boot_id_is_no_error(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError

    monkeypatch.setattr(node_module, "open", refuse, raising=False)
    node_module._identity.cache_clear()
    try:
        assert node().boot_id == ""
    finally:
        node_module._identity.cache_clear()


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ({}, "a process on {}"),
        (TORCHRUN, "rank 3 (local 1) on {}"),
        (PMIX, "rank 3 on {}"),
        (LIGHTNING, "local rank 1 on {}"),
        (XDIST, "worker gw3 on {}"),
    ],
)
def test_the_label_names_the_process_for_a_message(under, env, label):
    seen = under(env)
    assert seen.label == label.format(seen.hostname)


def test_variables_set_late_are_seen(under):
    assert [under().launcher, under(RAY).launcher, under().launcher] == ["none", "ray", "none"]


def test_a_forked_child_knows_its_node():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(node()[:2]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = ast.literal_eval(pipe.read().decode())
    assert os.waitpid(child, 0)[1] == 0
    assert told == node()[:2]


def test_the_public_call_works_before_and_after_something_imports_the_module():
    code = "import nodecache; before = nodecache.node(); import nodecache.launchers; assert nodecache.node() == before"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_it_is_cheap_enough_for_the_path_of_a_hit():
    """What it imports and which files it opens count, not times, which vary with the machine."""
    code = """
import __future__, importlib.util, os, sys, typing
before = set(sys.modules)
spec = importlib.util.spec_from_file_location("node", sys.argv[1])
module = sys.modules["node"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(sorted(set(sys.modules) - before - {"node"}))
events = []
sys.addaudithook(lambda event, args: events.append(event))
module.node()
print(events)
events.clear()
module.node()
print(events)
"""
    command = [sys.executable, "-c", code, node_module.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "['open']", "[]"]


def test_the_rank_variables_that_enroot_puts_into_a_container_of_srun_agree_with_sruns(under):
    """Its hook for torch sets torch's ``env://`` variables from SLURM's."""
    outer = under(SLURM)
    copied = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
    inner = under({**SLURM, **{name: SLURM[source] for name, source in copied.items()}})
    numbers = ("rank", "local_rank", "world_size")
    assert [getattr(inner, name) for name in numbers] == [getattr(outer, name) for name in numbers]
    assert inner.label == outer.label
    assert inner.notes == ()
