"""``nodecache doctor``: what would go wrong, with cause and remedy, before a job finds out. Nothing is built."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sysconfig
import time

import pytest

from nodecache import doctor, lock
from nodecache.__main__ import main


def told(capsys, *words):
    """Exit status, and findings by check."""
    status = main(["doctor", "--json", *words])
    found = {}
    for finding in json.loads(capsys.readouterr().out):
        found.setdefault(finding["check"], []).append(finding)
    return status, found


def wrong(found):
    return {check for check, findings in found.items() if any(finding["level"] == "wrong" for finding in findings)}


def test_a_sound_node_is_told_as_such_and_nothing_is_compiled(compiler, capsys, root):
    status, found = told(capsys)
    assert (status, wrong(found)) == (0, set())
    assert {"node", "python", "compiler", "ninja", "pybind11", "torch", "cuda", "root", "file system"} <= set(found)
    assert {"space", "locks", "entries"} <= set(found)
    assert compiler.compiles == 0
    assert os.listdir(root / "staging") == []
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("All is well.\n")


def test_everything_that_is_wrong_has_a_cause_and_a_remedy(monkeypatch, capsys, tmp_path):
    """Case 69: no pybind11, no Python.h, no compiler: all three at once, without building."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "package_folder", lambda name: None)
    real = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name, *a: "/nowhere" if name == "include" else real(name, *a))
    status, found = told(capsys)
    assert status == 1
    assert {"compiler", "python", "pybind11"} <= wrong(found)
    for check in ("compiler", "python", "pybind11"):
        (finding,) = found[check]
        assert finding["says"]
        assert "nstall" in finding["remedy"]
        assert "\n" not in finding["says"] + finding["remedy"]
    assert "Python.h is not in /nowhere" in found["python"][0]["says"]


def test_a_compiler_variable_that_names_nothing_is_named(monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    status, found = told(capsys)
    assert (status, wrong(found)) == (1, {"compiler"})
    assert "CXX='no-such-compiler'" in found["compiler"][0]["says"]
    assert "unset it" in found["compiler"][0]["remedy"]


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "beegfs", "gpfs"])
def test_a_root_on_a_network_is_named_with_its_type_and_works(kind, monkeypatch, capsys):
    """Case 40."""
    monkeypatch.setattr(lock, "file_system", lambda path: kind)
    status, found = told(capsys)
    assert status == 0
    (finding,) = found["file system"]
    assert finding["level"] == "note"
    assert f"({kind})" in finding["says"]
    assert "NODECACHE_ROOT" in finding["remedy"]
    assert f"HOME is on a network file system ({kind})" in found["home"][0]["says"]


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="mounting needs root")
def test_a_noexec_mount_is_told_without_building(tmp_path, monkeypatch, capsys, compiler):
    """Case 49."""
    place = tmp_path / "mount"
    place.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64m,noexec,mode=700", "test", place]
    done = subprocess.run(mounted, capture_output=True, text=True, check=False)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"no mount: {done.stderr}")
    assert done.returncode == 0, done.stderr
    try:
        monkeypatch.setenv("NODECACHE_ROOT", str(place / "root"))
        status, found = told(capsys)
        assert (status, wrong(found)) == (1, {"file system"})
        assert any("noexec" in finding["says"] for finding in found["file system"])
        assert compiler.compiles == 0
        assert "Only" in found["space"][0]["says"]
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit(0)", "Locks do not exclude"),
        ("import sys; sys.exit(5)", "answer oddly"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
    ids=["granted twice", "an error", "silence"],
)
def test_locks_that_do_not_exclude_are_found_with_a_second_process_in_bounded_time(program, says, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_TRY", program)
    monkeypatch.setattr(doctor, "LOCK_SECONDS", 1.0)
    began = time.monotonic()
    status, found = told(capsys)
    assert time.monotonic() - began < 30
    assert (status, wrong(found)) == (1, {"locks"})
    assert says in found["locks"][0]["says"]
    assert "local disk" in found["locks"][0]["remedy"]


def test_a_file_system_without_locks_is_noted_with_what_stands_in(monkeypatch, capsys):
    """Case 41."""

    def refuse(fd, path, patience=None, *, tell=True):
        lock.close(fd)
        raise lock.LocksUnsupported(f"{path}: Function not implemented (ENOSYS, lustre)")

    monkeypatch.setattr(lock, "try_exclusive", refuse)
    status, found = told(capsys)
    assert status == 0
    assert found["locks"][0]["level"] == "note"
    assert "ENOSYS, lustre" in found["locks"][0]["says"]


def test_a_root_that_is_somebody_elses_is_refused_with_the_remedy(tmp_path, monkeypatch, capsys):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "open" / "root"))
    status, found = told(capsys)
    assert (status, wrong(found)) == (1, {"root"})
    assert "others may write" in found["root"][0]["says"]
    assert found["root"][0]["remedy"]


def test_a_living_build_is_left_alone_and_a_dead_one_needs_no_hands(start, tiny, compiler, load_program, capsys):
    compiler.set(before="sleep 60")
    child = start(load_program, "tiny", tiny())
    compiler.wait_for(1)
    status, found = told(capsys)
    assert status == 0
    assert re.search(r"since \d\d:\d\d:\d\d \(\d+ s\); leave it alone", found["builds"][0]["says"])
    child.kill(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert f"kill -CONT {child.pid}" in told(capsys)[1]["builds"][0]["remedy"]
    child.kill(signal.SIGKILL)
    child.wait()
    status, found = told(capsys)
    assert status == 1
    assert re.search(r"began at \d\d:\d\d:\d\d", found["leftovers"][0]["says"])
    assert "died while it built" in found["leftovers"][0]["says"]
    assert "delete" not in json.dumps(found)
    assert "rm " not in json.dumps(found)


def test_cuda_without_a_gpu_asks_for_the_architectures(monkeypatch, capsys, tmp_path):
    """Case 84."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 12.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("nodecache.cuda._devices", lambda root: [])
    monkeypatch.setattr("nodecache.doctor.cuda_home", lambda: None)
    status, found = told(capsys)
    assert status == 0
    assert "TORCH_CUDA_ARCH_LIST" in found["cuda"][-1]["remedy"]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0 9.0")
    assert "compiles for sm_80 sm_90" in told(capsys)[1]["cuda"][-1]["says"]
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "fast")
    status, found = told(capsys)
    assert (status, wrong(found)) == (1, {"cuda"})


def test_ranks_are_told_as_they_are_understood(monkeypatch, capsys):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "abc")):
        monkeypatch.setenv(name, value)
    _, found = told(capsys)
    assert "rank 3" in found["node"][0]["says"]
    assert "LOCAL_RANK='abc'" in found["node"][1]["says"]
    assert found["node"][1]["level"] == "note"


def test_a_compiler_with_a_newer_cpp_library_than_pythons_is_noted(monkeypatch, capsys, tmp_path):
    assert told(capsys)[1]["libstdc++"][0]["level"] == "good"
    newer = tmp_path / "libstdc++.so.6"
    newer.write_bytes(b"\x7fELF\0GLIBCXX_3.4.9\0GLIBCXX_3.4.9999\0")
    wrapper = tmp_path / "newer-c++"
    wrapper.write_text(f'#!/bin/sh\ncase "$1" in -print-file-name=*) echo {newer} ;; *) exec c++ "$@" ;; esac\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    (finding,) = told(capsys)[1]["libstdc++"]
    assert finding["level"] == "note"
    assert f"GLIBCXX_3.4.9999 ({newer})" in finding["says"]
    assert "-static-libstdc++" in finding["remedy"]


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({}, "the default, below HOME"),
        ({"TRITON_HOME": "{net}"}, "TRITON_HOME"),
        ({"TRITON_CACHE_DIR": "{net}/t"}, "TRITON_CACHE_DIR"),
    ],
    ids=["default", "TRITON_HOME", "TRITON_CACHE_DIR"],
)
def test_tritons_cache_on_a_network_is_named_with_who_chose_it_and_the_file_systems_type(
    variables, source, tmp_path, monkeypatch, capsys
):
    net = tmp_path / "net"
    (net / ".triton/cache").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(net if not variables else tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(net=net))
    real = lock.file_system
    monkeypatch.setattr(lock, "file_system", lambda path: "nfs4" if str(path).startswith(str(net)) else real(path))
    status, found = told(capsys)
    (finding,) = found["triton"]
    assert (status, finding["level"]) == (0, "note")
    assert f"({source})" in finding["says"]
    assert "(nfs4)" in finding["says"]
    assert "TRITON_CACHE_DIR" in finding["remedy"]


def test_tritons_cache_is_not_mentioned_where_it_is_on_a_local_disk_behind_a_link(tmp_path, monkeypatch, capsys):
    net, local = tmp_path / "net", tmp_path / "local"
    net.mkdir()
    local.mkdir()
    (net / ".triton").symlink_to(local)
    monkeypatch.setenv("HOME", str(net))
    real = lock.file_system
    monkeypatch.setattr(lock, "file_system", lambda path: "nfs4" if str(path).startswith(str(net)) else real(path))
    _, found = told(capsys)
    assert "home" in found
    assert "triton" not in found
