"""The key: all that changes the binary is in it, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import nodecache
from nodecache import packages, recipe
from nodecache.errors import SpecError, ToolchainError
from nodecache.recipe import Recipe
from nodecache.root import ensure_folders, open_root
from nodecache.spec import Source, Spec, paths, read_sources

SPEAKS = """\
#include <Python.h>
#include <cassert>
#include "said.h"
#include <found.h>
#include "../up.h"
static PyObject* where(PyObject*, PyObject*) {
    PyObject* list = Py_BuildValue("ssss", __FILE__, said(), found(), up());
    assert(list != nullptr);
    return list;
}
static PyMethodDef methods[] = {{"where", where, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "speaks", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_speaks() { return PyModule_Create(&def); }
"""


def recipe_of(source=None, **options) -> Recipe:
    """The recipe of a spec that nobody builds."""
    for name in ("cflags", "ldflags", "cuda_cflags"):
        options[name] = tuple(options.get(name, ()))
    options["include_paths"] = paths("include_paths", options.get("include_paths"))
    sources = [Source("/somewhere/tiny.cpp", b"int x;")] if source is None else read_sources(source)
    root = open_root()
    ensure_folders(root)
    return Recipe(root, Spec("tiny", sources, **options))


def key(source=None, **options) -> str:
    return recipe_of(source, **options).key


def checkout(place: Path) -> Path:
    """A project at a place: a source, a header beside it, one above it and one in an include folder."""
    for name, text in {
        "pkg/src/speaks.cpp": SPEAKS,
        "pkg/src/said.h": "static const char* said() { return __FILE__; }\n",
        "pkg/inc/found.h": "static const char* found() { return __FILE__; }\n",
        "pkg/up.h": "static const char* up() { return __FILE__; }\n",
    }.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place / "pkg"


def build(project: Path):
    return nodecache.load(
        "speaks", project / "src/speaks.cpp", ["-g", "-O0", "-UNDEBUG"], extra_include_paths=[project / "inc"]
    )


@pytest.mark.parametrize(("first", "second"), [("one", "another/and deeper"), ("a'b", 'c $d"e" ünï #')])
def test_two_checkouts_give_one_key_and_identical_binaries(first, second, tmp_path, monkeypatch, compiler):
    """With asserts, ``__FILE__`` and debug information, in two roots, from two working folders."""
    made = []
    for number, name in enumerate((first, second)):
        project = checkout(tmp_path / name)
        monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / f"root{number}{name[:1]}"))
        monkeypatch.chdir(project)
        made.append(build(project))
    one, other = (module.__nodecache__ for module in made)
    assert one.key == other.key
    assert Path(one.path).read_bytes() == Path(other.path).read_bytes()
    assert compiler.compiles == 2
    assert made[0].where() == (
        "/nodecache/root0/speaks.cpp",
        "/nodecache/root0/said.h",
        "/nodecache/root1/found.h",
        "/nodecache/root0/../up.h",
    )


def test_a_second_checkout_hits_what_the_first_one_built(tmp_path, compiler):
    first = build(checkout(tmp_path / "one"))
    second = build(checkout(tmp_path / "two"))
    assert first is second
    assert compiler.compiles == 1


def test_an_archived_root_unpacked_elsewhere_hits(tiny, compiler, tmp_path, root, start, load_program):
    source = tiny()
    built = nodecache.load("tiny", source).__nodecache__
    shutil.make_archive(str(tmp_path / "archive"), "tar", root)
    shutil.rmtree(root)
    shutil.unpack_archive(tmp_path / "archive.tar", tmp_path / "elsewhere")
    child = start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / "elsewhere")}).wait()
    assert child.status == 0, child.err
    assert child.json["role"] == "hit"
    assert child.json["key"] == built.key
    assert compiler.compiles == 1


def test_a_touched_source_does_not_rebuild(tiny, compiler, start, load_program):
    """Case 35."""
    source = tiny(extra='#include "a.h"')
    header = source.parent / "a.h"
    header.write_text("\n")
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
    for path in (source, header):
        path.write_bytes(path.read_bytes())
        os.utime(path)
    again = start(load_program, "tiny", source).wait().json
    assert again["role"] == "hit"
    assert again["seconds"] < 0.5
    assert compiler.compiles == 1


def test_one_name_with_two_sources_or_two_flags_gives_each_its_own(tiny, compiler, tmp_path):
    """Case 15."""
    one = tiny(expression="1", folder=tmp_path / "one")
    two = tiny(expression="2", folder=tmp_path / "two")
    assert [nodecache.load("tiny", source).add(0, 0) for source in (one, two, one, two)] == [1, 2, 1, 2]
    both = tiny(expression="N", folder=tmp_path / "both")
    for _ in range(5):
        assert nodecache.load("tiny", both, ["-DN=1"]).add(0, 0) == 1
        assert nodecache.load("tiny", both, ["-DN=2"]).add(0, 0) == 2
    assert compiler.compiles == 4


def test_two_processes_with_one_name_and_two_sources_at_once(tiny, start, load_program, tmp_path):
    """Case 15."""
    sources = [tiny(expression=str(number), folder=tmp_path / str(number)) for number in (1, 2)]
    children = [start(load_program, "tiny", source) for source in sources]
    assert [child.wait().json["sum"] for child in children] == [1, 2]


def test_an_edited_source_gives_a_new_module_and_the_old_one_goes_on(tiny):
    """Case 28."""
    first = nodecache.load("tiny", tiny(expression="1"))
    second = nodecache.load("tiny", tiny(expression="2"))
    assert (first.add(0, 0), second.add(0, 0)) == (1, 2)


def test_the_torch_version_counts_to_the_last_digit_and_its_old_entry_stays(tmp_path, monkeypatch):
    """Case 29: what identifies a framework is read from its files."""
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    monkeypatch.setattr(packages, "package_folder", lambda name: str(folder) if name == "torch" else None)
    version = folder / "version.py"
    version.write_text("__version__ = '2.8.0+cu128'\n")
    (folder / "lib/libtorch_cpu.so").write_bytes(b"x" * 100)
    first = key(frameworks=("torch",))
    version.write_text("__version__ = '2.8.1+cu128'\n")
    second = key(frameworks=("torch",))
    version.write_text("__version__ = '2.8.0+cpu'\n")
    third = key(frameworks=("torch",))
    version.write_text("__version__ = '2.8.0+cu128'\n")
    assert key(frameworks=("torch",)) == first
    (folder / "lib/libtorch_cpu.so").write_bytes(b"x" * 101)  # another C++ ABI
    fourth = key(frameworks=("torch",))
    assert len({first, second, third, fourth}) == 4
    assert key() not in {first, second, third, fourth}


def test_torch_changed_and_back_is_a_rebuild_and_then_a_hit(tiny, compiler, tmp_path, monkeypatch):
    """Case 29, with headers that are read."""
    header = tmp_path / "torch/include/thing.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define VALUE 1\n")
    version = tmp_path / "torch/version.py"
    version.write_text("2.8.0")
    monkeypatch.setattr(packages, "package_folder", lambda name: str(tmp_path / "torch") if name == "torch" else None)
    source = tiny(expression="VALUE", extra="#include <thing.h>")

    def load():
        return nodecache.load("tiny", source, extra_include_paths=[header.parent]).__nodecache__.key

    first = load()
    version.write_text("2.8.1")
    second = load()
    version.write_text("2.8.0")
    assert load() == first
    assert second != first
    assert compiler.compiles == 2


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("_c_library", lambda: "glibc 2.99"),
        ("python_items", lambda: [("python", "cpython 3.99.0"), ("python abi", ".cpython-399d.so")]),
    ],
)
def test_interpreter_and_c_library_count(what, value, monkeypatch):
    """Case 32: whatever root is set, another Python has entries of its own."""
    before = key()
    monkeypatch.setattr(recipe, what, value)
    assert key() != before


def test_the_machine_counts(monkeypatch):
    """Case 32."""
    before = key()
    real = os.uname()
    fields = [real.sysname, real.nodename, real.release, real.version, "another64"]
    monkeypatch.setattr(recipe.os, "uname", lambda: os.uname_result(fields))
    assert key() != before


def test_free_threading_and_debug_builds_are_told_apart(monkeypatch):
    import _imp

    before = recipe.python_items()
    monkeypatch.setattr(_imp, "extension_suffixes", lambda: [".cpython-313t-x86_64-linux-gnu.so"])
    assert recipe.python_items() != before


SOURCES_OF_NATIVE = [
    ({"cflags": ["-march=native"]}, {}),
    ({"cflags": ["-mtune=native"]}, {}),
    ({}, {"CXXFLAGS": "-O3 -march=native"}),
    ({"ldflags": ["-flto", "-march=native"]}, {}),
    ({}, {"LDFLAGS": "-march=native"}),
    ({}, {"CXX": "c++ -march=native"}),
    ({}, {"NVCC_APPEND_FLAGS": "-Xcompiler -march=native"}),
    ({"cflags": ["@flags.rsp"]}, {}),
]


@pytest.mark.parametrize(("options", "environment"), SOURCES_OF_NATIVE)
def test_native_code_has_the_cpu_in_its_key_whoever_asks_for_it(options, environment, monkeypatch, tmp_path):
    """Case 34."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flags.rsp").write_text("-O3 '-march=native'\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    keys = set()
    for cpu in ("flags=avx2", "flags=avx2 avx512f"):
        monkeypatch.setattr(recipe, "cpu_features", lambda cpu=cpu: cpu)
        keys.add(key(**options))
    assert len(keys) == 2


def test_a_named_architecture_is_one_key_on_all_cpus(monkeypatch):
    """Case 34."""
    keys = set()
    for cpu in ("flags=avx2", "flags=avx2 avx512f"):
        monkeypatch.setattr(recipe, "cpu_features", lambda cpu=cpu: cpu)
        keys.add(key(cflags=["-march=x86-64-v2"]))
    assert len(keys) == 1


def test_the_cpus_features_are_read_and_its_clock_is_not():
    said = recipe.cpu_features()
    assert "flags=" in said or "Features=" in said
    assert "MHz" not in said


@pytest.mark.parametrize(
    "name",
    [
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH", "NVCC_PREPEND_FLAGS"),
        *("NVCC_APPEND_FLAGS", "CXXFLAGS", "LDFLAGS", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LD_RUN_PATH"),
    ],
)
def test_a_variable_that_tools_read_counts(name, monkeypatch, tmp_path):
    monkeypatch.delenv(name, raising=False)
    before = key()
    monkeypatch.setenv(name, str(tmp_path) if name.endswith("PATH") else "-DX" if "FLAGS" in name else "1")
    assert key() != before


def test_flags_of_the_environment_do_not_count_where_they_do_not_apply(monkeypatch):
    """As in torch."""
    before = key(environment_flags=False)
    monkeypatch.setenv("CXXFLAGS", "-O3")
    monkeypatch.setenv("LDFLAGS", "-s")
    assert key(environment_flags=False) == before


def test_who_where_and_which_rank_does_not_count(monkeypatch, tmp_path):
    before = key()
    for name in (
        "USER",
        "HOME",
        "HOSTNAME",
        "RANK",
        "LOCAL_RANK",
        "NODECACHE_JOBS",
        "MAX_JOBS",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert key() == before


def test_the_order_of_flags_counts():
    assert key(cflags=["-DA=1", "-UA"]) != key(cflags=["-UA", "-DA=1"])


def test_flags_cannot_run_into_one_another():
    assert key(cflags=["-DA -DB"]) != key(cflags=["-DA", "-DB"])
    assert key(cflags=["-DA"], ldflags=[]) != key(cflags=[], ldflags=["-DA"])


def test_relative_folders_in_flags_are_the_callers(tiny, tmp_path, monkeypatch):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/value.h").write_text("#define VALUE 3\n")
    monkeypatch.chdir(tmp_path)
    source = tiny(expression="VALUE", extra="#include <value.h>")
    for flags in (["-Iinc"], ["-I", "inc"], ["-isystem", "inc"], ["-idirafter", "inc"], ["@flags"]):
        (tmp_path / "flags").write_text("-I inc\n")
        assert nodecache.load("tiny", source, flags).add(0, 0) == 3
    monkeypatch.setenv("CXX", "c++ -Iinc")
    assert nodecache.load("tiny", source).add(0, 0) == 3


def test_a_file_with_the_name_of_a_macro_is_left_alone(tiny, tmp_path, monkeypatch):
    """``-D NAME`` and ``-DX=file`` name no files, whatever lies in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("VALUE=3", "a.b", "now", "c++17"):
        (tmp_path / name).write_text("")
    source = tiny(
        expression="VALUE + sizeof(STRING(TEXT)) - 4", extra="#define STRING2(x) #x\n#define STRING(x) STRING2(x)"
    )
    assert nodecache.load("tiny", source, ["-D", "VALUE=3", "-DTEXT=a.b"], ["-Wl,-z,now"]).add(0, 0) == 3


def test_equals_signs_in_paths_work_and_their_places_count(tmp_path):
    project = checkout(tmp_path / "a=b")
    module = build(project)
    assert module.where()[0].endswith("speaks.cpp")
    header = project / "inc/found.h"
    header.write_text(header.read_text() + "// edited\n")
    assert build(project) is not module


def test_a_very_long_command_is_passed(tiny):
    """A shell takes no argument of 128 KiB, and a build tool gives it the whole command as one."""
    flags = [f'-DLONG_{number}="a \\"quoted\\" $value"' for number in range(2500)]
    assert nodecache.load("tiny", tiny(expression="sizeof(LONG_2499)"), flags).add(0, 0) == len('a "quoted" $value') + 1


def test_a_response_file_that_includes_itself_is_refused(tmp_path):
    path = tmp_path / "loop.rsp"
    path.write_text(f"@{path}\n")
    with pytest.raises(SpecError, match="includes itself"):
        key(cflags=[f"@{path}"])


def test_architectures_count_for_cuda_and_not_for_cpp(monkeypatch, tmp_path):
    """Case 31: no GPU needed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k() {}\n")
    cpp, cuda = set(), set()
    for wanted in ("8.0", "9.0"):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wanted)
        cpp.add(key())
        try:
            cuda.add(key(source))
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
            cuda.add(key(source))
        except ToolchainError:
            pytest.skip("there is no CUDA compiler here")
    assert len(cpp) == 1
    assert len(cuda) == 2
