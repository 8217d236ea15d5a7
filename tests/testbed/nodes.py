"""N fake machines on one: each with its own hostname, address, /tmp, process table, boot id and clock.

The rest of the file system is shared, as an NFS home would be. The machines hang on a bridge in a network namespace of
its own: the host's network stays untouched, and no packet can leave.
"""

import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.testbed.processes import DIES_WITH_US, run
from tests.testbed.requirements import needs

HERE = Path(__file__).parent
NETWORK = "198.51.100"  # TEST-NET-2
ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")


class Nodes:
    """Machines ``node1`` to ``nodeN`` at 198.51.100.1 to .N, and ``head`` at .254, from which launchers start.

    ``head`` is this machine (its /tmp and processes) on the machines' network, and reaches them by ``agent``, which
    stands in for ssh.
    """

    agent = str(HERE / "rsh.sh")

    def __init__(self, count):
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self._holders = {}
        self._pids = {}

    def __enter__(self):
        needs("unshare", "nsenter", "setpriv", "ip", root=True)
        self._folder = Path(tempfile.mkdtemp(prefix="nodecache-nodes-", dir="/run"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc):
        for holder in self._holders.values():
            holder.kill()
        for holder in self._holders.values():
            holder.wait()
            holder.stdout.close()
        shutil.rmtree(self._folder)

    def on(self, name, *command):
        """The command line that runs ``command`` on one machine; killing it kills the command there."""
        inside = ("--", *DIES_WITH_US, "env", "--chdir=/", "HOSTNAME=", "TMPDIR=/tmp")
        return ["nsenter", "--target", str(self._pids[name]), *ENTER, *inside, *command]

    def on_head(self, *command):
        """The command line that runs ``command`` on ``head``."""
        inside = ("--", "env", f"TESTBED_NODES={self._folder}")
        return ["nsenter", "--target", str(self._pids["head"]), "--net", "--mount", "--uts", *inside, *command]

    def crash(self, name):
        """Power loss: every process of the machine is gone at once."""
        self._holders[name].kill()
        self._holders[name].wait()

    def cable(self, name, *, plugged):
        """Pull or plug the network cable."""
        link = ["ip", "link", "set", name, "up" if plugged else "down"]
        run(["nsenter", "--target", str(self._pids["head"]), "--net", *link], timeout=10)

    def _start(self):
        addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(self.names, 1)}
        hosts = ["127.0.0.1 localhost", f"{NETWORK}.254 head", *(f"{ip} {name}" for name, ip in addresses.items())]
        (self._folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
        self._hold("head", ["unshare", "--net", "--mount", "--uts", "--propagation", "private"])
        for number, name in enumerate(self.names, 1):
            (self._folder / f"{name}.boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
            clock = str(number * 100_000)  # seconds; no two machines count alike
            own = ["--mount", "--uts", "--ipc", "--net", "--pid", "--time", "--monotonic", clock, "--boottime", clock]
            self._hold(name, ["unshare", *own, "--fork", "--kill-child=KILL", "--propagation", "private"])
        for name in ("head", *self.names):
            self._await_ready(name)
        switch = ["nsenter", "--target", str(self._pids["head"]), "--net", "ip"]
        for name, address in addresses.items():
            pid = str(self._pids[name])
            run([*switch, *f"link add {name} type veth peer name eth0 netns {pid}".split()], timeout=10)
            run([*switch, *f"link set {name} master br0 up".split()], timeout=10)
            there = ["nsenter", "--target", pid, "--net", "ip"]
            run([*there, *f"addr add {address}/24 dev eth0".split()], timeout=10)
            run([*there, "link", "set", "eth0", "up"], timeout=10)

    def _hold(self, name, unshare):
        command = [*DIES_WITH_US, *unshare, "bash", str(HERE / "node.sh"), name, str(self._folder)]
        self._holders[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def _await_ready(self, name):
        holder = self._holders[name]
        line = holder.stdout.readline()  # ends at once if it dies
        assert line == b"ready\n", f"{name} did not start"
        if name == "head":
            pid = holder.pid
        else:
            pid = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text(encoding="ascii").split()[0])
        self._pids[name] = pid
        (self._folder / f"{name}.pid").write_text(f"{pid}\n", encoding="ascii")


def container(*command):
    """The command line that runs ``command`` as pid 1 of its own PID and mount namespaces, on this machine's /tmp."""
    needs("unshare", "setpriv", root=True)
    own = ["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--propagation", "private"]
    return [*DIES_WITH_US, "unshare", *own, *command]
