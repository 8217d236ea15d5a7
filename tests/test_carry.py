"""Carrying by hand: export there, import here, and a hit without a compiler."""

from __future__ import annotations

import os
import stat

import pytest

import nodecache
from nodecache import carry
from nodecache.__main__ import main

NOWHERE = {"PATH": "/nowhere"}


@pytest.fixture
def two(tiny):
    """Entries of two modules; their sources."""
    paths = {name: tiny(name) for name in ("tiny", "other")}
    for name, path in paths.items():
        nodecache.load(name, [path])
    return paths


@pytest.mark.parametrize("bare", [True, False])
def test_an_exported_entry_is_a_hit_on_another_root_by_the_commands(two, tmp_path, start, load_program, bare):
    program = "import sys; from nodecache.__main__ import main; sys.exit(main(sys.argv[1:]))"
    if bare:
        program = f"import sys; sys.modules['click'] = sys.modules['rich'] = None\n{program}"
    made = start(program, "export", tmp_path / "a.tar", "tiny").wait()
    assert (made.status, made.err) == (0, "")
    assert "1 entry" in made.out
    away = {"NODECACHE_ROOT": str(tmp_path / "away")}
    taken = start(program, "import", tmp_path / "a.tar", env=away).wait()
    assert (taken.status, taken.err) == (0, "")
    assert start(load_program, "tiny", two["tiny"], env=away).wait().json["role"] == "hit"
    assert start(load_program, "other", two["other"], env=away).wait().json["role"] == "built"


def test_without_keys_all_entries_go(two, tmp_path):
    assert sorted(held.name for held in carry.export(tmp_path / "a.tar")) == ["other", "tiny"]


def test_an_imported_entry_hits_without_a_compiler_where_nothing_may_be_built(two, tmp_path, start, load_program):
    carry.export(tmp_path / "a.tar")
    away = {"NODECACHE_ROOT": str(tmp_path / "away"), "NODECACHE_NO_BUILD": "1", **NOWHERE}
    taken = start(f"import sys; from nodecache import carry; carry.import_({str(tmp_path / 'a.tar')!r})", env=away)
    assert taken.wait().status == 0
    assert start(load_program, "tiny", two["tiny"], env=away).wait().json["role"] == "hit"


def test_an_import_says_what_keeps_an_entry_from_being_a_hit_here(two, tmp_path, start, load_program):
    """The file was copied to a node with another compiler: better to know now than after an hour of no hits."""
    carry.export(tmp_path / "a.tar", ["tiny"])
    other = tmp_path / "c++"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 99.1" && exit\nexec c++ "$@"\n')
    other.chmod(0o755)
    program = f"from nodecache import carry; carry.import_({str(tmp_path / 'a.tar')!r})"
    away = {"NODECACHE_ROOT": str(tmp_path / "away"), "CXX": str(other)}
    said = start(program, env=away).wait().err
    assert "'tiny' (" in said
    assert "cannot be a hit on this node: its compiler is " in said
    assert "and this node's is 'g++ 99.1'" in said
    assert start(load_program, "tiny", two["tiny"], env=away).wait().json["role"] == "built"
    assert start(program, env={"NODECACHE_ROOT": str(tmp_path / "same")}).wait().err == ""


def test_the_archive_appears_whole_or_not_at_all(two, tmp_path, root):
    target = tmp_path / "folder" / "a.tar"
    target.parent.mkdir()
    target.write_bytes(b"before")
    for path in (root / "entries").glob("*/tiny.so"):
        path.unlink()  # it is loaded here
        path.write_bytes(b"damaged")
    with pytest.raises(nodecache.ArchiveError, match="damaged"):
        carry.export(target)
    assert target.read_bytes() == b"before"
    assert os.listdir(target.parent) == ["a.tar"]


def test_an_archive_that_cannot_be_written_or_read_says_where(two, tmp_path, capsys):
    assert main(["export", str(tmp_path / "none" / "a.tar")]) == 2
    assert f"{tmp_path}/none/a.tar cannot be written: No such file" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "b.tar")]) == 2
    assert f"{tmp_path}/b.tar cannot be read: No such file" in capsys.readouterr().err


def test_export_without_a_root_makes_none(root, tmp_path):
    with pytest.raises(nodecache.SpecError, match="no root"):
        carry.export(tmp_path / "a.tar")
    assert not root.exists()


def test_importing_twice_and_beside_a_build_is_no_harm(two, tmp_path, start):
    carry.export(tmp_path / "a.tar")
    away = {"NODECACHE_ROOT": str(tmp_path / "away")}
    code = "import sys; from nodecache import carry; print(len(carry.import_(sys.argv[1])))"
    runs = [start(code, tmp_path / "a.tar", env=away) for _ in range(4)]
    assert [run.wait().out for run in runs] == ["2\n"] * 4
    entries = list((tmp_path / "away" / "entries").iterdir())
    assert len(entries) == 2
    assert not any((tmp_path / "away" / "staging").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries} == {0o700}
