"""Operators: a file that registers what this process has registered already is never handed to the loader."""

from __future__ import annotations

import pytest

from nodecache import operators

pytest.importorskip("torch")

EDIT = """\
import logging, sys
from pathlib import Path
import torch
import nodecache, nodecache.torch

logging.basicConfig(stream=sys.stdout)
header = Path("ops.h")
for name in ("one", "two"):
    Path(f"{name}.cpp").write_text(
        '#include "ops.h"\\n#include <Python.h>\\n'
        f'static PyModuleDef def = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, nullptr}};\\n'
        f"PyMODINIT_FUNC PyInit_{name}() {{ return PyModule_Create(&def); }}\\n"
    )

def write(number):
    header.write_text(
        "#include <torch/library.h>\\nnamespace {\\n"
        f"int64_t number() {{ return {number}; }}\\n"
        'TORCH_LIBRARY(in_header, m) { m.def("number() -> int", &number); }\\n'
        'TORCH_LIBRARY_FRAGMENT(shared, m) {}\\n}\\n'
    )

write(1)
first = nodecache.torch.load("one", ["one.cpp"])
write(2)
print(nodecache.torch.load("one", ["one.cpp"]) is first, torch.ops.in_header.number())
try:
    nodecache.load("two", ["two.cpp"], frameworks=["torch"])
except nodecache.LoadError as error:
    print(error)
"""


def test_operators_that_a_header_registers_do_not_end_the_process_after_an_edit(start, tmp_path, root):
    result = start(EDIT, cwd=tmp_path).wait(200)
    assert result.status == 0, result.err
    first = next(path for path in root.glob("entries/*/one.so") if str(path) in result.out)
    assert (first.parent / operators.FILE).read_text() == "in_header\nshared\tpart\n"
    assert f"operators 'in_header' are in this process already, from {first}" in result.out
    assert "True 1\n" in result.out
    assert f"'two' registers operators 'in_header', which {first} has registered in this process" in result.out
    assert "rename the operators' namespace" in result.out


def test_registrations_are_read_from_the_symbol_table():
    data = b"\0".join(
        (
            b"_ZL30TORCH_LIBRARY_static_init_mine",
            b"_ZN12_GLOBAL__N_1L30TORCH_LIBRARY_static_init_oursE",
            b"_ZL41TORCH_LIBRARY_FRAGMENT_static_init_part_3",
            b"_ZL39STABLE_TORCH_LIBRARY_static_init_stable",
            b"_ZL41TORCH_LIBRARY_IMPL_static_init_mine_CPU_2",
            b"TORCH_LIBRARY_static_init_name_in_debugging_information",
        )
    )
    assert operators._in_symbols(data) == [("mine", False), ("ours", False), ("part", True), ("stable", False)]


def test_a_file_with_several_namespaces_claims_none_when_one_is_taken(monkeypatch, tmp_path):
    taken = {("b", ""): "/first.so"}
    monkeypatch.setattr(operators, "_registered", dict(taken))
    (tmp_path / operators.FILE).write_text("a\nb\n")
    with pytest.raises(ImportError, match=r"operators 'b', which /first\.so has registered"):
        operators.Guard("second", "module", [], edited=False).before(str(tmp_path / "second.so"))
    assert operators._registered == taken


def test_what_failed_to_load_has_registered_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(operators, "_registered", {})
    guard = operators.Guard("one", "module", [("mine", False)], edited=True)

    def fail():
        assert guard.before(str(tmp_path / "one.so")) is None
        raise ImportError("no")

    with pytest.raises(ImportError, match="no"):
        guard.run(fail)
    assert operators._registered == {}
