"""The primitive: anything that must be made once per node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import nodecache

ONCE = """\
import json, os, sys, time
from pathlib import Path
import nodecache
def build(folder):
    with open(sys.argv[1], "a") as file: file.write("x")
    time.sleep(1)
    (folder / "table").write_text("made")
    (folder / "more").mkdir()
    (folder / "more" / "other").write_text("made too")
path = nodecache.get_or_build("table", {"n": 3}, build)
print(json.dumps({"text": (path / "table").read_text(), "more": (path / "more/other").read_text()}))
"""


def test_a_folder_is_made_once_and_found_by_all(start, tmp_path):
    counter = tmp_path / "built"
    results = [child.wait(60).json for child in [start(ONCE, counter) for _ in range(6)]]
    assert results == [{"text": "made", "more": "made too"}] * 6
    assert counter.read_text() == "x"


def test_other_inputs_are_another_entry():
    def make(text):
        return lambda folder: (folder / "t").write_text(text)

    one = nodecache.get_or_build("t", {"a": 1}, make("1"))
    other = nodecache.get_or_build("t", {"a": "1"}, make("2"))
    assert ((one / "t").read_text(), (other / "t").read_text()) == ("1", "2")


def test_a_path_stands_for_the_files_content(tmp_path):
    file = tmp_path / "input"
    made = []

    def build(folder: Path) -> None:
        made.append(file.read_text())
        (folder / "copy").write_text(file.read_text())

    for text in ("a", "b", "a"):
        file.write_text(text)
        assert (nodecache.get_or_build("copy", {"from": file}, build) / "copy").read_text() == text
    assert made == ["a", "b"]


def test_an_exception_of_the_build_function_is_its_text_everywhere():
    def fail(folder: Path) -> None:
        raise ValueError("no such moon")

    with pytest.raises(nodecache.BuildError, match="ValueError: no such moon") as caught:
        nodecache.get_or_build("moon", {}, fail)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "no such moon" in Path(caught.value.log).read_text()
    assert (nodecache.get_or_build("moon", {}, lambda folder: (folder / "m").touch()) / "m").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit], ids=lambda error: error.__name__)
def test_what_ends_only_the_builder_is_no_failure_of_the_build(root, error):
    def leave(folder: Path) -> None:
        raise error

    with pytest.raises(error):
        nodecache.get_or_build("left", {}, leave)
    assert list((root / "staging").iterdir()) == []
    # A limit of this machine is recorded as one; a verdict on the build function never is.
    records = [json.loads(path.read_bytes().partition(b"\n")[2]) for path in (root / "attempts").glob("*/failure")]
    assert [sorted(said) for said in records] == ([["builder", "limit"]] if error is MemoryError else [])
    assert nodecache.get_or_build("left", {}, lambda folder: None).is_dir()


def test_a_build_inside_a_build_is_refused_unless_declared_a_leaf():
    def leaf(folder: Path) -> None:
        (folder / "leaf").touch()

    def outer(declared):
        return lambda folder: (folder / "o").write_text(
            str(nodecache.get_or_build("inner", {"declared": declared}, leaf, leaf=declared))
        )

    with pytest.raises(nodecache.BuildError, match="NestedLease: The build of 'outer' asks for 'inner'"):
        nodecache.get_or_build("outer", {"of": "undeclared"}, outer(False))
    assert (nodecache.get_or_build("outer", {"of": "leaf"}, outer(True)) / "o").exists()


def test_a_build_that_asks_for_itself_is_refused():
    def again(folder: Path) -> None:
        nodecache.get_or_build("self", {}, again, leaf=True)

    with pytest.raises(nodecache.BuildError, match="asks for itself"):
        nodecache.get_or_build("self", {}, again, leaf=True)


@pytest.mark.parametrize("kind", ["", "a b", "../x", "é", "k" * 65])
def test_a_kind_is_a_short_word(kind):
    with pytest.raises(nodecache.SpecError, match="no short word"):
        nodecache.get_or_build(kind, {}, lambda folder: None)


def test_an_input_without_a_fixed_text_is_refused():
    with pytest.raises(nodecache.SpecError, match="type object has no fixed text"):
        nodecache.get_or_build("x", {"a": object()}, lambda folder: None)


def test_a_child_forked_in_the_build_that_returns_publishes_nothing(start, root):
    program = """\
import os, sys
import nodecache
def build(folder):
    if os.fork() == 0:
        return
    os.wait()
    (folder / "t").write_text("parent")
try:
    print((nodecache.get_or_build("forked", {}, build) / "t").read_text())
except nodecache.BuildInterrupted as error:
    os._exit(0 if "forked child" in str(error) else 9)
"""
    result = start(program).wait()
    assert (result.status, result.out) == (0, "parent\n"), result.err
    assert len(list((root / "entries").iterdir())) == 1


@pytest.mark.parametrize("inputs", [None, 5, [("a", 1)], {1: 1}])
def test_inputs_that_are_no_names_and_values_are_refused(inputs):
    with pytest.raises(nodecache.SpecError, match="inputs is no mapping"):
        nodecache.get_or_build("k", inputs, lambda _: None)


def _replaced(folder, outside):
    folder.rmdir()
    folder.symlink_to(outside)


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (lambda folder, outside: (folder / "link").symlink_to(outside), "link is no plain file"),
        (lambda folder, _: os.mkfifo(folder / "pipe"), "pipe is no plain file"),
        (lambda folder, _: (folder / "manifest.json").touch(), "it has a manifest.json"),
        (lambda folder, _: folder.rmdir(), "its folder was removed"),
        (_replaced, "its folder was replaced"),
    ],
    ids=["link", "pipe", "manifest", "removed", "replaced"],
)
def test_what_no_entry_can_hold_is_a_failure_and_nothing_outside_is_touched(leave, says, tmp_path, root):
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o1777)
    with pytest.raises(nodecache.BuildError, match=says):
        nodecache.get_or_build("k", {"a": 1}, lambda folder: leave(folder, outside))
    assert outside.stat().st_mode & 0o7777 == 0o1777
    assert list(outside.iterdir()) == []
    assert not list((root / "entries").glob("*"))
    assert list((root / "attempts").glob("*/failure"))  # for those who waited


def test_a_file_that_has_another_name_elsewhere_is_copied(tmp_path):
    cached = tmp_path / "cached"
    cached.write_text("weights")
    cached.chmod(0o644)
    found = nodecache.get_or_build("k", {"a": 1}, lambda folder: os.link(cached, folder / "weights"))
    assert (found / "weights").read_text() == "weights"
    assert (found / "weights").stat().st_ino != cached.stat().st_ino
    assert (cached.stat().st_mode & 0o777, cached.stat().st_nlink) == (0o644, 1)


def test_a_file_name_with_a_line_break_hits():
    runs = []

    def build(folder):
        runs.append(1)
        (folder / "a\nb\tc%0A").write_text("x")

    for _ in range(2):
        assert (nodecache.get_or_build("k", {"a": 1}, build) / "a\nb\tc%0A").read_text() == "x"
    assert runs == [1]


class _Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("\udcff"), _Silent()], ids=["no text", "no words"])
def test_whatever_an_exception_says_of_itself_it_is_told(error):
    def build(_):
        raise error

    with pytest.raises(nodecache.BuildError, match=type(error).__name__) as raised:
        nodecache.get_or_build("k", {"a": 1}, build)
    assert raised.value.__cause__ is error
