"""``nodecache run``: a program runs as it does under ``python``, and the patch is there when torch comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
RUN = ["-m", "nodecache", "run"]
LIGHT = """\
#include <Python.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "light", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_light() { return PyModule_Create(&def); }
"""


@pytest.fixture
def python(tmp_path):
    """Run ``python`` in a folder of its own."""

    def run(*arguments, **options):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=tmp_path,
            **options,
        )

    return run


@pytest.fixture
def program(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a reason')",
        "def fail():\n    raise ValueError('wrong')\nfail()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
        "def f(:\n",
        "raise KeyboardInterrupt",
        "import os; os.abort()",
        "import atexit, sys\natexit.register(lambda: print(sys.modules['__main__'].A))\nclass A: pass",
        "import sys; print(sys.argv, sys.path[:2], __name__, __spec__, __package__, __file__)",
        "x: int = 1\nprint(__annotations__)",
    ],
)
def test_a_program_ends_and_speaks_as_under_python(python, program, text):
    path = program(text)
    plain, ours = python(path, "--flag"), python(*RUN, path, "--flag")
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_program_that_is_not_there_is_pythons_error(python):
    plain, ours = python("nowhere.py"), python(*RUN, "nowhere.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_script_behind_a_link_and_one_without_a_suffix_run_as_under_python(python, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/helper.py").write_text("word = 'here'\n")
    (tmp_path / "real/script").write_text("import helper, os; print(helper.word, os.path.isabs(__file__))\n")
    (tmp_path / "link").symlink_to("real/script")
    runs = [python(*how, tmp_path / "link") for how in (RUN, [])]
    assert [(run.returncode, run.stdout) for run in runs] == [(0, "here True\n")] * 2, runs


def test_a_package_runs_as_under_python(python, program):
    program("", "pkg/__init__.py")
    program("import sys\nprint(sys.argv, __package__, __spec__.name)\nraise ValueError('wrong')", "pkg/__main__.py")
    plain, ours = python("-m", "pkg", "--flag"), python(*RUN, "-m", "pkg", "--flag")
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert "nodecache" not in ours.stderr
    assert plain.stderr.endswith(ours.stderr.partition("\n")[2])


def test_safe_path_is_respected(python, program):
    path = program("import sys; print(sys.path[0])")
    assert python("-P", *RUN, path).stdout == python("-P", path).stdout


def test_the_patch_comes_with_torch_and_leaves_its_module_as_it_was(python, program):
    path = program(
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "from torch.utils import cpp_extension\n"
        "import nodecache.patch\n"
        "print(cpp_extension.load.__globals__ is vars(nodecache.patch), type(cpp_extension.__spec__.loader).__name__)\n"
    )
    assert python(*RUN, path).stdout == "True SourceFileLoader\n"


SPAWNS = """\
import multiprocessing, sys

def build(_):
    from torch.utils.cpp_extension import load
    module = load("light", ["light.cpp"])
    return getattr(module, "__nodecache__", None) and module.__nodecache__.role

if __name__ == "__main__":
    {before}
    with multiprocessing.get_context("{method}").Pool(4) as pool:
        print(sorted(pool.map(build, range(4), chunksize=1)))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("before", ["pass", "import torch.utils.cpp_extension"], ids=["without torch", "with torch"])
def test_new_interpreters_of_multiprocessing_build_through_nodecache_too(
    python, program, compiler, root, method, before
):
    program(LIGHT, "light.cpp")
    done = python(*RUN, program(SPAWNS.format(method=method, before=before)))
    assert done.returncode == 0, done.stderr
    assert "built" in done.stdout
    assert "None" not in done.stdout
    assert compiler.compiles == 1


GRANDCHILD = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

def build(_):
    from torch.utils.cpp_extension import load
    return load("light", ["light.cpp"]).__nodecache__.role

def spawned(function):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, 0).result()

def child(_):
    return spawned(build)

if __name__ == "__main__":
    print(spawned(child))
"""


def test_so_do_children_that_spawned_children_spawn(python, program):
    program(LIGHT, "light.cpp")
    done = python(*RUN, program(GRANDCHILD))
    assert done.stdout == "built\n", done.stderr


def test_children_of_a_program_without_the_patch_get_nothing(python, program):
    path = program(
        "import multiprocessing, sys\n"
        "import nodecache.torch\n"
        "def loaded(_):\n"
        "    return [name for name in ('nodecache.patch', 'nodecache') if name in sys.modules]\n"
        "if __name__ == '__main__':\n"
        "    nodecache.torch.install()\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(loaded, [0]))\n"
        "    nodecache.torch.uninstall()\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(loaded, [0]))\n"
    )
    done = python(path)
    assert done.stdout == "[['nodecache.patch', 'nodecache']]\n[['nodecache']]\n", done.stderr


def test_a_child_that_cannot_import_nodecache_says_so_and_goes_on(python, program, tmp_path):
    """Its interpreter is another one, set by ``multiprocessing.set_executable``."""
    path = program(
        "import multiprocessing, sys\n"
        "def work(_):\n"
        "    return 'worked'\n"
        "if __name__ == '__main__':\n"
        "    import nodecache.spawned\n"
        f"    nodecache.spawned.__file__ = {str(tmp_path / 'nowhere/nodecache/spawned.py')!r}\n"
        "    multiprocessing.set_executable(sys.argv[1])\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [0]))\n"
    )
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    done = python(*RUN, path, other)
    assert done.stdout == "['worked']\n", done.stderr
    assert "nodecache: torch builds for itself in this child process: No module named 'nodecache'" in done.stderr


def test_spawned_children_are_covered_by_a_call_at_the_top_of_the_program(python, program):
    program(LIGHT, "light.cpp")
    path = program(
        "import multiprocessing\n"
        "import nodecache.torch\n"
        "nodecache.torch.install()\n"
        "def build(_):\n"
        "    from torch.utils.cpp_extension import load\n"
        "    return load('light', ['light.cpp']).__nodecache__.role\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(build, [0]))\n"
    )
    done = python(*RUN, path)
    assert done.stdout == "['built']\n", done.stderr


BEHIND = """\
import subprocess, sys
code = "from torch.utils.cpp_extension import load; load('light', ['light.cpp'])"
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
child = subprocess.Popen([sys.executable, "-c", code], **quiet)
from torch.utils.cpp_extension import load
try:
    module = load("light", ["light.cpp"])
    print(module.__nodecache__.role)
finally:
    child.wait(100)
"""


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Torch's own build folder, which a program that nobody covers uses."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch's"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # torch looks for ninja there
    return tmp_path / "torch's"


def test_a_program_that_builds_the_same_through_torch_meanwhile_never_touches_the_entry(python, program, apart, root):
    """The patch leaves a link to the entry in torch's folder; a linker that writes there must not write through it."""
    program(LIGHT, "light.cpp")
    path = program(BEHIND)
    assert python(*RUN, path).stdout == "built\n"
    (built,) = root.glob("entries/*/light.so")
    before = built.stat()
    assert python(*RUN, path).stdout == "hit\n"
    (apart / "light/light.so").unlink()
    assert python(*RUN, path).stdout == "hit\n"
    assert (apart / "light/light.so").exists()
    now = built.stat()
    assert (now.st_ino, now.st_mtime_ns, now.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert python("-m", "nodecache", "verify").returncode == 0


def test_the_parents_error_has_the_compilers_words_though_the_childs_were_thrown_away(python, program, apart):
    program(LIGHT.replace("return", "retrun"), "light.cpp")
    done = python(*RUN, program(BEHIND))
    assert done.returncode == 1
    assert "light.cpp:3" in done.stderr
    assert "retrun" in done.stderr
