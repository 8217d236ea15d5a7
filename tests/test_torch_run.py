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
