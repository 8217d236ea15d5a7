"""Enough of ELF to say what is wrong with a shared object before anybody loads it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodecache.elf import fault

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[str, Path]:
    """A shared object, a program and an object file, each with ``PyInit_tiny``."""
    folder = tmp_path_factory.mktemp("elf")
    text = folder / "x.c"
    text.write_text("int PyInit_tiny(void) { return 0; } int main(void) { return 0; }\n")
    hidden = folder / "h.c"
    hidden.write_text('__attribute__((visibility("hidden"))) int PyInit_tiny(void) { return 0; }\n')
    made = {}
    for name, flags in {
        "shared": ["-shared", "-fPIC", text],
        "hidden": ["-shared", "-fPIC", hidden],
        "undefined": ["-shared", "-fPIC", "-x", "c", "/dev/null", "-Wl,-u,PyInit_tiny"],
        "program": ["-no-pie", text],
        "object": ["-c", text],
    }.items():
        made[name] = folder / name
        subprocess.run(["cc", *flags, "-o", made[name]], check=True)
    return made


def test_a_shared_object_with_its_init_function_is_fine(objects):
    assert fault(str(objects["shared"]), "PyInit_tiny") is None
    assert fault(str(objects["shared"]), None) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(("hidden", "does not export PyInit_tiny"), ("undefined", "does not export"), ("program", "no shared object")),
        ("object", "no shared object"),
    ],
)
def test_what_cannot_be_imported_is_told_apart(name, said, objects):
    assert said in (fault(str(objects[name]), "PyInit_tiny") or "")


def test_another_name_is_not_exported(objects):
    assert "does not export PyInit_tin" in (fault(str(objects["shared"]), "PyInit_tin") or "")


@pytest.mark.parametrize(
    ("at", "value", "said"), [(18, 0xF3, "another machine"), (4, 1, "another machine"), (5, 2, "another machine")]
)
def test_another_machines_code_is_refused(at, value, said, objects, tmp_path):
    data = bytearray(objects["shared"].read_bytes())
    data[at] = value
    (tmp_path / "x.so").write_bytes(data)
    assert said in (fault(str(tmp_path / "x.so"), "PyInit_tiny") or "")


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "empty"), (b"#!/bin/sh\n", "no ELF"), (b"\x7fELF", "another machine")]
)
def test_what_is_no_elf_file_is_refused(data, said, tmp_path):
    (tmp_path / "x.so").write_bytes(data)
    assert said in (fault(str(tmp_path / "x.so"), "PyInit_tiny") or "")


def test_a_file_without_a_section_table_is_left_to_the_loader(objects, tmp_path):
    """Some linkers leave it out; the loader does not need it."""
    data = bytearray(objects["shared"].read_bytes())
    data[40:48] = bytes(8)
    data[60:62] = bytes(2)
    (tmp_path / "x.so").write_bytes(data)
    assert fault(str(tmp_path / "x.so"), "PyInit_tiny") is None


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_cut_file_is_refused(part, objects, tmp_path):
    data = objects["shared"].read_bytes()
    (tmp_path / "x.so").write_bytes(data[: len(data) * part // 4])
    assert fault(str(tmp_path / "x.so"), "PyInit_tiny") is not None


@given(st.lists(st.tuples(st.integers(16, 16384), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_noise_within_an_elf_file_ends_in_a_sentence(objects, tmp_path, changes):
    data = bytearray(objects["shared"].read_bytes())
    for at, value in changes:
        at %= len(data)  # noqa: PLW2901
        data[at : at + len(value)] = value
    path = tmp_path / f"{os.getpid()}.so"
    path.write_bytes(data)
    said = fault(str(path), "PyInit_tiny")
    assert said is None or said.startswith("it ")
