"""``nodecache prune``: the least recently used goes first, never under a build, and what is loaded works on."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

import nodecache
from nodecache import contents, hold, index, prune
from nodecache.__main__ import main
from nodecache.errors import SpecError
from nodecache.root import open_root

DAY = 86400
LOOP = """\
import sys, time
import nodecache
module = nodecache.load("tiny", [sys.argv[1]])
print("loaded", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    assert module.add(2, 3) == 5
again = nodecache.load("tiny", [sys.argv[1]])
print(again.__nodecache__.role, again.add(2, 3))
"""
LOADS = """\
import sys
import nodecache
for round in range(int(sys.argv[2])):
    assert nodecache.load("tiny", [sys.argv[1]]).add(2, 3) == 5
    nodecache.extension._modules.clear()
"""
PRUNES = """\
import sys, time
from nodecache import prune
from nodecache.contents import find_root
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    root = find_root()
    if root:
        prune.prune(root, everything=True)
"""


def build(tiny, *names):
    """Build modules of these names, each last used a day after the one before; the last a day ago."""
    for age, name in enumerate(reversed(names), 1):
        nodecache.load(name, [tiny(name)])
        use(name, age * DAY)


def use(name, ago):
    """Let an entry's last use and its making lie so many seconds back."""
    root = open_root()
    held = contents.find_entry(root, name)
    then = time.time() - ago
    os.utime(held.path, (then, then))
    for file in os.listdir(root.at("recipes", held.recipe)):
        os.utime(root.at("recipes", held.recipe, file), (then, then))


def names():
    return [held.name for held in contents.entries(open_root())]


def test_the_least_recently_used_go_until_the_size_fits(tiny, capsys):
    build(tiny, "a", "b", "c")
    assert names() == ["c", "b", "a"]
    room = sum(held.size for held in contents.entries(open_root())) - 1
    assert main(["prune", "--max-size", str(room)]) == 0
    assert names() == ["c", "b"]
    assert " a (" in capsys.readouterr().out


def test_what_was_used_longer_ago_goes(tiny):
    build(tiny, "a", "b", "c")  # used three, two and one day ago
    assert main(["prune", "--older-than", "36h"]) == 0
    assert names() == ["c"]


def test_a_dry_run_only_says_so(tiny, capsys, root):
    build(tiny, "a", "b")
    before = sorted(str(path) for path in root.rglob("*"))
    assert main(["prune", "--all", "--dry-run"]) == 0
    assert sorted(str(path) for path in root.rglob("*")) == before
    out = capsys.readouterr().out
    assert out.count("would remove") == 2
    assert "2 entries" in out


def test_all_leaves_no_entry_and_no_index_and_the_next_call_builds(tiny, compiler, root):
    nodecache.load("tiny", [tiny()])
    assert main(["prune", "--all"]) == 0
    assert list((root / "entries").iterdir()) == list((root / "recipes").iterdir()) == []
    nodecache.extension._modules.clear()
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert compiler.compiles == 2


def test_a_hit_notes_its_use_once_a_day(start, tiny, load_program):
    source = tiny()
    build(tiny, "tiny")
    use("tiny", 3 * DAY)
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"
    used = contents.find_entry(open_root(), "tiny").used
    assert time.time() - used < 60
    use("tiny", DAY / 2)
    assert start(load_program, "tiny", source).wait().json["role"] == "hit"
    assert time.time() - contents.find_entry(open_root(), "tiny").used == pytest.approx(DAY / 2, abs=120)


def test_noting_a_use_costs_a_hit_a_few_microseconds(tiny, root):
    nodecache.load("tiny", [tiny()])
    (path,) = (root / "recipes").glob("*/*")
    began = time.perf_counter()
    for _ in range(1000):
        index._note_use(str(path), path.stat().st_mtime)
    assert (time.perf_counter() - began) / 1000 < 100e-6  # 2 µs on an idle machine


def test_what_is_being_built_stays(start, tiny, compiler, load_program, capsys, root):
    source = tiny()
    nodecache.load("tiny", [source])
    header = source.parent / "h.h"
    header.write_text("")
    # The same recipe with other headers: the old entry is of the recipe that is being built.
    source.write_text('#include "h.h"\n' + source.read_text())
    nodecache.load("tiny", [source])
    (held,) = [each for each in contents.entries(open_root()) if each.recipe == contents.entries(open_root())[0].recipe]
    header.write_text("// changed")
    compiler.set(before="sleep 30")
    builder = start(load_program, "tiny", source)
    compiler.wait_for(3)
    assert main(["prune", "--all"]) == 1
    assert f"kept {held.key[:12]} tiny: it is being built" in capsys.readouterr().out
    assert [each.key for each in contents.entries(open_root())] == [held.key]
    assert builder.process.poll() is None
    builder.kill()


def test_a_process_that_has_loaded_it_goes_on_and_one_that_asks_again_builds(start, tiny, wait_until):
    source = tiny()
    user = start(LOOP, source, 3)
    wait_until(lambda: "loaded" in user.out, 30, "the module")
    assert main(["prune", "--all"]) == 0
    result = user.wait()
    assert result.status == 0, result.err
    assert result.out.split() == ["loaded", "built", "5"]


def test_jobs_that_load_while_others_prune_never_fail(start, tiny, root):
    source = tiny()
    loaders = [start(LOADS, source, 12) for _ in range(3)]
    pruners = [start(PRUNES, 6) for _ in range(2)]
    for child in [*loaders, *pruners]:
        result = child.wait(100)
        assert result.status == 0, result.err
    assert not [name for name in os.listdir(root / "entries") if name.endswith(contents.PRUNED)]


def test_a_prune_that_was_killed_is_finished_by_the_next(tiny, root):
    nodecache.load("tiny", [tiny()])
    (entry,) = (root / "entries").iterdir()
    entry.rename(f"{entry}.0badc0de{contents.PRUNED}")
    assert names() == []
    assert main(["prune", "--older-than", "1d"]) == 0
    assert list((root / "entries").iterdir()) == []


def test_a_dead_builders_leftovers_go_with_its_entries(start, tiny, compiler, load_program, root):
    source = tiny()
    nodecache.load("tiny", [source])
    compiler.set(before="sleep 60")
    source.write_text(source.read_text() + "// changed\n")
    builder = start(load_program, "tiny", source)
    compiler.wait_for(2)
    builder.kill(signal.SIGKILL)
    builder.wait()
    assert main(["prune", "--all"]) == 0
    assert list((root / "entries").iterdir()) == []


def test_a_damaged_entry_can_be_pruned(tiny, root):
    nodecache.load("tiny", [tiny()])
    (entry,) = (root / "entries").iterdir()
    (entry / "manifest.json").unlink()
    (entry / "manifest.json").write_text("{")
    assert main(["prune", "--all"]) == 0
    assert list((root / "entries").iterdir()) == []


def test_old_failures_and_their_logs_go_and_new_ones_stay(tiny, root):
    for name in ("old", "new"):
        with pytest.raises(nodecache.BuildError):
            nodecache.load(name, [tiny(name, expression="a +")])
    old, new = sorted((root / "attempts").glob("*/failure"), key=lambda path: path.stat().st_mtime_ns)
    for path in (*old.parent.iterdir(), old.parent):
        os.utime(path, (time.time() - 3 * DAY,) * 2)
    assert main(["prune", "--older-than", "2d"]) == 0
    assert not old.parent.exists()
    assert new.exists()


def test_an_automatic_limit_is_kept_after_a_build(start, tiny, load_program):
    build(tiny, "a", "b")
    room = sum(held.size for held in contents.entries(open_root())) + 1000
    result = start(load_program, "c", tiny("c"), env={"NODECACHE_MAX_SIZE": str(room)}).wait()
    assert (result.status, result.err) == (0, "")
    assert names() == ["c", "b"]
    result = start(load_program, "d", tiny("d"), env={"NODECACHE_MAX_SIZE": "1"}).wait()
    assert (result.status, result.err) == (0, "")
    assert set(names()) == {"c", "d"}  # both are new: those who waited for them are about to load them


def test_a_limit_that_makes_no_sense_is_a_warning_and_the_build_is_good(start, tiny, load_program):
    result = start(load_program, "tiny", tiny(), env={"NODECACHE_MAX_SIZE": "plenty"}).wait()
    assert result.json["role"] == "built"
    assert "NODECACHE_MAX_SIZE: 'plenty' is no size" in result.err
    endless = start(load_program, "more", tiny("more"), env={"NODECACHE_MAX_SIZE": "9" * 400}).wait()
    assert endless.json["role"] == "built"
    assert "NODECACHE_MAX_SIZE is not between 0 and" in endless.err


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 << 30), ("300M", 300 << 20), ("2.5GiB", 5 << 29), ("1000", 1000), ("1 kb", 1024)]
)
def test_sizes_are_read(text, size):
    assert prune.parse_size(text, "--max-size") == size


@pytest.mark.parametrize(("text", "age"), [("30d", 30 * DAY), ("12h", 43200), ("90m", 5400), ("2w", 14 * DAY)])
def test_ages_are_read(text, age):
    assert prune.parse_age(text, "--older-than") == age


@pytest.mark.parametrize("text", ["", "big", "-1GB", "5XB", "1e9", "5 days"])
def test_what_is_no_size_and_no_age_is_refused(text):
    with pytest.raises(SpecError, match=r"--max-size: .* is no size"):
        prune.parse_size(text, "--max-size")
    with pytest.raises(SpecError, match=r"--older-than: .* is no length of time"):
        prune.parse_age(text, "--older-than")


@pytest.mark.parametrize("text", [pytest.param("9" * 5000, id="long"), "nan", "inf", "-1", ""])
@pytest.mark.parametrize("option", ["--max-size", "--older-than"])
def test_a_size_or_an_age_that_cannot_be_is_an_error_that_names_the_option_and_removes_nothing(
    option, text, tiny, capsys
):
    build(tiny, "tiny")
    unit = "d" if option == "--older-than" else "GB"
    assert main(["prune", "--all", f"{option}={text}{unit if text[:1] == '9' else ''}"]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert "Traceback" not in said
    assert len(said) < 400
    assert names() == ["tiny"]


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), pytest.param(10**5000, id="huge"), "5", True])
@pytest.mark.parametrize("argument", ["max_size", "older_than"])
def test_pruning_to_a_number_that_cannot_be_is_an_error_that_names_the_argument(argument, wrong, tiny):
    build(tiny, "tiny")
    with pytest.raises(SpecError, match=rf"^{argument} is not"):
        prune.prune(open_root(), everything=True, **{argument: wrong})
    assert names() == ["tiny"]


def test_what_is_no_entry_but_is_called_like_one_is_removed_with_its_own_size(tiny, root, tmp_path, capsys):
    build(tiny, "tiny")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x" * 5000)
    (root / "entries" / ("a" * 40)).write_text("x" * 700)
    (root / "entries" / ("b" * 40)).symlink_to(kept)
    assert main(["prune", "--all"]) == 0
    said = capsys.readouterr().out
    assert "removed aaaaaaaaaaaa  (700 B)" in said
    assert f"removed bbbbbbbbbbbb  ({len(str(kept))} B)" in said
    assert list((root / "entries").iterdir()) == []
    assert (kept / "file").stat().st_size == 5000


def test_an_entry_whose_files_cannot_be_removed_is_not_told_as_removed(tiny, root, capsys, monkeypatch):
    build(tiny, "tiny")
    with monkeypatch.context() as disk:
        disk.setattr(prune.shutil, "rmtree", lambda *_, **__: None)  # as for immutable files
        assert main(["prune", "--all"]) == 1
    said = capsys.readouterr().out
    (rest,) = (root / "entries").iterdir()
    assert re.search(rf"kept \w+ tiny: it cannot be removed as a whole; what is left of it is {rest}\n", said)
    assert "0 entries, 0 B removed" in said
    assert main(["prune", "--all"]) == 0
    assert list((root / "entries").iterdir()) == []


def test_prune_needs_to_be_told_what_may_go(tiny, capsys):
    nodecache.load("tiny", [tiny()])
    assert main(["prune"]) == 2
    assert "--max-size, --older-than or --all" in capsys.readouterr().err
    assert names() == ["tiny"]


def test_the_size_counts_what_stays(tiny, capsys):
    build(tiny, "a", "b")
    (b, _) = contents.entries(open_root())
    assert main(["prune", "--max-size", str(b.size)]) == 0
    assert "1 entry" in capsys.readouterr().out
    assert prune.prune(open_root(), max_size=0, dry_run=True).freed == b.size


READER = """\
import os, pathlib, sys, time
import nodecache
def build(folder):
    (folder / "table").write_text("5")
def get():
    return nodecache.get_or_build("table", {"n": 3}, build)
folder = get()
told, go = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
def read():
    print((folder / "table").read_text(), flush=True)
"""
READS = READER + "told.touch()\nwhile not go.exists(): time.sleep(0.01)\nread()\n"
FORKS = READER + "if os.fork(): os._exit(0)\ntold.touch()\nwhile not go.exists(): time.sleep(0.01)\nread()\n"


def get_table():
    return nodecache.get_or_build("table", {"n": 3}, lambda folder: (folder / "table").write_text("5"))


@pytest.fixture
def reader(start, tmp_path, wait_until):
    """Start a process that got the table, and let it read when told to: ``reader(code) -> (child, go)``."""

    def begin(code):
        told, go = tmp_path / "told", tmp_path / "go"
        child = start(code, told, go)
        wait_until(told.exists, 30, "the folder")
        return child, go

    return begin


def test_a_folder_that_a_living_process_got_stays_and_goes_when_that_is_dead(reader, root, capsys):
    child, go = reader(READS)
    assert main(["prune", "--all"]) == 1
    assert "table: it is in use by a living process" in capsys.readouterr().out
    assert main(["prune", "--all", "--dry-run"]) == 1
    assert "would remove" not in capsys.readouterr().out
    go.touch()
    result = child.wait()
    assert (result.status, result.out) == (0, "5\n"), result.err
    assert main(["prune", "--all"]) == 0
    assert list((root / "entries").iterdir()) == []


def test_a_folder_stays_for_a_forked_child_whose_parent_is_dead(reader, root, wait_until):
    child, go = reader(FORKS)
    assert child.wait().status == 0  # the parent
    assert main(["prune", "--all"]) == 1
    go.touch()
    wait_until(lambda: child.out == "5\n", 30, "what the child reads")
    wait_until(lambda: main(["prune", "--all"]) == 0, 30, "end of the child")
    assert names() == []


def test_a_killed_reader_holds_nothing(reader, root):
    child, _ = reader(READS)
    child.kill()
    child.wait()
    assert main(["prune", "--all"]) == 0
    assert names() == []


def test_the_automatic_limit_never_takes_a_folder_that_is_in_use(reader, start, tiny, load_program):
    child, go = reader(READS)
    use("table", DAY)
    limited = {"NODECACHE_MAX_SIZE": "1"}
    assert start(load_program, "tiny", tiny(), env=limited).wait().status == 0
    assert set(names()) == {"tiny", "table"}
    go.touch()
    assert child.wait().out == "5\n"
    assert start(load_program, "other", tiny("other"), env=limited).wait().status == 0
    assert "table" not in names()


def test_a_hit_holds_its_folder_too_and_many_take_one_descriptor(root):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        for _ in range(2):
            nodecache.get_or_build("many", {"n": number}, lambda folder: (folder / "x").touch())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert main(["prune", "--all"]) == 1
    assert len(names()) == 20


def test_a_folder_that_a_prune_was_quicker_with_is_a_miss(root, monkeypatch):
    monkeypatch.setattr(hold, "_marks", {})  # of other tests in this process
    built = []

    def build(folder):
        built.append(folder)

    taken = hold.take

    def pruned_before(place, key):
        if len(built) == 1:
            prune.prune(place, everything=True)
        return taken(place, key)

    first = nodecache.get_or_build("t", {}, build)
    ((fd, _),) = hold._marks.values()
    os.close(fd)  # as in another process
    hold._marks.clear()
    monkeypatch.setattr(hold, "take", pruned_before)
    again = nodecache.get_or_build("t", {}, build)
    assert again == first
    assert again.is_dir()
    assert len(built) == 2


def test_where_locks_cannot_be_relied_on_a_folder_stays_and_a_module_goes(tiny, monkeypatch, capsys):
    monkeypatch.setattr(hold, "file_system", lambda _: "fuse.some")
    get_table()
    nodecache.load("tiny", [tiny()])
    assert main(["prune", "--all"]) == 1
    assert "it may be in use (a file system of type fuse.some" in capsys.readouterr().out
    assert names() == ["table"]
