"""Where this process runs: its node, and the numbers that its launcher gave it.

A node is one running kernel, named by hostname and boot id. Ranks are labels for messages: launchers nest, leak
their variables into what they start and can give every process the same number, so nothing here ever decides who
builds. ``docs/launchers.md`` has the same table with the source of each row.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIELDS = ("rank", "local_rank", "world_size", "local_world_size", "node_rank")
_LIMIT = 2**31  # MPI ranks are C ints, and no launcher counts further
# The first is at most the second less the third. Each number alone may be right, so of a pair that breaks this
# neither is believed.
_FITS = (
    ("rank", "world_size", 1),
    ("local_world_size", "world_size", 0),
    ("local_rank", "local_world_size", 1),
    ("local_rank", "world_size", 1),
    ("node_rank", "world_size", 1),
)


class Node(NamedTuple):
    """The node that a process runs on, and its place in the job.

    Attributes:
        hostname: The kernel's node name, as ``uname -n`` prints it (containers may each have their own).
        boot_id: The kernel's random id of this boot, ``""`` where ``/proc`` does not tell it.
        launcher: The innermost launcher that started this process, one of ``LAUNCHERS``, or ``"none"``.
        rank: Number of this process in the job, from 0.
        local_rank: Number of this process on its node, from 0.
        world_size: Number of processes in the job.
        local_world_size: Number of the job's processes on this node.
        node_rank: Number of this node in the job, from 0.
        notes: What was made of variables that make no sense, a sentence each; empty when all is well.

    A number that the launcher does not tell, or not in a way that can be true, is ``None``.
    """

    hostname: str
    boot_id: str
    launcher: str = "none"
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """This process in a message, such as ``rank 3 (local 1) on host42``."""
        if self.rank is None:
            who = "a process" if self.local_rank is None else f"local rank {self.local_rank}"
        elif self.launcher == Xdist.name:
            who = f"worker gw{self.rank}"
        else:
            who = f"rank {self.rank}" if self.local_rank is None else f"rank {self.rank} (local {self.local_rank})"
        return f"{who} on {self.hostname}"


def node() -> Node:
    """Say which node this is, which launcher started this process and which number it has.

    The environment is read anew by each call, for Ray sets its variables after the worker began; hostname and boot id
    are read once a process. No file is written and no process started.

    Returns:
        The node. Two processes are on one node if and only if hostname and boot id are equal.

    Raises:
        Nothing: values that make no sense are left out and told in ``Node.notes``.
    """
    hostname, boot_id = _identity(os.getpid())
    env = os.environ
    launcher = next((each for each in _ORDER if each.started(env)), None)
    notes: list[str] = []
    found = {} if launcher is None else _numbers(launcher, env, notes)
    _note_strays(launcher, found, env, notes)
    values = {field: value for field, (_, value) in found.items()}
    return Node(hostname, boot_id, launcher.name if launcher else "none", notes=tuple(notes), **values)


class _Launcher:
    """How one launcher tells a process its numbers.

    ``needs`` are the variables that this launcher sets, all of them, in every process that it starts; the others name
    for each number the variables that hold it, the first usable one wins.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    rank: ClassVar[tuple[str, ...]] = ()
    local_rank: ClassVar[tuple[str, ...]] = ()
    world_size: ClassVar[tuple[str, ...]] = ()
    local_world_size: ClassVar[tuple[str, ...]] = ()
    node_rank: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def started(cls, env: Mapping[str, str]) -> bool:
        """Tell whether the environment is one that this launcher made; an empty variable counts as unset."""
        return all(env.get(variable) for variable in cls.needs)

    @classmethod
    def parse(cls, variable: str, text: str, env: Mapping[str, str]) -> int | None:  # noqa: ARG003 - for subclasses
        """Read one variable, None if it holds no number."""
        return _whole(text)


class Torchrun(_Launcher):
    """torchrun, ``torch.distributed.run`` and what starts its agent: Accelerate, Lightning under torchrun."""

    name = "torchrun"
    needs = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK")
    rank = ("RANK",)
    local_rank = ("LOCAL_RANK",)  # 0 in every worker if the agent hands out one visible GPU each
    world_size = ("WORLD_SIZE",)
    local_world_size = ("LOCAL_WORLD_SIZE",)
    node_rank = ("GROUP_RANK",)


class RayTrain(_Launcher):
    """Ray Train, which sets torch's variables inside the running worker."""

    name = "ray"
    needs = ("RAY_RAYLET_PID", "RANK", "WORLD_SIZE")
    rank = ("RANK",)
    local_rank = ("LOCAL_RANK",)
    world_size = ("WORLD_SIZE",)
    local_world_size = ("LOCAL_WORLD_SIZE",)
    node_rank = ("NODE_RANK",)


class DeepSpeed(_Launcher):
    """DeepSpeed's per-node launcher."""

    name = "deepspeed"
    needs = ("CROSS_RANK", "RANK", "LOCAL_RANK")
    rank = ("RANK",)
    local_rank = ("LOCAL_RANK",)
    world_size = ("WORLD_SIZE",)
    local_world_size = ("LOCAL_SIZE",)
    node_rank = ("CROSS_RANK",)


class Lightning(_Launcher):
    """Lightning's own subprocess launcher, which tells no global rank."""

    name = "lightning"
    needs = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    local_rank = ("LOCAL_RANK",)
    world_size = ("WORLD_SIZE",)
    node_rank = ("NODE_RANK",)

    @classmethod
    def started(cls, env: Mapping[str, str]) -> bool:
        """Leave an environment with a global rank to its maker: cluster services set these four and RANK too."""
        return not env.get("RANK") and super().started(env)


class Horovod(_Launcher):
    """horovodrun."""

    name = "horovod"
    needs = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK")
    rank = ("HOROVOD_RANK",)
    local_rank = ("HOROVOD_LOCAL_RANK",)
    world_size = ("HOROVOD_SIZE",)
    local_world_size = ("HOROVOD_LOCAL_SIZE",)
    node_rank = ("HOROVOD_CROSS_RANK",)


class OpenMpi(_Launcher):
    """mpirun of Open MPI; its NODE_RANK numbers processes on the node, not nodes."""

    name = "openmpi"
    needs = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    rank = ("OMPI_COMM_WORLD_RANK",)
    local_rank = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    world_size = ("OMPI_COMM_WORLD_SIZE",)
    local_world_size = ("OMPI_COMM_WORLD_LOCAL_SIZE",)


class Mvapich2(_Launcher):
    """mpirun_rsh and mpiexec of MVAPICH2."""

    name = "mvapich2"
    needs = ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
    rank = ("MV2_COMM_WORLD_RANK",)
    local_rank = ("MV2_COMM_WORLD_LOCAL_RANK",)
    world_size = ("MV2_COMM_WORLD_SIZE",)
    local_world_size = ("MV2_COMM_WORLD_LOCAL_SIZE",)


class Hydra(_Launcher):
    """mpiexec of MPICH and of Intel MPI, which is built on it."""

    name = "hydra"
    needs = ("PMI_RANK", "MPI_LOCALRANKID")
    rank = ("PMI_RANK",)
    local_rank = ("MPI_LOCALRANKID",)
    world_size = ("PMI_SIZE",)
    local_world_size = ("MPI_LOCALNRANKS",)


class Xdist(_Launcher):
    """pytest-xdist; its workers are ``gw0``, ``gw1``, ..., its controller sets nothing (``master``)."""

    name = "xdist"
    needs = ("PYTEST_XDIST_WORKER",)
    rank = local_rank = needs
    world_size = local_world_size = ("PYTEST_XDIST_WORKER_COUNT",)

    @classmethod
    def started(cls, env: Mapping[str, str]) -> bool:
        """Tell a worker from the controller."""
        return env.get("PYTEST_XDIST_WORKER", "master") not in {"", "master"}

    @classmethod
    def parse(cls, variable: str, text: str, env: Mapping[str, str]) -> int | None:
        """Read ``gw3`` as 3; no count below that, for the replacement of a crashed worker is numbered past it."""
        worker = env.get("PYTEST_XDIST_WORKER", "")
        number = _whole(worker[2:]) if worker.startswith("gw") else None
        if variable == "PYTEST_XDIST_WORKER":
            return number
        count = _whole(text)
        return None if count is None or (number is not None and number >= count) else count


class TorchEnv(_Launcher):
    """torch's ``env://`` variables, set by a script, a notebook launcher or a cluster service."""

    name = "env"
    needs = ("RANK", "WORLD_SIZE")
    rank = ("RANK",)
    local_rank = ("LOCAL_RANK",)
    world_size = ("WORLD_SIZE",)
    local_world_size = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    node_rank = ("GROUP_RANK", "NODE_RANK")


class Pals(_Launcher):
    """mpiexec and aprun of Cray PALS."""

    name = "pals"
    needs = ("PALS_RANKID", "PALS_APID")
    rank = ("PALS_RANKID",)
    local_rank = ("PALS_LOCAL_RANKID",)
    world_size = ("PMI_SIZE",)
    local_world_size = ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")
    node_rank = ("PALS_NODEID",)


class Flux(_Launcher):
    """Flux run and Flux submit."""

    name = "flux"
    needs = ("FLUX_TASK_RANK", "FLUX_JOB_ID")
    rank = ("FLUX_TASK_RANK",)
    local_rank = ("FLUX_TASK_LOCAL_ID",)
    world_size = ("FLUX_JOB_SIZE",)


class Jsm(_Launcher):
    """IBM's jsrun (Job Step Manager, under LSF)."""

    name = "jsm"
    needs = ("JSM_NAMESPACE_RANK",)
    rank = ("JSM_NAMESPACE_RANK",)
    local_rank = ("JSM_NAMESPACE_LOCAL_RANK",)
    world_size = ("JSM_NAMESPACE_SIZE",)
    local_world_size = ("JSM_NAMESPACE_LOCAL_SIZE",)


class Pmix(_Launcher):
    """Any other launcher that speaks PMIx, such as PRRTE's prun."""

    name = "pmix"
    needs = ("PMIX_RANK", "PMIX_NAMESPACE")
    rank = ("PMIX_RANK",)

    @classmethod
    def started(cls, env: Mapping[str, str]) -> bool:
        """Leave the namespaces of ``srun --mpi=pmix`` to SLURM, which tells more."""
        return super().started(env) and not env.get("PMIX_NAMESPACE", "").startswith("slurm.")


class Slurm(_Launcher):
    """A task of srun. A batch script has SLURM_PROCID as well, but no step."""

    name = "slurm"
    needs = ("SLURM_PROCID", "SLURM_STEP_ID")
    rank = ("SLURM_PROCID",)
    local_rank = ("SLURM_LOCALID",)
    world_size = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    local_world_size = ("SLURM_STEP_TASKS_PER_NODE",)
    node_rank = ("SLURM_NODEID",)

    @classmethod
    def started(cls, env: Mapping[str, str]) -> bool:
        """Tell a task from the shell of salloc, whose step has one of SLURM's reserved ids (from 0xfffffff0)."""
        step = _whole(env.get("SLURM_STEP_ID", "")) or 0
        return super().started(env) and step < 0xFFFFFFF0

    @classmethod
    def parse(cls, variable: str, text: str, env: Mapping[str, str]) -> int | None:
        """Look up this node's share where the variable lists those of all nodes."""
        if variable != "SLURM_STEP_TASKS_PER_NODE":
            return _whole(text)
        index = _whole(env.get("SLURM_NODEID", ""))
        return None if index is None else _tasks_on(index, text)


# Innermost first, as launchers are nested in practice. A scheduler's own launcher starts everything else, so it comes
# last. Tests start torchrun and mpirun, and schedulers start pytest, so xdist stands between them; before bare RANK
# and WORLD_SIZE too, which developers export in the shell that they run pytest from.
_ORDER: tuple[type[_Launcher], ...] = (
    Torchrun,
    RayTrain,
    DeepSpeed,
    Lightning,
    Horovod,
    OpenMpi,
    Mvapich2,
    Hydra,
    Xdist,
    TorchEnv,
    Pals,
    Flux,
    Jsm,
    Pmix,
    Slurm,
)
LAUNCHERS = tuple(launcher.name for launcher in _ORDER)


@lru_cache(maxsize=1)
def _identity(_process: int) -> tuple[str, str]:
    """Hostname and boot id; by process, because a forked child may have moved to a namespace of its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot_id = file.read().strip()
    except (OSError, ValueError):
        boot_id = ""
    return os.uname().nodename, boot_id


def _numbers(launcher: type[_Launcher], env: Mapping[str, str], notes: list[str]) -> dict[str, tuple[str, int]]:
    """Variable and value of each number that the launcher tells and that can be true."""
    found: dict[str, tuple[str, int]] = {}
    for field in _FIELDS:
        least = 1 if field.endswith("size") else 0
        for variable in getattr(launcher, field):
            text = env.get(variable)
            if not text:
                continue
            value = launcher.parse(variable, text, env)
            if value is not None and least <= value < _LIMIT:
                found[field] = variable, value
                break
            notes.append(f"{variable}={_shown(text)} is not a valid {field.replace('_', ' ')}: ignored")
    for small, large, less in _FITS:
        if small in found and large in found and found[small][1] > found[large][1] - less:
            pair = " does not fit ".join(f"{name}={value}" for name, value in (found.pop(small), found.pop(large)))
            notes.append(f"{pair}: both ignored")
    return found


def _note_strays(
    launcher: type[_Launcher] | None, found: dict[str, tuple[str, int]], env: Mapping[str, str], notes: list[str]
) -> None:
    """Say why variables that look like a rank were not taken for one."""
    if launcher is None and env.get("SLURM_PROCID"):
        procid = _shown(env["SLURM_PROCID"])
        notes.append(f"SLURM_PROCID={procid} belongs to a batch script or shell, not to a task of srun: ignored")
    loose = env.get("LOCAL_RANK")
    if loose and (launcher is None or "LOCAL_RANK" not in launcher.local_rank):
        variable, value = found.get("local_rank", ("", None))
        if value is None:
            notes.append(f"LOCAL_RANK={_shown(loose)} comes from no known launcher: ignored")
        elif _whole(loose) != value:
            notes.append(f"LOCAL_RANK={_shown(loose)} contradicts {variable}={value}: ignored")


def _tasks_on(index: int, text: str) -> int | None:
    """Task count of one node from a list such as ``2(x3),1``: 2 on nodes 0 to 2, 1 on node 3."""
    for group in text.split(","):
        count, _, repeat = group.partition("(x")
        nodes = _whole(repeat[:-1]) if repeat.endswith(")") else 1 if not repeat else None
        if nodes is None:
            return None
        if index < nodes:
            return _whole(count)
        index -= nodes
    return None


def _whole(text: str) -> int | None:
    """A plain decimal number; int() also takes signs, underscores and other scripts' digits."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(2**64)) else None


def _shown(text: str) -> str:
    """A value in a note: printable under any encoding, and short."""
    limit = 40
    return ascii(text if len(text) <= limit else text[: limit - 3] + "...")
