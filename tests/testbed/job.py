"""A job of many ranks that load one tiny extension, with every compile counted, on whatever machines."""

import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.testbed.processes import commands, until

HERE = Path(__file__).parent
COMPILER = """\
#!/bin/sh
# Counts compiles, not links or questions. Each waits while the file `hold` is there; one takes `hold-one` and waits.
case " $* " in
*" -c "*)
    mv {folder}/hold-one {folder}/held 2> /dev/null && held=yes
    echo "$(uname -n) $$" >> {folder}/compiles # whoever hears of it may kill it
    [ "$held" ] && while [ -e {folder}/held ]; do sleep 0.05; done
    while [ -e {folder}/hold ]; do sleep 0.05; done
    ;;
esac
exec {real} "$@"
"""


class Job:
    """One extension, one compiler that counts, one place for the ranks' reports; all on what the machines share.

    Attributes:
        folder: private, shared by all machines.
        root: the cache root, the same path on every machine, on its own /tmp.
        source: the extension's only file; see ``tiny.cpp``.
        env: variables for the launcher to pass on.
    """

    def __init__(self, folder):
        self.folder = folder
        self.root = f"/tmp/{folder.name}"
        self.source = HERE / "tiny.cpp"
        self._reports = folder / "reports"
        self._reports.mkdir()
        compiler = folder / "c++"
        compiler.write_text(COMPILER.format(folder=shlex.quote(str(folder)), real="g++"), encoding="utf-8")
        compiler.chmod(0o755)
        self.env = {"CXX": str(compiler), "NODECACHE_ROOT": self.root, "TESTBED_REPORTS": str(self._reports)}

    def rank(self, *options):
        """The command line of one rank."""
        return [sys.executable, str(HERE / "rank.py"), str(self.source), *options]

    def hold(self):
        """Make every compile from now on wait for ``release``."""
        (self.folder / "hold").touch()

    def hold_one(self):
        """Make the next compile wait for ever, and no other."""
        (self.folder / "hold-one").touch()

    def release(self):
        """Let all compiles go on."""
        for name in ("hold", "hold-one", "held"):
            (self.folder / name).unlink(missing_ok=True)

    def compiles(self):
        """How often the compiler was asked to compile, by hostname."""
        return Counter(host for host, _ in self._counted())

    def compilers(self):
        """Process ids of all compilers that ever ran, as their machines number them."""
        return [int(pid) for _, pid in self._counted()]

    def processes(self):
        """Ids of this machine's living processes that work on the job's compiles: their command lines name its folder.

        Cluster nodes and containers are included, ranks are not.
        """
        name = self.folder.name.encode()
        return [pid for pid, command in commands() if name in command]

    def meet(self, ranks, *running, timeout=100):
        """Let no compile end before all ranks have asked for the extension, then await the end of the commands.

        ``hold`` must have been called before they were started. Returns the seconds from their start on.
        """

        def all_asked():
            dead = [each for each in running if each.process.poll() is not None]
            assert not dead, f"ended before all ranks had asked: {dead[0].output()}"
            return len(list(self._reports.glob("*.asked"))) >= ranks

        until(all_asked, timeout, f"{ranks} ranks that ask")
        self.release()
        for each in running:
            assert each.wait(timeout) == 0, each.output()
        return time.monotonic() - running[0].began

    def await_compiles(self, nodes=1, timeout=60):
        """Wait until that many nodes have begun a compile."""
        until(lambda: len(self.compiles()) >= nodes, timeout, f"a compile on each of {nodes} nodes")

    def reports(self):
        """What the ranks said that came to their end, one dict each; see ``rank.py``."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._reports.glob("*.json"))]

    def check(self, *, nodes, ranks, compiles=1):
        """All ranks came to their end with the module, on that many nodes, after ``compiles`` compiles on each.

        Returns the reports, by rank.
        """
        reports = self.reports()
        assert len(reports) == ranks, reports
        machines = {(report["hostname"], report["boot_id"]) for report in reports}
        assert len(machines) == nodes, machines
        counted, expected = self.compiles(), {hostname: compiles for hostname, _ in machines}
        assert counted == expected, f"compiles: {counted}, not {expected}"
        return sorted(reports, key=lambda report: (report["rank"] is None, report["rank"]))

    def forget(self):
        """Drop reports and counts, for another run of the same job."""
        for path in [*self._reports.iterdir(), self.folder / "compiles"]:
            path.unlink(missing_ok=True)

    def _counted(self):
        path = self.folder / "compiles"
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def shared_folder():
    """A new private folder that fake machines and cluster nodes see too: each has a /tmp and /var/tmp of its own."""
    return Path(tempfile.mkdtemp(prefix="nodecache-job-", dir="/var/lib"))
