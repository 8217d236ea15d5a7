"""Sandboxes that refuse system calls which only tune: no build fails for them."""

from __future__ import annotations

import errno
import os

import pytest

from nodecache.root import Root, open_root
from tests.users import PYTHON, as_root, as_user

OPTIONAL = (
    "sched_getaffinity",
    "prctl",
    "pidfd_open",
    "utimensat",
    "statfs,fstatfs",
    "sysinfo",
    "getpriority,setpriority",
    "ioprio_get,ioprio_set",
    "getrlimit",
    "inotify_init1",
)


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("calls", OPTIONAL)
def test_a_refused_system_call_that_only_tunes_fails_no_build(start, tiny, load_program, tmp_path, calls, error):
    trace = tmp_path / "trace"
    prefix = ("strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}")
    child = start(load_program, "tiny", tiny(), prefix=prefix)
    assert child.wait(120).status == 0, child.err
    assert child.wait().json["role"] == "built"


@pytest.mark.parametrize("calls", ["flock", "mkdir,mkdirat", "rename,renameat,renameat2", "fsync,fdatasync"])
def test_a_refused_system_call_that_a_build_needs_is_not_blamed_on_the_folder(
    start, tiny, load_program, tmp_path, calls
):
    trace = tmp_path / "trace"
    prefix = ("strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}", "-e", f"inject={calls}:error=EPERM")
    child = start(load_program, "tiny", tiny(), prefix=prefix)
    status = child.wait(120).status
    assert "INJECTED" in trace.read_text()
    assert status != 0
    last = child.err.strip().splitlines()[-1]
    assert "Operation not permitted" in last
    assert "allow it in the container's or job's security profile" in last
    assert "NODECACHE_ROOT" not in last.partition("Operation not permitted")[2]


def _remedy(root, number, filename=None):
    said = str(root.failed(OSError(number, os.strerror(number), filename), "publishing"))
    assert f"({errno.errorcode[number]})" in said
    return said.partition(f"({errno.errorcode[number]}).")[2]


@pytest.mark.parametrize("name", ["EROFS", "ESTALE", "EIO", "EOPNOTSUPP", "EINVAL", "EACCES", "ENAMETOOLONG"])
def test_another_root_is_the_remedy_where_the_file_system_is_the_cause(name):
    assert "NODECACHE_ROOT" in _remedy(open_root(), getattr(errno, name))


@pytest.mark.parametrize(
    ("name", "does"),
    [
        ("EPERM", "security profile"),
        ("ENOSYS", "security profile"),
        ("E2BIG", "environment smaller"),
        ("ENOTDIR", "ls -ld /x/entries"),
        ("EISDIR", "ls -ld /x/entries"),
        ("ELOOP", "ls -ld /x/entries"),
        ("EBUSY", "fuser -v /x/entries"),
        ("ETXTBSY", "fuser -v /x/entries"),
    ],
)
def test_another_root_is_no_remedy_where_it_would_change_nothing(name, does):
    remedy = _remedy(Root("/x", "NODECACHE_ROOT"), getattr(errno, name), "/x/entries")
    assert does in remedy
    assert "NODECACHE_ROOT" not in remedy


def test_a_path_outside_the_root_is_named_and_another_root_is_no_remedy_for_it():
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/elsewhere/python")
    said = str(Root("/x", "NODECACHE_ROOT").failed(error, "starting the build"))
    assert said.startswith("starting the build failed in /x at /elsewhere/python: No such file")
    assert "NODECACHE_ROOT" not in said


@as_root
@pytest.mark.parametrize("limit", range(1, 8))
def test_a_limit_of_processes_is_named_with_what_raises_it(start, tiny, load_program, open_folder, uid, limit):
    source = tiny(folder=open_folder)
    (open_folder / "root").mkdir(mode=0o700)
    os.chown(open_folder / "root", uid, uid)
    user = (*as_user(uid), f"NODECACHE_ROOT={open_folder}/root", "prlimit", f"--nproc={limit}")
    child = start(load_program, "tiny", source, prefix=user, python=PYTHON, cwd="/")
    if child.wait(60).status == 0:
        assert limit > 4, "so few cannot be enough"
        assert child.wait().json["sum"] == 5
    else:
        said = child.err.strip()
        assert "ulimit -u" in said
        assert "NODECACHE_JOBS" in said
        assert "Correct CXX" not in said
