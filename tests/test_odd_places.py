"""Paths of odd form, as a working directory, include folder, source folder, root, HOME and TMPDIR: each call ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodecache.learn import Began, _is_as_new

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE = 60.0

LOAD_THERE = """\
import json, os, sys
import nodecache
where, includes, source = sys.argv[1:4]
os.chdir(where)
module = nodecache.load("tiny", source, extra_include_paths=[includes] if includes else [])
print(json.dumps({"sum": module.add(2, 3)}))
"""

INLINE_THERE = """\
import json, os, sys
import nodecache
os.chdir(sys.argv[1])
module = nodecache.load_inline("inline_there", "int add(int a, int b) { return a + b; }", functions=["add"])
print(json.dumps({"sum": module.add(2, 3)}))
"""

FOLDER_THERE = """\
import json, os, sys
import nodecache
os.chdir(sys.argv[1])
path = nodecache.get_or_build("folder", {"part": 1}, lambda folder: (folder / "five").write_text("5"))
print(json.dumps({"sum": int((path / "five").read_text())}))
"""

PLACES = ("/", "//", "/.", "/usr/..", "{tmp}/", "{tmp}//src", "{tmp}/src/.", "{tmp}/src/..", "{tmp}/link")


def _at(place: str, tmp_path: Path) -> str:
    (tmp_path / "src").mkdir(exist_ok=True)
    if not (tmp_path / "link").is_symlink():
        (tmp_path / "link").symlink_to("src")
    return place.format(tmp=tmp_path)


@pytest.mark.parametrize("path", ["/", "//", "//usr", "/usr/", "//usr//", "/usr/..", "usr", ".", ".."])
def test_the_walk_up_a_path_ends_whatever_its_form(path, monkeypatch):
    monkeypatch.chdir("/")
    never = Began(-1, 2**62, 2**62)
    assert not _is_as_new(path, never)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("program", [LOAD_THERE, INLINE_THERE, FOLDER_THERE], ids=["load", "inline", "folder"])
def test_a_call_ends_in_any_working_directory(start, tiny, tmp_path, program, place):
    child = start(program, _at(place, tmp_path), "", tiny())
    assert child.wait(DEADLINE).status == 0, child.err
    assert child.wait().json["sum"] == 5


@pytest.mark.parametrize("place", [*PLACES, ".", "..", "./", "src", "src/../src/"])
def test_a_load_ends_with_any_include_folder(start, tiny, tmp_path, place):
    child = start(LOAD_THERE, tmp_path, _at(place, tmp_path), tiny())
    assert child.wait(DEADLINE).status == 0, child.err


@pytest.mark.parametrize("folder", ["src", "./src", "src/../src", "{tmp}//src/", "/{tmp}/src", "{tmp}/link/."])
def test_a_load_ends_with_any_spelling_of_the_source_folder(start, tiny, tmp_path, folder):
    tiny()
    child = start(LOAD_THERE, tmp_path, "", f"{_at(folder, tmp_path)}/tiny.cpp")
    assert child.wait(DEADLINE).status == 0, child.err


@pytest.mark.parametrize("variable", ["NODECACHE_ROOT", "TMPDIR", "HOME"])
@pytest.mark.parametrize(
    "form", ["{tmp}/place/", "{tmp}//place", "/{tmp}/place", "{tmp}/./place/../place", "place", "/"]
)
def test_a_load_ends_with_any_spelling_of_the_environments_folders(start, tiny, tmp_path, variable, form):
    """A root of ``/`` is refused; everything else works."""
    (tmp_path / "place").mkdir(mode=0o700)
    child = start(LOAD_THERE, ".", "", tiny(), env={variable: form.format(tmp=tmp_path)}, cwd=tmp_path)
    refused = (variable, form) == ("NODECACHE_ROOT", "/")
    assert child.wait(DEADLINE).status == int(refused), child.err
    if refused:
        assert "NODECACHE_ROOT" in child.err.splitlines()[-1]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("words", ["status", "warm"])
def test_a_command_ends_in_any_working_directory(start, tmp_path, words, place):
    code = (
        "import os, sys; os.chdir(sys.argv[1]); from nodecache.__main__ import main; sys.argv[1:] = [sys.argv[2]]; "
        "sys.exit(main())"
    )
    child = start(code, _at(place, tmp_path), words)
    status = child.wait(DEADLINE).status
    assert status == (0 if words == "status" else 2), child.err
    assert "Traceback" not in child.err


def test_the_torch_drop_in_ends_in_the_root_folder(start, tiny):
    pytest.importorskip("torch")
    code = (
        "import os, sys; os.chdir('/'); from nodecache import torch; "
        "module = torch.load_inline('torch_there', 'int add(int a, int b) { return a + b; }', functions=['add']); "
        "assert module.add(2, 3) == 5"
    )
    child = start(code, os.devnull)
    assert child.wait(120).status == 0, child.err
