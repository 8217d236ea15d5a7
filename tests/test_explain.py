"""``nodecache.explain``: "why did this rebuild?" has an answer in one call."""

from __future__ import annotations

from pathlib import Path

import pytest

import nodecache
from nodecache import source_texts
from nodecache.errors import SpecError


@pytest.fixture
def project(tiny, tmp_path):
    """A source with a header in an include folder, and how it is loaded."""
    source = tiny(expression="a + b + VALUE", extra="#include <sub/value.h>")
    header = tmp_path / "inc/sub/value.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define VALUE 1\n")
    return header, {"name": "tiny", "sources": source, "extra_include_paths": [tmp_path / "inc"]}


def names(said) -> list[str]:
    return [change.name for change in said.changes]


def test_a_changed_header_is_named(project):
    header, call = project
    first = nodecache.load(**call)
    header.write_text("#define VALUE 2\n")
    second = nodecache.load(**call)
    said = nodecache.explain(second)
    assert names(said) == ["file 1:sub/value.h"]
    assert said.nearest is not None
    assert said.nearest.key == first.__nodecache__.key
    assert "file 1:sub/value.h" in str(said)
    assert names(nodecache.explain(first, second)) == ["file 1:sub/value.h"]


def test_changed_flags_are_shown_one_by_one(project):
    _, call = project
    first = nodecache.load(**call, extra_cflags=["-DA=1", "-O1"])
    second = nodecache.load(**call, extra_cflags=["-DA=2", "-O1"])
    said = nodecache.explain(second, first)
    assert names(said) == ["cflags"]
    assert str(said.changes[0]) == "cflags: without -DA=1, with -DA=2"


def test_a_key_or_its_first_digits_name_an_entry(project):
    _, call = project
    key = nodecache.load(**call).__nodecache__.key
    for what in (key, key[:10]):
        said = nodecache.explain(what)
        assert (said.key, said.name, said.nearest, said.changes) == (key, "tiny", None, [])
        assert said.parts["python"].startswith("cpython ")
        assert "made of:" in str(said)


def test_a_call_that_would_hit_has_no_changes(project, compiler):
    _, call = project
    key = nodecache.load(**call).__nodecache__.key
    said = nodecache.explain(call)
    assert (said.key, said.changes) == (key, [])
    assert compiler.compiles == 1


def test_a_call_that_would_build_says_why_and_builds_nothing(project, compiler, root):
    header, call = project
    key = nodecache.load(**call).__nodecache__.key
    header.write_text("#define VALUE 2\n")
    said = nodecache.explain(call)
    assert said.key == ""
    assert said.nearest is not None
    assert said.nearest.key == key
    assert names(said) == ["file 1:sub/value.h"]
    header.write_text("#define VALUE 1\n")
    call["sources"].write_text(call["sources"].read_text() + "// edited\n")
    assert names(nodecache.explain(call))[0] == "source 0"
    assert compiler.compiles == 1
    assert len(list((root / "entries").iterdir())) == 1


def test_a_header_that_would_be_found_before_is_named(project, tmp_path):
    _, call = project
    (tmp_path / "early").mkdir()
    call["extra_include_paths"].insert(0, tmp_path / "early")
    nodecache.load(**call)
    (tmp_path / "early/sub").mkdir()
    (tmp_path / "early/sub/value.h").write_text("#define VALUE 9\n")
    assert names(nodecache.explain(call)) == ["found before it: 1:sub/value.h"]


def test_a_first_call_ever_has_nothing_to_compare_with(project):
    _, call = project
    said = nodecache.explain(call)
    assert (said.key, said.nearest, said.changes) == ("", None, [])
    assert "would build" in str(said)


def test_what_is_not_there_is_a_sentence(project, root):
    _, call = project
    with pytest.raises(SpecError, match="No entry begins with 'abc'"):
        nodecache.explain("abc")
    with pytest.raises(SpecError, match="No entry begins with ''"):
        nodecache.explain("")
    with pytest.raises(SpecError, match=r"does not come from nodecache\.load"):
        nodecache.explain(pytest)
    module = nodecache.load(**call)
    manifest = Path(module.__nodecache__.path).with_name("manifest.json")
    manifest.chmod(0o600)
    manifest.write_text("{}")
    with pytest.raises(SpecError, match="is damaged"):
        nodecache.explain(module)


def test_a_source_with_a_number_that_changes_shows_the_line_that_differs(start, root):
    """A process id in a comment makes every start build; its text, where it is the same, only the first."""
    program = """\
import os, sys, nodecache
text = f"// made by {sys.argv[1] or os.getpid()}\\nint three() {{ return 3; }}\\n"
print(nodecache.load_inline("generated", text, functions=["three"]).__nodecache__.role, os.getpid())
"""
    steady = [start(program, "generator 5").wait(100).out.split()[0] for _ in range(3)]
    assert steady == ["built", "hit", "hit"]
    starts = [start(program, "").wait(100).out.split() for _ in range(3)]
    assert [role for role, _ in starts] == ["built"] * 3
    keys = sorted(entry.name for entry in (root / "entries").iterdir())
    newest = max((nodecache.explain(key) for key in keys), key=lambda said: said.built)
    (change,) = newest.changes
    assert "made by" in change.lines.partition(" -> ")[0]
    assert change.lines.endswith(f"-> '// made by {starts[-1][1]}'")
    assert "source 0: {root 0}/main.cpp, line " in str(newest)


def test_a_call_that_would_build_shows_the_lines_that_differ(project):
    _, call = project
    nodecache.load(**call)
    path = call["sources"]
    path.write_text(path.read_text().replace("long a, b;", "long a, b; // edited"))
    (change,) = nodecache.explain(call).changes
    assert change.lines == "line 4: '    long a, b;' -> '    long a, b; // edited'"


def test_sources_that_are_too_long_to_be_kept_are_told_by_their_digests(project, monkeypatch):
    _, call = project
    monkeypatch.setattr(source_texts, "LIMIT", 100)
    nodecache.load(**call)
    path = call["sources"]
    path.write_text(path.read_text() + "// edited\n")
    said = nodecache.explain(call)
    assert [change.lines for change in said.changes] == [""]
    assert "source 0: {root 0}/tiny.cpp " in str(said)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a\nb\nc", "a\nB\nc", "line 2: 'b' -> 'B'"),
        ("a\nc", "a\nb\nc", "line 2: 'b' added"),
        ("a\nb\nc", "a\nc", "line 2: 'b' removed"),
        (
            "1\n2\n3\n4\n5",
            "a\nb\nc\nd\ne",
            "line 1: '1' -> 'a'; line 2: '2' -> 'b'; line 3: '3' -> 'c'; ... and 2 more",
        ),
        ("x" * 500 + "1" + "y" * 500, "x" * 500 + "2" + "y" * 500, None),
        ("\x1b[2J", "", "line 1: '\\x1b[2J' -> ''"),
        ("same", "same", ""),
    ],
)
def test_lines_that_differ_are_short(before, after, said):
    found = source_texts.differing_lines(before, after)
    assert said is None or found == said
    assert len(found) < 300
    if said is None:
        assert "x1y" in found
        assert "x2y" in found


@pytest.mark.parametrize("packed", [None, 5, "", "!", "a" * 9, "~" * 100])
def test_damaged_texts_are_none(packed):
    assert source_texts.unpack(packed) == []
