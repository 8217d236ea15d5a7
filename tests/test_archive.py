"""Archives: the same entry gives the same bytes, and nothing in one is believed that was not checked."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

import nodecache
from nodecache import archive
from nodecache.digest import digest_items
from nodecache.entry import MANIFEST, Entry, damage
from nodecache.errors import ArchiveError
from nodecache.inputs import Inputs, folder_stamp
from nodecache.root import open_root


@pytest.fixture
def built(tiny):
    told = nodecache.load("tiny", [tiny()]).__nodecache__
    return Entry(told.key, str(os.path.dirname(told.path)))


def packed(*entries):
    out = io.BytesIO()
    archive.pack(entries, out.write)
    return out.getvalue()


def receive(data, place, **options):
    return archive.receive(open_root(place), io.BytesIO(data).read, **options)


def members(data):
    """Header and content of each member, to be changed and written anew."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]


def written(parts):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in parts:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another root, in use from now on."""
    place = tmp_path / "elsewhere"
    monkeypatch.setenv("NODECACHE_ROOT", str(place))
    return place


def nothing_is_published(place):
    return not any((place / "entries").iterdir()) and not any((place / "staging").iterdir())


def test_the_same_entry_gives_the_same_bytes_and_tar_reads_them(built, tmp_path):
    data = packed(built)
    os.utime(built.file("tiny.so"), (1, 1))
    assert packed(built) == data
    names = [info.name for info, _ in members(data)]
    assert names == [f"{built.key}/{name}" for name in (MANIFEST, "build.log", "tiny.so")]
    assert {(info.mtime, info.uid, info.uname) for info, _ in members(data)} == {(0, 0, "")}


def test_it_is_written_in_bounded_chunks():
    made = nodecache.get_or_build("big", {}, lambda folder: (folder / "table").write_bytes(bytes(5 << 20)))
    sizes = []
    archive.pack([Entry(made.name, str(made))], lambda block: sizes.append(len(block)))
    assert max(sizes) <= archive.CHUNK
    assert sum(sizes) > 5 << 20


def test_what_was_unpacked_is_a_hit_on_another_root_and_sound(built, elsewhere, tiny, compiler):
    data = packed(built)
    compiler.path.unlink()  # the key has the compiler's path in it
    [got] = receive(data, elsewhere)
    assert got.key == built.key
    assert damage(str(elsewhere / "entries" / built.key), built.key) is None
    assert (elsewhere / "entries" / built.key / "tiny.so").stat().st_mode & 0o777 == 0o500


def test_folders_and_files_that_are_no_text_travel(elsewhere, monkeypatch, tmp_path):
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "root"))

    def fill(folder):
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "x").write_bytes(b"1")
        (folder / os.fsdecode(b"\xff\xfe")).write_bytes(b"")

    made = nodecache.get_or_build("folder", {}, fill)
    data = packed(Entry(made.name, str(made)))
    monkeypatch.setenv("NODECACHE_ROOT", str(elsewhere))
    receive(data, elsewhere)
    again = nodecache.get_or_build("folder", {}, lambda _: pytest.fail("it is there"))
    assert (again / "a" / "b" / "x").read_bytes() == b"1"
    assert (again / os.fsdecode(b"\xff\xfe")).exists()


def test_a_name_too_long_for_the_format_is_refused_when_packing():
    def fill(folder):
        (folder / ("x" * 200)).write_bytes(b"")

    made = nodecache.get_or_build("folder", {}, fill)
    with pytest.raises(nodecache.ArchiveError, match="cannot be archived"):
        packed(Entry(made.name, str(made)))


def test_a_damaged_entry_is_not_packed(built):
    library = Path(built.file("tiny.so"))
    data = library.read_bytes()
    library.unlink()  # it is loaded here
    library.write_bytes(data[:100] + b"?" + data[101:])
    with pytest.raises(nodecache.ArchiveError, match=r"tiny\.so .* damaged"):
        packed(built)


def test_an_entry_that_was_pruned_is_named_so(built):
    with pytest.raises(nodecache.ArchiveError, match="not there any more"):
        packed(Entry(built.key, built.path + "gone"))


@pytest.mark.parametrize("part", range(1, 40, 3))
def test_an_archive_that_is_cut_anywhere_publishes_nothing(built, elsewhere, part):
    data = packed(built)
    with pytest.raises(nodecache.ArchiveError, match="cut short"):
        receive(data[: len(data) * part // 40], elsewhere)
    assert nothing_is_published(elsewhere)


def test_one_flipped_bit_anywhere_publishes_nothing_else_than_what_was_packed(built, elsewhere):
    data = packed(built)
    refused = 0
    for place in range(0, len(data), 411):
        bad = bytearray(data)
        bad[place] ^= 4
        try:
            receive(bytes(bad), elsewhere)
        except nodecache.ArchiveError:
            refused += 1
            assert nothing_is_published(elsewhere)
        else:  # padding, or what a manifest says for people
            assert damage(str(elsewhere / "entries" / built.key), built.key) is None
            shutil.rmtree(elsewhere / "entries" / built.key)
    assert refused > len(data) // 411 // 2


def _renamed(name):
    def change(parts):
        info, data = parts[-1]
        info.name = info.name.partition("/")[0] + "/" + name
        return [*parts[:-1], (info, data)]

    return change


def _typed(kind, link=""):
    def change(parts):
        info, data = parts[-1]
        info.type, info.linkname = kind, link
        return [*parts[:-1], (info, data)]

    return change


def _twice(parts):
    return [*parts, *parts]


def _without_manifest(parts):
    return parts[1:]


def _without_last(parts):
    return parts[:-1]


def _grown(parts):
    info, data = parts[-1]
    info.size += 1
    return [*parts[:-1], (info, data + b"x")]


def _manifest(**changes):
    def change(parts):
        info, data = parts[0]
        said = json.loads(data)
        for name, value in changes.items():
            said[name] = value(said[name]) if callable(value) else value
        raw = json.dumps(said).encode()
        info.size = len(raw)
        return [(info, raw), *parts[1:]]

    return change


def _escape(name):
    """The manifest names the file, too."""

    def change(parts):
        return _renamed(name)(
            _manifest(files=lambda files: {**files, name: files["tiny.so"], "tiny.so": files["tiny.so"]})(parts)
        )

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_renamed("other.so"), id="unnamed file"),
        pytest.param(_escape("../../escaped"), id="dots"),
        pytest.param(_escape("/escaped"), id="absolute"),
        pytest.param(_escape("a//b"), id="empty part"),
        pytest.param(_typed(tarfile.SYMTYPE, "/etc/passwd"), id="link"),
        pytest.param(_typed(tarfile.LNKTYPE, "/etc/passwd"), id="hard link"),
        pytest.param(_typed(tarfile.DIRTYPE), id="folder"),
        pytest.param(_typed(tarfile.CHRTYPE), id="device"),
        pytest.param(_typed(tarfile.FIFOTYPE), id="pipe"),
        pytest.param(_twice, id="twice"),
        pytest.param(_without_manifest, id="no manifest"),
        pytest.param(_without_last, id="file missing"),
        pytest.param(_grown, id="grown"),
        pytest.param(_manifest(recipe="0" * 40), id="another recipe"),
        pytest.param(_manifest(key="0" * 40), id="another key"),
        pytest.param(_manifest(items=lambda items: items[1:]), id="other items"),
        pytest.param(_manifest(inputs=lambda inputs: [*inputs, f"file\t{'0' * 40}\t/x"][::-1]), id="other inputs"),
        pytest.param(_manifest(items=3), id="no items"),
        pytest.param(_manifest(name=None), id="no name"),
        pytest.param(_manifest(name="\x1b[2J"), id="a name of escapes"),
        pytest.param(_manifest(builder="me"), id="no builder"),
        pytest.param(_manifest(builder={}), id="an empty builder"),
        pytest.param(_manifest(started="now"), id="no time"),
        pytest.param(_manifest(seconds=None), id="no duration"),
        pytest.param(_manifest(format=99), id="unknown format"),
        pytest.param(_manifest(files=[]), id="files are no dict"),
        pytest.param(_manifest(files={"tiny.so": {"size": -1, "digest": ""}}), id="negative size"),
        pytest.param(_manifest(files={"tiny.so": {"size": 1 << 60, "digest": ""}}), id="endless size"),
    ],
)
def test_what_no_archive_of_ours_holds_is_refused(built, elsewhere, change):
    with pytest.raises(nodecache.ArchiveError):
        receive(written(change(members(packed(built)))), elsewhere)
    assert not (elsewhere.parent / "escaped").exists()
    assert not any((elsewhere / "staging").iterdir())
    left = [damage(str(path), path.name) for path in (elsewhere / "entries").iterdir()]
    assert left in ([], [None])  # "twice" has published the first


@pytest.mark.parametrize("noise", [b"", b"\0" * 100, b"\0" * 10240, b"PK\3\4" * 1000, b"\xff" * 4096])
def test_noise_is_no_archive(elsewhere, noise):
    with pytest.raises(nodecache.ArchiveError):
        receive(noise, elsewhere)


def test_something_behind_the_end_is_refused(built, elsewhere):
    with pytest.raises(nodecache.ArchiveError, match="behind"):
        receive(packed(built) + b"\0" * 5000 + b"x", elsewhere)


def test_an_archive_with_another_recipe_than_asked_for_is_refused(built, elsewhere):
    with pytest.raises(nodecache.ArchiveError, match="another recipe"):
        receive(packed(built), elsewhere, recipe="0" * 40)
    assert nothing_is_published(elsewhere)


def test_times_of_another_node_prove_nothing_here(tmp_path):
    there = Inputs()
    there.folders = [("/usr/include", folder_stamp("/usr/include"))]
    there.veils = [(0, "1.1.1", ["x"])]
    there.seen = {"/lib/big.a": "1.2.3.4.5"}
    here = archive.without_guards(Inputs.parse(there.lines()))
    assert here.folders != there.folders
    assert here.veils[0][1] == ""
    assert here.seen == {"/lib/big.a": ""}


def test_two_entries_travel_in_one_archive(built, tiny, elsewhere, monkeypatch, root):
    monkeypatch.setenv("NODECACHE_ROOT", str(root))
    told = nodecache.load("other", [tiny("other")]).__nodecache__
    monkeypatch.setenv("NODECACHE_ROOT", str(elsewhere))
    got = receive(packed(built, Entry(told.key, os.path.dirname(told.path))), elsewhere)
    assert [each.name for each in got] == ["tiny", "other"]


def test_a_recipe_is_what_its_items_say(built):
    with open(built.file(MANIFEST), encoding="utf-8") as file:
        said = json.load(file)
    assert digest_items([tuple(item) for item in said["items"]]) == said["recipe"]


@pytest.mark.parametrize(
    "field", ["started", "seconds", "name", "kind", "recipe", "key", "builder", "items", "inputs", "files"]
)
@pytest.mark.parametrize(
    "value", ["9" * 400, "1e400", "-1", "NaN", "null", "true", "[" * 60000, '{"a": [1e999]}', "[[[]]]", "2.5"]
)
def test_a_field_of_a_wrong_type_or_size_is_damage_and_changes_nothing(built, elsewhere, field, value):
    (info, raw), *rest = members(packed(built))
    said = json.loads(raw)
    fine = (field == "seconds" and value == "2.5") or (field == "started" and value == "2.5")
    changed = json.dumps({**said, field: "HERE"}).replace('"HERE"', value).encode()
    info.size = len(changed)
    data = written([(info, changed), *rest])
    if fine:
        assert [each.key for each in receive(data, elsewhere)] == [built.key]
        return
    with pytest.raises(ArchiveError, match="Get the archive again"):
        receive(data, elsewhere)
    assert nothing_is_published(elsewhere)
