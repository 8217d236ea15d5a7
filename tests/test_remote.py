"""The tier: one build in the cluster, the others fetch; and whatever is wrong with it costs a line and a build."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time

import pytest

import nodecache
from nodecache import remote
from nodecache.__main__ import main
from nodecache.entry import damage
from nodecache.inputs import Inputs

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

VERSION = "nodecache-1"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """``node(name)``: from now on this process is on another node, which is to say has another root."""

    def go(name):
        monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / name))
        return tmp_path / name

    return go


class Faulty(MemoryFileSystem):
    """A file system that fails as it is told to."""

    protocol = "faulty"
    store = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    faults = {}  # noqa: RUF012

    def _fail(self, name):
        fault = self.faults.get(name)
        if fault is not None:
            fault()

    def ls(self, *args, **kwargs):
        self._fail("ls")
        return super().ls(*args, **kwargs)

    def cat_file(self, *args, **kwargs):
        self._fail("cat_file")
        return super().cat_file(*args, **kwargs)

    def put_file(self, *args, **kwargs):
        self._fail("put_file")
        return super().put_file(*args, **kwargs)

    def _open(self, *args, **kwargs):
        self._fail("open")
        return super()._open(*args, **kwargs)


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def faulty(monkeypatch):
    """A tier in memory that can be made to fail: ``faulty["ls"] = function``."""
    monkeypatch.setenv("NODECACHE_REMOTE", "faulty://tier")
    for fs in (Faulty, MemoryFileSystem):
        fs.store.clear()
    Faulty.faults.clear()
    yield Faulty.faults
    Faulty.faults.clear()


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder that all nodes share, in use as the tier."""
    place = tmp_path / "shared"
    monkeypatch.setenv("NODECACHE_REMOTE", str(place))
    return place


@pytest.fixture(params=["folder", "file url", "memory", "renaming"])
def tier(request, tmp_path, monkeypatch):
    """Each sort of tier in turn."""
    MemoryFileSystem.store.clear()
    Faulty.store.clear()
    path = tmp_path / "shared"
    url = {"folder": str(path), "file url": f"file://{path}", "memory": "memory://tier", "renaming": "faulty://tier"}
    monkeypatch.setenv("NODECACHE_REMOTE", url[request.param])
    return request.param


def records(shared):
    return sorted((shared / VERSION / "recipes").glob("*/*"))


def archives(shared):
    return sorted((shared / VERSION / "archives").iterdir())


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_the_second_node_fetches_what_the_first_built(tier, node, tiny, compiler):
    node("a")
    first = nodecache.load("tiny", [tiny()]).__nodecache__
    here = node("b")
    module = nodecache.load("tiny", [tiny()])
    second = module.__nodecache__
    assert (first.role, second.role) == ("built", "fetched")
    assert second.path.startswith(str(here))
    assert (second.key, module.add(2, 3), compiler.compiles) == (first.key, 5, 1)
    assert damage(str(here / "entries" / second.key), second.key) is None
    assert not any((here / "staging").iterdir())


def test_case_63_what_was_fetched_works_when_its_builder_and_the_tier_are_gone(
    shared, node, tiny, compiler, start, load_program
):
    one = start(load_program, "tiny", tiny(), env={"NODECACHE_ROOT": str(node("a"))}).wait().json
    env = {"NODECACHE_ROOT": str(node("b"))}
    assert start(load_program, "tiny", tiny(), env=env).wait().json["role"] == "fetched"
    library = open(one["path"], "rb").read()  # noqa: SIM115
    shutil.rmtree(node("a"))
    shutil.rmtree(shared)
    again = start(load_program, "tiny", tiny(), env=env).wait().json
    assert (again["role"], again["sum"], compiler.compiles) == ("hit", 5, 1)
    assert open(again["path"], "rb").read() == library  # noqa: SIM115


def test_on_each_node_one_process_fetches_and_the_others_wait(shared, node, tiny, compiler, start, load_program):
    source = tiny()  # written once: who reads it while it is written again reads half of it
    node("a")
    nodecache.load("tiny", [source])
    env = {"NODECACHE_ROOT": str(node("b"))}
    roles = [run.wait().json["role"] for run in [start(load_program, "tiny", source, env=env) for _ in range(6)]]
    assert roles.count("fetched") == 1
    assert set(roles) <= {"fetched", "waited", "hit"}
    assert compiler.compiles == 1


@pytest.mark.parametrize("kind", ["folder", "fsspec"])
def test_the_newest_of_many_states_are_found_and_the_oldest_are_removed(kind, shared, node, tiny, monkeypatch):
    """A header that is edited every day: another node must find yesterday's state, whatever its key is."""
    if kind == "fsspec":
        monkeypatch.setenv("NODECACHE_REMOTE", f"file://{shared}")
    monkeypatch.setattr(remote, "KEEP", 40)
    source = tiny(extra='#include "x.h"', expression="X")
    header = source.parent / "x.h"
    for number in range(45):
        header.write_text(f"#define X {number}\n")
        node(f"a{number % 3}")
        nodecache.load("tiny", [source])
        os.utime(max(records(shared), key=lambda path: path.stat().st_mtime_ns), (number + 1, number + 1))
    assert len(records(shared)) == len(archives(shared)) == 40
    node("b")
    for number in (44, 43, 42, 20):
        header.write_text(f"#define X {number}\n")
        module = nodecache.load("tiny", [source])
        assert (module.__nodecache__.role, module.add(0, 0)) == ("fetched", number)
    header.write_text("#define X 0\n")
    assert nodecache.load("tiny", [source]).__nodecache__.role == "built"


def test_an_entry_with_other_headers_is_not_fetched(shared, node, tiny, tmp_path):
    source = tiny(extra='#include "x.h"', expression="a + b + X")
    header = source.parent / "x.h"
    node("a")
    header.write_text("#define X 1\n")
    assert nodecache.load("tiny", [source]).add(1, 1) == 3
    node("b")
    header.write_text("#define X 2\n")
    module = nodecache.load("tiny", [source])
    assert (module.__nodecache__.role, module.add(1, 1)) == ("built", 4)
    node("c")
    assert nodecache.load("tiny", [source]).__nodecache__.role == "fetched"
    header.write_text("#define X 1\n")
    node("d")
    module = nodecache.load("tiny", [source])
    assert (module.__nodecache__.role, module.add(1, 1)) == ("fetched", 3)
    assert len(records(shared)) == len(archives(shared)) == 2


def test_case_29_a_tier_gives_no_node_the_build_of_another_recipe(shared, node, tiny, monkeypatch):
    node("a")
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("CXXFLAGS", "-O1")  # as another torch, compiler or processor: another recipe
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    monkeypatch.delenv("CXXFLAGS")
    node("c")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"


def test_waiters_do_not_wait_for_the_upload(faulty, node, tiny, compiler):
    uploading, go_on = threading.Event(), threading.Event()

    def hold():
        uploading.set()
        go_on.wait(60)

    faulty["put_file"] = hold
    node("a")
    builder = threading.Thread(target=nodecache.load, args=("tiny", [tiny()]))
    builder.start()
    try:
        assert uploading.wait(60)
        assert nodecache.load("tiny", [tiny()]).add(1, 2) == 3
        assert builder.is_alive()
    finally:
        go_on.set()
        builder.join(60)


def _raise(error):
    def fault():
        raise error

    return fault


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("ls", ConnectionError("nobody answers")),
        ("ls", PermissionError(13, "Forbidden")),
        ("ls", ValueError("whatever\nin two lines")),
        ("put_file", OSError(28, "No space left on device")),
        ("put_file", RuntimeError("this class is not fork-safe")),
    ],
)
def test_a_fault_costs_one_line_and_a_build(faulty, node, tiny, caplog, where, error):
    faulty[where] = _raise(error)
    node("a")
    module = nodecache.load("tiny", [tiny()])
    assert (module.__nodecache__.role, module.add(1, 2)) == ("built", 3)
    [line] = warnings(caplog)
    assert "NODECACHE_REMOTE (faulty://tier)" in line
    assert "\n" not in line
    assert " ".join(str(error).split()) in line


@pytest.mark.parametrize("where", ["ls", "put_file"])
def test_a_slow_tier_costs_its_time_limit_once(faulty, node, tiny, caplog, monkeypatch, where):
    monkeypatch.setenv("NODECACHE_REMOTE_TIMEOUT", "0.3")
    end = threading.Event()
    faulty[where] = lambda: end.wait(60)
    node("a")
    began = time.monotonic()
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert time.monotonic() - began < 20
    end.set()
    [line] = warnings(caplog)
    assert "has not answered in time" in line


def test_what_a_slow_tier_says_too_late_is_dropped(faulty, node, tiny, caplog, monkeypatch):
    node("a")
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("NODECACHE_REMOTE_TIMEOUT", "0.5")
    end = threading.Event()
    faulty["open"] = lambda: end.wait(60)
    here = node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    end.set()
    for thread in threading.enumerate():
        if thread.name == "nodecache-remote":
            thread.join(30)
    assert not any((here / "staging").iterdir())
    assert len(list((here / "entries").iterdir())) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://bucket/x", "nosuch"),
        ("/dev/null/x", "NotADirectoryError"),
        ("/proc/nodecache", "it cannot be made in /proc"),
        ("/nodecache-is-not-mounted/tier", "is that mounted here?"),
    ],
)
def test_a_tier_that_is_none_costs_one_line_and_a_build(node, tiny, caplog, monkeypatch, url, said):
    monkeypatch.setenv("NODECACHE_REMOTE", url)
    node("a")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    [line] = warnings(caplog)
    assert said in line
    assert not os.path.exists(url)


def test_without_fsspec_a_folder_works_and_a_url_costs_one_line(
    node, tiny, tmp_path, start, load_program, monkeypatch, shared
):
    program = f"import sys, logging; sys.modules['fsspec'] = None; logging.basicConfig()\n{load_program}"
    for name, role in (("a", "built"), ("b", "fetched")):
        result = start(program, "tiny", tiny(), env={"NODECACHE_ROOT": str(node(name))}).wait()
        assert (result.json["role"], result.err) == (role, "")
    env = {"NODECACHE_ROOT": str(node("c")), "NODECACHE_REMOTE": "memory://x"}
    result = start(program, "tiny", tiny(), env=env).wait()
    assert result.json["role"] == "built"
    assert "pip install 'nodecache[remote]'" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["NODECACHE_REMOTE_TIMEOUT", "NODECACHE_REMOTE_WAIT"])
@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan"])
def test_a_setting_that_makes_no_sense_costs_one_line(shared, node, tiny, caplog, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    node("a")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    [line] = warnings(caplog)
    assert f"{name}='{value}' is no number of seconds" in line


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path):
    path.write_bytes(b"")


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _grow(path):
    path.write_bytes(path.read_bytes() + b"x")


def _noise(path):
    path.write_bytes(os.urandom(path.stat().st_size))


def _link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _swap(change):
    """A record whose body says something else."""

    def edit(path):
        head, signature, body = path.read_bytes().split(b"\n", 2)
        path.write_bytes(b"\n".join((head, signature, json.dumps(change(json.loads(body))).encode())))

    return edit


RECORD_FAULTS = {
    "cut": _cut,
    "empty": _empty,
    "noise": _noise,
    "link": _link,
    "another recipe": _swap(lambda said: {**said, "recipe": "0" * 40}),
    "another archive": _swap(lambda said: {**said, "archive": "0" * 40}),
    "a path": _swap(lambda said: {**said, "archive": "../../../etc/passwd"}),
    "negative size": _swap(lambda said: {**said, "size": -5}),
    "endless": _swap(lambda said: {**said, "size": 1 << 60}),
    "size of another type": _swap(lambda said: {**said, "size": "1"}),
    "other inputs": _swap(lambda said: {**said, "inputs": []}),
    "a list": _swap(lambda said: [said]),
}
ARCHIVE_FAULTS = {
    "cut": _cut,
    "empty": _empty,
    "noise": _noise,
    "flipped": _flip,
    "grown": _grow,
    "link": _link,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize(
    ("of", "fault"),
    [*(("record", name) for name in RECORD_FAULTS), *(("archive", name) for name in ARCHIVE_FAULTS)],
)
def test_what_is_damaged_in_the_tier_costs_one_line_and_is_replaced(shared, node, tiny, caplog, of, fault):
    node("a")
    nodecache.load("tiny", [tiny()])
    [path] = records(shared) if of == "record" else archives(shared)
    (RECORD_FAULTS if of == "record" else ARCHIVE_FAULTS)[fault](path)
    here = node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert len(warnings(caplog)) == 1, warnings(caplog)
    assert len(list((here / "entries").iterdir())) == 1
    node("c")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("what", ["device", "pipe"])
def test_a_record_that_lists_a_device_or_a_pipe_as_an_input_hangs_nobody(
    shared, node, tiny, tmp_path, start, load_program, what
):
    node("a")
    nodecache.load("tiny", [tiny()])
    [path] = records(shared)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    head, signature, body = path.read_bytes().split(b"\n", 2)
    said = json.loads(body)
    said["inputs"] = [f"file\t{'0' * 40}\t{'/dev/zero' if what == 'device' else pipe}"]
    said["key"] = Inputs.parse(said["inputs"]).key(said["recipe"])
    path.unlink()
    path.with_name(said["key"]).write_bytes(b"\n".join((head, signature, json.dumps(said).encode())))
    node("b")
    result = start(load_program, "tiny", tiny()).wait(40)
    assert (result.json["role"], result.json["sum"]) == ("built", 5)


def test_an_archive_of_another_entry_under_the_right_digest_is_refused(shared, node, tiny, caplog):
    node("a")
    nodecache.load("tiny", [tiny()])
    nodecache.load("other", [tiny("other")])
    ours = next(path for path in records(shared) if b'"tiny"' not in path.read_bytes())
    mine, theirs = records(shared)
    other = json.loads(theirs.read_bytes().split(b"\n", 2)[2])
    _swap(lambda said: {**said, "archive": other["archive"], "size": other["size"]})(mine)
    assert ours
    node("b")
    for name in ("tiny", "other"):
        nodecache.load(name, [tiny(name)])
    [line] = warnings(caplog)
    assert "another recipe" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
@pytest.mark.parametrize("what", ["tier", "recipes", "record", "archive"])
def test_what_belongs_to_another_user_is_not_believed(shared, node, tiny, caplog, what):
    node("a")
    nodecache.load("tiny", [tiny()])
    [record], [archive] = records(shared), archives(shared)
    path = {"tier": shared, "recipes": record.parent, "record": record, "archive": archive}[what]
    os.chown(path, 12345, 12345)
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert warnings(caplog)
    assert "belongs to uid 12345, not to you or root" in warnings(caplog)[0]


@pytest.mark.parametrize("what", ["tier", "recipes", "record", "archive"])
def test_what_others_may_write_to_is_not_believed(shared, node, tiny, caplog, what):
    node("a")
    nodecache.load("tiny", [tiny()])
    [record], [archive] = records(shared), archives(shared)
    path = {"tier": shared, "recipes": record.parent, "record": record, "archive": archive}[what]
    path.chmod(0o777)
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert "others may write to" in warnings(caplog)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_the_named_group_is_believed_and_can_read(shared, node, tiny, caplog, monkeypatch):
    monkeypatch.setenv("NODECACHE_REMOTE_GROUP", "12345")
    shared.mkdir(0o700)
    os.chown(shared, 54321, 12345)
    shared.chmod(0o2770)
    node("a")
    nodecache.load("tiny", [tiny()])
    for path in [*records(shared), *archives(shared)]:
        assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (12345, 0o640)
        assert path.parent.stat().st_mode & 0o7777 == 0o2770
        os.chown(path, 54321, 12345)
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"
    assert warnings(caplog) == []
    monkeypatch.setenv("NODECACHE_REMOTE_GROUP", "23456")
    node("c")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert "group in NODECACHE_REMOTE_GROUP" in warnings(caplog)[0]
    monkeypatch.setenv("NODECACHE_REMOTE_GROUP", "no such group")
    node("d")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"


def test_with_a_key_only_what_is_signed_with_it_is_fetched(shared, node, tiny, caplog, monkeypatch):
    node("a")
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("NODECACHE_REMOTE_KEY", "first")
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    [line] = warnings(caplog)
    assert "is not signed with NODECACHE_REMOTE_KEY" in line
    node("c")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"
    monkeypatch.setenv("NODECACHE_REMOTE_KEY", "second")
    node("d")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_key_that_is_set_and_empty_is_an_error_and_nothing_is_believed(shared, node, tiny, monkeypatch, value):
    node("a")
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("NODECACHE_REMOTE_KEY", value)
    node("b")
    with pytest.raises(nodecache.SpecError, match=r"NODECACHE_REMOTE_KEY is set and empty.*unset it"):
        nodecache.load("tiny", [tiny()])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda said: {**said, "archive": "0" * 40}, id="archive"),
        pytest.param(lambda said: {**said, "size": 1}, id="size"),
        pytest.param(lambda said: {**said, "inputs": [*said["inputs"], "shadow\t/x"]}, id="inputs"),
    ],
)
def test_a_signature_covers_the_whole_record(shared, node, tiny, caplog, monkeypatch, change):
    monkeypatch.setenv("NODECACHE_REMOTE_KEY", "secret")
    node("a")
    nodecache.load("tiny", [tiny()])
    _swap(change)(records(shared)[0])
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert "is not signed" in warnings(caplog)[0]


def test_the_secrets_in_a_url_are_not_said(node, tiny, caplog, monkeypatch):
    monkeypatch.setenv("NODECACHE_REMOTE", "nosuch://me:secret@host/path?token=secret")
    node("a")
    nodecache.load("tiny", [tiny()])
    [line] = warnings(caplog)
    assert "(nosuch://host/path)" in line
    assert "secret" not in line


KILLED = """\
import os, signal, sys
from nodecache import store
def fsync(fd):
    path = os.readlink(f"/proc/self/fd/{fd}")
    if sys.argv[3] in path:
        os.kill(os.getpid(), signal.SIGKILL)
store.os = type(sys)("os")
vars(store.os).update({**vars(os), "fsync": fsync})
import nodecache
nodecache.load(sys.argv[1], [sys.argv[2]])
"""


@pytest.mark.parametrize("where", ["archives", "recipes"])
def test_a_builder_that_is_killed_while_it_puts_something_there_leaves_nothing_half(
    shared, node, tiny, start, caplog, compiler, where
):
    env = {"NODECACHE_ROOT": str(node("a"))}
    assert start(KILLED, "tiny", tiny(), f"/{where}/", env=env).wait().status == -signal.SIGKILL
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    node("c")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"
    node("a")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "hit"
    assert warnings(caplog) == []


def test_where_one_node_is_to_build_the_others_wait_for_it(shared, node, tiny, compiler, start, load_program):
    compiler.set(before="sleep 1")
    env = {"NODECACHE_REMOTE_WAIT": "60"}
    runs = [start(load_program, "tiny", tiny(), env={**env, "NODECACHE_ROOT": str(node(f"n{n}"))}) for n in range(4)]
    roles = sorted(run.wait().json["role"] for run in runs)
    assert roles == ["built", "fetched", "fetched", "fetched"]
    assert compiler.compiles == 1
    assert not any((shared / VERSION / "claims").iterdir())


def test_a_build_that_fails_elsewhere_sends_those_who_waited_to_their_own(
    shared, node, tiny, compiler, start, load_program
):
    compiler.set(before="sleep 1", instead="echo 'broken.h:7: error: no way' >&2; exit 1")
    env = {"NODECACHE_REMOTE_WAIT": "60"}
    runs = [start(load_program, "tiny", tiny(), env={**env, "NODECACHE_ROOT": str(node(f"n{n}"))}) for n in range(2)]
    began = time.monotonic()
    assert all("no way" in run.wait().err for run in runs)
    assert time.monotonic() - began < 30
    assert not any((shared / VERSION / "claims").iterdir())


def test_the_claim_of_a_node_that_died_costs_the_wait_and_no_more(shared, node, tiny, compiler, start, caplog):
    compiler.set(before="sleep 60")
    dying = start(
        "import sys, nodecache; nodecache.load('tiny', sys.argv[1:])",
        tiny(),
        env={"NODECACHE_ROOT": str(node("a")), "NODECACHE_REMOTE_WAIT": "60"},
    )
    compiler.wait_for(1)
    dying.kill()
    dying.wait()
    compiler.set()
    os.environ["NODECACHE_REMOTE_WAIT"] = "1.5"
    try:
        node("b")
        assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    finally:
        del os.environ["NODECACHE_REMOTE_WAIT"]
    assert ["within 1.5 s" in line for line in warnings(caplog)] == [True]
    assert not any((shared / VERSION / "claims").iterdir())


def test_a_claim_in_an_object_store_lets_one_build(faulty, node, tiny, compiler, monkeypatch):
    monkeypatch.setenv("NODECACHE_REMOTE_WAIT", "30")
    node("a")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert not any("/claims/" in path for path in Faulty.store)


def test_where_nothing_may_be_built_the_tier_is_still_looked_in(shared, node, tiny, monkeypatch):
    node("a")
    nodecache.load("tiny", [tiny()])
    monkeypatch.setenv("NODECACHE_NO_BUILD", "1")
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "fetched"
    node("c")
    with pytest.raises(nodecache.NotBuilt):
        nodecache.load("other", [tiny("other")])


def test_a_hit_does_not_ask_the_tier(faulty, node, tiny, start, load_program):
    node("a")
    nodecache.load("tiny", [tiny()])
    program = (
        f"{load_program}\nassert not {{'fsspec', 'nodecache.remote', 'nodecache.seeds', 'tarfile'}} & set(sys.modules)"
    )
    result = start(program, "tiny", tiny()).wait()
    assert (result.status, result.json["role"]) == (0, "hit")


def test_folders_of_the_callers_own_making_stay_on_their_node(shared, node):
    node("a")
    nodecache.get_or_build("table", {}, lambda folder: (folder / "x").touch())
    assert not shared.exists()


def test_another_node_that_was_quicker_is_not_overwritten(shared, node, tiny, monkeypatch):
    node("a")
    nodecache.load("tiny", [tiny()])
    before = [path.stat().st_ino for path in [*records(shared), *archives(shared)]]
    from nodecache.remote import Tier

    monkeypatch.setattr(Tier, "fetch", lambda *_: None)  # as if both had looked before either was ready
    node("b")
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "built"
    assert [path.stat().st_ino for path in [*records(shared), *archives(shared)]] == before


def test_the_history_tells_of_fetches(shared, node, tiny, capsys):
    node("a")
    nodecache.load("tiny", [tiny()])
    node("b")
    nodecache.load("tiny", [tiny()])
    assert main(["history"]) == 0
    assert "fetched" in capsys.readouterr().out
    assert main(["stats"]) == 0
    assert sys.modules["nodecache.remote"]
