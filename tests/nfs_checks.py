"""What the lease promises on real NFS. These tests run inside of a guest, which `tests/test_nfs.py` boots."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from tests.lease_checks import Scene, began, nothing_is_left
from tests.testbed.nfs_guest import EXPORT
from tests.testbed.processes import commands, until

WHERE = {"4.2": "127.0.0.1:/", "3": f"127.0.0.1:{EXPORT}"}
KINDS = {"nfs4": "4.2", "nfs3": "3", "no-lock-daemon": "3"}


def command(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, (words, done.stderr)


@contextlib.contextmanager
def mounted(place, version, options="hard"):
    """The export of this guest's server, as a client sees it that has a cache of its own."""
    place.mkdir()
    command("mount", "-t", "nfs", "-o", f"vers={version},nosharecache,{options}", WHERE[version], place)
    try:
        yield place
    finally:
        command("umount", "--lazy", place)


def end_lock_daemon():
    """From now on no lock on NFS 3 can be noted for the case that the server starts anew: ENOLCK."""

    def daemons():
        return [pid for pid, line in commands() if line.startswith((b"rpc.statd\0", b"rpcbind\0"))]

    for pid in daemons():
        os.kill(pid, signal.SIGTERM)
    until(lambda: not daemons(), 10, "end of the lock daemon")


@pytest.fixture(scope="module", params=KINDS)
def share(request, tmp_path_factory):
    """A mount for all tests of one kind: in a guest that has lost its lock daemon nothing else is mounted by NFS 3."""
    with mounted(tmp_path_factory.mktemp("nfs") / "share", KINDS[request.param]) as place:
        if request.param == "no-lock-daemon":
            end_lock_daemon()
        yield request.param, place


@pytest.fixture
def locks(share, job, tmp_path):
    """The job's root is on that mount; are there locks?"""
    job.root = share[1] / tmp_path.name
    job.environment["NODECACHE_ROOT"] = str(job.root)
    return share[0] != "no-lock-daemon"


@pytest.fixture
def job(start, tiny, compiler, root, tmp_path, load_program, wait_until):
    made = Scene(start, tiny, compiler, root, tmp_path, load_program, wait_until)
    yield made
    made.go()


def announcements(result):
    return [line for line in result.err.splitlines() if "no kernel locks on " in line]


def is_announced(locks, builder, others):
    """Where there are no locks, who builds says so in one line; where there are, nobody does."""
    if locks:
        assert [line for result in (builder, *others) for line in announcements(result)] == []
        return
    (line,) = announcements(builder)
    assert "No locks available (ENOLCK, nfs)" in line
    assert all(len(announcements(result)) <= 1 for result in others)


STAY = """
sys.stdout.flush()
import os
while not os.path.exists(os.environ["SIGNS"] + "/end"):
    time.sleep(0.05)
"""


def test_six_processes_with_an_empty_root_compile_once_and_leave_nothing_while_they_live_on(job, locks, load_program):
    job.hold()
    ranks = [job.start(program=load_program + STAY) for _ in range(6)]
    job.wait_for_waiters(5)
    job.go()
    job.until(lambda: all("\n" in rank.out or rank.process.poll() is not None for rank in ranks), 60, "six modules")
    nothing_is_left(job.root, job.temporary)
    (job.signs / "end").touch()
    results = job.ends(*ranks)
    assert job.compiler.compiles == 1
    (builder,) = [result for result in results if result.json["role"] == "built"]
    is_announced(locks, builder, [result for result in results if result is not builder])


@pytest.mark.parametrize("share", ["nfs4", "no-lock-daemon"], indirect=True, scope="module")
def test_a_killed_builder_is_succeeded_within_seconds(job, locks):
    builder, waiters, died = job.kill_builder(waiters=2)
    results = job.ends(*waiters, seconds=60)
    assert job.compiler.compiles == 2
    assert began(job.compiler.counter)[-1] - died < 10
    (second,) = [result for result in results if result.json["role"] == "built"]
    assert f"took over the lease of 'tiny' from pid {builder.pid} " in second.err
    is_announced(locks, second, [result for result in results if result is not second])
    nothing_is_left(job.root, job.temporary)


@pytest.mark.parametrize(
    ("version", "options", "builders"),
    [
        pytest.param("3", "hard", 1, id="clients"),
        pytest.param("3", "nolock", 2, id="clients-nolock"),
    ],
)
def test_processes_of_two_clients_all_load_and_each_client_compiles_at_most_once(
    job, tmp_path, version, options, builders
):
    """Both see the root at the same path. Without locks that reach the other, each builds."""
    job.hold()
    first, second = tmp_path / "first", tmp_path / "second"
    with mounted(first, version, options), mounted(second, version, options):
        job.root = first / "root"
        job.environment["NODECACHE_ROOT"] = str(job.root)
        other = ("unshare", "--mount", "sh", "-c", f'mount --bind {second} {first} && exec "$@"', "sh")
        ranks = [job.start(prefix=prefix) for prefix in ((), other) * 2]
        job.compiler.wait_for(builders)
        job.wait_for_waiters(4 - builders)
        job.go()
        results = job.ends(*ranks, seconds=60)
        assert job.compiler.compiles == builders
        assert [result.json["role"] for result in results].count("built") == builders
        assert len({result.json["key"] for result in results}) == 1
        assert not any("which died" in result.err for result in results)
        nothing_is_left(job.root, job.temporary)


def test_where_the_server_ends_and_the_mount_is_soft_all_end_with_a_right_module_or_a_clear_error(job, tmp_path):
    """Last in this file: the server does not come back."""
    job.hold()
    with mounted(tmp_path / "soft", "3", "nolock,soft,timeo=1,retrans=0") as place:
        job.environment["NODECACHE_ROOT"] = str(place / "root")
        ranks = [job.start() for _ in range(2)]
        job.wait_for_waiters(1)
        job.compiler.wait_for(1)
        command("rpc.nfsd", "0")
        job.go()
        for result in [rank.wait(60) for rank in ranks]:
            if result.status == 0:
                assert result.json["sum"] == 5
            else:
                assert result.err.splitlines()[-1].startswith("nodecache.errors."), result.err
