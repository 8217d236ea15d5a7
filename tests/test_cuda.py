"""CUDA: toolkit and architectures are in the key, the number of a device never is. No GPU is needed for any of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import nodecache
from nodecache import cuda
from nodecache.cuda import architectures, gencode_flags
from nodecache.errors import SpecError, ToolchainError
from nodecache.packages import cuda_home
from nodecache.root import ensure_folders, open_root

KERNEL = """\
#include <Python.h>
#include "value.h"
__global__ void twice(int* x) { x[0] *= VALUE; }
static PyObject* value(PyObject*, PyObject*) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_kernel() { return PyModule_Create(&def); }
"""

NVCCS = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN")


@pytest.fixture
def place(monkeypatch):
    for name in (
        "TORCH_CUDA_ARCH_LIST",
        "CUDA_VISIBLE_DEVICES",
        "NVCC_APPEND_FLAGS",
        "NVCC_PREPEND_FLAGS",
        "NVCC_CCBIN",
    ):
        monkeypatch.delenv(name, raising=False)
    found = open_root()
    ensure_folders(found)
    return found


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "_devices", lambda root: [])


@pytest.fixture
def nvcc():
    home = cuda_home()
    if home is None or not Path(home, "bin/nvcc").exists():
        pytest.skip("there is no CUDA toolkit here")
    return f"{home}/bin/nvcc"


@pytest.fixture
def kernel(tmp_path) -> Path:
    """A CUDA source in a folder with an odd name, and a header."""
    source = tmp_path / "ker nel's, $x/kernel.cu"
    source.parent.mkdir()
    source.write_text(KERNEL)
    (source.parent / "value.h").write_text("#define VALUE 2\n")
    return source


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        ("8.0", ["-gencode=arch=compute_80,code=sm_80"]),
        ("9.0a", ["-gencode=arch=compute_90a,code=sm_90a"]),
        ("Hopper", ["-gencode=arch=compute_90,code=compute_90", "-gencode=arch=compute_90,code=sm_90"]),
        ("9.0;8.0 8.0,9.0", ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]),
        ("12.0+PTX", ["-gencode=arch=compute_120,code=compute_120", "-gencode=arch=compute_120,code=sm_120"]),
    ],
)
def test_a_list_of_architectures_is_understood_as_torch_understands_it(wanted, flags):
    assert gencode_flags(wanted) == flags


def test_each_name_of_the_installed_torch_gives_torchs_own_flags(monkeypatch):
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    assert {"Kepler", "Kepler+Tesla", "Ampere+Tegra", "Blackwell"} <= set(cuda.names())
    for name in cuda.names():
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", name)
        assert gencode_flags(name) == cpp_extension._get_cuda_arch_flags(), name


def test_a_name_that_only_a_newer_torch_knows_is_read_from_its_source(monkeypatch, tmp_path):
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/cpp_extension.py").write_text(
        "named_arches = collections.OrderedDict([\n    ('Rubin+Tegra', '14.0'),\n    ('Rubin', '13.0+PTX'),\n])\n"
    )
    monkeypatch.setattr(cuda, "package_folder", lambda name: str(tmp_path))
    assert gencode_flags("Rubin+Tegra") == ["-gencode=arch=compute_140,code=sm_140"]
    assert gencode_flags("Rubin") == [
        "-gencode=arch=compute_130,code=compute_130",
        "-gencode=arch=compute_130,code=sm_130",
    ]


@pytest.mark.parametrize("variable", ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"])
def test_a_host_compiler_chosen_by_nvccs_variables_is_not_overridden(variable, place, monkeypatch):
    toolkit = cuda.Toolkit("nvcc", "/cuda", "13.0", [])
    one = {"compiler": ["g++"], "host_flags": [], "source": "a.cu", "target": "a.o", "dependencies": "a.d"}
    assert "-ccbin" in toolkit.command(flags=[], **one)
    monkeypatch.setenv(variable, "/opt/g++-11" if variable == "NVCC_CCBIN" else "-O3 -ccbin /opt/g++-11")
    assert "-ccbin" not in toolkit.command(flags=[], **one)
    assert cuda.nvcc_host([]) == "/opt/g++-11"


@pytest.mark.parametrize("wanted", ["9", "sm_90", "9.0+PTXX", "Hoper", "9.x", "9.0 -DX"])
def test_what_is_no_architecture_is_refused(wanted):
    with pytest.raises(SpecError, match="no architecture"):
        gencode_flags(wanted)


def test_without_list_and_gpu_the_error_asks_for_the_list(place, no_gpu):
    """Case 84."""
    with pytest.raises(ToolchainError, match="Set TORCH_CUDA_ARCH_LIST"):
        architectures(place)


def test_a_login_node_with_the_list_computes_the_key_of_a_gpu_node(place, monkeypatch):
    """Case 84."""
    monkeypatch.setattr(cuda, "_devices", lambda root: ["9.0"])
    of_gpu_node = architectures(place)
    monkeypatch.setattr(cuda, "_devices", lambda root: [])
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    assert architectures(place) == of_gpu_node


def test_the_list_wins_over_the_gpus(place, monkeypatch):
    """Case 85: what somebody set is not asked again anywhere."""
    monkeypatch.setattr(cuda, "_devices", lambda root: pytest.fail("asked"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    assert architectures(place) == gencode_flags("8.6")


def test_no_driver_tool_is_consulted(place, monkeypatch, tmp_path):
    """Case 85: the tool's metadata may be older than the runtime."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/consulted; echo 5.2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    real = cuda.os.listdir
    monkeypatch.setattr(cuda.os, "listdir", lambda path: ["nvidia0"] if path == "/dev" else real(path))
    told = subprocess.CompletedProcess([], 0, b"9.0\n9.0\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: told)
    assert cuda._devices(place) == ["9.0"]
    assert not (tmp_path / "consulted").exists()


def test_which_gpus_are_visible_does_not_count(place, monkeypatch, nvcc, no_gpu):
    """Case 31."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    one = cuda.find_toolkit(place, []).items
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert cuda.find_toolkit(place, []).items == one
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    assert cuda.find_toolkit(place, []).items != one


_CHOICES = [["-arch=sm_90"], ["-gencode", "arch=compute_90,code=sm_90"], ["--gpu-architecture=sm_90"]]


@pytest.mark.parametrize("flags", _CHOICES)
def test_flags_of_the_call_choose_and_the_list_is_left_out(flags, place, nvcc, no_gpu):
    """As in torch."""
    assert cuda.find_toolkit(place, flags).flags == []


def test_a_path_with_arch_in_it_chooses_nothing(place, nvcc, no_gpu):
    with pytest.raises(ToolchainError, match="TORCH_CUDA_ARCH_LIST"):
        cuda.find_toolkit(place, ["-I/home/u/research/include"])


def test_native_in_nvccs_flags_has_the_gpus_in_the_key(place, nvcc, monkeypatch):
    monkeypatch.setattr(cuda, "_devices", lambda root: ["9.0"])
    one = cuda.find_toolkit(place, ["-arch=native"]).items
    monkeypatch.setattr(cuda, "_devices", lambda root: ["8.0"])
    assert cuda.find_toolkit(place, ["-arch", "native"]).items != one
    monkeypatch.setattr(cuda, "_devices", lambda root: [])
    with pytest.raises(ToolchainError, match="TORCH_CUDA_ARCH_LIST"):
        cuda.find_toolkit(place, ["-arch=native"])


def test_another_host_compiler_for_nvcc_counts(place, nvcc, no_gpu, monkeypatch, compiler):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    one = cuda.find_toolkit(place, []).items
    other = cuda.find_toolkit(place, ["-ccbin", str(compiler.path)]).items
    assert one != other
    monkeypatch.setenv("NVCC_CCBIN", str(compiler.path))
    assert cuda.find_toolkit(place, []).items == other
    monkeypatch.setenv("NVCC_CCBIN", "/nowhere/g++")
    with pytest.raises(ToolchainError, match=r"/nowhere/g\+\+.*NVCC_CCBIN"):
        cuda.find_toolkit(place, [])


def test_a_toolkit_that_is_not_there_is_a_cause_and_a_remedy(place, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "cuda_home", lambda: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"no CUDA compiler.*CUDA_HOME"):
        cuda.find_toolkit(place, [])


def test_a_cuda_source_compiles_links_and_loads_without_a_gpu(kernel, nvcc, place, no_gpu, monkeypatch, start):
    """Case 84: once built it is a hit, and its header counts."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    code = """\
import json, sys
import nodecache
module = nodecache.load("kernel", sys.argv[1])
print(json.dumps([module.value(), module.__nodecache__.role, module.__nodecache__.key]))
"""
    first = start(code, kernel).wait(110)
    assert first.status == 0, first.err
    assert first.json[:2] == [2, "built"]
    assert start(code, kernel).wait().json == [2, "hit", first.json[2]]
    (kernel.parent / "value.h").write_text("#define VALUE 3\n")
    assert start(code, kernel, env={"NODECACHE_JOBS": "1"}).wait(110).json[:2] == [3, "built"]
    path = nodecache.load("kernel", kernel).__nodecache__.path
    manifest = json.loads(Path(path).with_name("manifest.json").read_text())
    assert "compute_90" in dict(manifest["items"])["cuda architectures"]


def test_a_cpp_extension_is_built_without_a_gpu_or_a_list(tiny, no_gpu):
    """Case 84."""
    assert nodecache.load("tiny", tiny()).add(2, 3) == 5
