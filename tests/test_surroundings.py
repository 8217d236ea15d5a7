"""What surrounds a build: signal masks, forks in other threads, handlers that raise, limits, what /proc shows."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest

import nodecache
from nodecache import compiler as compiler_module
from nodecache.errors import BuildInterrupted, NodecacheError, RootError, SpecError, UnsafeRoot
from nodecache.learn import parse_dependencies
from nodecache.staging import MARK
from tests import lease_checks
from tests.testbed.processes import until
from tests.users import PYTHON, as_root, as_user

LOADS = "import sys, nodecache; nodecache.load(sys.argv[1], sys.argv[2:])"


def test_a_blocked_sigchld_is_no_obstacle(start, tiny, load_program):
    """Masks are inherited; launchers that wait for signals leave theirs to what they start."""
    blocked = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n{load_program}"
    assert start(blocked, "tiny", tiny()).wait(30).json["role"] == "built"


FORKS = """\
import json, os, sys, threading, time
import nodecache
def fork():
    while True:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.02)
threading.Thread(target=fork, daemon=True).start()
began = time.monotonic()
for number in range(6):
    nodecache.load("tiny", sys.argv[1:], [f"-DNUMBER={number}"])
print(json.dumps(time.monotonic() - began), flush=True)
os.killpg(0, 9)
"""


def test_a_child_forked_by_another_thread_does_not_hold_the_build_up(start, tiny):
    """It inherits whatever pipe is open at that moment."""
    child = start(FORKS, tiny())
    child.process.wait(60)
    assert float(child.out) < 19


def test_when_ninja_is_killed_its_compilers_end(start, tiny, compiler, root, tmp_path):
    compiler.set(before="sleep 60")
    child = start(LOADS, "tiny", tiny())
    compiler.wait_for(1)
    (ninja,) = [process for process in lease_checks.marked(root) if process.name() == "ninja"]
    ninja.kill()
    result = child.wait(30)
    assert "BuildInterrupted" in result.err
    lease_checks.nothing_is_left(root, tmp_path / "no")


@pytest.mark.parametrize("word", ["exit 143", "kill -TERM $$", "kill -HUP $$"])
def test_a_compiler_that_was_asked_to_end_has_not_failed(word, tiny, compiler):
    compiler.set(instead=word)
    with pytest.raises(BuildInterrupted):
        nodecache.load("tiny", tiny())


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("c++: fatal error: cannot execute cc1plus: fork: Resource temporarily unavailable", "ulimit -u"),
        ("virtual memory exhausted: Cannot allocate memory", "ulimit -v"),
    ],
)
def test_a_limit_on_processes_or_memory_is_told_as_one(said, remedy, tiny, compiler, root):
    compiler.set(instead=f"echo '{said}' >&2; exit 1")
    with pytest.raises(RootError, match=remedy):
        nodecache.load("tiny", tiny())
    compiler.set()
    assert nodecache.load("tiny", tiny()).add(2, 3) == 5


ALARMED = """\
import json, signal, sys
import nodecache
def mine(*_): raise TimeoutError("mine")
signal.signal(signal.SIGALRM, mine)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
try:
    nodecache.load("tiny", sys.argv[2:])
except TimeoutError as error:
    print(json.dumps(str(error)))
"""


def test_a_handlers_timeout_is_the_callers_own(start, tiny, compiler):
    compiler.path.write_text('#!/bin/sh\nsleep 3\nexec c++ "$@"\n')
    assert start(ALARMED, 1, tiny()).wait(30).json == "mine"


INTERRUPTED = """\
import json, os, random, signal, sys, time
import psutil
import nodecache, nodecache.supervised, nodecache.cache, nodecache.compile
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
nodecache.load("tiny", sys.argv[1:])
for number in range(25):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005 + 0.002 * number)
        nodecache.load("tiny", sys.argv[1:], [f"-DNUMBER={number}"])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
deadline = time.monotonic() + 10
while (left := [each.cmdline() for each in psutil.Process().children(recursive=True)
                if each.status() != "zombie"]) and time.monotonic() < deadline:
    time.sleep(0.05)
print(json.dumps(left))
"""


def test_an_interrupt_at_any_moment_of_a_build_leaves_no_supervisor(start, tiny):
    assert start(INTERRUPTED, tiny()).wait(60).json == []


@as_root
@pytest.mark.parametrize("proc", ["hidepid=1", "of the host"])
def test_a_dead_builders_compilers_end_whatever_proc_shows(proc, start, tiny, open_folder, uid):
    """Numbers there may be those of another PID namespace, and others' processes may be hidden."""
    source = tiny(folder=open_folder)
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, uid, uid)
    slow = open_folder / "slow-c++"
    slow.write_text(
        f'#!/bin/sh\nfor word; do [ "$word" = -c ] && touch {home}/began && sleep 60; done\nexec c++ "$@"\n'
    )
    slow.chmod(0o755)
    mount = "mount -t proc -o hidepid=1 proc /proc" if proc == "hidepid=1" else ":"
    inside = f"""\
{mount}
"$@" & builder=$!
until [ -e {home}/seen ]; do sleep 0.05; done
kill -9 $builder
sleep 60
"""
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
    user = (*as_user(uid), f"NODECACHE_ROOT={home}/root", f"CXX={slow}")
    child = start(LOADS, "tiny", source, python=PYTHON, prefix=(*namespaces, "bash", "-c", inside, "-", *user))
    until((home / "began").exists, 30, "compile")
    assert marked(home) != []
    (home / "seen").touch()
    deadline = time.monotonic() + 10
    while left := marked(home):
        assert time.monotonic() < deadline, left
        assert child.process.poll() is None, "its namespace must not be what ends them"
        time.sleep(0.05)
    until(lambda: list((home / "root/staging").iterdir()) == [], 10, "empty staging folder")


def marked(place):
    """Processes of builds below a folder, as this machine numbers them."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ() and str(place) in process.environ().get("NODECACHE_ROOT", ""):
                found.append((process.pid, process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000", "\x0b", " "])
def test_folders_with_any_blank_in_their_names_hit(blank, tiny, tmp_path, start, load_program, compiler):
    source = tiny(folder=tmp_path / f"a{blank}b", extra='#include "own.h"')
    (source.parent / "own.h").write_text("\n")
    roles = [start(load_program, "tiny", source).wait().json["role"] for _ in range(2)]
    assert roles == ["built", "hit"]
    assert compiler.compiles == 1


def test_only_makes_blanks_part_prerequisites():
    assert parse_dependencies("x.o: /a\u3000b/x.cpp /c\\ d.h\te.h\n") == ["/a\u3000b/x.cpp", "/c d.h", "e.h"]


@as_root
def test_a_folder_that_can_be_searched_and_not_listed_is_compiled_from(tiny, open_folder, start, load_program, uid):
    source = tiny(folder=open_folder / "closed")
    source.chmod(0o644)
    source.parent.chmod(0o711)
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, uid, uid)
    user = (*as_user(uid), f"NODECACHE_ROOT={home}/root")
    roles = []
    for _ in range(2):
        result = start(load_program, "tiny", source, python=PYTHON, prefix=user).wait()
        assert result.status == 0, result.err
        roles.append(result.json["role"])
    assert roles == ["built", "hit"]


def test_a_root_that_others_use_too_is_refused_and_left_as_it_is(tmp_path, monkeypatch, tiny):
    for name, mode, content in (
        ("sticky", 0o1777, ()),
        ("home", 0o755, ("notes.txt",)),
        ("project", 0o2775, ("tools", "notes.txt")),
    ):
        place = tmp_path / name
        place.mkdir()
        for each in content:
            (place / each).touch()
        place.chmod(mode)
        monkeypatch.setenv("NODECACHE_ROOT", str(place))
        with pytest.raises(UnsafeRoot, match=f"NODECACHE_ROOT to a folder of its own, such as {place}/nodecache"):
            nodecache.load("tiny", tiny())
        assert place.stat().st_mode & 0o7777 == mode


def test_a_source_that_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "tiny.cpp")
    began = time.monotonic()
    with pytest.raises(SpecError, match="pipe"):
        nodecache.load("tiny", tmp_path / "tiny.cpp")
    assert time.monotonic() - began < 5


def test_inline_sources_need_no_working_folder(start):
    code = """\
import json, os, tempfile
import nodecache
place = tempfile.mkdtemp()
os.chdir(place)
os.rmdir(place)
text = '''#include <Python.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "bare", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_bare() { return PyModule_Create(&def); }
'''
print(json.dumps(nodecache.load_inline("bare", text).__nodecache__.role))
"""
    assert start(code).wait().json == "built"


def test_names_with_line_breaks_are_refused(tmp_path):
    with pytest.raises(SpecError, match="on one line"):
        nodecache.load("tiny", tmp_path / "a\r.cpp")


def test_a_read_only_root_serves_hits_without_its_memory_of_the_compiler(start, tiny, load_program, root, monkeypatch):
    assert start(load_program, "tiny", tiny()).wait().json["role"] == "built"
    for path in (root / "tools").iterdir():
        path.unlink()
    real = compiler_module.os.open

    def refused(path, flags, *more, **options):
        if flags & os.O_CREAT and str(path).startswith(str(root)):
            raise OSError(30, "Read-only file system", path)
        return real(path, flags, *more, **options)

    def gone(path, **_):
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "unlink", gone)
    assert nodecache.load("tiny", tiny()).__nodecache__.role == "hit"


def test_a_line_of_megabytes_stays_in_the_log(tiny, compiler):
    compiler.set(instead="head -c 3000000 /dev/zero | tr '\\\\0' x >&2; echo ': error: no' >&2; exit 1")
    with pytest.raises(NodecacheError) as raised:
        nodecache.load("tiny", tiny())
    assert len(str(raised.value)) < 20_000
    assert "characters more" in str(raised.value)


def test_what_a_process_may_open_is_named_as_the_limit():
    from nodecache.root import open_root

    error = open_root().failed(OSError(24, "Too many open files"), "building")
    assert "ulimit -n" in str(error)


def test_without_proc_it_builds_or_says_that_it_needs_it(start, tiny, load_program):
    hidden = (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount -t tmpfs none /proc && exec "$@"',
        "-",
    )
    if os.geteuid():
        pytest.skip("needs root to hide /proc")
    result = start(load_program, "tiny", tiny(), prefix=hidden).wait()
    assert result.status == 0, result.err
    assert json.loads(result.out)["role"] == "built"
    assert signal.SIGKILL
    assert psutil


LOSES_ITS_LOCK = """
import fcntl, json, time
from nodecache import staging
from nodecache.root import open_root

made = staging.create(open_root(), "0123456789abcdef")
fcntl.flock(made._fd, fcntl.LOCK_UN)
print(json.dumps({"path": made.path, "mark": made.mark}), flush=True)
time.sleep(60)
"""


def test_a_living_builders_folder_is_kept_though_its_lock_is_granted_to_another(start, wait_until, monkeypatch):
    """As by file systems that give one lock to two mounts."""
    from nodecache import lock, staging
    from nodecache.root import open_root

    monkeypatch.setattr(lock, "is_local", lambda _: False)
    builder = start(LOSES_ITS_LOCK)
    wait_until(lambda: "\n" in builder.out, 20, "the folder")
    told = json.loads(builder.out)
    assert staging.sweep(open_root()) == []
    assert os.path.isdir(told["path"])
    builder.kill()
    builder.wait()
    assert staging.sweep(open_root()) == [told["mark"]]
    assert not os.path.exists(told["path"])


BECOMES_ANOTHER_PROGRAM = """\
import os, sys
import nodecache
def build(folder):
    os.execv(sys.executable, [sys.executable, "-c", "import signal; print('another', flush=True); signal.pause()"])
nodecache.get_or_build("table", {"size": 1}, build)
"""
BUILDS_TABLE = """\
import nodecache
folder = nodecache.get_or_build("table", {"size": 1}, lambda folder: (folder / "value").write_text("right"))
print((folder / "value").read_text())
"""


def test_the_next_call_removes_what_a_builder_left_that_became_another_program(start, root, wait_until):
    """That program has the builder's PID and start, and runs on."""
    builder = start(BECOMES_ANOTHER_PROGRAM)
    wait_until(lambda: "another" in builder.out, 30, "the other program")
    assert len(list((root / "staging").iterdir())) == 1
    result = start(BUILDS_TABLE).wait(30)
    assert (result.status, result.out) == (0, "right\n"), result.err
    assert "given one lock to two" not in result.err
    assert builder.process.poll() is None
    assert list((root / "staging").iterdir()) == []
    builder.kill()


FEW_DESCRIPTORS = """\
import os, resource, sys, time
import nodecache
source, more = sys.argv[1], int(sys.argv[2])
def opened():
    return len(os.listdir("/proc/self/fd"))
def closed():
    deadline = time.monotonic() + 10
    while opened() > before:  # the thread that ran the protocol may be about to end
        assert time.monotonic() < deadline, (said, os.popen(f"ls -l /proc/{os.getpid()}/fd").read())
        time.sleep(0.01)
before = opened()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, hard))  # listing them has taken one
try:
    nodecache.load("tiny", [source])
    said = "built"
except (OSError, nodecache.NodecacheError) as error:
    said = str(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
closed()
assert said == "built" or "oo many" in said and "open" in said, said
assert nodecache.load("tiny", [source]).add(2, 3) == 5
closed()
"""


@pytest.mark.parametrize("more", range(14))
def test_a_build_that_is_refused_a_descriptor_leaves_none_open_and_the_next_call_works(more, tiny, start, load_program):
    """At each number of further descriptors something else fails first."""
    start(load_program, "other", tiny("other")).wait()  # the compiler's answers are known from here on
    ended = start(FEW_DESCRIPTORS, tiny(), more).wait(60)
    assert ended.status == 0, ended.err
    assert sorted(os.listdir(os.path.join(os.environ["NODECACHE_ROOT"], "staging"))) == []
