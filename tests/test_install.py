"""What users install: wheel and sdist, slim machines, read-only packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

CALL_EACH = """\
import sys
sys.modules["torch"] = None
import numpy as np
from nodecache.megatron import build_sample_idx, compile_helper, get_blend_from_list
helpers = compile_helper()
sizes, order = np.array([3, 5, 2], np.int32), np.array([0, 1, 2], np.int32)
assert build_sample_idx(sizes, order, 4, 1, 10).tolist() == [[0, 0], [1, 1], [2, 0]]
assert helpers.build_sample_idx_int64(sizes, order, 4, 1, 10, True, True).dtype == np.int64
which, sample = np.zeros(10, np.int16), np.zeros(10, np.int64)
helpers.build_blending_indices(which, sample, np.array([0.5, 0.3, 0.2]), 3, 10, False)
assert which.tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1, 0]
which, sample = np.zeros(6, np.int16), np.zeros(6, np.int64)
helpers.build_exhaustive_blending_indices(which, sample, np.array([3, 1, 2], np.int64), 3)
assert which.tolist() == [0, 2, 1, 0, 2, 0]
documents, sentences = np.array([0, 3, 6], np.int64), np.array([5, 6, 7, 5, 6, 7], np.int32)
assert len(helpers.build_mapping(documents, sentences, 1, 100, 20, 0.1, 1, False, 2))
titles = np.array([1, 1], np.int32)
assert len(helpers.build_blocks_mapping(documents, sentences, titles, 1, 100, 20, 1, False, False))
assert get_blend_from_list(["1", "a", "2", " b "]) == (["a", "b"], [1.0, 2.0])
print(helpers.__nodecache__.role)
"""


def test_the_helpers_build_where_there_is_nothing_but_a_compiler(tmp_path, start):
    """Cases 66 and 71: no make, ninja, python3-config or cmake on PATH, and no torch that can be imported."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("c++", "as", "ld"):
        (tools / name).symlink_to(shutil.which(name))
    result = start(CALL_EACH, env={"PATH": str(tools)}).wait(100)
    assert (result.status, result.out) == (0, "built\n"), result.err


def test_neither_torch_nor_what_only_a_build_needs_is_imported_on_a_hit(start):
    """Promise 6, and case 71."""
    assert start(CALL_EACH).wait(100).status == 0
    program = """\
import sys
from nodecache.megatron import compile_helper
assert compile_helper().__nodecache__.role == "hit"
print(sorted(name for name in ("torch", "psutil", "filelock", "ninja", "subprocess", "logging") if name in sys.modules))
"""
    loaded = start(program, env={"PYTHONPATH": str(REPOSITORY)}).wait(60)
    assert loaded.out in ("[]\n", "['logging', 'subprocess']\n"), loaded.err


def _environment(folder: Path, package: Path) -> Path:
    """A fresh virtual environment with one package of ours installed; its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{package}[megatron]"],
        check=True,
        timeout=100,
    )
    return python


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    place = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", place, REPOSITORY],
        check=True,
        timeout=110,
        stdout=subprocess.DEVNULL,
    )
    return {"wheel": next(place.glob("*.whl")), "sdist": next(place.glob("*.tar.gz"))}


@pytest.mark.integration
@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_the_helpers_work_from_an_installed_package(packages, form, tmp_path):
    """Case 67."""
    python = _environment(tmp_path / "venv", packages[form])
    done = subprocess.run(
        [python, "-c", CALL_EACH], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "built\n"), done.stderr
    installed = next((tmp_path / "venv").glob("lib/*/site-packages/nodecache"))
    assert {path.name for path in (installed / "csrc").iterdir()} == {
        path.name for path in (REPOSITORY / "csrc").iterdir()
    }
    assert (installed / "py.typed").exists()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="needs root for a read-only mount")
def test_a_read_only_package_is_left_as_it_is(packages, tmp_path, start):
    """Case 70: eight processes, one compile, and not a file of the installed package changes."""
    python = _environment(tmp_path / "venv", packages["wheel"])
    installed = next((tmp_path / "venv").glob("lib/*/site-packages/nodecache"))

    def state():
        return {str(path): path.stat().st_mtime_ns for path in [installed, *installed.rglob("*")]}

    before = state()
    mount = f'mount --bind {installed} {installed} && mount -o remount,bind,ro {installed} && exec "$@"'
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
    children = [start(CALL_EACH, prefix=prefix, python=str(python), env={"PYTHONPATH": ""}) for _ in range(8)]
    results = [child.wait(100) for child in children]
    assert [result.status for result in results] == [0] * 8, results[0].err
    assert sorted(result.out for result in results).count("built\n") == 1
    assert state() == before
