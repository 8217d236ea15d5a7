"""Sandboxes that refuse system calls which only tune: no build fails for them."""

from __future__ import annotations

import os

import pytest

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
