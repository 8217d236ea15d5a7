"""Sandboxes that refuse system calls which only tune: no build fails for them."""

from __future__ import annotations

import pytest

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
