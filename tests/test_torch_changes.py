"""What a program changes in torch's module, and calls that only torch can answer."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from types import FunctionType

import pytest
from torch.utils import cpp_extension

from nodecache import patch, torch_changes
from nodecache import torch as drop_in

SOURCE = """\
#include <Python.h>
#ifndef X
#define X 1
#endif
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, nullptr};
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() {
    PyObject* module = PyModule_Create(&def);
    PyModule_AddIntConstant(module, "number", X);
    return module;
}
"""


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(patch, "_told", set())
    monkeypatch.setattr(drop_in, "_warned", set())
    monkeypatch.setattr(drop_in, "_versions", {})


@pytest.fixture
def plain(tmp_path):
    """A source without torch's headers, and torch's own folder in the test's."""
    path = tmp_path / "plain.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def torchs_root(tmp_path, monkeypatch):
    """Where torch would build, below a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    return Path(cpp_extension._get_build_directory("plain", False))


@pytest.fixture
def patched(torchs_root):
    assert patch.install()
    yield cpp_extension
    patch.uninstall()


WRAPPER = """\
import sys
import torch.utils.cpp_extension as c
old = c._write_ninja_file
def wrapper(path, cflags, *rest, **named):
    return old(path, [*cflags, "-DX=2"], *rest, **named)
{early}
c._write_ninja_file = wrapper
{late}
print(c.load("plain", [sys.argv[1]]).number)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_wrapped_ninja_writer_gives_what_it_gives_under_torch_and_one_warning(when, plain, start, torchs_root):
    install = "import nodecache.torch; assert nodecache.torch.install()"
    code = WRAPPER.format(**{"early": "", "late": "", when: install})
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for child in [start(code, plain, env=env) for _ in range(2)]:
        done = child.wait(200)
        assert done.status == 0, done.err
        assert done.out == "2\n"
        assert done.err.count("the program has changed") == 1
        assert "torch.utils.cpp_extension._write_ninja_file." in done.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_get_cuda_arch_flags", lambda *_: ["-gencode=arch=compute_90,code=sm_90"]),
        ("_prepare_ldflags", lambda *_: ["-lm"]),
        ("get_cxx_compiler", lambda: "clang++"),
        ("CUDA_HOME", "/opt/other"),
        ("SUBPROCESS_DECODE_ARGS", ("utf-8", "ignore")),
        ("JIT_EXTENSION_VERSIONER", object()),
    ],
)
def test_a_changed_helper_is_noticed_by_each_way_in(name, value, monkeypatch):
    entries = {entry: getattr(cpp_extension, entry) for entry in patch._ENTRIES}
    watched = torch_changes.Globals(cpp_extension, entries, fresh=True)
    assert [watched.changed(entry, {}) for entry in entries] == [[], [], []]
    monkeypatch.setattr(cpp_extension, name, value)
    assert [watched.changed(entry, {}) for entry in entries] == [[name]] * 3


def test_a_helper_with_other_code_in_it_is_noticed(monkeypatch):
    watched = torch_changes.Globals(cpp_extension, {"load": cpp_extension.load}, fresh=True)
    monkeypatch.setattr(cpp_extension._prepare_ldflags, "__code__", (lambda *_: []).__code__)
    assert watched.changed("load", {}) == ["_prepare_ldflags"]


def test_what_was_changed_before_the_patch_came_is_told_from_torchs_source(monkeypatch):
    monkeypatch.setattr(cpp_extension, "_get_cuda_arch_flags", lambda *_: [])
    monkeypatch.setattr(cpp_extension, "MINIMUM_GCC_VERSION", (4, 0, 0))
    watched = torch_changes.Globals(cpp_extension, {"load": cpp_extension.load}, fresh=False)
    assert watched.changed("load", {}) == ["MINIMUM_GCC_VERSION", "_get_cuda_arch_flags"]


def test_a_replaced_build_function_is_called_by_load_as_under_torch(plain, patched, monkeypatch, caplog):
    ours = patched._jit_compile

    def replaced(name, sources, cflags, *rest, **named):
        return ours(name, sources, ["-DX=5"], *rest, **named)

    with monkeypatch.context() as changed:
        changed.setattr(patched, "_jit_compile", replaced)
        module = patched.load("plain", [str(plain)])
        patched.load("plain", [str(plain)])
    assert (module.number, module.__nodecache__.role) == (5, "built")
    assert caplog.text.count("the program has changed torch.utils.cpp_extension._jit_compile") == 1


def test_edited_nvcc_flags_are_in_the_key_and_torchs_own_are_not(tmp_path, monkeypatch):
    specs = []
    monkeypatch.setattr(drop_in, "obtain", lambda spec, **_: specs.append(spec) or "path")
    source = tmp_path / "kernel.cu"
    source.write_text("")
    drop_in.load("kernel", source)
    monkeypatch.setattr(cpp_extension, "COMMON_NVCC_FLAGS", cpp_extension.COMMON_NVCC_FLAGS[1:])
    drop_in.load("kernel", source)
    drop_in.load("kernel", [tmp_path / "plain.cpp" if (tmp_path / "plain.cpp").write_text(SOURCE) else ""])
    flags = "\n".join(cpp_extension.COMMON_NVCC_FLAGS)
    assert [spec.items for spec in specs] == [(), (("torch COMMON_NVCC_FLAGS", flags),), ()]


GSPLAT_RETRY = """\
import sys
import nodecache.torch; assert nodecache.torch.install()
from torch.utils import cpp_extension as c
arguments = ("plain", [sys.argv[1]], ["-DX=3"], [], [], [], c._get_build_directory("plain", False))
try:
    c._jit_compile(*arguments[:3], *arguments[3:], with_cuda=False)
except TypeError as error:
    assert "_jit_compile() missing" in str(error), error
    module = c._jit_compile("plain", [sys.argv[1]], ["-DX=3"], [], [], [], [], None, False, False, None, True, False)
print(module.number)
"""


def test_a_call_in_an_older_form_fails_in_torchs_words_and_the_retry_by_them_works(plain, compiler, start, torchs_root):
    children = [start(GSPLAT_RETRY, plain) for _ in range(2)]
    for child in children:
        done = child.wait(100)
        assert (done.status, done.out) == (0, "3\n"), done.err
    assert compiler.compiles == 1


@pytest.mark.parametrize("name", ["load", "load_inline", "_jit_compile"])
def test_a_misspelled_argument_is_torchs_own_error_word_for_word(name, torchs_root):
    def said():
        with pytest.raises(TypeError) as error:
            getattr(cpp_extension, name)(nam="x")
        return str(error.value)

    alone = said()
    assert patch.install()
    try:
        assert said() == alone
    finally:
        patch.uninstall()


def _with_one_more_parameter(monkeypatch):
    """A torch whose three functions have a parameter that nodecache does not know."""
    seen = []
    here = vars(cpp_extension)

    def load(name, sources, extra_cflags=None, build_directory=None, extra_dlink_cflags=None):
        return SEEN.append(("load", extra_dlink_cflags))  # noqa: F821

    def load_inline(name, cpp_sources, functions=None, extra_dlink_cflags=None):
        return SEEN.append(("load_inline", extra_dlink_cflags))  # noqa: F821

    def _jit_compile(name, sources, extra_cflags, build_directory, extra_dlink_cflags):
        return SEEN.append(("_jit_compile", extra_dlink_cflags))  # noqa: F821

    monkeypatch.setitem(here, "SEEN", seen)
    for function in (load, load_inline, _jit_compile):
        made = FunctionType(function.__code__, here, function.__name__, function.__defaults__)
        monkeypatch.setattr(cpp_extension, function.__name__, made)
    return seen


def test_a_new_parameter_of_torch_that_nobody_uses_switches_nothing_off(plain, monkeypatch, torchs_root, caplog):
    seen = _with_one_more_parameter(monkeypatch)
    assert patch.install()
    try:
        module = cpp_extension.load("plain", [str(plain)], ["-DX=4"])
        assert cpp_extension._jit_compile("plain", [str(plain)], ["-DX=4"], None, None) is module
        assert (module.number, seen, caplog.text) == (4, [], "")
        for _ in range(2):
            cpp_extension.load("plain", [str(plain)], extra_dlink_cflags=["-dlto"])
        cpp_extension._jit_compile("plain", [str(plain)], [], None, ["-dlto"])
    finally:
        patch.uninstall()
    assert seen == [("load", ["-dlto"])] * 2 + [("_jit_compile", ["-dlto"])]
    assert caplog.text.count("the call sets 'extra_dlink_cflags'") == 1


def test_torchs_default_folder_is_as_if_nobody_chose_it(plain, patched, monkeypatch, torchs_root):
    specs = []
    monkeypatch.setattr(drop_in, "obtain", lambda spec, root=None, **_: specs.append(root) or str(plain))
    monkeypatch.delenv("NODECACHE_ROOT")
    chosen = cpp_extension._get_build_directory("plain", False)
    patched.load("plain", [str(plain)], build_directory=chosen)
    patched.load("plain", [str(plain)], build_directory=Path(chosen))
    patched.load("plain", [str(plain)], build_directory=f"{chosen}/mine")
    assert specs == [None, None, f"{chosen}/mine/nodecache_{os.getuid()}"]


def test_the_result_is_found_in_torchs_folder_and_removing_that_hurts_no_entry(plain, patched, torchs_root):
    first = patched.load("plain", [str(plain)])
    link = torchs_root / "plain.so"
    assert link.is_symlink()
    assert link.samefile(first.__file__)
    assert os.listdir(torchs_root) == ["plain.so"]
    shutil.rmtree(torchs_root)
    assert patched.load("plain", [str(plain)]) is first
    assert link.samefile(first.__file__)
    plain.write_text(SOURCE.replace("define X 1", "define X 9"))
    second = patched.load("plain", [str(plain)])
    assert (torchs_root / Path(second.__file__).name).samefile(second.__file__)


def test_a_file_of_torchs_own_stays_in_its_folder(plain, patched, torchs_root):
    (torchs_root / "plain.so").write_text("torch's")
    patched.load("plain", [str(plain)])
    assert (torchs_root / "plain.so").read_text() == "torch's"


FIRST_BUILD = """\
import os, shutil, sys
import nodecache.torch; assert nodecache.torch.install()
from torch.utils.cpp_extension import load, _get_build_directory
for _ in range(20):
    d = _get_build_directory("plain", False)
    if os.listdir(d) != []:
        load("plain", [sys.argv[1]])
    else:
        shutil.rmtree(d)
        load("plain", [sys.argv[1]])
print("done")
"""


def test_programs_that_remove_an_empty_folder_of_torch_find_it_full_once_it_was_built(
    plain, compiler, start, torchs_root
):
    assert start(FIRST_BUILD, plain).wait(100).status == 0
    for child in [start(FIRST_BUILD, plain) for _ in range(8)]:
        done = child.wait(200)
        assert (done.status, done.out) == (0, "done\n"), done.err
    assert compiler.compiles == 1


def test_an_import_out_of_torchs_folder_works_without_nodecache(plain, patched, start, torchs_root):
    patched.load("plain", [str(plain)])
    code = "import sys; sys.path.insert(0, sys.argv[1]); import plain; print(plain.number)"
    assert start(code, torchs_root).wait(30).out == "1\n"


@pytest.fixture
def unusable(tmp_path, monkeypatch):
    """A place where no folder can be made, for root neither."""
    monkeypatch.delenv("NODECACHE_ROOT")
    monkeypatch.setattr("nodecache.root.default_root", lambda: str(tmp_path / "default"))
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def test_an_unusable_torch_extensions_dir_is_named_with_its_remedy(plain, unusable, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(unusable))
    with pytest.raises(drop_in.RootError, match=r"\(from TORCH_EXTENSIONS_DIR\).*correct TORCH_EXTENSIONS_DIR="):
        drop_in.load("plain", [plain])


def test_an_unusable_folder_that_code_chose_gives_way_to_the_default_root_with_one_warning(
    plain, unusable, caplog, tmp_path
):
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "nodecache"):
            module = drop_in.load("plain", [plain], build_directory=unusable)
    assert module.__file__.startswith(str(tmp_path / "default"))
    assert caplog.text.count("build_directory=") == 1
    assert "root=" not in caplog.text
