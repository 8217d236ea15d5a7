"""What waiters say: nothing for two seconds, then who builds what and how far it is, from one waiter a node."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from nodecache import waiting
from nodecache.root import open_root
from nodecache.status import builds

SAYS_WHEN = """\
import logging, sys, time
import nodecache
class Times(logging.Handler):
    def emit(self, record):
        print(f"{time.monotonic() - began:.2f} {record.levelname} {record.getMessage()}", flush=True)
logging.getLogger("nodecache").addHandler(Times())
began = time.monotonic()
try:
    nodecache.load("tiny", [sys.argv[1]], verbose=len(sys.argv) > 2)
except nodecache.BuildError:
    pass
"""
LINE = re.compile(r"(?P<at>[\d.]+) (?P<level>\w+) (?P<said>.*)")


def ranks(number, of=4):
    names = ("RANK", "LOCAL_RANK")
    return dict.fromkeys(names, str(number)) | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(of))


def numbered(number):
    return {} if number is None else ranks(number, of=5)


def waiting_calls(root):
    return sum(build.waiters or 0 for build in builds(open_root(root)))


def lines(child):
    return [found for line in child.out.splitlines() if (found := LINE.fullmatch(line))]


def test_one_waiter_a_node_says_who_builds_since_when_how_far_and_where_its_log_is(start, tiny, compiler, wait_until):
    """Case 56, scaled to 9 s: after 2 s, then at 4 and 8; at WARNING."""
    compiler.set(before="sleep 9")
    source = tiny()
    builder = start(SAYS_WHEN, source, env=ranks(2))
    compiler.wait_for(1)
    waiters = {number: start(SAYS_WHEN, source, env=ranks(number)) for number in (0, 1, 3)}
    wait_until(lambda: lines(waiters[0]), 20, "first word")
    assert Path(re.search(r"log: (\S+)", waiters[0].out)[1]).stat().st_size > 0
    assert [child.wait(60).status for child in [builder, *waiters.values()]] == [0] * 4
    said = lines(waiters[0])
    assert [round(float(line["at"])) for line in said] in ([2, 4, 8], [2, 4])
    for line in said:
        assert line["level"] == "WARNING"
        assert f"waiting for 'tiny': pid {builder.pid} (rank 2) on {os.uname().nodename}" in line["said"]
        assert re.search(
            r"building it for \d+ s, step 1 of 2: compile tiny\.cpp; "
            r"sleep \(pid \d+\) sleeping, 0\.\d s of CPU time, last output \d+ s ago; log: ",
            line["said"],
        )
    assert waiters[1].out == waiters[3].out == builder.out == ""
    assert not any(child.err for child in [builder, *waiters.values()])


def test_the_log_grows_on_disk_while_the_compilers_run(start, tiny, compiler, root, tmp_path):
    """Case 56."""
    compiler.set(before="sleep 2")
    (tmp_path / "more.cpp").write_text("int more() { return 1; }")
    code = "import sys, nodecache; nodecache.load('tiny', sys.argv[1:])"
    builder = start(code, tiny(), tmp_path / "more.cpp", env={"NODECACHE_JOBS": "1"})
    compiler.wait_for(1)
    (log,) = (root / "attempts").glob("*/*.log")
    early = log.read_text()
    assert "> step 1 of 3: compile tiny.cpp" in early
    compiler.wait_for(2)
    assert builder.process.poll() is None
    later = log.read_text()
    assert later.startswith(early)
    assert "[1/3] compile tiny.cpp\n> step 2 of 3: compile more.cpp" in later
    assert builder.wait().status == 0


@pytest.mark.parametrize(
    ("by", "ask", "speak"),
    [
        pytest.param(0, (2, 3), (2,), id="rank 0 builds, and rank 1 does not ask"),
        pytest.param(3, (1, 2, 4), (1,), id="rank 0 does not ask"),
        pytest.param(None, (1, 2, None, None), (1, None, None), id="some have no rank"),
    ],
)
def test_the_lowest_local_rank_that_waits_speaks_and_whoever_has_none(
    by, ask, speak, start, tiny, compiler, wait_until, root
):
    compiler.set(before="until [ -e $GO ]; do sleep 0.1; done".replace("$GO", str(root.with_name("go"))))
    source = tiny()
    builder = start(SAYS_WHEN, source, env=numbered(by))
    compiler.wait_for(1)
    waiters = []
    for number in ask:
        waiters.append(start(SAYS_WHEN, source, env=numbered(number)))
        wait_until(lambda: waiting_calls(root) == len(waiters), 30, f"{len(waiters)} waiters")
    wait_until(lambda: sum(bool(lines(child)) for child in waiters) == len(speak), 30, "all that are to speak")
    wait_until(lambda: len(lines(waiters[0])) >= 2, 30, "second word")
    root.with_name("go").touch()
    assert [child.wait(60).status for child in [builder, *waiters]] == [0] * (1 + len(ask))
    assert [number for number, child in zip(ask, waiters, strict=True) if lines(child)] == list(speak)
    assert builder.out == ""


def test_when_the_one_that_speaks_dies_the_next_rank_does(start, tiny, compiler, wait_until, root):
    compiler.set(before="sleep 300")
    source = tiny()
    start(SAYS_WHEN, source, env=ranks(0))
    compiler.wait_for(1)
    first = start(SAYS_WHEN, source, env=ranks(1))
    wait_until(lambda: waiting_calls(root) == 1, 30, "waiter")
    second, third = (start(SAYS_WHEN, source, env=ranks(number)) for number in (2, 3))
    wait_until(lambda: waiting_calls(root) == 3, 30, "three waiters")
    wait_until(lambda: lines(first), 30, "first word")
    assert second.out == ""
    first.kill()
    first.wait()
    wait_until(lambda: lines(second), 60, "word of the next rank")
    assert third.out == ""


def test_each_of_two_jobs_that_wait_for_one_build_has_a_rank_that_speaks(start, tiny, compiler, wait_until, root):
    compiler.set(before="sleep 300")
    source = tiny()
    start(SAYS_WHEN, source, env=ranks(0) | {"MASTER_PORT": "29500"})
    compiler.wait_for(1)
    of_one = start(SAYS_WHEN, source, env=ranks(1) | {"MASTER_PORT": "29500"})
    wait_until(lambda: waiting_calls(root) == 1, 30, "waiter")
    of_other = start(SAYS_WHEN, source, env=ranks(2) | {"MASTER_PORT": "29501"})
    wait_until(lambda: lines(of_one) and lines(of_other), 30, "word of both")


def test_a_waiter_is_told_that_the_compiler_is_stopped_and_for_how_long_it_has_been_silent(
    start, tiny, compiler, wait_until
):
    compiler.set(before="kill -STOP $$")
    source = tiny()
    builder = start(SAYS_WHEN, source)
    compiler.wait_for(1)
    (pid, _), *_ = [line.split() for line in compiler.counter.read_text().splitlines()]
    waiter = start(SAYS_WHEN, source)
    wait_until(lambda: lines(waiter), 30, "word")
    said = lines(waiter)[0]["said"]
    assert f"; counting-c++ (pid {pid}) stopped (kill -CONT {pid} continues it), 0." in said
    assert re.search(r" s of CPU time, last output \d+ s ago; log: ", said)
    os.kill(int(pid), signal.SIGCONT)
    assert [child.wait(60).status for child in (builder, waiter)] == [0, 0]


def test_a_waiter_whose_time_is_over_is_told_what_the_compiler_is_at(start, tiny, compiler):
    compiler.set(before="kill -STOP $$")
    source = tiny()
    start(SAYS_WHEN, source)
    compiler.wait_for(1)
    (pid, _), *_ = [line.split() for line in compiler.counter.read_text().splitlines()]
    impatient = start("import sys, nodecache; nodecache.load('tiny', [sys.argv[1]], timeout=0.5)", source).wait(60)
    assert f"counting-c++ (pid {pid}) stopped (kill -CONT {pid} continues it)" in impatient.err
    assert "LeaseTimeout" in impatient.err


@pytest.mark.parametrize("case", ["rank 0 builds", "no ranks", "verbose"])
def test_who_speaks(case, start, tiny, compiler):
    compiler.set(before="sleep 4")
    source = tiny()
    own = {"no ranks": {}}.get(case)
    builder = start(SAYS_WHEN, source, env=ranks(0) if own is None else own)
    compiler.wait_for(1)
    more = ("verbose",) if case == "verbose" else ()
    waiters = [start(SAYS_WHEN, source, *more, env=ranks(number) if own is None else own) for number in (1, 2)]
    assert [child.wait(60).status for child in [builder, *waiters]] == [0] * 3
    spoke = [bool(lines(child)) for child in waiters]
    assert spoke == ([True, False] if case == "rank 0 builds" else [True, True])
    assert builder.out == ""


def test_a_short_wait_is_silent(start, tiny, compiler):
    """Short is less than two seconds; here a minute, for machines that are busy."""
    assert waiting.FIRST == 2
    compiler.set(before="sleep 1")
    source = tiny()
    patient = f"import nodecache.waiting; nodecache.waiting.FIRST = 60.0\n{SAYS_WHEN}"
    children = [start(patient, source) for _ in range(3)]
    assert [child.wait(60).status for child in children] == [0] * 3
    assert [child.out + child.err for child in children] == [""] * 3


def test_the_intervals_grow_to_a_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    voice = waiting.Voice("tiny", verbose=True)
    spoken = []
    monkeypatch.setattr(voice, "_speak", lambda: spoken.append(now[0] - 100))
    for _ in range(40):
        voice.wait_for(lambda: None)
        now[0] += max(voice.patience(), 0.001)
    assert [round(moment) for moment in spoken[:7]] == [2, 4, 8, 16, 32, 64, 124]
    steps = [round(after - before) for before, after in itertools.pairwise(spoken[6:])]
    assert set(steps) == {60}


def on_terminal(source):
    """What a waiter that leads a terminal's foreground group writes to it, until it ends."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", SAYS_WHEN, str(source)])
    written = b""
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline and select.select([fd], [], [], 1)[0] is not None:
            try:
                written += os.read(fd, 4096)
            except OSError:  # its last process has closed it
                break
    finally:
        os.close(fd)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), written.decode(errors="replace")


def test_on_a_terminal_a_bar_is_drawn_instead_and_taken_away(start, tiny, compiler, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(waiting.__file__).parents[1]))
    compiler.set(before="sleep 5")
    source = tiny()
    builder = start(SAYS_WHEN, source)
    compiler.wait_for(1)
    status, written = on_terminal(source)
    assert builder.wait(60).status == 0
    assert status == 0
    assert f"waiting for tiny: pid {builder.pid}" in written
    assert "WARNING" not in written
    assert written.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A"))  # the line is erased, the cursor is back


@pytest.mark.soak
def test_nobody_builds_for_itself_however_long_a_build_takes(start, tiny, compiler, load_program):
    """75 s: past the 15 s and 60 s after which other caches give up waiting."""
    compiler.set(before="sleep 75")
    source = tiny()
    results = [child.wait(150) for child in [start(load_program, "tiny", source) for _ in range(4)]]
    assert sorted(each.json["role"] for each in results) == ["built", "waited", "waited", "waited"]
    assert compiler.compiles == 1


ASKS_FOR_ITSELF = """\
import logging, sys, threading, time
import nodecache
class Times(logging.Handler):
    def emit(self, record):
        print(f"{time.monotonic() - began:.2f} {record.levelname} {record.getMessage()}", flush=True)
logging.getLogger("nodecache").addHandler(Times())
began = time.monotonic()
timeout = float(sys.argv[1]) if len(sys.argv) > 1 else None
def inner():
    try:
        nodecache.get_or_build("table", {"size": 1}, build, timeout=timeout)
    except nodecache.LeaseTimeout as error:
        print(f"{time.monotonic() - began:.2f} LeaseTimeout {error}", flush=True)
def build(folder):
    asking = threading.Thread(target=inner, name="asking", daemon=True)
    asking.start()
    asking.join()
    (folder / "value").write_text("right")
def outer():
    nodecache.get_or_build("table", {"size": 1}, build)
    print("built", flush=True)
building = threading.Thread(target=outer, name="building", daemon=True)
building.start()
building.join()
"""


def test_a_build_that_waits_for_a_thread_that_waits_for_the_build_is_told_which_thread_it_is(start, wait_until):
    """Every rank says so: each is the only one that knows. It waits on, because two threads may merely compete."""
    child = start(ASKS_FOR_ITSELF, env=ranks(3))
    wait_until(lambda: lines(child), 20, "warning")
    (said,) = lines(child)[:1]
    assert 2 <= float(said["at"]) < 10
    assert said["level"] == "WARNING"
    assert f"thread 'building' of this very process (pid {child.pid}) builds it" in said["said"]
    assert "'table'" in said["said"]
    child.kill()


def test_a_timeout_ends_the_wait_of_a_build_for_itself_and_the_build_goes_on(start):
    child = start(ASKS_FOR_ITSELF, 1, env=ranks(3))
    assert child.wait(30).status == 0, child.err
    (said,) = lines(child)
    assert said["level"] == "LeaseTimeout"
    assert 1 <= float(said["at"]) < 10
    assert "It is thread 'building' of this very process" in said["said"]
    assert child.out.endswith("built\n")
