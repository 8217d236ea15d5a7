"""The files by which known packages call torch's JIT build, unchanged, with one small source in place of theirs."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import tiny_source
from tests.foreign import file_of
from tests.testbed.processes import Running, run
from tests.torch_packages import REPOSITORY, HeldCompiler

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WITH_NODECACHE = [sys.executable, "-m", "nodecache", "run"]
SECONDS = 120
BACKEND = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("backend", sys.argv[1])
backend = importlib.util.module_from_spec(spec)
spec.loader.exec_module(backend)
"""
IMPORT = BACKEND + "print('sum', backend._C.add(2, 3))\n"
RECOVER = BACKEND + (
    "module = backend.load_extension_with_recovery('tiny', [sys.argv[2]], with_cuda=False)\n"
    "print('sum', module.add(2, 3))\n"
)


@pytest.fixture
def compiler(tmp_path):
    return HeldCompiler(tmp_path)


@pytest.fixture
def env(tmp_path, compiler):
    """With an nvcc that only has to be there, and torch's folders below a HOME of this test's own."""
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text("#!/bin/sh\n")
    (home / "bin/nvcc").chmod(0o755)
    return {
        "CUDA_HOME": str(home),
        "CXX": str(compiler.path),
        "HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{home}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def four(command, env):
    """What four processes say that run the command at the same time."""
    with ExitStack() as stack:
        started = [stack.enter_context(Running(command, env=env)) for _ in range(4)]
        for each in started:
            assert each.wait(SECONDS) == 0, each.output()
            assert "sum 5" in each.output()
        return [each.output() for each in started]


@pytest.mark.parametrize(
    ("pin", "path", "name", "source"),
    [
        ("gsplat==1.5.3", "gsplat/cuda/_backend.py", "gsplat_cuda", "ext.cpp"),
        ("nerfacc==0.5.3", "nerfacc/cuda/_backend.py", "nerfacc_cuda", "csrc/pybind.cpp"),
    ],
    ids=["gsplat", "nerfacc"],
)
def test_backends_that_ask_torchs_folder_whether_they_are_built_find_that_they_are(
    pin, path, name, source, compiler, env, program, tmp_path
):
    """They remove the folder when they find nothing in it, which is no use for ranks that do so at the same time."""
    backend = tmp_path / "backend/_backend.py"
    (backend.parent / source).parent.mkdir(parents=True)
    shutil.copyfile(file_of(pin, path), backend)
    (backend.parent / source).write_text(tiny_source(name))
    command = [*WITH_NODECACHE, program(IMPORT), backend]

    first = run(command, env=env, timeout=SECONDS)
    later = four(command, env)

    assert "sum 5" in first
    assert ("set up successfully" in first) == (name == "gsplat_cuda")
    assert not any("set up successfully" in said for said in later)
    assert compiler.compiled() == [os.path.basename(source)]
    (link,) = Path(env["HOME"]).glob(f".cache/torch_extensions/*/{name}/{name}.so")
    assert link.is_symlink()


def test_sglangs_loader_compiles_once_and_a_cut_file_is_built_again_without_harm_to_others(
    compiler, env, program, root, tmp_path
):
    loader = file_of("sglang==0.5.23", "sglang/srt/utils/cpp_extension_loader.py")
    for name in ("tiny", "other"):
        (tmp_path / f"{name}.cpp").write_text(tiny_source(name))
    script = program(RECOVER)
    command = [*WITH_NODECACHE, script, loader, tmp_path / "tiny.cpp"]
    four(command, env)
    assert compiler.compiled() == ["tiny.cpp"]
    program(RECOVER.replace("'tiny'", "'other'"))
    other = [*WITH_NODECACHE, script, loader, tmp_path / "other.cpp"]
    assert "sum 5" in run(other, env=env, timeout=SECONDS)
    program(RECOVER)
    (cut,) = root.glob("entries/*/tiny.so")
    os.truncate(cut, 100)

    four(command, env)

    assert compiler.compiled() == ["other.cpp", "tiny.cpp", "tiny.cpp"]
    program(RECOVER.replace("'tiny'", "'other'"))
    assert "sum 5" in run(other, env=env, timeout=SECONDS)
    assert compiler.compiled() == ["other.cpp", "tiny.cpp", "tiny.cpp"]
    assert os.listdir(root / "staging") == []
    assert not list(Path(env["HOME"]).rglob("nodecache_*"))
