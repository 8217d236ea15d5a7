"""What the tests with torch's users share: the packages, and a compiler that can be held."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.foreign import installed
from tests.testbed.processes import commands, until

REPOSITORY = Path(__file__).resolve().parent.parent
PINS = (
    "deepspeed==0.19.8",
    # What importing DeepSpeed takes besides torch and numpy.
    *("hjson==3.1.0", "einops==0.8.2", "msgpack==1.2.4", "py-cpuinfo==9.0.0", "tqdm==4.70.1"),
    *("pydantic==2.14.4", "pydantic-core==2.50.5", "annotated-types==0.8.0", "typing-inspection==0.4.5"),
    "qtorch==0.3.0",
    *("brevitas==0.13.4", "dependencies==2.0.1", "unfoldNd==0.2.3"),
)


def installed_packages() -> Path:
    """A folder for PYTHONPATH with the packages."""
    # DeepSpeed asks torch what to build while it is set up: nothing, it is built when it is used.
    return installed(
        "torch-users",
        PINS,
        options=("--no-build-isolation", "--no-binary", "deepspeed"),
        env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    )


class HeldCompiler:
    """A wrapper for CXX that notes each compile of a source file, and waits in it while it is held.

    Attributes:
        path: the wrapper.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "held-c++"
        self._log = folder / "compiled"
        self._hold = folder / "hold"
        self.path.write_text(f"""#!/bin/sh
for word; do
    case "$word" in
        *.cpp) source=$word ;;
        -c) compiles=yes ;;
    esac
done
if [ "$compiles" ] && [ "$source" ]; then
    echo "$$ ${{source##*/}}" >> {shlex.quote(str(self._log))}
    while [ -e {shlex.quote(str(self._hold))} ]; do sleep 0.1; done
fi
exec c++ "$@"
""")
        self.path.chmod(0o755)

    def hold(self) -> None:
        """Let no compile get on."""
        self._hold.touch()

    def let_go(self) -> None:
        """Let them all go on, and forget what was compiled so far."""
        self._hold.unlink()
        self._log.unlink()

    def compiled(self) -> list[str]:
        """Names of the sources whose compile has begun, sorted, once for each time."""
        return sorted(name for _, name in self._begun())

    def await_compile(self, seconds: float) -> int:
        """Id of the first compiler, once there is one."""
        return until(self._begun, seconds, "a compile")[0][0]

    def running(self) -> list[int]:
        """Ids of its living processes."""
        return [pid for pid, command in commands() if os.fsencode(self.path) in command]

    def _begun(self) -> list[tuple[int, str]]:
        if not self._log.exists():
            return []
        return [(int(pid), name) for pid, name in (line.split() for line in self._log.read_text().splitlines())]
