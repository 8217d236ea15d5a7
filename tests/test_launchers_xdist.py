"""pytest-xdist: extensions loaded at import time and in fixtures by all workers, crashed ones included."""

import re
import sys
import time

import pytest

from tests.testbed.job import HERE
from tests.testbed.processes import Running, until
from tests.testbed.requirements import needs

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

BEGIN = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import nodecache
import pytest
import rank

SOURCE = {str(HERE / "tiny.cpp")!r}
"""
SUITE = f"""{BEGIN}
at_import = rank.load(SOURCE)

@pytest.fixture(scope="session")
def in_fixture():
    return nodecache.load("tiny", [SOURCE])

@pytest.mark.parametrize("n", range(8))
def test_add(in_fixture, n):
    assert in_fixture.add(n, 1) == at_import.add(1, n) == n + 1
"""
# All compiles are held. Worker gw0 builds, for the others begin after it, and dies. One of them builds then, and can
# end only when gw0's replacement, which loads at import time, lets it.
CRASHING_SUITE = f"""{BEGIN}
import os
import signal
import threading
import time
from pathlib import Path

WORKER = os.environ["PYTEST_XDIST_WORKER"]
FOLDER = Path(os.environ["TESTBED_REPORTS"]).parent

def await_compile():
    while not (FOLDER / "compiles").exists():
        time.sleep(0.02)

def die():
    await_compile()
    DEATH

if WORKER == "gw4":
    (FOLDER / "hold").unlink()
    at_import = rank.load(SOURCE)

@pytest.fixture(scope="session")
def extension():
    if WORKER == "gw4":
        return at_import
    if WORKER == "gw0":
        threading.Thread(target=die, daemon=True).start()
    else:
        await_compile()
    return rank.load(SOURCE)

@pytest.mark.parametrize("n", range(12))
def test_add(extension, n):
    assert extension.add(n, 1) == n + 1
"""


def pytest_of(job, *options):
    """A run of four workers on the job's own suite, without this project's settings and plugins."""
    needs(modules=["xdist"])
    apart = ["-p", "xdist", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={job.folder}"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    command = [sys.executable, "-B", "-m", "pytest", *apart, "-n4", *options, str(job.folder)]
    return Running(command, env={**job.env, **env}, cwd=job.folder)


@pytest.mark.parametrize("dist", ["load", "loadfile", "worksteal", "each"])
def test_four_workers_compile_once(job, saw, dist):
    (job.folder / "test_suite.py").write_text(SUITE)
    job.hold()
    with pytest_of(job, f"--dist={dist}") as running:
        seconds = job.meet(4, running)
        assert f"{32 if dist == 'each' else 8} passed" in running.output()
    reports = job.check(nodes=1, ranks=4)
    assert [(each["launcher"], each["rank"], each["world_size"]) for each in reports] == [
        ("xdist", worker, 4) for worker in range(4)
    ]
    saw(f"pytest -n 4 --dist {dist}", job, seconds)


@pytest.mark.parametrize("death", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["os._exit", "SIGKILL"])
def test_a_worker_that_crashes_in_mid_build_is_replaced_and_the_run_goes_on(job, saw, death):
    (job.folder / "test_suite.py").write_text(CRASHING_SUITE.replace("DEATH", death))
    job.hold()
    with pytest_of(job, "--dist=load") as running:
        assert running.wait(60) == 1, running.output()
        seconds = time.monotonic() - running.began
        output = running.output()
    failed, passed = (int(number) for number in re.search(r"(\d+) failed, (\d+) passed", output).groups())
    assert (failed, passed) == (1, 11), output
    assert "worker 'gw0' crashed" in output
    reports = job.check(nodes=1, ranks=4, compiles=2)
    assert [each["rank"] for each in reports] == [1, 2, 3, 4]
    until(lambda: job.processes() == [], 10, job.processes)
    saw(f"pytest -n 4, {death.partition('(')[0]}", job, seconds)
