"""A job of many ranks that load one tiny extension, with every compile counted, on whatever machines."""

import json
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.testbed.processes import until

HERE = Path(__file__).parent
COMPILER = """\
#!/bin/sh
# Counts compiles, not links or questions; each waits as long as the file `hold` is there.
case " $* " in
*" -c "*)
    echo "$(uname -n)" >> {counter}
    while [ -e {hold} ]; do sleep 0.05; done
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
        self._counter = folder / "compiles"
        self._hold = folder / "hold"
        self._reports = folder / "reports"
        self._reports.mkdir()
        compiler = folder / "c++"
        names = {"counter": self._counter, "hold": self._hold}
        quoted = {name: shlex.quote(str(path)) for name, path in names.items()}
        compiler.write_text(COMPILER.format(real="g++", **quoted), encoding="utf-8")
        compiler.chmod(0o755)
        self.env = {"CXX": str(compiler), "NODECACHE_ROOT": self.root, "TESTBED_REPORTS": str(self._reports)}

    def rank(self, *options):
        """The command line of one rank."""
        return [sys.executable, str(HERE / "rank.py"), str(self.source), *options]

    def hold(self):
        """Make every compile from now on wait for ``release``."""
        self._hold.touch()

    def release(self):
        """Let waiting compiles go on."""
        self._hold.unlink()

    def compiles(self):
        """How often the compiler was asked to compile, by hostname."""
        return Counter(self._counter.read_text(encoding="utf-8").split()) if self._counter.exists() else Counter()

    def await_compiles(self, nodes, timeout=60):
        """Wait until that many nodes are in the middle of a compile."""
        until(lambda: len(self.compiles()) >= nodes, timeout, f"a compile on each of {nodes} nodes")

    def reports(self):
        """What the ranks said that came to their end, one dict each; see ``rank.py``."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._reports.glob("*.json"))]

    def forget(self):
        """Drop reports and counts, for another run of the same job."""
        for path in [*self._reports.iterdir(), self._counter]:
            path.unlink(missing_ok=True)


def shared_folder():
    """A new private folder that fake machines and cluster nodes see too: each has a /tmp and /var/tmp of its own."""
    parent = Path(os.environ.get("NODECACHE_TEST_SHARED", "/var/lib"))
    return Path(tempfile.mkdtemp(prefix="nodecache-job-", dir=parent))
