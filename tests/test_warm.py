"""``nodecache warm``: build before the job."""

from __future__ import annotations

import os
import sys

import pytest

import nodecache
from nodecache.__main__ import main


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """An empty folder to stand in."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return place


def test_a_source_file_is_built_under_its_own_name_and_the_job_hits(tiny, compiler, capsys):
    assert main(["warm", str(tiny())]) == 0
    assert "tiny.cpp: built, " in capsys.readouterr().out
    assert nodecache.load("tiny", [tiny()]).add(2, 3) == 5
    assert compiler.compiles == 1
    assert main(["warm", str(tiny())]) == 0


def test_what_pyproject_declares_is_what_the_job_asks_for(tiny, compiler, project, capsys, monkeypatch):
    tiny("fast", expression="a + b + N", folder=project / "csrc")
    (project / "include").mkdir()
    (project / "kernels.py").write_text(
        "import nodecache\n"
        "def get():\n"
        "    return nodecache.load_inline('inline', 'int one() { return 1; }', functions=['one'])\n"
    )
    (project / "pyproject.toml").write_text("""
[tool.nodecache]
warm = ["kernels:get"]
[tool.nodecache.extensions.fast]
sources = ["csrc/fast.cpp"]
extra_cflags = ["-DN=4"]
extra_include_paths = ["include"]
""")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    monkeypatch.syspath_prepend(str(project))
    assert main(["warm", "--project", "../pyproject.toml"]) == 0
    out = capsys.readouterr().out
    assert "[1/2] fast: built" in out
    assert "[2/2] kernels:get: built" in out
    before = compiler.compiles
    module = nodecache.load(
        "fast", [project / "csrc/fast.cpp"], extra_cflags=["-DN=4"], extra_include_paths=[project / "include"]
    )
    assert (module.add(2, 3), compiler.compiles) == (9, before)


def test_a_target_that_fails_is_told_and_the_others_are_built(tiny, capsys):
    bad = tiny("bad", expression="a +")
    assert main(["warm", str(bad), str(tiny())]) == 1
    out = capsys.readouterr().out
    assert "bad.cpp: failed" in out.splitlines()[0]
    assert "error: " in out.splitlines()[0]
    assert "tiny.cpp: built" in out


def test_a_functions_own_error_is_told_by_name(project, capsys):
    (project / "mine.py").write_text("def get():\n    raise KeyError('where')\n")
    assert main(["warm", "mine:get"]) == 1
    assert "mine:get: failed" in (out := capsys.readouterr().out)
    assert "KeyError: 'where'" in out


def test_a_library_that_only_the_job_has_does_not_fail_the_warming(tiny, tmp_path, capsys, project):
    import subprocess

    (tmp_path / "lib").mkdir()
    (tmp_path / "gpu.c").write_text("int gpu(void) { return 1; }\n")
    library = tmp_path / "lib" / "libgpu.so.1"
    subprocess.run(
        ["cc", "-shared", "-Wl,-soname,libgpu.so.1", "-o", library, tmp_path / "gpu.c"], check=True, timeout=60
    )
    tiny("device", expression="gpu()", extra='extern "C" int gpu();', folder=project)
    (project / "pyproject.toml").write_text(
        f'[tool.nodecache.extensions.device]\nsources = ["device.cpp"]\nextra_ldflags = ["{library}"]\n'
    )
    assert main(["warm"]) == 0
    assert "built, not loaded" in (out := capsys.readouterr().out)
    assert "libgpu.so.1 is not found" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.nodecache.extensions.a]\nextra_cflags = []", "names no sources"),
        ('[tool.nodecache.extensions.a]\nsources = "a.cpp"', "is no list of strings"),
        ('[tool.nodecache.extensions.a]\nsources = ["a.cpp"]\nflags = []', "'flags'"),
        ("[tool.nodecache]\nextension = 1", "'extension'"),
        ('[tool.nodecache]\nwarm = ["a b"]', "is no target"),
        ("[tool.nodecache", "cannot be read"),
        ("[tool.other]", "Nothing to warm"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_2_with_file_and_word(text, says, project, capsys):
    (project / "pyproject.toml").write_text(text)
    assert main(["warm"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "pyproject.toml" in err or "target" in err


@pytest.mark.parametrize("word", ["nothing.txt", "a:b:c", "mod ule:f", "f"])
def test_a_word_that_is_no_target_is_2(word, capsys):
    assert main(["warm", word]) == 2
    assert "is no target" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["no_such_module_at_all:f", "os:no_such_function", "missing.cpp"])
def test_a_target_that_is_not_there_is_told(word, capsys):
    assert main(["warm", word]) == 1
    assert "failed" in capsys.readouterr().out


def test_cuda_without_a_gpu_asks_for_the_architectures(project, monkeypatch, capsys, tmp_path):
    """Case 84."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 12.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("nodecache.cuda._devices", lambda root: [])
    (project / "kernel.cu").write_text("__global__ void k() {}")
    assert main(["warm", "kernel.cu"]) == 1
    assert "Set TORCH_CUDA_ARCH_LIST" in capsys.readouterr().out
