"""The root and the tier on a real file system that is not well: no locks, locks that hang, errors, another clock."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

import nodecache
from nodecache.errors import BuildError, NodecacheError, RootError
from nodecache.root import ensure_folders, open_root
from tests import lease_checks
from tests.lease_checks import damaged, names, nothing_is_left
from tests.testbed.faultfs import FOR_EVER, FaultFS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def disk(start, tmp_path):
    """A FUSE mount, well until ``disk.set``. Whoever hangs in it goes on when it ends, and can then be reaped."""
    with FaultFS(tmp_path) as made:
        yield made


@pytest.fixture
def root(root, disk, monkeypatch) -> Path:
    """The root on that mount."""
    place = disk.path / "root"
    monkeypatch.setenv("NODECACHE_ROOT", str(place))
    return place


@pytest.fixture
def job(start, tiny, compiler, root, tmp_path, load_program, wait_until):
    made = lease_checks.Scene(start, tiny, compiler, root, tmp_path, load_program, wait_until)
    yield made
    made.go()


@pytest.fixture(params=["locks", "ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def locks(request, disk):
    """Locks that work on the mount, and each way in which they do not."""
    if request.param != "locks":
        disk.set(flock={"errno": request.param})
    return request.param


def announcements(result):
    return [line for line in result.err.splitlines() if "no kernel locks on " in line]


def is_announced_once(locks, builder, others, disk):
    """Where there are no locks, who builds says so in one line; where there are, nobody does."""
    if locks == "locks":
        assert [line for result in (builder, *others) for line in announcements(result)] == []
        return
    (line,) = announcements(builder)
    assert f"({errno.errorcode[getattr(errno, locks)]}, fuse.faultfs)" in line
    assert all(len(announcements(result)) <= 1 for result in others)
    assert any(said.startswith("flock ") for said in disk.struck())


def test_six_processes_with_an_empty_root_compile_once(job, locks, disk):
    job.hold()
    ranks = [job.start() for _ in range(6)]
    job.wait_for_waiters(5)
    job.go()
    results = job.ends(*ranks)
    assert job.compiler.compiles == 1
    (builder,) = [result for result in results if result.json["role"] == "built"]
    is_announced_once(locks, builder, [result for result in results if result is not builder], disk)
    nothing_is_left(job.root, job.temporary)


def test_a_killed_builder_is_succeeded_within_seconds(job, locks, disk):
    builder, waiters, died = job.kill_builder(waiters=3)
    results = job.ends(*waiters)
    assert job.compiler.compiles == 2
    assert lease_checks.began(job.compiler.counter)[-1] - died < 5
    successors = [result for result in results if "took over" in result.err]
    assert len(successors) == 1
    assert all(f"took over the lease of 'tiny' from pid {builder.pid} " in result.err for result in successors)
    (second,) = [result for result in results if result.json["role"] == "built"]
    is_announced_once(locks, second, [result for result in results if result is not second], disk)
    nothing_is_left(job.root, job.temporary)


# Lock calls that do not return

IMPATIENT = """\
import json, sys, time
import nodecache
began = time.monotonic()
try:
    nodecache.load(sys.argv[1], sys.argv[2:], timeout=3)
except nodecache.NodecacheError as error:
    said = {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
    print(json.dumps(said), flush=True)
"""


def test_a_lock_call_that_does_not_return_is_left_at_the_timeout_and_its_late_grant_is_dropped(job, disk):
    disk.set(flock={"delay": FOR_EVER})
    rank = job.start(program=IMPATIENT)
    job.until(lambda: "\n" in rank.out, 20, "timeout")
    said = json.loads(rank.out)
    assert said["error"] == "LeaseTimeout"
    assert 3 <= said["seconds"] < 5
    assert "has not answered a lock call" in said["text"]
    assert "(fuse.faultfs)" in said["text"]
    assert "NODECACHE_ROOT" in said["text"]
    assert job.compiler.compiles == 0
    disk.set()
    (result,) = job.ends(job.start())
    assert result.json["role"] == "built"
    assert rank.wait(10).status == 0


def test_a_timeout_holds_where_only_the_staging_folders_lock_is_not_answered(job, disk):
    disk.set(flock={"delay": FOR_EVER, "match": "staging"})
    rank = job.start(program=IMPATIENT)
    job.until(lambda: "\n" in rank.out, 20, "timeout")
    said = json.loads(rank.out)
    assert said["error"] == "LeaseTimeout"
    assert 2.5 <= said["seconds"] < 8
    assert "has not answered a lock call" in said["text"]
    assert "/staging/" in said["text"]
    disk.set()
    (result,) = job.ends(job.start())
    assert result.json["role"] == "built"
    assert rank.wait(10).status == 0


@pytest.mark.parametrize("part", ["leases", "staging"])
def test_without_a_timeout_a_lock_call_that_is_not_answered_is_told_within_seconds(part, job, disk):
    disk.set(flock={"delay": FOR_EVER, "match": part})
    rank = job.start()
    job.until(lambda: "has not answered a lock call on" in rank.err, 20, "word")
    assert f"/{part}/" in rank.err
    disk.set()
    (result,) = job.ends(rank)
    assert result.json["role"] == "built"


DOCTOR = """\
import sys
from nodecache import doctor
from nodecache.__main__ import main
doctor.LOCK_SECONDS = 1.0
sys.exit(main(["doctor", "--json"]))
"""


@pytest.mark.parametrize("after", [0, 2], ids=["every call", "while another holds it"])
def test_doctor_ends_where_lock_calls_do_not_and_says_so(job, disk, start, after):
    """It must not make such a call itself: nothing can end a process that is in one."""
    ensure_folders(open_root())
    dead = job.root / "staging/dead"
    dead.mkdir(mode=0o700)
    (dead / "lock").touch()
    os.utime(dead, (1, 1))
    disk.set(flock={"delay": FOR_EVER, "after": after})
    began = time.monotonic()
    result = start(DOCTOR).wait(30)
    assert time.monotonic() - began < 15
    assert result.status == 1, result.err
    (finding,) = [each for each in json.loads(result.out) if each["check"] == "locks"]
    assert finding["level"] == "wrong"
    assert "no answer within 1 s on fuse.faultfs" in finding["says"]
    assert "NODECACHE_ROOT" in finding["remedy"]
    assert disk.struck()


# Errors in the middle

WRITES = ("mkdir", "create", "write", "rename", "fsync")
OTHERS = ("mknod", "open", "read", "readdir", "unlink", "rmdir", "chmod", "truncate")


def made(number):
    def fill(folder):
        (folder / "data").write_bytes(b"whole" * 1000)

    return nodecache.get_or_build("squares", {"number": number}, fill)


@pytest.mark.parametrize(
    ("operation", "error", "times"),
    [
        *((operation, "EIO", 1) for operation in WRITES + OTHERS),
        *((operation, "ENOSPC", 1000) for operation in WRITES if operation != "rename"),
    ],
)
def test_wherever_a_build_meets_an_error_it_leaves_nothing_half_and_the_next_call_works(
    root, disk, operation, error, times
):
    """The first call of each operation fails, the second, ... until a build needs no more of them."""
    made(-1)
    for number in count():
        before = len(disk.struck())
        disk.set(**{operation: {"errno": error, "after": number, "times": times, "match": "/root/"}})
        fault = None
        try:
            made(number)
        except (RootError, OSError) as raised:  # the build function's own OSError is passed on as it is
            fault = raised
        disk.set()
        where = disk.struck()[before:]
        if isinstance(fault, RootError):
            assert error in str(fault)
            assert str(root) in str(fault)
        elif fault is not None:
            assert fault.errno == getattr(errno, error)
        assert damaged(root) == [], (where, fault)
        assert (made(number) / "data").read_bytes() == b"whole" * 1000, (where, fault)
        if not where:
            assert fault is None
            break
    assert number, f"a build never comes to {operation}"


def case(name, *values):
    return pytest.param(*values, id=name)


@pytest.mark.parametrize(
    ("operation", "match", "error", "kinds", "words"),
    [
        case("compiler writes", "write", "/obj/", "EIO", (BuildError, RootError), "Input/output error"),
        case("compiler finds no space", "write", "/obj/", "ENOSPC", RootError, "No space for compiling"),
        case("linker finds no space", "write", "/entry/", "ENOSPC", RootError, "No space for compiling"),
        case("result is read", "read", "/entry/", "EIO", RootError, "EIO"),
        case("result is flushed", "fsync", "/entry/", "EIO", RootError, r"publishing failed in .* \(EIO\)"),
        case("manifest finds no space", "write", "/entry/manifest", "ENOSPC", RootError, "No space for publishing"),
        case("entry is renamed", "rename", "/entry", "EIO", RootError, "EIO"),
        case("entry finds no space", "rename", "/entry", "ENOSPC", RootError, "No space for publishing"),
    ],
)
def test_an_error_in_the_middle_of_a_compile_is_told_and_the_next_call_works(
    job, disk, operation, match, error, kinds, words
):
    disk.set(**{operation: {"errno": error, "match": match}})
    with pytest.raises((NodecacheError, OSError)) as raised:
        nodecache.load("tiny", job.source)
    assert disk.struck()
    disk.set()
    assert names(job.root / "entries") == []
    assert names(job.root / "recipes") == []
    (result,) = job.ends(job.start())
    assert result.json["role"] == "built"
    assert isinstance(raised.value, kinds)
    assert re.search(words, str(raised.value))


# The tier

SLOW = 3.0


@pytest.fixture
def tier(disk, tmp_path, monkeypatch):
    """The tier on the mount, the root on a local disk: ``tier(name)`` goes to another node."""
    place = disk.path / "tier"
    monkeypatch.setenv("NODECACHE_REMOTE", str(place))

    def go(node):
        monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / node))

    go("a")
    return go


def loaded(child, wait_until):
    """What a rank said of its load; it may not be able to end yet."""
    wait_until(lambda: "\n" in child.out or child.process.poll() is not None, 30, "loaded module")
    assert "\n" in child.out, child.err
    return json.loads(child.out)


def complaints(child):
    return [line for line in child.err.splitlines() if "NODECACHE_REMOTE" in line]


@pytest.mark.parametrize("operation", ["getattr", "fsync"])
def test_a_tier_that_hangs_costs_its_time_limit_once_and_a_build(
    disk, tier, start, tiny, compiler, load_program, wait_until, monkeypatch, operation
):
    monkeypatch.setenv("NODECACHE_REMOTE_TIMEOUT", str(SLOW))
    source = tiny()
    disk.set(**{operation: {"delay": FOR_EVER, "match": "/tier"}})
    child = start(load_program, "tiny", source)
    said = loaded(child, wait_until)
    assert (said["role"], said["sum"], compiler.compiles) == ("built", 5, 1)
    assert SLOW <= said["seconds"] < 2 * SLOW
    assert len(complaints(child)) == 1, child.err
    assert "has not answered in time" in child.err
    disk.set()
    assert child.wait(10).status == 0
    tier("b")
    assert start(load_program, "tiny", source).wait(30).json["sum"] == 5


BIG = "char big[600 << 10] = {1};"
"""More than one write, and more than one read."""


@pytest.mark.parametrize(
    ("operation", "after"), [("write", 2), ("rename", 0), ("rename", 1)], ids=["archive", "its rename", "record"]
)
def test_an_error_while_the_tier_is_given_something_costs_a_line_and_leaves_nothing_half(
    disk, tier, start, tiny, compiler, load_program, operation, after
):
    source = tiny(extra=BIG)
    disk.set(**{operation: {"errno": "EIO", "after": after, "match": "/tier"}})
    child = start(load_program, "tiny", source)
    result = child.wait(30)
    assert (result.json["role"], result.json["sum"]) == ("built", 5)
    assert len(complaints(child)) == 1, child.err
    assert "Input/output error" in child.err
    disk.set()
    assert [
        path for path in disk.path.rglob("*") if path.suffix == ".tmp" or path.parent.parent.name == "recipes"
    ] == []
    tier("b")
    assert start(load_program, "tiny", source).wait(30).json["role"] == "built"
    assert compiler.compiles == 2
    tier("c")
    assert start(load_program, "tiny", source).wait(30).json["role"] == "fetched"


@pytest.mark.parametrize(
    ("operation", "match", "after"),
    [("readdir", "/recipes/", 0), ("read", "/archives/", 2)],
)
def test_an_error_in_the_middle_of_fetching_costs_a_line_and_a_build(
    disk, tier, start, tiny, compiler, load_program, operation, match, after
):
    source = tiny(extra=BIG)
    assert start(load_program, "tiny", source).wait(30).json["role"] == "built"
    tier("b")
    disk.set(**{operation: {"errno": "EIO", "after": after, "match": match}})
    child = start(load_program, "tiny", source)
    result = child.wait(30)
    assert (result.json["role"], result.json["sum"], compiler.compiles) == ("built", 5, 2)
    assert "Input/output error" in child.err
    assert disk.struck()
    disk.set()
    tier("c")
    assert start(load_program, "tiny", source).wait(30).json["role"] == "fetched"


# A server whose clock is another

WITH_HEADER = '#include "offset.h"'


@pytest.mark.parametrize(
    ("sources", "clock"),
    [
        ("there", 3600),
        ("there", -3600),
        ("elsewhere", 3600),
        ("elsewhere", -3600),
    ],
)
def test_on_a_server_with_another_clock_a_hit_is_a_hit_and_an_edit_a_miss(
    disk, root, start, tiny, compiler, load_program, clock, sources
):
    """The sources are on the same server, or on this machine's disk."""
    disk.set(clock=clock)
    place = disk.path / "src" if sources == "there" else None
    source = tiny(expression="a + b + OFFSET", extra=WITH_HEADER, folder=place)
    header = source.with_name("offset.h")

    def load():
        result = start(load_program, "tiny", source).wait(30)
        assert result.status == 0, result.err
        return result.json["role"], result.json["sum"], compiler.compiles

    header.write_text("#define OFFSET 0\n")
    time.sleep(0.05)  # file times advance in ticks: what is in the tick of a build's beginning is not kept
    assert [load(), load()] == [("built", 5, 1), ("hit", 5, 1)]
    header.write_text("#define OFFSET 1\n")
    time.sleep(0.05)
    assert [load(), load()] == [("built", 6, 2), ("hit", 6, 2)]
    header.write_text("#define OFFSET 0\n")
    assert load() == ("hit", 5, 2)
