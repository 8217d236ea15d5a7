"""Names, paths and text: whatever may stand in a path works, and what cannot is refused before a compile."""

from __future__ import annotations

import os
import sys

import pytest

import nodecache
from nodecache.errors import BuildError, SpecError, ToolchainError

ODD = "a b 'c' \"d\" $e `f` #1;&*?[g] (h) | ünï %i \\j"


def test_spaces_quotes_and_dollars_everywhere(tiny, compiler, tmp_path, monkeypatch, start, load_program):
    """Case 60: in the root, the source, an include path, TMPDIR and the compiler's own path."""
    place = tmp_path / ODD
    include = place / "inc lude $1"
    include.mkdir(parents=True)
    (include / "value.h").write_text("#define VALUE 7\n")
    (place / "tmp").mkdir()
    source = tiny(expression="VALUE", extra="#include <value.h>", folder=place / "src")
    odd = place / "my compiler"
    odd.write_text(compiler.path.read_text())
    odd.chmod(0o755)
    monkeypatch.setenv("NODECACHE_ROOT", str(place / "root"))
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    monkeypatch.setenv("CXX", '"' + str(odd).replace("\\", "\\\\").replace('"', '\\"') + '"')
    assert nodecache.load("tiny", source, extra_include_paths=[include]).add(0, 0) == 7
    nodecache.load("tiny", source, extra_include_paths=[include])
    assert compiler.compiles == 1
    (include / "value.h").write_text("#define VALUE 8\n")
    assert nodecache.load("tiny", source, extra_include_paths=[include]).add(0, 0) == 8


@pytest.mark.parametrize("name", ["x|y", "-x", "x=y", "@x", "x:y", "#x", "x\\y", "x$y", "'", "ü", "\udcff"])
def test_any_name_of_a_source_file_works(name, tiny, tmp_path, compiler):
    source = tiny()
    odd = source.with_name(f"{name}.cpp")
    source.rename(odd)
    assert nodecache.load("tiny", odd).add(2, 3) == 5
    nodecache.load("tiny", odd)
    assert compiler.compiles == 1


def test_a_root_of_two_hundred_characters_works(tiny, tmp_path, monkeypatch):
    """Case 60."""
    place = tmp_path / ("r" * (200 - len(str(tmp_path)) - 1))
    monkeypatch.setenv("NODECACHE_ROOT", str(place))
    assert len(str(place)) == 200
    assert nodecache.load("tiny", tiny()).add(2, 3) == 5


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "a.b", "ü", "x" * 300, "a/b", "a\n", "../a", "a$"])
def test_a_name_that_no_module_can_have_is_refused_before_a_compile(name, tiny, compiler, root):
    """Case 60."""
    with pytest.raises(SpecError, match=r"name|identifier|characters"):
        nodecache.load(name, tiny())
    assert compiler.compiles == 0
    assert not root.exists()


def test_a_name_of_two_hundred_characters_works(tiny):
    name = "n" * 200
    assert nodecache.load(name, tiny(name)).add(2, 3) == 5


def test_a_build_in_the_c_locale_with_other_letters_works(tiny, tmp_path, start, load_program):
    source = tiny(folder=tmp_path / "prøject", extra='#include "ü.h"')
    (source.parent / "ü.h").write_text("// ünï\n")
    child = start(load_program, "tiny", source, env={"LC_ALL": "C", "PYTHONUTF8": "0"}).wait()
    assert child.status == 0, child.err
    assert child.json["sum"] == 5


def test_a_compiler_that_prints_invalid_utf8_is_told_as_text(tiny, compiler):
    compiler.set(instead="printf 'x.cpp:7:1: error: \\377\\376 broken\\n' >&2; exit 1")
    with pytest.raises(BuildError, match=r"x.cpp:7:1: error: .* broken") as caught:
        nodecache.load("tiny", tiny())
    str(caught.value).encode()  # no lone surrogates: it can be printed anywhere


def test_a_compiler_whose_version_is_no_utf8_works(tiny, compiler, start, load_program):
    text = compiler.path.read_text().replace(
        "for word; do", "case $1 in --version) printf 'v\\377\\n'; exit;; esac\nfor word; do", 1
    )
    compiler.path.write_text(text)
    source = tiny()
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
    assert start(load_program, "tiny", source, env={"LC_ALL": "C", "PYTHONUTF8": "0"}).wait().json["role"] == "hit"


def test_a_version_in_invalid_utf8_that_fails_can_be_printed(tiny, compiler):
    compiler.path.write_text("#!/bin/sh\nprintf '\\377 no\\n'; exit 3\n")
    with pytest.raises(ToolchainError, match="exit status 3") as caught:
        nodecache.load("tiny", tiny())
    str(caught.value).encode()


def test_messages_are_english_in_any_locale(tiny, start, load_program):
    source = tiny(expression="missing")
    child = start(load_program, "tiny", source, env={"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}).wait()
    assert "error:" in child.err


def test_a_missing_source_is_named_before_a_compile(tmp_path, compiler):
    with pytest.raises(SpecError, match=r"nowhere.cpp cannot be read.*Check the path"):
        nodecache.load("tiny", tmp_path / "nowhere.cpp")
    with pytest.raises(SpecError, match="is no source file"):
        nodecache.load("tiny", tmp_path / "x.o")
    with pytest.raises(SpecError, match="has no sources"):
        nodecache.load("tiny", [])


def test_one_string_of_flags_is_refused_with_what_to_write(tiny):
    with pytest.raises(SpecError, match="Give a list"):
        nodecache.load("tiny", tiny(), "-O3 -g")
    with pytest.raises(SpecError, match="no argument"):
        nodecache.load("tiny", tiny(), ["-DX=\n"])


def test_a_bom_and_windows_line_ends_compile(tiny):
    source = tiny()
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
    assert nodecache.load("tiny", source).add(2, 3) == 5


def test_messages_name_the_users_file_and_line(tiny):
    """Case 57: not the snapshot that is compiled."""
    source = tiny(extra="\n\nint broken = ;")
    with pytest.raises(BuildError, match=rf"{source}:4:\d+: error") as caught:
        nodecache.load("tiny", source)
    assert f"{source}:4" in str(caught.value).splitlines()[0]


def test_sources_of_one_name_in_two_folders_are_two_sources(tiny, tmp_path):
    one = tiny(expression="other()", extra="int other();", folder=tmp_path / "one")
    two = tmp_path / "two" / one.name
    two.parent.mkdir()
    two.write_text("int other() { return 9; }\n")
    assert nodecache.load("tiny", [one, two]).add(0, 0) == 9


def test_assembler_and_c_sources_compile(tiny, tmp_path):
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("the assembler source is for x86-64")
    source = tiny(expression="seven()", extra='extern "C" int seven();')
    (tmp_path / "seven.s").write_text(".globl seven\nseven: movl $7, %eax\nret\n.section .note.GNU-stack\n")
    assert nodecache.load("tiny", [source, tmp_path / "seven.s"]).add(0, 0) == 7
    assert nodecache.load("tiny", [source, tmp_path / "seven.s"]).__nodecache__.key
