"""What tests share: a root of their own, tiny sources, a compiler that counts, and processes that are reaped."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the processes that the tests start

REPOSITORY = Path(__file__).resolve().parent.parent

TINY = """\
#include <Python.h>
{extra}
static PyObject* add(PyObject*, PyObject* args) {{
    long a, b;
    if (!PyArg_ParseTuple(args, "ll", &a, &b)) return nullptr;
    return PyLong_FromLong({expression});
}}
static PyMethodDef methods[] = {{{{"add", add, METH_VARARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef def = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit_{name}() {{ return PyModule_Create(&def); }}
"""

LAUNCHER_PREFIXES = (
    "PYTEST_XDIST_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "TORCHELASTIC_",
    "FLUX_",
    "PALS_",
)
LAUNCHER_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
TOOL_NAMES = ("CXX", "CXXFLAGS", "LDFLAGS", "MAX_JOBS", "CPATH", "LIBRARY_PATH", "TMPDIR", "TORCH_EXTENSIONS_DIR")


def tiny_source(name: str = "tiny", expression: str = "a + b", extra: str = "") -> str:
    """Source of a module with ``add(a, b)`` through the bare C API; it compiles in 0.3 s."""
    return TINY.format(name=name, expression=expression, extra=extra)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root of this test's own, and an environment without launchers or tool settings."""
    for name in list(os.environ):
        if name.startswith((*LAUNCHER_PREFIXES, "NODECACHE_")) or name in LAUNCHER_NAMES + TOOL_NAMES:
            monkeypatch.delenv(name)
    place = tmp_path / "root"
    monkeypatch.setenv("NODECACHE_ROOT", str(place))
    return place


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny source: ``tiny(name="tiny", expression="a + b", extra="", folder=None) -> path``."""

    def write(name: str = "tiny", expression: str = "a + b", extra: str = "", folder: Path | None = None) -> Path:
        place = folder or tmp_path / "src"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{name}.cpp"
        path.write_text(tiny_source(name, expression, extra))
        return path

    return write


class Compiler:
    """A wrapper that is used as the C++ compiler and notes every compile (not ``--version``, not links).

    Attributes:
        path: the wrapper; the fixture has set CXX to it.
        counter: file with one line a compile: the wrapper's pid and when it began, in seconds since the epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "counting-c++"
        self.counter = folder / "compiles"
        self.set()

    def set(self, before: str = "", instead: str = "") -> None:
        """Put shell lines before the compiler in each compile (``sleep 3``), or in its place (``exit 1``)."""
        real = instead or 'exec c++ "$@"'
        script = f"""#!/bin/sh
for word; do
    if [ "$word" = -c ]; then
        echo "$$ $(date +%s.%N)" >> {shlex.quote(str(self.counter))}
        {before}
        {real}
    fi
done
exec c++ "$@"
"""
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def compiles(self) -> int:
        """How many compiles have begun."""
        return len(self.counter.read_text().splitlines()) if self.counter.exists() else 0

    def wait_for(self, compiles: int, seconds: float = 30) -> None:
        """Return when that many compiles have begun."""
        wait_until(lambda: self.compiles >= compiles, seconds, f"{compiles} compiles")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A counting compiler, in use through CXX."""
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    return made


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return when ``condition()`` is true.

    Raises:
        TimeoutError: it did not become true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.005)


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., None]:
    """:func:`wait_until`: ``wait_until(condition, seconds, what)``."""
    return wait_until


class Result(NamedTuple):
    """How a process ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The last line of its output, decoded."""
        return json.loads(self.out.strip().splitlines()[-1])


class Child:
    """A process of a test."""

    def __init__(self, process: subprocess.Popen, out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    def wait(self, seconds: float = 60) -> Result:
        """Wait for its end."""
        status = self.process.wait(seconds)
        return Result(status, self.out, self.err)

    @property
    def out(self) -> str:
        """What it has written to stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start processes: ``start(code, *arguments, env={...}, prefix=[...], group=False) -> Child``.

    ``code`` is Python text; it can ``import nodecache``, and print one JSON line as its result. ``prefix`` is a command
    that runs the interpreter. All that is still there at the end of the test is killed and reaped.
    """
    children: list[Child] = []
    folder = tmp_path / "processes"
    folder.mkdir()

    def begin(
        code: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        python: str = sys.executable,
        **options: object,
    ) -> Child:
        number = len(children)
        out, err = folder / f"{number}.out", folder / f"{number}.err"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})}
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [*prefix, python, "-c", code, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                env=environment,
                start_new_session=True,
                **options,
            )
        child = Child(process, out, err)
        children.append(child)
        return child

    yield begin
    for child in children:
        if child.process.poll() is None:
            child.kill()
            child.process.wait(30)


LOAD = """\
import json, sys, time
import nodecache
began = time.monotonic()
module = nodecache.load(sys.argv[1], sys.argv[2:])
told = module.__nodecache__
print(json.dumps({"sum": module.add(2, 3), "role": told.role, "key": told.key, "path": told.path,
                  "seconds": time.monotonic() - began}))
"""
"""Program: load the module named by the first argument from the sources that follow, and tell what came of it."""


@pytest.fixture
def load_program() -> str:
    """The text of :data:`LOAD`."""
    return LOAD


@pytest.fixture
def open_folder():
    """A folder that other users can reach; pytest's own are private."""
    place = Path(tempfile.mkdtemp(prefix="nodecache-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def uid():
    """A number that is nobody's, and whose default root is removed afterwards."""
    number = 40000 + os.getpid() % 10000
    yield number
    for each in (number, number + 1):
        shutil.rmtree(f"/tmp/nodecache_{each}", ignore_errors=True)
