"""The index: every state that was built is found again, newest first, and it never grows without end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

import nodecache
from nodecache import entry, index, inputs
from nodecache.inputs import Eyes, Inputs, folder_stamp
from nodecache.root import ensure_folders, open_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place():
    found = open_root()
    ensure_folders(found)
    return found


def publish(place, tmp_path: Path, key: str, value: bytes, header: Path) -> None:
    """An entry whose input is the header as it is now."""
    staged = tmp_path / f"staged-{key}"
    staged.mkdir()
    (staged / "file").write_bytes(value)
    manifest = entry.seal(str(staged), {"key": key})
    found = entry.publish(place, str(staged), key)
    read = Inputs()
    read.files = [(str(header), Eyes([]).digest(str(header)))]
    index.add(place, "recipe", found, read, manifest["files"])


def look(place) -> str | None:
    found = index.look(place, "recipe", Eyes([]))
    return found.key if found else None


def test_every_state_is_found_again(place, tmp_path):
    header = tmp_path / "h"
    for number in range(5):
        header.write_text(str(number))
        assert look(place) is None
        publish(place, tmp_path, f"k{number}", b"x", header)
    for number in (3, 0, 4, 0):
        header.write_text(str(number))
        assert look(place) == f"k{number}"


def test_the_index_forgets_the_oldest_and_a_key_is_in_it_once(place, tmp_path, root):
    header = tmp_path / "h"
    for number in range(index.KEEP + 5):
        header.write_text(str(number))
        publish(place, tmp_path, f"k{number}", b"x", header)
    names = sorted(path.name.partition("-")[2] for path in (root / "recipes/recipe").iterdir())
    assert names == sorted(f"k{number}" for number in range(5, index.KEEP + 5))
    header.write_text("0")
    assert look(place) is None
    header.write_text("5")
    assert look(place) == "k5"
    found = entry.Entry("k5", entry.entry_path(place, "k5"))
    index.add(place, "recipe", found, Inputs(), (entry.read_manifest(found.path) or {})["files"])
    assert len([name for name in os.listdir(root / "recipes/recipe") if name.endswith("-k5")]) == 1


def test_entries_of_a_time_when_the_clock_was_ahead_do_not_push_new_ones_out(place, tmp_path, monkeypatch):
    """The index forgets by the order of adding, whatever the clock said then."""
    header = tmp_path / "h"
    now = time.time_ns()
    monkeypatch.setattr(index.time, "time_ns", lambda: now + 10**18)
    for number in range(index.KEEP):
        header.write_text(f"ahead {number}")
        publish(place, tmp_path, f"ahead{number}", b"x", header)
    monkeypatch.setattr(index.time, "time_ns", lambda: now)
    for number in range(3):
        header.write_text(f"now {number}")
        publish(place, tmp_path, f"now{number}", b"x", header)
        assert look(place) == f"now{number}"
    header.write_text("now 0")
    assert look(place) == "now0"


@pytest.mark.parametrize("name", ["99999999999999999999-bad", "-bad", "x-bad", "00000000000000000001"])
def test_odd_names_in_the_index_do_not_change_the_order(place, tmp_path, root, name):
    header = tmp_path / "h"
    header.write_text("x")
    publish(place, tmp_path, "k", b"x", header)
    (root / "recipes/recipe" / name).write_text("")
    for number in range(index.KEEP):
        header.write_text(str(number))
        publish(place, tmp_path, f"k{number}", b"x", header)
        assert look(place) == f"k{number}"


def test_what_a_crash_left_half_written_is_not_read(place, tmp_path, root):
    header = tmp_path / "h"
    header.write_text("x")
    publish(place, tmp_path, "k", b"x", header)
    (root / "recipes/recipe/9-k.abcdef.tmp").write_text("half")
    assert look(place) == "k"


def test_a_copied_entry_is_digested_once_and_that_is_remembered(place, tmp_path, root, monkeypatch):
    """A time or inode that differs lets the digest decide; a pass is written down outside the entry."""
    header = tmp_path / "h"
    header.write_text("x")
    publish(place, tmp_path, "k", b"x" * 100, header)
    file = root / "entries/k/file"
    os.utime(file, (1, 1))
    digested: list[str] = []
    real = index.digest_file
    monkeypatch.setattr(index, "digest_file", lambda path: digested.append(path) or real(path))
    assert look(place) == "k"
    assert digested == [str(file)]
    assert look(place) == "k"
    assert digested == [str(file)]
    assert file.stat().st_mtime == 1


def test_a_systems_folder_that_changed_lets_the_contents_decide(place, tmp_path, root):
    folder = tmp_path / "usr"
    folder.mkdir()
    header = folder / "h"
    header.write_text("x")
    publish(place, tmp_path, "k", b"x", header)
    record = index.records(place, "recipe")[0]
    record.inputs.files = []
    record.inputs.system = [(str(header), Eyes([]).digest(str(header)))]
    record.inputs.folders = [(str(folder), "1.1.1")]
    found = entry.Entry("k", entry.entry_path(place, "k"))
    index.add(place, "recipe", found, record.inputs, (entry.read_manifest(found.path) or {})["files"])
    assert look(place) == "k"
    while not (stamp := folder_stamp(str(folder))):  # until the clock that stamps files has gone on
        os.sched_yield()
    assert look(place) == "k"
    assert index.records(place, "recipe")[0].inputs.folders == [(str(folder), stamp)]
    header.unlink()
    header.write_text("y")
    os.utime(folder, (1, 1))
    assert look(place) is None


def test_a_folder_whose_modification_time_was_restored_lets_the_contents_decide(place, tmp_path):
    """Images are made with all times set to one value, so an equal modification time proves nothing."""
    folder = tmp_path / "usr"
    header = folder / "h"
    folder.mkdir()
    header.write_text("x")
    os.utime(folder, (1, 1))
    publish(place, tmp_path, "k", b"x", header)
    record = index.records(place, "recipe")[0]
    record.inputs.files, record.inputs.system = [], record.inputs.files
    while not (stamp := folder_stamp(str(folder))):
        os.sched_yield()
    record.inputs.folders = [(str(folder), stamp)]
    found = entry.Entry("k", entry.entry_path(place, "k"))
    index.add(place, "recipe", found, record.inputs, (entry.read_manifest(found.path) or {})["files"])
    assert look(place) == "k"
    header.unlink()
    header.write_text("y")
    os.utime(folder, (1, 1))
    assert look(place) is None


def test_an_index_that_cannot_be_refreshed_still_hits(place, tmp_path, root, monkeypatch):
    header = tmp_path / "h"
    header.write_text("x")
    publish(place, tmp_path, "k", b"x", header)
    os.utime(root / "entries/k/file", (1, 1))
    monkeypatch.setattr(index, "replace_file", lambda *_: (_ for _ in ()).throw(nodecache.RootError("full")))
    assert look(place) == "k"


def test_a_big_file_is_digested_again_only_when_its_status_changed(place, tmp_path, monkeypatch):
    """A library of hundreds of megabytes would make each hit slow; the change time cannot be set back."""
    big = tmp_path / "big"
    big.write_bytes(b"x" * inputs.BIG)
    publish(place, tmp_path, "k", b"x", big)
    record = index.records(place, "recipe")[0]
    found = entry.Entry("k", entry.entry_path(place, "k"))

    def add(seen: str) -> None:
        record.inputs.seen = {str(big): seen}
        index.add(place, "recipe", found, record.inputs, (entry.read_manifest(found.path) or {})["files"])

    digested: list[str] = []
    real = inputs.digest_file
    monkeypatch.setattr(inputs, "digest_file", lambda path, limit: digested.append(path) or real(path, limit))
    add("too new to tell")
    assert look(place) == "k"
    assert digested == [str(big)]
    monkeypatch.setattr(inputs, "_TICKS", 0)
    add(inputs.status_print(str(big)))
    assert look(place) == "k"
    assert digested == [str(big)]
    status = big.stat()
    big.write_bytes(b"y" * inputs.BIG)
    os.utime(big, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert look(place) is None
    add("")  # as it is written when the file is too new
    big.write_bytes(b"x" * inputs.BIG)
    monkeypatch.setattr(inputs, "_TICKS", 10**12)
    assert look(place) == "k"
    big.unlink()
    assert look(place) is None
