"""History: a line a build and a wait; none for a hit, unless asked."""

from __future__ import annotations

import json
import os

import pytest

import nodecache
from nodecache import attempt, history
from nodecache.__main__ import main
from nodecache.root import ensure_folders, open_root

WAITS = """\
import sys
import nodecache
try:
    nodecache.load("tiny", [sys.argv[1]], timeout=float(sys.argv[2]) if len(sys.argv) > 2 else None)
except nodecache.NodecacheError as error:
    sys.exit(type(error).__name__)
"""
APPEND = """\
import sys
from nodecache import attempt
from nodecache.root import open_root
attempt.HISTORY_LIMIT = 20_000
root = open_root()
event = {"started": 1.0, "seconds": 0.0, "pid": int(sys.argv[1]), "host": "h"}
for number in range(300):
    attempt.append_history(root, {**event, "key": str(number)})
"""


def events():
    return history.events(open_root())


def test_builds_and_waits_are_noted_with_who_and_how_they_ended(start, tiny, compiler):
    compiler.set(before="sleep 2")
    source = tiny()
    builder = start(WAITS, source, env={"RANK": "0", "WORLD_SIZE": "3"})
    compiler.wait_for(1)
    waiter = start(WAITS, source, env={"RANK": "1", "WORLD_SIZE": "3"})
    hasty = start(WAITS, source, "0.3", env={"RANK": "2", "WORLD_SIZE": "3"})
    assert [child.wait().status for child in (builder, waiter, hasty)] == [0, 0, 1]
    found = {event.rank: event for event in events()}
    assert {rank: (event.event, event.outcome, event.pid) for rank, event in found.items()} == {
        0: ("build", "built", builder.pid),
        1: ("wait", "waited", waiter.pid),
        2: ("wait", "timeout", hasty.pid),
    }
    assert found[1].attempt == found[2].attempt == found[0].attempt
    assert 0.2 < found[2].seconds < 1.5
    assert found[0].key == nodecache.load("tiny", [source]).__nodecache__.key


def test_a_waiter_that_takes_over_or_is_told_of_a_failure_is_noted_as_that(start, tiny, compiler):
    compiler.set(before="sleep 30")
    source = tiny()
    dies = start(WAITS, source)
    compiler.wait_for(1)
    heir = start(WAITS, source)
    dies_waiting_for = start(WAITS, source)
    from nodecache.status import builds

    while (builds(open_root())[0].waiters or 0) < 2:
        assert dies.process.poll() is None
    compiler.set(before="sleep 1", instead="echo 'tiny.cpp:1:1: error: no' >&2; exit 1")
    dies.kill()
    assert {heir.wait().status, dies_waiting_for.wait().status} == {1}
    assert sorted((event.event, event.outcome) for event in events())[:2] == [("build", "failed"), ("wait", "failed")]
    assert ("wait", "took over") in {(event.event, event.outcome) for event in events()}


def test_a_hit_writes_nothing_unless_it_is_to_be_counted(start, tiny, root):
    source = tiny()
    assert start(WAITS, source).wait().status == 0

    def state():
        return sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*"))

    before = state()
    assert start(WAITS, source).wait().status == 0
    assert state() == before
    assert start(WAITS, source, env={"NODECACHE_STATS": "1"}).wait().status == 0
    assert [event.event for event in events()] == ["build", "hit"]


def test_stats_add_up(start, tiny, compiler, capsys):
    compiler.set(before="sleep 2")
    source = tiny()
    children = [start(WAITS, source) for _ in range(4)]
    assert [child.wait().status for child in children] == [0] * 4
    assert main(["stats", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["builds"], said["failures"], said["waits"], said["hits"], said["entries"]) == (1, 0, 3, None, 1)
    assert said["seconds_saved"] == pytest.approx(3 * said["seconds_built"], rel=0.01)
    assert said["seconds_waited"] > 3
    assert said["bytes"] > 10_000
    assert main(["stats"]) == 0
    assert "not recorded (set NODECACHE_STATS=1" in capsys.readouterr().out
    assert main(["history"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert main(["history", "--limit", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_lines_that_are_damaged_or_of_another_version_are_passed_over(root):
    place = open_root()
    ensure_folders(place)
    good = {"event": "build", "outcome": "built", "started": 5.0, "seconds": 1.0, "pid": 3, "host": "h", "name": "ok"}
    for line in (b"", b"{", b"[]", b"null", b'{"started": "soon"}', b"\xff\xfe", b"[" * 100_000):
        with open(root / "attempts" / "history", "ab") as file:
            file.write(line + b"\n")
    attempt.append_history(place, good)
    attempt.append_history(place, {**good, "event": "fetch", "later": {"field": 1}, "rank": "many"})
    assert [(event.event, event.name, event.rank) for event in events()] == [
        ("build", "ok", None),
        ("fetch", "ok", None),
    ]


def test_the_history_is_bounded_and_loses_no_line_that_is_not_old(start, root):
    ensure_folders(open_root())
    children = [start(APPEND, number) for number in range(4)]
    assert [child.wait().status for child in children] == [0] * 4
    files = sorted(path.name for path in (root / "attempts").iterdir())
    assert files == ["history", "history.1"]
    assert all((root / "attempts" / name).stat().st_size < 25_000 for name in files)
    found = events()
    assert len(found) > 150
    for number in range(4):  # of each writer the last, and those without a gap
        keys = sorted(int(event.key) for event in found if event.pid == number)
        assert not keys or keys == list(range(keys[0], 300))


@pytest.mark.parametrize("what", ["a pipe", "a link to a device", "a link to a file", "a folder"])
def test_a_history_that_is_no_plain_file_hangs_no_command_and_no_build(what, start, tiny, load_program, root, tmp_path):
    source = tiny()
    nodecache.load("tiny", [source])
    for name in ("history", "history.1"):
        path = root / "attempts" / name
        path.unlink(missing_ok=True)
        if what == "a pipe":
            os.mkfifo(path)
        elif what == "a folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if what == "a link to a device" else tmp_path / "other")
    (tmp_path / "other").write_text("mine")
    for command in (["log", "tiny"], ["report", "--output", str(tmp_path / "report.html")], ["history"], ["stats"]):
        code = f"import sys; from nodecache.__main__ import main; sys.exit(main({command!r}))"
        result = start(code).wait(30)
        assert result.status == 0, (command, result.err)
    source.write_text(source.read_text() + "// changed\n")
    result = start(load_program, "tiny", source).wait(30)
    assert result.json["role"] == "built"
    assert (tmp_path / "other").read_text() == "mine"
