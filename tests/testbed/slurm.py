"""A real SLURM cluster on one machine: N virtual nodes, each with its own hostname, /tmp and /dev/shm.

All daemons run in the foreground as children of the test run, in a network namespace of their own, so that nothing
outside can submit jobs and no port can collide. Nothing of the host's configuration is touched.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.testbed.processes import DIES_WITH_US, Running, run, stop, until
from tests.testbed.requirements import needs

HERE = Path(__file__).parent
FREEZER = Path("/sys/fs/cgroup/freezer")
KILL_WAIT = 2  # seconds between SIGTERM and SIGKILL

CONFIGURATION = """\
ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType={tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
OverTimeLimit=0
WaitTime=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=low  Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=high Nodes=ALL State=UP MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""
CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
"""
# SLURM resolves addresses only where there is more of a network than the loopback.
NETWORK = """
ip link set lo up
ip link add br0 type bridge
ip addr add 198.51.100.254/24 dev br0
ip link set br0 up
echo ready
exec sleep infinity
"""
NODE = """
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o size=512m,mode=1777 tmp /tmp
mount -t tmpfs -o size=256m,mode=1777 shm /dev/shm
exec slurmd -D -N "$1"
"""


class Cluster:
    """Nodes ``t<pid>n1`` to ``nN`` with ``cpus`` CPUs each (more than there are will do), partitions low and high.

    A job in ``high`` preempts those in ``low``, the default.
    """

    def __init__(self, nodes=4, cpus=4):
        # Unique on this machine: the freezer groups of two clusters carry nothing but the node's name.
        self.names = [f"t{os.getpid()}n{number}" for number in range(1, nodes + 1)]
        self._cpus = cpus
        self._daemons = []
        self._up = False

    def __enter__(self):
        needs("slurmctld", "slurmd", "srun", "unshare", "nsenter", "setpriv", "ip", root=True)
        self._folder = Path(tempfile.mkdtemp(prefix="nodecache-slurm-", dir="/run"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc):
        if self._up:
            with contextlib.suppress(AssertionError):  # whatever the daemons say, they are ended
                self.cancel()
        stop(self._daemons)
        for name in self.names:
            _empty(FREEZER / f"slurm_{name}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, *command):
        """The command line that runs a SLURM command as on a login node."""
        target = str(self._daemons[0].pid)
        inside = ["env", f"SLURM_CONF={self._folder}/slurm.conf", *command]
        return ["nsenter", "--target", target, "--net", "--", *inside]

    def run(self, *command, timeout=60, env=None, cwd="/", status=0):
        """Run a SLURM command to its end; returns its output."""
        return run(self.command(*command), timeout=timeout, env=env, cwd=cwd, status=status)

    @contextlib.contextmanager
    def start(self, *command, env=None, cwd="/"):
        """Start a SLURM command; when the context is left, it is killed and every job of the cluster cancelled."""
        with Running(self.command(*command), env=env, cwd=cwd) as running:
            try:
                yield running
            finally:
                running.kill()
                self.cancel()

    def submit(self, *options, timeout=60, env=None, cwd="/"):
        """Run a batch job to its end, which ``sbatch --wait`` looks for too seldom."""
        self.run("sbatch", *options, timeout=20, env=env, cwd=cwd)
        until(lambda: not self.queue(), timeout, self.logs)

    def cancel(self):
        """End all jobs: killing srun alone would leave them to the cluster."""
        if self.queue():
            self.run("scancel", "--full", "--signal=KILL", "--user=root", timeout=20, status=None)
            self.run("scancel", "--user=root", timeout=20, status=None)
            until(lambda: not self.queue(), 30, "end of all jobs")

    def queue(self, *options):
        """Ids of the jobs that are not over."""
        return self.run("squeue", "--noheader", "--format=%i", *options, timeout=20).split()

    def logs(self):
        """The ends of the daemons' logs, for a failure's message."""
        ends = (f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self._folder.glob("*.log")))
        return "\n".join(ends)

    def _start(self):
        (self._folder / "state").mkdir()
        tracking = "proctrack/linuxproc"
        if FREEZER.is_dir():
            tracking = "proctrack/cgroup"
            (self._folder / "cgroup.conf").write_text(CGROUP, encoding="utf-8")
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={6900 + number} CPUs={self._cpus}"
            for number, name in enumerate(self.names)
        )
        text = CONFIGURATION.format(
            host=os.uname().nodename, folder=self._folder, tracking=tracking, nodes=nodes, kill_wait=KILL_WAIT
        )
        (self._folder / "slurm.conf").write_text(text, encoding="utf-8")
        hosts = self._folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {os.uname().nodename} {' '.join(self.names)}\n", encoding="utf-8")
        holder = self._daemon(["unshare", "--net", "sh", "-e", "-c", NETWORK], stdout=subprocess.PIPE)
        with holder.stdout as pipe:
            assert pipe.readline() == b"ready\n", "no network namespace"
        self._daemon(self.command("slurmctld", "-D", "-c"))
        own = ["unshare", "--mount", "--uts", "--ipc", "--propagation", "private"]
        for name in self.names:
            self._daemon(self.command(*own, "sh", "-e", "-c", NODE, "node", name, str(hosts)))
        idle = self.command("sinfo", "--noheader", "--partition=low", "--states=idle", "--format=%D")
        until(lambda: run(idle, timeout=20, status=None).strip() == str(len(self.names)), 30, self.logs)
        self._up = True

    def _daemon(self, command, stdout=subprocess.DEVNULL):
        daemon = subprocess.Popen(
            [*DIES_WITH_US, *command], cwd="/", stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL
        )
        self._daemons.append(daemon)
        return daemon


def _empty(group):
    """Remove a node's freezer groups; whatever still runs in them was started by this cluster."""
    groups = sorted((path for path in [group, *group.rglob("*")] if path.is_dir()), reverse=True)
    for each in groups:
        pids = each.joinpath("cgroup.procs").read_text(encoding="ascii").split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(AssertionError):
        until(
            lambda: _removed(groups), 5, "end of the node's processes"
        )  # a zombie holds its group until init reaps it


def _removed(groups):
    for each in groups:
        try:
            each.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
