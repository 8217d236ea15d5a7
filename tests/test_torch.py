"""The drop-in for torch's JIT builds. A torch compile takes half a minute, so these share one root and few builds."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import FunctionType

import pytest
import torch
from torch.utils import cpp_extension

import nodecache
from nodecache import operators, patch, torch_flags
from nodecache import torch as drop_in

TWICE = "torch::Tensor twice(torch::Tensor x) { return x * 2; }\n"
LIGHT = """\
#include <Python.h>
#include <torch/version.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "light", nullptr, -1, nullptr};
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() {
    PyObject* module = PyModule_Create(&def);
    PyModule_AddIntConstant(module, "number", NUMBER);
    PyModule_AddIntConstant(module, "torch_major", TORCH_VERSION_MAJOR);
    return module;
}
"""


@pytest.fixture(autouse=True)
def numbers(monkeypatch):
    """Names are new to each test, whichever have run in this process."""
    monkeypatch.setattr(drop_in, "_versions", {})


@pytest.fixture
def light(tmp_path):
    """A source that includes one small header of torch: it compiles in 0.3 s."""
    path = tmp_path / "light.cpp"
    path.write_text(LIGHT)
    return path


@pytest.fixture
def patched():
    assert patch.install()
    yield cpp_extension
    patch.uninstall()


def defaults(function):
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", ["load", "load_inline"])
def test_parameters_and_defaults_are_those_of_the_installed_torch(name):
    theirs, ours = defaults(getattr(cpp_extension, name)), defaults(getattr(drop_in, name))
    assert list(theirs) == list(ours)
    assert theirs == ours


@pytest.mark.timeout(600)
def test_inline_functions_are_bound_and_a_hit_starts_no_process(monkeypatch):
    module = drop_in.load_inline("twice", TWICE, functions=["twice"])
    assert module.twice(torch.ones(2)).tolist() == [2, 2]
    assert module.__nodecache__.role == "built"
    program = f"""\
import torch, sys, subprocess
def refuse(*_, **__): raise SystemExit("a process was started")
subprocess.Popen = refuse
import nodecache.torch
module = nodecache.torch.load_inline("twice", {TWICE!r}, functions=["twice"])
assert module.__nodecache__.role == "hit" and module.twice(torch.ones(1)).item() == 2
assert "torch.utils.cpp_extension" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_one_path_alone_is_a_list_of_sources(light):
    module = drop_in.load("light", str(light), extra_cflags=["-DNUMBER=7"])
    assert (module.number, module.torch_major) == (7, int(torch.__version__.partition(".")[0]))
    assert Path(module.__file__).name == "light.so"


def test_other_contents_under_one_name_are_versions_of_it(light):
    one = drop_in.load("light", [str(light)], ["-DNUMBER=1"])
    two = drop_in.load("light", [str(light)], ["-DNUMBER=2"])
    again = drop_in.load("light", [str(light)], ["-DNUMBER=1"])
    assert (one.number, two.number, again.number) == (1, 2, 1)
    assert Path(two.__file__).name.startswith("light_v")
    assert again is one


def test_a_flag_string_is_split_as_a_shell_would(light):
    module = drop_in.load("quoted", [str(light)], ["-DUNUSED='a b' -DNUMBER=3"])
    assert module.number == 3


def test_operators_are_loaded_twice_without_an_error(tmp_path):
    source = tmp_path / "ops.cpp"
    source.write_text(
        "#include <torch/library.h>\n"
        "static int64_t three(int64_t x) { return 3 * x; }\n"
        'TORCH_LIBRARY(nodecache_test, m) { m.def("three(int x) -> int", &three); }\n'
    )
    path = drop_in.load("ops", [source], is_python_module=False)
    assert path == drop_in.load("ops", [source], is_python_module=False)
    assert os.path.basename(path) == "ops.so"
    assert torch.ops.nodecache_test.three(5) == 15


def test_a_standalone_program_is_built_and_runs(tmp_path):
    source = tmp_path / "prog.cpp"
    source.write_text('#include <cstdio>\nint main() { std::puts("alone"); }\n')
    path = drop_in.load("prog", [source], is_python_module=False, is_standalone=True)
    assert subprocess.run([path], capture_output=True, check=True, text=True).stdout == "alone\n"


def test_a_program_cannot_be_a_module():
    with pytest.raises(ValueError, match="exclude each other"):
        drop_in.load("x", [], is_standalone=True)


@pytest.mark.parametrize("call", [{"with_sycl": True}, {"sources": ["k.sycl"]}], ids=str)
def test_sycl_is_refused_with_what_to_use_instead(call):
    with pytest.raises(RuntimeError, match=r"SYCL is not built by nodecache\. Use torch"):
        drop_in.load("x", **{"sources": ["k.cpp"], **call})


@pytest.mark.parametrize("given", ["build_directory", "TORCH_EXTENSIONS_DIR"])
def test_files_go_where_torch_was_told_and_foreign_ones_stay(light, tmp_path, monkeypatch, given):
    """Case 4: an old build folder with an empty ``lock``."""
    monkeypatch.delenv("NODECACHE_ROOT")
    folder = tmp_path / "extensions"
    old = folder / "light"
    old.mkdir(parents=True)
    (old / "lock").touch()
    (old / "light.so").write_text("half")
    if given == "TORCH_EXTENSIONS_DIR":
        monkeypatch.setenv(given, str(folder))
        module = drop_in.load("light", [light], ["-DNUMBER=1"])
    else:
        module = drop_in.load("light", [light], ["-DNUMBER=1"], build_directory=str(folder))
    assert Path(module.__file__).is_relative_to(folder / f"nodecache_{os.getuid()}")
    assert (old / "lock").exists()
    assert (old / "light.so").read_text() == "half"


def test_another_torch_is_another_key(light, tmp_path, monkeypatch):
    """Case 29: a third digit that differs; back again is a hit."""
    from nodecache import packages

    module = drop_in.load("light", [light], ["-DNUMBER=1"])
    theirs = packages.package_folder("torch")
    other = tmp_path / "torch"
    other.mkdir()
    (other / "version.py").write_text((Path(theirs) / "version.py").read_text().replace("2.13.0", "2.13.1"))
    for name in ("lib", "include"):
        (other / name).symlink_to(Path(theirs) / name)
    with monkeypatch.context() as changed:
        changed.setattr(torch, "__path__", [str(other)])
        changed_module = drop_in.load("light", [light], ["-DNUMBER=1"])
    assert changed_module.__nodecache__.key != module.__nodecache__.key
    assert drop_in.load("light", [light], ["-DNUMBER=1"]) is module


def test_the_patch_covers_who_imported_the_functions_before(light):
    early_load, early_inline = cpp_extension.load, cpp_extension.load_inline
    assert patch.install()
    try:
        for load in (cpp_extension.load, early_load):
            module = load("light", [str(light)], extra_cflags=["-DNUMBER=4"])
            assert module.number == 4
            assert module.__nodecache__.key
        inline = early_inline("light_inline", LIGHT, extra_cflags=["-DNUMBER=5"], no_implicit_headers=True)
        assert inline.__nodecache__.role == "built"
    finally:
        patch.uninstall()
    assert cpp_extension.load is early_load


def test_installing_twice_and_uninstalling_puts_everything_back():
    before = {name: getattr(cpp_extension, name) for name in patch._KNOWN}
    assert patch.install()
    assert patch.install()
    assert cpp_extension.load is not before["load"]
    patch.uninstall()
    assert before == {name: getattr(cpp_extension, name) for name in patch._KNOWN}
    patch.uninstall()


def test_a_torch_that_has_changed_is_left_alone_and_it_is_said_so(monkeypatch, caplog):
    def written(name, sources, moon_phase, build_directory=None): ...

    load = FunctionType(written.__code__, vars(cpp_extension), "load")
    monkeypatch.setattr(cpp_extension, "load", load)
    with caplog.at_level(logging.WARNING, "nodecache"):
        assert not patch.install()
    assert "moon_phase" in caplog.text
    assert cpp_extension.load is load


def test_the_patched_functions_keep_their_names_and_signatures(patched):
    assert patched.load.__name__ == "load"
    assert "sources" in inspect.signature(patched.load).parameters


def test_a_program_is_run_unchanged(tmp_path, light):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch\n"
        "from torch.utils.cpp_extension import load\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], __file__, load('light', [sys.argv[1]], ['-DNUMBER=6']).__nodecache__.role)\n"
    )
    command = [sys.executable, "-m", "nodecache", "run", program, light, "--own-option"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == f"{[str(light), '--own-option']} {program} built\n"
    as_module = [sys.executable, "-m", "nodecache", "run", "-m", "train", light]
    done = subprocess.run(as_module, capture_output=True, text=True, timeout=100, check=True, cwd=tmp_path)
    assert done.stdout.endswith("hit\n")


def test_a_program_that_never_builds_does_not_import_torch(tmp_path):
    program = tmp_path / "plain.py"
    program.write_text("import sys; print('torch' in sys.modules)\n")
    done = subprocess.run(
        [sys.executable, "-m", "nodecache", "run", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_failed_build_is_torchs_error(tmp_path):
    source = tmp_path / "bad.cpp"
    source.write_text("int f( {\n")
    with pytest.raises(RuntimeError, match=r"^Error building extension 'bad': .*bad\.cpp:1:\d+: error:"):
        drop_in.load("bad", [source])


def test_a_header_upgrade_of_pybind11_alone_does_not_rebuild_what_never_read_it(light):
    module = drop_in.load("light", [light], ["-DNUMBER=1"])
    folder = Path(os.environ["NODECACHE_ROOT"], "recipes")
    text = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    assert "package" in text
    assert "torch" in text
    assert "pybind11" not in text
    assert module.number == 1
    assert nodecache is not None


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        (r"""-DA='b c' -DD=\"e\" """, ("-DA=b c", '-DD="e"')),
        ("'-Wl,-rpath,$$ORIGIN'", ("-Wl,-rpath,$ORIGIN",)),
        ("-Wl,-rpath,\\$$ORIGIN", ("-Wl,-rpath,$ORIGIN",)),
        ("-DPLACE=$$PLACE", ("-DPLACE=here",)),
        ('"-DPLACE=$${PLACE} and there"', ("-DPLACE=here and there",)),
        ("`echo -DA -DB`", ("-DA", "-DB")),
        ("-DA=$ninjas_own", ("-DA=",)),
        ("  -O3\n", ("-O3",)),
        ("", ()),
    ],
)
def test_a_flag_is_read_as_ninja_and_a_shell_read_it(monkeypatch, flag, words):
    monkeypatch.setenv("PLACE", "here")
    assert drop_in._words("extra_cflags", [flag], None) == words


def test_flags_with_paths_begin_in_the_build_directory_where_torchs_tools_run(tmp_path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "more.o").touch()
    flags = ["-Iinc", "-isystem inc", "more.o", "-Lnowhere", "-DA=inc"]
    inc = str(tmp_path / "inc")
    expected = (f"-I{inc}", "-isystem", inc, str(tmp_path / "more.o"), "-Lnowhere", "-DA=inc")
    assert drop_in._words("extra_cflags", flags, tmp_path) == expected


@pytest.mark.parametrize("flag", ["-DA='b", "$$(", "-O2\n-O3"])
def test_flags_that_cannot_be_read_are_refused_with_what_is_wrong(flag):
    with pytest.raises(ValueError, match=r"Correct|one line"):
        drop_in._words("extra_cflags", [flag], None)


def test_no_flags_are_the_same_however_they_are_not_given(light):
    light.write_text(f"#define NUMBER 1\n{light.read_text()}")
    paths = [drop_in.load("light", [light], flags).__file__ for flags in (None, [], ())]
    paths += [drop_in.load("light", [light], ["-O1"], extra_include_paths=path).__file__ for path in ([], None)]
    paths.append(drop_in.load("light", [light], ("-O1",)).__file__)
    assert [paths.index(path) for path in paths] == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize(
    ("one", "other", "same"), [("my_vec", "my_viz", False), ("my_vec", "my_vec_v2", True), ("a_v1", "a", True)]
)
def test_only_a_number_is_taken_for_one(one, other, same):
    assert (operators._unnumbered(one) == operators._unnumbered(other)) is same


def test_one_string_for_a_list_of_flags_is_refused(light):
    with pytest.raises(ValueError, match=r"extra_cflags is one string: '-O2'\. Give a list"):
        drop_in.load("light", [light], "-O2")


def test_sources_are_relative_to_the_working_folder(light, monkeypatch):
    monkeypatch.chdir(light.parent)
    assert drop_in.load("light", ["light.cpp"], ["-DNUMBER=1"]).number == 1


def test_verbose_prints_the_compilers_commands_when_it_builds_and_nothing_on_a_hit(light, capfd):
    source = light.with_name("spoken.cpp")
    source.write_text(light.read_text().replace("light", "spoken"))
    drop_in.load("spoken", [source], ["-DNUMBER=1"], verbose=True)
    out, err = capfd.readouterr()
    assert " -DNUMBER=1 " in out
    assert "spoken.so" in out
    assert err == ""
    drop_in.load("spoken", [source], ["-DNUMBER=1"], verbose=True)
    assert capfd.readouterr() == ("", "")


def test_what_nobody_imports_may_be_named_as_files_are(tmp_path):
    source = tmp_path / "prog.cpp"
    source.write_text("int main() { return 7; }\n")
    path = drop_in.load("my-prog.x", [source], is_python_module=False, is_standalone=True)
    assert os.path.basename(path) == "my-prog.x"
    assert subprocess.run([path], check=False, timeout=20).returncode == 7
    with pytest.raises(ValueError, match="not an ASCII identifier"):
        drop_in.load("my-module", [source])


def test_threads_that_load_two_contents_under_one_name_get_their_own(light, compiler):
    found = {number: [] for number in (1, 2)}

    def load(number):
        found[number].append(drop_in.load("shared", [light], [f"-DNUMBER={number}"]))

    threads = [Thread(target=load, args=(number,)) for number in (1, 2) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, modules in found.items():
        assert {module.number for module in modules} == {number}
        assert len(modules) == 4
        assert len(set(map(id, modules))) == 1
    assert compiler.compiles == 2


OPERATORS = """\
import logging, sys
from pathlib import Path
import torch
from nodecache.torch import load
logging.basicConfig(stream=sys.stdout)
header, source = Path("number.h"), Path("ops.cpp")
source.write_text(
    '#include <torch/library.h>\\n#include "number.h"\\n'
    "static int64_t number() { return NUMBER; }\\n"
    'TORCH_LIBRARY(edited, m) { m.def("number() -> int", &number); }\\n'
)
header.write_text("#define NUMBER 1\\n")
first = load("ops", [str(source)], is_python_module=False)
header.write_text("#define NUMBER 2\\n")
second = load("ops", [str(source)], is_python_module=False)
print(first == second, torch.ops.edited.number())
"""


def test_operators_whose_header_was_edited_do_not_end_the_process_and_it_is_said_which_are_in_use(start, tmp_path):
    result = start(OPERATORS, cwd=tmp_path).wait(100)
    assert result.status == 0, result.err
    assert result.out.endswith("True 1\n")
    assert "operators 'edited' are in this process already" in result.out


def test_a_module_with_operators_of_another_one_is_refused_before_torch_ends_the_process(monkeypatch):
    monkeypatch.setattr(operators, "_registered", {("mine", ""): "/first.so"})
    monkeypatch.setattr(operators, "_results", {"/first.so": "/first.so"})
    with pytest.raises(ImportError, match=r"operators 'mine', which /first\.so has registered.*another process"):
        operators.Guard("second", "module", [("mine", False)], edited=True).before("/second.so")


def test_registrations_are_found_in_code_and_not_in_comments():
    text = b"""
    // TORCH_LIBRARY(no, m)
    /* TORCH_LIBRARY(neither, m) */
    TORCH_LIBRARY ( one, m) {}
    TORCH_LIBRARY_FRAGMENT(part, m) {}
    TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) {}
    TORCH_LIBRARY_IMPL(one, CPU, m) {}
    """
    found = operators.in_text([drop_in.Source("/a.cpp", text)], "ext_v1")
    assert found == [("one", False), ("part", True), ("ext_v1", False)]


def test_cuda_with_a_torch_that_has_none_is_refused_before_compiling(light, compiler):
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    with pytest.raises(RuntimeError, match=r"is a build without CUDA.*Install a CUDA build"):
        drop_in.load("light", [light], ["-DNUMBER=1"], with_cuda=True)
    assert compiler.compiles == 0


def test_cuda_takes_its_host_compiler_from_cc_as_torch_does(light, monkeypatch):
    specs = []
    monkeypatch.setattr(drop_in, "obtain", lambda spec, **_: specs.append(spec))
    monkeypatch.setenv("CC", "gcc-13")
    drop_in.load("light", [light], extra_cuda_cflags=["-std=c++17 -O3"], with_cuda=True)
    drop_in.load("light", [light], extra_cuda_cflags=["-std=c++17 -O3"])
    assert [spec.cuda_cflags for spec in specs] == [
        ("-ccbin", "gcc-13", "-std=c++17", "-O3"),
        ("-std=c++17", "-O3"),
    ]


def test_folders_are_asked_of_any_torch():
    def old(cuda=False):
        return ["/old", str(cuda)]

    def new(device_type="cpu", torch_include_dirs=True):
        return ["/new", device_type]

    assert torch_flags._device_paths(old, "cuda") == ["/old", "True"]
    assert torch_flags._device_paths(new, "cpu") == ["/new", "cpu"]


def test_functions_of_an_older_torch_are_recognised(monkeypatch):
    """Torch 2.4 has no SYCL."""

    def load(name, sources, extra_cflags=None, extra_cuda_cflags=None, extra_ldflags=None,
             extra_include_paths=None, build_directory=None, verbose=False, with_cuda=None,
             is_python_module=True, is_standalone=False, keep_intermediates=True): ...  # fmt: skip

    monkeypatch.setattr(cpp_extension, "load", FunctionType(load.__code__, vars(cpp_extension), "load"))
    assert patch.install()
    patch.uninstall()


def test_a_patch_of_somebody_else_stays_and_ends_in_nodecache(light, monkeypatch):
    torchs = cpp_extension.load

    def load(*args, **kwargs):
        return torchs(*args, **{**kwargs, "extra_cflags": ["-DNUMBER=8"]})

    monkeypatch.setattr(cpp_extension, "load", load)
    assert patch.install()
    try:
        assert cpp_extension.load is load
        module = cpp_extension.load("light", [str(light)])
    finally:
        patch.uninstall()
    assert (module.number, module.__nodecache__.role) == (8, "built")
    assert cpp_extension.load is load


def test_who_wrapped_the_patched_function_gets_torchs_after_it_is_taken_back(monkeypatch):
    assert patch.install()
    kept = cpp_extension.load
    patch.uninstall()
    monkeypatch.setattr(cpp_extension, "_jit_compile", lambda *_, **__: "torch's own")
    assert kept("x", ["x.cpp"], build_directory="/nowhere") == "torch's own"


def test_another_build_function_of_torch_is_not_patched_over(monkeypatch, caplog):
    monkeypatch.setattr(cpp_extension, "_jit_compile", lambda *_, **__: None)
    with caplog.at_level(logging.WARNING, "nodecache"):
        assert not patch.install()
    assert "_jit_compile has been replaced by" in caplog.text
