"""Entries: absent or complete; whatever damages one, the next load replaces it and nobody sees a parser's traceback."""

from __future__ import annotations

import errno
import json
import os
import shutil
from ast import literal_eval
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nodecache
from nodecache import entry, index, staging
from nodecache.digest import digest_bytes
from nodecache.entry import damage, read_manifest
from nodecache.inputs import Eyes
from nodecache.owner import decode
from nodecache.root import Root, ensure_folders, open_root


def writable(path: Path) -> Path:
    path.chmod(0o600)
    return path


def empty(path: Path) -> None:
    writable(path).write_bytes(b"")


def halve(path: Path) -> None:
    writable(path).write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def noise(path: Path) -> None:
    writable(path).write_bytes(os.urandom(path.stat().st_size))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    writable(path).write_bytes(data)


def delete(path: Path) -> None:
    path.unlink()


def into_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def into_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


KINDS = [empty, halve, noise, flip, delete, into_link, into_folder, into_pipe]


@pytest.mark.parametrize("file", ["manifest.json", "tiny.so", "build.log"])
@pytest.mark.parametrize("harm", KINDS)
def test_a_damaged_file_is_a_miss_and_is_replaced(file, harm, tiny, compiler, start, load_program):
    """Cases 23, 24, 50."""
    source = tiny()
    first = start(load_program, "tiny", source).wait().json
    harm(Path(first["path"]).with_name(file))
    again = start(load_program, "tiny", source).wait()
    assert again.status == 0, again.err
    assert again.json["sum"] == 5
    assert again.json["role"] == "built"
    assert "Traceback" not in again.err
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"
    assert compiler.compiles == 2


@pytest.mark.parametrize(("file", "harm"), [("manifest.json", noise), ("tiny.so", empty), ("tiny.so", flip)])
def test_four_processes_meet_a_damaged_entry_and_one_replaces_it(file, harm, tiny, compiler, start, load_program):
    """Cases 23 and 24."""
    source = tiny()
    # Not in this process: cutting a file that it has mapped would end it.
    harm(Path(start(load_program, "tiny", source).wait().json["path"]).with_name(file))
    children = [start(load_program, "tiny", source) for _ in range(4)]
    results = [child.wait() for child in children]
    assert [result.status for result in results] == [0] * 4, [result.err for result in results]
    assert [result.json["sum"] for result in results] == [5] * 4
    assert compiler.compiles == 2


@pytest.mark.parametrize("harm", KINDS)
def test_a_damaged_index_is_a_miss(harm, tiny, compiler, start, load_program, root):
    source = tiny()
    nodecache.load("tiny", source)
    for path in (root / "recipes").glob("*/*"):
        harm(path)
    again = start(load_program, "tiny", source).wait()
    assert again.status == 0, again.err
    assert again.json["sum"] == 5
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"


@pytest.mark.parametrize("harm", KINDS)
def test_a_damaged_memory_of_the_compiler_is_asked_again(harm, tiny, compiler, start, load_program, root):
    source = tiny()
    nodecache.load("tiny", source)
    for path in (path for path in (root / "tools").iterdir() if path.suffix != ".lock"):
        harm(path)
    again = start(load_program, "tiny", source).wait()
    assert again.status == 0, again.err
    assert again.json["role"] == "hit"


@pytest.mark.parametrize("part", ["entry", "file", "recipes", "root"])
def test_what_a_cleaner_took_is_built_again_and_loaded_modules_go_on(part, tiny, compiler, start, load_program, root):
    """Case 50."""
    source = tiny()
    module = nodecache.load("tiny", source)
    path = Path(module.__nodecache__.path)
    shutil.rmtree({"entry": path.parent, "file": path.parent, "recipes": root / "recipes", "root": root}[part])
    assert module.add(2, 3) == 5
    again = start(load_program, "tiny", source).wait()
    assert again.status == 0, again.err
    assert again.json["sum"] == 5


VANISH = """\
import nodecache, shutil, sys
from nodecache import extension
real, taken = extension._use, []
def vanish(spec, path, *rest):
    if not taken:
        taken.append(shutil.rmtree(path.rpartition("/")[0]))
    return real(spec, path, *rest)
extension._use = vanish
module = nodecache.load("tiny", sys.argv[1])
print(module.add(2, 3), module.__nodecache__.role)
"""


def test_an_entry_that_vanishes_between_look_up_and_load_is_a_miss(tiny, compiler, start):
    source = tiny()
    nodecache.load("tiny", source)
    child = start(VANISH, source).wait()
    assert child.out.split() == ["5", "built"], child.err
    assert compiler.compiles == 2


def test_a_rebuild_never_touches_the_file_that_another_process_has_mapped(tiny, start, load_program):
    """Case 17."""
    source = tiny()
    code = """\
import nodecache, os, sys
module = nodecache.load("tiny", sys.argv[1])
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    assert [module.add(n, 1) for n in range(1000)] == list(range(1, 1001))
"""
    stop = source.parent / "stop"
    user = start(code, source, stop)
    while "ready" not in user.out:
        assert user.process.poll() is None, user.err
    path = Path(nodecache.load("tiny", source).__nodecache__.path)
    with path.open("rb") as mapped:
        content = mapped.read()
        for _ in range(10):
            (path.parent / "manifest.json").unlink()
            assert start(load_program, "tiny", source).wait().json["role"] == "built"
            assert path.stat().st_ino != os.fstat(mapped.fileno()).st_ino
            mapped.seek(0)
            assert mapped.read() == content
    stop.touch()
    assert user.wait().status == 0, user.err


def sealed(folder: Path, key: str, files: dict[str, bytes]) -> str:
    """A staged and sealed entry."""
    place = folder / "entry"
    place.mkdir(parents=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    entry.seal(str(place), {"key": key})
    return str(place)


@pytest.fixture
def place(tmp_path) -> Root:
    found = open_root()
    ensure_folders(found)
    return found


def test_a_reader_sees_all_of_an_entry_or_nothing(place, tmp_path, start, root):
    """Case 21: one rename, however long the steps before it take."""
    code = """\
import os, sys
folder, stop = sys.argv[1:]
seen = set()
while not os.path.exists(stop):
    try:
        seen.add(tuple(sorted(os.listdir(folder))))
    except FileNotFoundError:
        seen.add(())
print(sorted(seen))
"""
    stop = tmp_path / "stop"
    target = root / "entries" / "k"
    readers = [start(code, target, stop) for _ in range(2)]
    for number in range(20):
        staged = sealed(tmp_path / str(number), "k", {"a": b"1", "b": b"2", "c": b"3"})
        entry.publish(place, staged, "k")
        os.rename(target, tmp_path / f"gone{number}")
    stop.touch()
    for reader in readers:
        assert reader.wait().status == 0, reader.err
        assert set(literal_eval(reader.out)) <= {(), ("a", "b", "c", "manifest.json")}


def test_a_clean_up_that_fails_does_not_fail_the_load(tiny, monkeypatch):
    """Case 21: EBUSY after the publish."""

    def busy(path, *, ignore_errors=False):
        if not ignore_errors:
            raise OSError(errno.EBUSY, "busy", path)

    monkeypatch.setattr(staging.shutil, "rmtree", busy)
    assert nodecache.load("tiny", tiny()).add(2, 3) == 5


def test_a_root_behind_a_link_that_the_user_chose_works(tiny, tmp_path, monkeypatch, start, load_program):
    """Case 21."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "link" / "root"))
    source = tiny()
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "real" / "root"))
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"


def test_the_loser_of_a_double_build_adopts_the_winners_entry(place, tmp_path):
    winner = entry.publish(place, sealed(tmp_path / "w", "k", {"a": b"winner"}), "k")
    inode = os.stat(winner.file("a")).st_ino
    loser = entry.publish(place, sealed(tmp_path / "l", "k", {"a": b"loser!"}), "k")
    assert loser.path == winner.path
    assert os.stat(loser.file("a")).st_ino == inode


@pytest.mark.parametrize("planted", ["folder", "file", "link", "full folder", "another key"])
def test_what_is_planted_in_an_entrys_place_is_moved_aside(planted, place, tmp_path, root):
    target = root / "entries" / "k"
    if planted == "folder":
        target.mkdir()
    elif planted == "file":
        target.write_text("x")
    elif planted == "link":
        target.symlink_to(sealed(tmp_path / "x", "k", {"a": b"foreign"}))
    elif planted == "full folder":
        target.mkdir()
        (target / "a").write_bytes(b"foreign")
    else:
        os.rename(sealed(tmp_path / "x", "other", {"a": b"foreign"}), target)
    found = entry.publish(place, sealed(tmp_path / "s", "k", {"a": b"mine"}), "k")
    assert Path(found.file("a")).read_bytes() == b"mine"
    assert damage(found.path, "k") is None


def test_a_shared_object_without_a_valid_manifest_is_not_loaded(tiny, compiler, root, start, load_program, tmp_path):
    """Case 45 (d)."""
    source = tiny()
    first = start(load_program, "tiny", source).wait().json
    key = first["key"]
    shutil.copy(first["path"], tmp_path / "planted.so")
    for name in ("entries", "recipes"):
        shutil.rmtree(root / name)
    (root / "entries" / key).mkdir(parents=True)
    shutil.copy(tmp_path / "planted.so", root / "entries" / key / "tiny.so")
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
    assert compiler.compiles == 2


def test_published_files_are_read_only_and_private(tiny, root):
    path = Path(nodecache.load("tiny", tiny()).__nodecache__.path)
    assert {p.name: p.stat().st_mode & 0o777 for p in path.parent.iterdir()} == {
        "tiny.so": 0o500,
        "manifest.json": 0o400,
        "build.log": 0o400,
    }


def test_an_entry_of_something_else_than_plain_files_is_refused(tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e/link").symlink_to("/etc/passwd")
    with pytest.raises(nodecache.RootError, match="no plain file"):
        entry.seal(str(tmp_path / "e"), {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"format": 1, "key": "k", "files": {"x": 7}}')
@example(b'{"format": 1, "key": "k", "files": {"\\u0000": {"size": 1}}}')
@example(b'{"format": 1, "key": "k", "files": {"../../../etc/passwd": {"size": 1, "digest": ""}}}')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_for_a_manifest_is_damage_and_no_traceback(tmp_path, data):
    (tmp_path / "manifest.json").write_bytes(data)
    manifest = read_manifest(str(tmp_path))
    assert manifest is None or isinstance(manifest["files"], dict)
    said = damage(str(tmp_path), "k")
    assert said is None or isinstance(said, str)


@given(
    JSON.flatmap(
        lambda value: st.fixed_dictionaries(
            {"format": st.just(1), "key": st.just("k"), "files": st.dictionaries(st.text(), st.just(value))}
        )
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape_of_a_manifests_files_is_damage_and_no_traceback(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    said = damage(str(tmp_path), "k")
    assert (said is None) == (not manifest["files"])


@given(st.text(), st.booleans())
@example("out\t\t1\t1\tmanifest.json\nfolder\tx\t/", True)
@example("out\t\t1\t1\tmanifest.json\nveil\t99 1\ta", True)
@example("out\t\t1\t1\tmanifest.json\nfile\tx\t²:a", True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_for_an_index_file_is_as_good_as_none(tmp_path, place, text, signed):
    """Also when its digest is right: another version may have written it."""
    folder = Path(place.at("recipes", "r"))
    folder.mkdir(exist_ok=True)
    raw = os.fsencode(text.encode("utf-8", "replace").decode())
    head = b"%s\n%s\n" % (index._HEAD, digest_bytes(raw).encode()) if signed else b""
    (folder / "1-k").write_bytes(head + raw)
    assert index.look(place, "r", Eyes(["/nowhere"])) is None


@given(st.binary())
@example(b"nodecache-owner 1 3 \n{}}")
@example(b"nodecache-owner 1 \xb2 x\n")
def test_noise_for_an_owner_record_is_no_owner(data):
    assert decode(data) is None


@given(JSON)
def test_an_owner_record_of_any_shape_is_an_owner_or_none(value):
    body = json.dumps(value).encode()
    found = decode(b"nodecache-owner 1 %d %s\n%s" % (len(body), digest_bytes(body).encode(), body))
    assert found is None or isinstance(found.pid, int)


@given(st.dictionaries(st.sampled_from(["pid", "start", "host", "log", "odd", "__class__"]), JSON))
@example({"pid": True, "start": 1})
@example({"pid": 1, "start": 1, "__slots__": 3})
def test_an_owner_record_with_odd_fields_is_an_owner_or_none(fields):
    body = json.dumps({"pid": 1, "start": 2, **fields}).encode()
    found = decode(b"nodecache-owner 1 %d %s\n%s" % (len(body), digest_bytes(body).encode(), body))
    assert found is None or isinstance(found.label, str)


def test_an_entry_that_a_file_system_hides_for_a_while_is_waited_for_and_adopted(place, tmp_path, monkeypatch):
    """An NFS client may believe for half a minute that a name is not there, while its server refuses the rename."""
    winner = entry.publish(place, sealed(tmp_path / "w", "k", {"a": b"winner"}), "k")
    looks: list[str] = []
    lexists = os.path.lexists

    def hidden(path):
        looks.append(path)
        return lexists(path) and (path != winner.path or looks.count(path) > 5)

    monkeypatch.setattr(entry.os.path, "lexists", hidden)
    found = entry.publish(place, sealed(tmp_path / "l", "k", {"a": b"loser!"}), "k")
    assert found.path == winner.path
    assert Path(found.file("a")).read_bytes() == b"winner"


def test_an_entry_that_stays_hidden_is_an_error_that_does_not_advise_to_delete_it(place, tmp_path, monkeypatch):
    winner = entry.publish(place, sealed(tmp_path / "w", "k", {"a": b"winner"}), "k")
    lexists = os.path.lexists
    monkeypatch.setattr(entry.os.path, "lexists", lambda path: path != winner.path and lexists(path))
    monkeypatch.setattr(entry, "HIDDEN", 0.2)
    with pytest.raises(nodecache.RootError, match=r"cannot be seen from this node.*Call again") as told:
        entry.publish(place, sealed(tmp_path / "l", "k", {"a": b"loser!"}), "k")
    assert "rm " not in str(told.value)
    assert Path(winner.file("a")).read_bytes() == b"winner"
