"""The pytest plugin, in runs of its own."""

from __future__ import annotations

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

    def pytest_run(*options: object, test: str | None = None) -> tuple[int, str]:
        if test is not None:
            (folder / "test_add.py").write_text(test)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += [f"--rootdir={folder}", *map(str, options), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, check=False)
        return done.returncode, done.stdout + done.stderr

    pytest_run.source = source
    return pytest_run


def summary(output: str) -> tuple[int, int, int]:
    (found,) = re.findall(r"nodecache: (\d+) built, (\d+) hit, (\d+) waited for", output)
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


def test_a_run_that_loads_nothing_prints_and_makes_nothing(run, root):
    status, output = run(test="def test_nothing(): pass\n")
    assert status == 0
    assert "nodecache:" not in output
    assert not root.exists()
