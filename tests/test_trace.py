"""``nodecache trace``: a build and its waiters as trace events."""

from __future__ import annotations

import json

import nodecache
from nodecache.__main__ import main
from nodecache.trace import lanes


def test_a_trace_has_the_build_its_steps_and_each_waiter_where_they_were(start, tiny, compiler, load_program, capsys):
    compiler.set(before="sleep 2")
    source = tiny()
    children = [
        start(load_program, "tiny", source, env={"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)})
        for rank in range(3)
    ]
    assert [child.wait().status for child in children] == [0] * 3
    assert main(["trace", "tiny"]) == 0
    trace = json.loads(capsys.readouterr().out)
    events = trace["traceEvents"]
    assert all(set(event) >= {"name", "ph", "pid", "tid"} for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    (build,) = [event for event in spans if event["name"] == "build tiny"]
    steps = [event for event in spans if event["pid"] == 0 and event is not build]
    assert [event["name"] for event in steps] == ["compile tiny.cpp", "link tiny.so"]
    assert steps[0]["dur"] > 2_000_000
    assert all(event["ts"] + event["dur"] <= build["dur"] + 500_000 for event in steps)
    waits = [event for event in spans if event["pid"] > 0]
    assert [event["name"] for event in waits] == ["wait for tiny"] * 2
    for event in waits:
        assert abs(event["ts"] + event["dur"] - build["dur"]) < 2_000_000
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sum(name.startswith("builder: rank ") for name in names) == 1
    assert sum(name.startswith("wait: rank ") for name in names) == 2


def test_a_trace_goes_to_a_file_or_says_why_not(tiny, tmp_path, capsys):
    nodecache.load("tiny", [tiny()])
    target = tmp_path / "trace.json"
    assert main(["trace", "tiny", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["otherData"]["name"] == "tiny"
    assert main(["trace", "tiny", "-o", str(tmp_path / "no" / "where")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_trace_has_the_transfer_from_another_node(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NODECACHE_REMOTE", str(tmp_path / "shared"))
    for node in ("a", "b"):
        monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / node))
        nodecache.load("tiny", [tiny()])
    assert main(["trace", "tiny"]) == 0
    events = json.loads(capsys.readouterr().out)["traceEvents"]
    (transfer,) = [event for event in events if event["name"] == "transfer of tiny"]
    (build,) = [event for event in events if event["name"] == "build tiny"]
    assert transfer["ts"] >= build["dur"]
    assert transfer["pid"] != build["pid"]
    assert transfer["args"] == {"outcome": "fetched"}


def test_steps_that_overlap_get_tracks_of_their_own():
    steps = [{"start_ms": start, "end_ms": end} for start, end in ((0, 10), (2, 5), (5, 9), (10, 12), (11, 13))]
    assert [(lane, step["start_ms"]) for lane, step in lanes(steps)] == [(0, 0), (1, 2), (1, 5), (0, 10), (1, 11)]
