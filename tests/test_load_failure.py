"""Load failures: a finished file that the loader refuses is told with its cause, and not built again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from nodecache import libstdcxx

USER = """\
#include <Python.h>
extern "C" int foo(void);
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(foo()); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "user", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_user() { return PyModule_Create(&def); }
"""
LOAD = """\
import sys
import nodecache
try:
    print(nodecache.load("user", [sys.argv[1]], extra_ldflags=[f"-L{sys.argv[2]}", "-lfoo"]).value())
except nodecache.LoadError as error:
    print(error)
"""


@pytest.fixture
def libraries(tmp_path):
    """Make folders with a libfoo.so each, whose ``foo`` has the version that is given."""

    def make(version, also=""):
        folder = tmp_path / version
        folder.mkdir()
        (folder / "foo.c").write_text("int foo(void) { return 7; }\nint old(void) { return 1; }\n")
        (folder / "foo.map").write_text(f"{also}{version} {{ global: foo; }};\n")
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libfoo.so", "-Wl,--version-script=foo.map", "foo.c"]
        subprocess.run([*command, "-o", "libfoo.so"], cwd=folder, check=True)
        return folder

    return make


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "user.cpp"
    path.write_text(USER)
    return path


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("FOO_2", "Put the folder of the library that was linked first in LD_LIBRARY_PATH"),
        ("GLIBCXX_3.4.99", "add -static-libstdc++"),
        ("GLIBC_9.9", "Build it on a node whose C library is no newer"),
    ],
)
def test_a_library_that_is_older_than_the_linked_one_is_told_with_both_files_and_nothing_is_built_again(
    version, remedy, libraries, source, compiler, root, start
):
    linked, older = libraries(version), libraries("FOO_1")
    started = [start(LOAD, source, linked, env={"LD_LIBRARY_PATH": str(older)}) for _ in range(8)]
    ended = [process.wait() for process in started]
    (entry,) = root.glob("entries/*")
    for each in ended:
        assert f"needs version {version} of libfoo.so" in each.out, each.err
        assert f"{entry}/user.so" in each.out
        assert f"{older}/libfoo.so, does not have it" in each.out
        assert remedy in each.out
    assert compiler.compiles == 1
    assert start(LOAD, source, linked, env={"LD_LIBRARY_PATH": str(linked)}).wait().out == "7\n"
    assert compiler.compiles == 1


def test_a_symbol_that_the_loaded_library_has_under_another_version_is_told_too(libraries, source, start):
    linked, other = libraries("FOO_2"), libraries("FOO_3", also="FOO_2 { global: old; };\n")
    said = start(LOAD, source, linked, env={"LD_LIBRARY_PATH": str(other)}).wait().out
    assert "needs version FOO_2 of libfoo.so" in said
    assert "LD_LIBRARY_PATH" in said


def test_a_cut_file_in_an_entry_is_built_again_once_and_nothing_else_is_touched(
    tiny, compiler, start, load_program, root
):
    other = start(load_program, "other", tiny("other")).wait().json
    path = start(load_program, "tiny", tiny()).wait().json["path"]
    os.truncate(path, 100)
    began = compiler.compiles
    source = tiny()
    started = [start(load_program, "tiny", source) for _ in range(4)]
    assert [process.wait().json["sum"] for process in started] == [5] * 4
    assert compiler.compiles == began + 1
    again = start(load_program, "other", tiny("other")).wait().json
    assert (again["role"], again["key"]) == ("hit", other["key"])
    assert len(list(root.glob("entries/*"))) == 2
    assert list(root.glob("staging/*")) == []


def test_the_newest_version_of_a_library_is_read_from_it(tmp_path):
    path = tmp_path / "libstdc++.so.6"
    path.write_bytes(b"\x7fELF\0GLIBCXX_3.4\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4.x\0")
    assert libstdcxx.newest(str(path)) == (3, 4, 30)
    path.write_bytes(b"INPUT(-lstdc++)")
    assert libstdcxx.newest(str(path)) is None


def test_the_library_that_a_process_gets_is_the_loaders_choice(tmp_path):
    mine = tmp_path / "libstdc++.so.6"
    real = libstdcxx.loaded()
    assert real is not None
    shutil.copyfile(real, mine)
    code = "from nodecache import libstdcxx; print(libstdcxx.loaded())"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{mine}\n"
