"""The pytest plugin, in runs of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

FOUR = """\
import os
import nodecache, pytest

@pytest.mark.parametrize("number", range(8))
def test_add(number, nodecache_root):
    assert os.environ.get("NODECACHE_ROOT") in (None, str(nodecache_root))
    assert nodecache.load("tiny", [{source!r}]).add(number, 1) == number + 1
"""


@pytest.fixture
def run(tmp_path, tiny):
    """Run pytest on eight tests that load one extension: ``run(*options) -> (status, output)``."""
    folder = tmp_path / "project"
    folder.mkdir()
    source = tiny()
    (folder / "test_add.py").write_text(FOUR.format(source=str(source)))
    (folder / "pytest.ini").write_text("[pytest]\n")

    def pytest_run(
        *options: object, test: str | None = None, start: tuple[str, ...] = ("-m", "pytest"), alone: bool = True
    ) -> tuple[int, str]:
        if test is not None:
            (folder / "test_add.py").write_text(test)
        # Both by the names of their entry points; the other plugins of this environment take seconds to import.
        plugins = ["-p", "no:cacheprovider", *(["-p", "xdist", "-p", "nodecache"] if alone else [])]
        command = [sys.executable, *start, *plugins, f"--rootdir={folder}", *map(str, options), str(folder)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        if alone:
            environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, cwd=folder, env=environment, check=False
        )
        return done.returncode, done.stdout + done.stderr

    pytest_run.source = source
    pytest_run.folder = folder
    return pytest_run


def summary(output: str) -> tuple[int, int, int]:
    (found,) = re.findall(r"nodecache: (\d+) built, (\d+) hit, (\d+) waited for \(\d+\.\d s in all\)", output)
    return tuple(map(int, found))


def test_the_workers_of_a_run_share_one_root_and_one_compile(run, compiler):
    compiler.set(before="sleep 1")
    status, output = run("-n", 4)
    assert status == 0, output
    built, hit, waited = summary(output)
    assert (built, built + hit + waited) == (1, 4)
    assert compiler.compiles == 1


def test_the_summary_is_right_without_workers(run, compiler):
    status, output = run()
    assert (status, summary(output)) == (0, (1, 0, 0)), output
    status, output = run()
    assert (status, summary(output)) == (0, (0, 1, 0)), output


def test_what_is_asked_for_is_built_before_the_tests_and_once(run, compiler):
    status, output = run("-n", 4, "--nodecache-warm", run.source)
    assert status == 0, output
    assert summary(output) == (1, 4, 0)
    assert output.index("tiny.cpp: built") < output.index("8 workers" if "8 workers" in output else "[100%]")
    assert compiler.compiles == 1


def test_a_target_that_cannot_be_built_ends_the_run_with_its_error(run, compiler):
    compiler.set(instead="echo 'tiny.cpp:1:1: error: no such moon' >&2; exit 1")
    status, output = run("--nodecache-warm", run.source)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "no such moon" in output
    status, output = run("--nodecache-warm", "no target")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "--nodecache-warm: " in output


def test_a_run_can_have_a_root_of_its_own_that_is_removed(run, compiler, root):
    for _ in range(2):
        status, output = run("-n", 2, "--nodecache-root", "run")
        assert status == 0, output
        assert summary(output)[0] == 1
    assert compiler.compiles == 2
    assert not root.exists()


def test_what_a_conftest_loads_at_its_import_is_in_the_root_of_the_run_and_counted(run, root):
    (run.folder / "conftest.py").write_text(f"import nodecache\nnodecache.load('tiny', [{str(run.source)!r}])\n")
    status, output = run("-n", 2, "--nodecache-root", "run")
    assert status == 0, output
    assert summary(output) == (1, 2, 0)  # the controller imports it first
    assert not root.exists()


def test_the_seconds_of_all_who_waited_are_added_up(run, compiler, tmp_path):
    """Two workers: the compiler of the one goes on a second after the other is seen to wait."""
    (tmp_path / "until_somebody_waits.py").write_text(
        "import time\n"
        "from nodecache.root import open_root\n"
        "from nodecache.status import builds\n"
        "while not any(build.waiters for build in builds(open_root())):\n"
        "    time.sleep(0.05)\n"
    )
    compiler.set(before=f"{sys.executable} {tmp_path}/until_somebody_waits.py || exit 1\nsleep 1")
    test = f"""\
import nodecache, pytest

@pytest.mark.parametrize("number", range(2))
def test_add(number):
    assert nodecache.load("tiny", [{str(run.source)!r}]).add(number, 1) == number + 1
"""
    status, output = run("-n", 2, test=test)
    assert status == 0, output
    assert summary(output) == (1, 0, 1)
    assert float(re.findall(r"\((\d+\.\d) s in all\)", output)[0]) >= 1


def test_asking_for_help_builds_nothing(run, compiler, root):
    for question in ("--help", "--collect-only"):
        status, output = run(question, "--nodecache-warm", run.source)
        assert status == 0, output
        assert "nodecache:" not in output
    assert compiler.compiles == 0
    assert not root.exists()


def test_a_run_that_loads_nothing_prints_and_makes_nothing(run, root):
    status, output = run(test="def test_nothing(): pass\n")
    assert status == 0
    assert "nodecache:" not in output
    assert not root.exists()


def test_the_plugin_imports_no_more_than_the_package_itself(run):
    light = subprocess.check_output(
        [sys.executable, "-c", "import sys, nodecache; print(*(name for name in sys.modules if 'nodecache' in name))"],
        text=True,
    )
    test = f"""\
import sys

def test_modules():
    ours = {{name for name in sys.modules if name.partition(".")[0] in ("nodecache", "torch", "psutil", "numpy")}}
    assert ours == {{"nodecache.pytest_plugin", *{light.split()!r}}}
"""
    status, output = run(test=test)
    assert status == 0, output


def test_pytest_finds_the_plugin_by_itself_and_has_no_warning_of_it(run):
    """Strictly, and where nodecache was imported before pytest, which would like to rewrite its asserts."""
    nothing = "def test_nothing(nodecache_root): pass\n"
    status, output = run("-W", "error", test=nothing, start=("-m", "nodecache", "run", "-m", "pytest"), alone=False)
    assert status == 0, output
