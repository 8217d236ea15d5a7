"""The lease against what a cluster does to it: forks, signals, stops, cleaners, containers, file systems, crowds."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodecache import lease, lock, owner, softlease, staging
from nodecache.root import ensure_folders, open_root
from tests import lease_checks
from tests.lease_checks import SAY_WHEN_WAITING, SOFT, Watch, damaged, exists, names, nothing_is_left

RECIPE = "0" * 32

DEFAULT_SIGNALS = """\
import signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

OWN_HANDLER = """\
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
"""

# The main thread forks when it is told to, whatever the loading thread is doing.
FORKS = """\
import json, os, signal, sys, threading, time
from pathlib import Path
import nodecache
signs = Path(os.environ["SIGNS"])
def wait_for(name):
    deadline = time.monotonic() + 90
    while not (signs / name).exists() and time.monotonic() < deadline:
        time.sleep(0.002)
results = []
def load():
    module = nodecache.load(sys.argv[1], sys.argv[2:])
    results.append(module.add(2, 3))
loading = threading.Thread(target=load)
loading.start()
wait_for("fork")
pid = os.fork()
if pid == 0:
{child}
(signs / "child.new").write_text(str(pid))
(signs / "child.new").rename(signs / "child")
loading.join()
print(json.dumps({{"sum": results[0]}}))
(signs / "done").touch()
os.waitpid(pid, 0)
"""
SLEEPS = '    wait_for("end"); os._exit(0)'
EXITS = "    import gc; gc.collect(); sys.exit(0)"
LOADS = "    load(); sys.exit(0 if results == [5] else 1)"


class Scene(lease_checks.Scene):
    """With children that are forked, and what a test ends with."""

    def start_bare(self, program, before=""):
        """A program that gets the loading program as its first argument."""
        loading = before + SAY_WHEN_WAITING + self._load
        return self._start(program, loading, "tiny", self.source, env=self.environment)

    def fork(self):
        """Let the forking program fork; its child's pid."""
        (self.signs / "fork").touch()
        self.until((self.signs / "child").exists, 30, "child")
        return int((self.signs / "child").read_text())

    def ends_well(self, *children, seconds=60):
        for child in children:
            result = child.wait(seconds)
            assert result.status == 0, result.err
            assert result.json["sum"] == 5

    def left_clean(self):
        nothing_is_left(self.root, self.temporary)
        assert damaged(self.root) == []


@pytest.fixture
def scene(start, tiny, compiler, root, tmp_path, load_program, wait_until):
    made = Scene(start, tiny, compiler, root, tmp_path, load_program, wait_until)
    yield made
    (made.signs / "end").touch()  # children of a dead parent end themselves


@pytest.fixture(params=["kernel", "soft"])
def prefix(request):
    return {"kernel": "", "soft": SOFT}[request.param]


# Deaths, and forks


def test_survivors_and_newcomers_of_a_killed_builder_all_load_after_one_more_compile(scene, prefix):
    """Case 1."""
    scene.hold(first_only=True)
    builder = scene.start(prefix)
    scene.wait_for_held()
    survivors = [scene.start(prefix) for _ in range(3)]
    scene.wait_for_waiters(3)
    builder.kill()
    newcomers = [scene.start(prefix) for _ in range(4)]
    scene.ends_well(*survivors, *newcomers, seconds=15)
    assert scene.compiler.compiles == 2
    said = [line for child in (*survivors, *newcomers) for line in child.err.splitlines() if "took over" in line]
    assert len(said) == 1
    assert f"took over the lease of 'tiny' from pid {builder.pid} " in said[0]
    scene.left_clean()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_parents_lease(scene, prefix):
    """Case 54."""
    scene.hold(first_only=True)
    builder = scene.start(prefix, FORKS.format(child=SLEEPS))
    scene.wait_for_held()
    child = scene.fork()
    builder.kill()
    builder.process.wait(10)
    scene.ends_well(scene.start(prefix), seconds=15)
    assert exists(child)
    assert scene.compiler.compiles == 2
    scene.left_clean()


def test_a_child_that_exits_in_the_middle_of_a_build_drops_nothing_of_its_parents(scene, prefix):
    """Case 54: its exit handlers and finalizers run."""
    scene.hold()
    builder = scene.start(prefix, FORKS.format(child=EXITS))
    scene.compiler.wait_for(1)
    child = scene.fork()
    scene.until(lambda: not exists(child), 15, "end of the child")
    staging = names(scene.root / "staging")
    waiter = scene.start(prefix)
    scene.wait_for_waiters(1)
    assert names(scene.root / "staging") == staging != []
    assert scene.compiler.compiles == 1
    scene.go()
    scene.ends_well(builder, waiter)
    assert scene.compiler.compiles == 1
    scene.left_clean()


def test_a_child_forked_while_its_parent_waits_keeps_nothing_of_what_the_parent_gets_or_loses(scene, prefix):
    """Case 54: the parent succeeds a dead builder after the fork, and dies itself."""
    first_two = " || ".join(f"mkdir {scene.signs}/{name} 2> /dev/null" for name in ("one", "two"))
    scene.compiler.set(before=f"{{ {first_two}; }} && sleep 60")
    builder = scene.start(prefix)
    scene.until((scene.signs / "one").exists, 30, "first compile")
    waiter = scene.start(prefix, FORKS.format(child=SLEEPS))
    scene.wait_for_waiters(1)
    child = scene.fork()
    builder.kill()
    scene.until((scene.signs / "two").exists, 30, "second compile")
    waiter.kill()
    waiter.process.wait(10)
    scene.ends_well(scene.start(prefix), seconds=15)
    assert exists(child)
    assert scene.compiler.compiles == 3
    scene.left_clean()


def test_a_child_forked_while_its_parent_waits_can_wait_and_load_itself(scene, prefix):
    """The mutexes of the parent's waiting thread are not the child's."""
    scene.hold()
    builder = scene.start(prefix)
    scene.compiler.wait_for(1)
    waiter = scene.start(prefix, FORKS.format(child=LOADS))
    scene.wait_for_waiters(1)
    child = scene.fork()
    scene.wait_for_waiters(2)
    assert (scene.signs / f"waiting.{child}").exists()
    scene.go()
    scene.ends_well(builder, waiter)
    assert scene.compiler.compiles == 1


def test_no_process_of_a_build_has_a_descriptor_of_the_lease(scene):
    """Case 54: else a compiler that hangs would keep the lease of a dead builder."""
    scene.compiler.set(before=f"ls -l /proc/$$/fd > {scene.signs}/open; {scene.gate}")
    builder = scene.start()
    waiter = scene.start()
    scene.wait_for_waiters(1)
    scene.until(lambda: "-> " in lease_checks.text(scene.signs / "open"), 30, "list of descriptors")
    processes = lease_checks.marked(scene.root)
    assert len(processes) >= 3  # the supervisor, ninja, the compiler
    kept = [link for process in processes for link in lease_checks.open_files(process.pid)]
    assert any("/dev/null" in link for link in kept)
    for link in [*kept, *(scene.signs / "open").read_text().splitlines()]:
        assert "/leases/" not in link
        assert not link.endswith("/lock")
    scene.go()
    scene.ends_well(builder, waiter)


# Signals


SIGNALS = [
    (signal.SIGTERM, DEFAULT_SIGNALS, -signal.SIGTERM),
    (signal.SIGINT, DEFAULT_SIGNALS, -signal.SIGINT),
    (signal.SIGHUP, DEFAULT_SIGNALS, -signal.SIGHUP),
    (signal.SIGTERM, OWN_HANDLER, 7),
]
SIGNAL_IDS = ["SIGTERM", "SIGINT", "SIGHUP", "own-handler"]


@pytest.mark.parametrize(("number", "handlers", "status"), SIGNALS, ids=SIGNAL_IDS)
def test_a_signalled_builder_leaves_at_once_and_leaves_nothing(scene, number, handlers, status):
    """Cases 5 and 7: then the state is "no entry, no lease", and the next call builds."""
    scene.hold(first_only=True)
    builder = scene.start(handlers)
    scene.wait_for_held()
    builder.kill(number)
    result = builder.wait(5)
    assert result.status == status, result.err
    assert ("KeyboardInterrupt" in result.err) == (number == signal.SIGINT)
    scene.left_clean()
    assert names(scene.root / "entries") == []
    place = open_root()
    (recipe,) = {name.partition(".")[0] for name in names(scene.root / "leases")}
    free = lease.claim(place, recipe)
    assert free is not None
    free.release()
    scene.ends_well(scene.start())
    assert scene.compiler.compiles == 2


@pytest.mark.parametrize(("number", "handlers", "status"), SIGNALS, ids=SIGNAL_IDS)
def test_a_signalled_waiter_leaves_at_once_and_alone(scene, number, handlers, status):
    """Case 5, second half."""
    scene.hold()
    builder = scene.start()
    scene.compiler.wait_for(1)
    leaves, stays = scene.start(handlers), scene.start()
    scene.wait_for_waiters(2)
    leaves.kill(number)
    assert leaves.wait(5).status == status, leaves.err
    assert builder.process.poll() is None
    assert stays.process.poll() is None
    scene.go()
    scene.ends_well(builder, stays)
    assert scene.compiler.compiles == 1
    scene.left_clean()


def test_ctrl_c_at_the_terminal_ends_builder_and_waiters_and_leaves_no_compiler(scene):
    """Case 5: the whole foreground group is signalled; the compilers' end is the supervisor's work."""
    scene.hold(first_only=True)
    members = "import os, subprocess, sys\n" + "children = [subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])"
    members += " for _ in range(3)]\nprint([child.wait() for child in children])"
    group = scene.start_bare(DEFAULT_SIGNALS.replace("default_int_handler", "SIG_IGN") + members, DEFAULT_SIGNALS)
    scene.wait_for_held()
    scene.wait_for_waiters(2)
    os.killpg(group.pid, signal.SIGINT)
    result = group.wait(5)
    assert result.out == f"{[-signal.SIGINT] * 3}\n", result.err
    scene.left_clean()


# A builder that stops


WITH_TIMEOUT = """\
import sys
import nodecache
nodecache.load(sys.argv[1], sys.argv[2:], timeout=1)
"""


def test_a_stopped_builder_is_not_robbed_and_a_timeout_names_it_its_state_and_the_remedy(scene, prefix):
    scene.hold()
    builder = scene.start(prefix)
    scene.compiler.wait_for(1)
    builder.kill(signal.SIGSTOP)
    waiters = [scene.start(prefix, WITH_TIMEOUT) for _ in range(2)]
    for waiter in waiters:
        result = waiter.wait(20)
        assert result.status == 1
        last = result.err.strip().splitlines()[-1]
        assert "LeaseTimeout: Waited 1 s for 'tiny'" in last
        assert f"pid {builder.pid} on {os.uname().nodename}" in last
        assert "(stopped" in last
        assert f"kill -CONT {builder.pid}" in last
        (log,) = (scene.root / "attempts").glob("*/*.log")
        assert str(log) in last
    builder.kill(signal.SIGCONT)
    scene.go()
    scene.ends_well(builder)
    assert scene.compiler.compiles == 1


def test_a_lock_call_that_never_returns_is_bounded_by_the_timeout_and_its_late_grant_is_dropped(monkeypatch):
    place = open_root()
    ensure_folders(place)
    answer, real = threading.Event(), lock.fcntl.flock

    def slow(fd, how):
        answer.wait(30)
        real(fd, how)

    monkeypatch.setattr(lock, "file_system", lambda _: "nfs4")
    monkeypatch.setattr(lock, "_kinds", {})
    monkeypatch.setattr(lock.fcntl, "flock", slow)
    began = time.monotonic()
    with pytest.raises(lock.LockSilent, match=r"\.lock \(nfs4\)"):
        lease.claim(place, RECIPE, patience=0.1)
    assert time.monotonic() - began < 10
    late = [thread for thread in threading.enumerate() if thread.name == "nodecache-lock"]
    answer.set()
    for thread in late:
        thread.join(10)
    assert len(late) == 1
    held = lease.claim(place, RECIPE)
    assert held is not None
    held.release()


NOTES_IMPORTS = """\
import sys
import nodecache.bell
known = set()
def wait(self, seconds, wait=nodecache.bell.Ear.wait):
    rang = wait(self, seconds)
    known.update(sys.modules)
    return rang
nodecache.bell.Ear.wait = wait
"""
SAYS_IMPORTS = 'print(json.dumps({"sum": module.add(2, 3), "late": sorted(set(sys.modules) - known)}))'


def test_nothing_is_imported_between_a_wake_up_and_the_module(scene, load_program):
    """Ten milliseconds each, for all waiters at once."""
    scene.hold()
    builder = scene.start()
    scene.compiler.wait_for(1)
    waiter = scene.start(NOTES_IMPORTS, load_program + SAYS_IMPORTS)
    scene.wait_for_waiters(1)
    scene.go()
    scene.ends_well(builder, waiter)
    assert [name for name in waiter.wait().json["late"] if name != "tiny"] == []


# A cleaner


def test_after_the_lock_file_is_removed_there_is_at_most_one_more_builder_and_one_entry(scene):
    """Cases 50 and 38: the newcomer never cleans up after the living builder, and nobody minds at release."""
    scene.hold()
    with Watch(scene.root) as watch:
        builder = scene.start()
        scene.compiler.wait_for(1)
        first = names(scene.root / "staging")
        (file,) = (scene.root / "leases").glob("*.lock")
        file.unlink()
        newcomer = scene.start()
        scene.compiler.wait_for(2)
        assert set(first) < set(names(scene.root / "staging"))
        third = scene.start()
        scene.wait_for_waiters(1)
        assert scene.compiler.compiles == 2
        scene.go()
        scene.ends_well(builder, newcomer, third)
    assert watch.faults == []
    assert scene.compiler.compiles == 2
    assert len(names(scene.root / "entries")) == 1
    scene.left_clean()


def test_a_lock_on_a_file_that_was_replaced_before_the_grant_is_let_go(monkeypatch):
    """Case 38 (b): who is granted the lock holds the one that others see."""
    place = open_root()
    ensure_folders(place)
    path = Path(lease.lock_path(place, RECIPE))
    real, calls = lock.try_exclusive, []

    def replaced(fd, name, patience=None):
        calls.append(os.fstat(fd).st_ino)
        if len(calls) == 1:
            path.rename(path.with_suffix(".old"))
        return real(fd, name, patience)

    monkeypatch.setattr(lock, "try_exclusive", replaced)
    held = lease.claim(place, RECIPE)
    assert held is not None
    assert len(set(calls)) == 2
    assert calls[-1] == path.stat().st_ino
    assert lease.claim(place, RECIPE) is None
    held.release()


ROUNDS = """\
import json, os, sys
from nodecache import lease
from nodecache.root import open_root
from nodecache.waiting import Voice
place = open_root()
recipe, rounds = sys.argv[1], int(sys.argv[2])
seen = set()
for number in range(rounds):
    voice = Voice("tiny", verbose=False)
    held = lease.take(place, recipe, name="tiny", look=lambda: None, told=lambda: None, timeout=60, voice=voice)
    fd = os.open(place.at("alone"), os.O_CREAT | os.O_EXCL)
    seen.add(os.stat(lease.lock_path(place, recipe)).st_ino)
    os.close(fd)
    os.unlink(place.at("alone"))
    held.release()
print(json.dumps(sorted(seen)))
"""


def test_the_lock_file_stays_the_same_over_many_rounds_and_only_one_holds_it(start):
    """Case 38 (a): eight processes, fifty rounds each."""
    place = open_root()
    ensure_folders(place)
    path = lease.lock_path(place, RECIPE)
    fd = lock.open_lock(path)  # while it is open its number goes to no other file
    children = [start(ROUNDS, RECIPE, 50) for _ in range(8)]
    results = [child.wait(100) for child in children]
    assert [result.status for result in results] == [0] * 8, [result.err for result in results]
    assert [result.json for result in results] == [[os.fstat(fd).st_ino]] * 8
    assert lock.is_current(fd, path)
    lock.close(fd)


# Records


def record(**fields):
    made = owner.this_process(attempt="a" * 16, recipe=RECIPE, name="tiny", log="/nowhere/log")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


GARBLED = {
    "empty": b"",
    "cut": record().encode()[:-7],
    "noise": bytes(range(256)) * 8,
    "huge": b"nodecache-owner 1 99999999 0\n" + b"x" * (1 << 20),
    "newer": record().encode().replace(b"nodecache-owner 1", b"nodecache-owner 2"),
    "of the living": record(pid=os.getppid(), start=owner.start_ticks(os.getppid())).encode(),
}


@pytest.mark.parametrize("kind", GARBLED)
def test_whatever_a_record_says_a_free_lock_is_free(kind):
    place = open_root()
    ensure_folders(place)
    Path(lease.lock_path(place, RECIPE)).write_bytes(GARBLED[kind])
    held = lease.claim(place, RECIPE)
    assert held is not None
    assert (held.previous() is not None) == (kind == "of the living")
    held.release()


@pytest.mark.parametrize("kind", [*GARBLED, "dead", "of another boot"])
def test_whatever_a_record_says_a_held_lock_is_held(kind, start):
    place = open_root()
    ensure_folders(place)
    records = GARBLED | {"dead": record(start=1).encode(), "of another boot": record(boot_id="other").encode()}
    held = lease.claim(place, RECIPE)
    path = Path(lease.lock_path(place, RECIPE))
    path.write_bytes(records[kind])
    asks = "import sys\nfrom nodecache import lease\nfrom nodecache.root import open_root\n"
    asks += "print('null' if lease.claim(open_root(), sys.argv[1]) is None else 'true')"
    result = start(asks, RECIPE).wait(30)
    assert (result.status, result.json) == (0, None), result.err
    held.release()
    assert path.read_bytes() == b""


def test_a_timeout_without_a_readable_record_says_so(scene):
    scene.hold()
    builder = scene.start()
    scene.compiler.wait_for(1)
    (file,) = (scene.root / "leases").glob("*.lock")
    file.write_bytes(GARBLED["noise"])
    result = scene.start("", WITH_TIMEOUT).wait(20)
    assert "it left no readable record" in result.err
    scene.go()
    scene.ends_well(builder)
    assert scene.compiler.compiles == 1


WHOLE = record().encode()
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)


@quick
@given(st.binary(max_size=400))
def test_noise_is_no_record(data):
    assert owner.decode(data) is None
    assert owner.decode(b"nodecache-owner 1 " + data) is None


@quick
@given(st.data())
def test_a_record_that_is_cut_or_has_a_wrong_byte_is_none(data):
    whole = WHOLE
    at = data.draw(st.integers(0, len(whole) - 1))
    assert owner.decode(whole[:at]) is None
    other = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    assert owner.decode(whole[:at] + bytes([other]) + whole[at + 1 :]) is None


@quick
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(owner.Owner.__slots__), inner),
        max_leaves=6,
    )
)
def test_a_well_formed_record_with_fields_of_the_wrong_kind_is_none_or_an_owner(body):
    import json

    from nodecache.digest import digest_bytes

    raw = json.dumps(body).encode()
    data = b"nodecache-owner 1 %d %s\n%s" % (len(raw), digest_bytes(raw).encode(), raw)
    found = owner.decode(data)
    assert found is None or found.label.startswith(f"pid {body['pid']}")


def test_a_record_comes_back_as_it_was_and_longer_garbage_behind_it_does_not_count():
    made = record(rank=3, local_rank=1)
    found = owner.decode(made.encode() + b"rest of a longer one")
    assert found is not None
    assert {name: getattr(found, name) for name in owner.Owner.__slots__} == {
        name: getattr(made, name) for name in owner.Owner.__slots__
    }


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "running"),
        ({"start": 1}, "dead"),  # the number was given to another process
        ({"boot_id": "before"}, "unknown"),  # another machine may have the same hostname
        ({"boot_id": "before", "host": "elsewhere"}, "unknown"),
        ({"pidns": "1.1"}, "unknown"),
        ({"pid": (1 << 22) + 1}, "dead"),
        ({"since": 4e9}, "running"),  # clocks decide nothing
        ({"since": -4e9}, "running"),
    ],
    ids=str,
)
def test_only_proof_makes_an_owner_dead(fields, state):
    assert owner.state(record(**fields)) == state


ONLOOKER = """
import os, sys
from nodecache import launchers, owner
launchers.node()
living, gone = [owner.decode(bytes.fromhex(line)) for line in sys.stdin.read().split()]
uid = int(sys.argv[1])
os.setgroups([])  # group 0 sees everybody, whatever hidepid says
os.setgid(uid)
os.setuid(uid)
print(owner.state(living), owner.state(gone))
"""


@pytest.mark.parametrize(
    ("mount", "uid", "states"),
    [
        ("-t proc -o hidepid=2 proc", 65534, ["unknown", "dead"]),
        ("-t proc -o subset=pid proc", 0, ["unknown", "unknown"]),
        ("-t tmpfs tmpfs", 0, ["unknown", "unknown"]),
    ],
    ids=["hidepid", "subset=pid", "no /proc"],
)
def test_a_living_owner_that_proc_does_not_show_is_not_called_dead(mount, uid, states):
    """Right is "unknown", unless the kernel itself says that there is no such process."""
    needs_namespaces()
    said = subprocess.run(
        [*hidden(mount), sys.executable, "-c", ONLOOKER, str(uid)],
        input=f"{record().encode().hex()} {record(pid=(1 << 22) + 1).encode().hex()}".encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert said.stdout.decode().split() == states, said.stderr


@pytest.mark.parametrize(
    ("kind", "locked", "stays"),
    [("nfs4", False, True), ("fuse.sshfs", False, True), ("ext4", True, True), ("ext4", False, False)],
)
def test_staging_with_another_boots_name_is_swept_only_where_a_free_lock_proves_death(
    kind, locked, stays, root, monkeypatch
):
    """Two machines may share a hostname and a file system that keeps their locks apart."""
    made = staging.create(open_root(), "0123456789abcdef")
    try:
        host, _, rest = os.path.basename(made.path).partition("-")
        path = root / "staging" / f"{host}-00000000{rest[8:]}"
        os.rename(made.path, path)
        if not locked:  # as seen from a machine that the lock does not reach
            fcntl.flock(made._fd, fcntl.LOCK_UN)
        (path / "lock").write_bytes(record(boot_id="another machine's").encode())
        monkeypatch.setattr(lock, "_kinds", {})
        monkeypatch.setattr(lock, "file_system", lambda _: kind)
        staging.sweep(open_root())
        assert path.exists() == stays
    finally:
        made.remove()


def test_a_dead_child_that_nobody_has_reaped_is_dead():
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        made = record(pid=child.pid, start=owner.start_ticks(child.pid))
        assert owner.state(made) == "running"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert owner.state(made) == "dead"


# Containers


CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--propagation", "private")


def needs_namespaces():
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode != 0:
        text = "PID namespaces need root"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(text)


def test_a_living_holder_in_another_pid_namespace_is_not_robbed(scene, prefix):
    """Case 51 (a): each is process 1 of its own namespace, on one host with one /tmp."""
    needs_namespaces()
    scene.hold()
    builder = scene.start(prefix, prefix=CONTAINER)
    scene.compiler.wait_for(1)
    other = scene.start(prefix, WITH_TIMEOUT, prefix=CONTAINER)
    result = other.wait(20)
    assert "LeaseTimeout" in result.err
    assert "(unknown" in result.err
    waiter = scene.start(prefix, prefix=CONTAINER)
    scene.wait_for_waiters(1)
    scene.go()
    scene.ends_well(builder, waiter)
    assert scene.compiler.compiles == 1


def test_a_dead_holder_of_another_pid_namespace_is_succeeded_though_its_number_lives_here(scene, prefix):
    """Case 51 (b): the successor has the dead holder's number itself."""
    needs_namespaces()
    scene.hold(first_only=True)
    builder = scene.start(prefix, prefix=CONTAINER)
    scene.wait_for_held()
    waiter = scene.start(prefix, prefix=CONTAINER)
    scene.wait_for_waiters(1)
    builder.kill()
    builder.process.wait(10)
    scene.ends_well(waiter, seconds=25 if prefix else 15)
    assert scene.compiler.compiles == 2
    assert "took over the lease of 'tiny' from pid 1 " in waiter.err
    scene.left_clean()


# File systems without locks


def injected(error):
    how = f"-e trace=flock -e inject=flock:error={error}"
    return ("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", *how.split())


def needs_strace():
    tried = subprocess.run([*injected("ENOLCK"), "true"], check=False, capture_output=True)
    if tried.returncode != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("strace cannot trace here")


WRITES_ITS_PID = """\
import os
from pathlib import Path
Path(os.environ["SIGNS"], f"pid.{os.getpid()}").touch()
"""


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP", 524])
def test_without_kernel_locks_an_announced_lease_stands_in_and_survives_its_builders_death(scene, error):
    """Case 41 with case 1: the real system call gives the error."""
    needs_strace()
    scene.hold(first_only=True)
    scene.start(WRITES_ITS_PID, prefix=injected(error))
    scene.wait_for_held()
    (pid,) = [int(name.partition(".")[2]) for name in names(scene.signs) if name.startswith("pid.")]
    waiters = [scene.start(prefix=injected(error)) for _ in range(2)]
    scene.wait_for_waiters(2)
    assert scene.compiler.compiles == 1
    os.kill(pid, signal.SIGKILL)
    scene.ends_well(*waiters)
    assert scene.compiler.compiles == 2
    number = error if isinstance(error, int) else getattr(errno, error)
    name = errno.errorcode.get(number, number)  # one number may have two names
    (said,) = [waiter.err for waiter in waiters if "took over" in waiter.err]
    assert said.count("no kernel locks on ") == 1
    assert f"({name}, " in said
    assert f"pid {pid} " in said
    scene.left_clean()


def hidden(mount):
    """What a program is started with so that /proc shows it less."""
    mounted = f'mount {mount} /proc && exec "$0" "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted)


SIGHTS = {
    "all": (),
    "no /proc": hidden("-t tmpfs tmpfs"),
    "no boot id": hidden("-t proc -o subset=pid proc"),
    "user namespace": ("unshare", "--user"),
}
UNSEEN = "holds the lease; its process cannot be seen from here"


@pytest.mark.parametrize(
    ("builders", "waiters", "state"),
    [
        ("no /proc", "no /proc", UNSEEN),
        ("all", "no /proc", UNSEEN),
        ("no /proc", "all", UNSEEN),
        ("all", "no boot id", UNSEEN),
        ("no boot id", "all", UNSEEN),
        ("all", "user namespace", "running"),
        ("user namespace", "all", "running"),
    ],
)
def test_processes_that_see_different_things_of_the_machine_compile_once_and_call_nobody_dead(
    builders, waiters, state, scene, start
):
    """Without kernel locks, where a record and a heartbeat are all that the waiter has."""
    needs_namespaces()
    scene.hold()
    builder = scene.start(SOFT, prefix=SIGHTS[builders])
    scene.compiler.wait_for(1)
    waiter = scene.start(SOFT, prefix=SIGHTS[waiters])
    scene.wait_for_waiters(1)
    asks = f"{SOFT}import sys\nfrom nodecache.__main__ import main\nsys.exit(main(['status']))"
    said = start(asks, prefix=SIGHTS[waiters]).wait(30)
    assert said.out.splitlines()[0] == f"tiny: {state}", said.err
    assert said.status == (0 if state == "running" else 3)
    scene.go()
    scene.ends_well(builder, waiter)
    assert scene.compiler.compiles == 1


def test_without_proc_a_dead_builder_is_succeeded_when_its_heartbeat_has_stopped(scene):
    needs_namespaces()
    scene.hold(first_only=True)
    builder = scene.start(SOFT)
    scene.wait_for_held()
    waiter = scene.start(SOFT, prefix=SIGHTS["no /proc"])
    scene.wait_for_waiters(1)
    builder.kill()
    scene.ends_well(waiter, seconds=40)
    assert "took over the lease of 'tiny' from pid" in waiter.err
    assert scene.compiler.compiles == 2


def test_any_other_answer_of_a_lock_call_is_an_error_that_names_path_errno_and_file_system(scene):
    """Case 41."""
    needs_strace()
    result = scene.start(prefix=injected("EIO")).wait(30)
    assert result.status == 1
    last = result.err.strip().splitlines()[-1]
    assert f"RootError: Locking {scene.root}/leases/" in last
    assert f"on a file system of type {lock.file_system(str(scene.root))}" in last
    assert "(EIO)" in last
    assert scene.compiler.compiles == 0


def test_who_has_lost_a_soft_lease_publishes_nothing_and_asks_anew(scene):
    scene.hold(first_only=True)
    builder = scene.start(SOFT)
    scene.wait_for_held()
    (folder,) = (scene.root / "leases").glob("*.soft/*")
    (folder / "2").write_bytes(b"free\n")
    scene.go()
    scene.ends_well(builder)
    assert "was taken over by another process during the build" in builder.err
    assert scene.compiler.compiles == 2
    scene.left_clean()


@pytest.mark.parametrize(("one", "other"), [("", SOFT), (SOFT, "")], ids=["locks first", "locks later"])
def test_one_that_is_told_no_locks_does_not_build_beside_one_that_has_one(scene, one, other):
    """A lock server that was restarted in between, or a mount that went wrong."""
    scene.hold()
    builder = scene.start(one)
    scene.compiler.wait_for(1)
    waiter = scene.start(other)
    scene.wait_for_waiters(1)
    assert scene.compiler.compiles == 1
    scene.go()
    scene.ends_well(builder, waiter)
    assert scene.compiler.compiles == 1


def test_two_that_find_a_soft_lease_free_do_not_both_get_it(start):
    """The exclusive file fails where two hold at once."""
    place = open_root()
    ensure_folders(place)
    program = SOFT + ROUNDS.replace("os.stat(lease.lock_path(place, recipe)).st_ino", "0")
    children = [start(program, RECIPE, 25) for _ in range(6)]
    results = [child.wait(100) for child in children]
    assert [result.status for result in results] == [0] * 6, [result.err for result in results]
    folder = Path(softlease.soft_path(place, RECIPE))
    assert int(max(names(folder), key=int)) >= 150
    assert len(names(folder)) == 1


# Crowds


CROWD = """\
import json, os, sys, time
import psutil
import nodecache.folder, nodecache.bell, nodecache.waiting, nodecache.history
from nodecache.bell import Ear
from pathlib import Path
number, keys, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
counter = os.environ["COUNTER"]
def build(folder):
    with open(counter, "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(seconds)
    (folder / "value").write_text("right")
go_read, go_write = os.pipe()
out_read, out_write = os.pipe()
children = []
for mine in range(number):
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        os.read(go_read, 1)
        before = time.process_time()
        try:
            folder = nodecache.get_or_build("crowd", {"key": mine % keys}, build)
            good = (folder / "value").read_text() == "right"
        except BaseException as error:
            os.write(2, f"{error!r}\\n".encode())
            good = False
        os.write(out_write, f"{int(good)} {time.process_time() - before}\\n".encode())
        os._exit(0)
    children.append(pid)
os.close(go_write)
os.close(out_write)
lines = open(out_read).read().split("\\n")[:-1]
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps({"good": sum(line[0] == "1" for line in lines), "cpu": sum(float(line[2:]) for line in lines)}))
"""


def crowd(start, tmp_path, keys, seconds, limit=100):
    counter = tmp_path / "counter"
    result = start(CROWD, 200, keys, seconds, env={"COUNTER": str(counter)}).wait(limit)
    assert result.status == 0, result.err
    assert result.json["good"] == 200, result.err
    assert len(counter.read_text().splitlines()) == keys
    return result.json["cpu"]


def test_two_hundred_processes_on_one_key_build_it_once(start, tmp_path):
    crowd(start, tmp_path, keys=1, seconds=1)


def test_two_hundred_processes_on_fifty_keys_build_each_once(start, tmp_path):
    crowd(start, tmp_path, keys=50, seconds=0.2)


@pytest.mark.soak
def test_two_hundred_waiters_burn_less_than_five_seconds_while_a_build_takes_twenty(start, tmp_path, record_property):
    """Case 19."""
    cpu = crowd(start, tmp_path, keys=1, seconds=20)
    record_property("CPU seconds of 200 waiters", cpu)
    assert cpu < 5
