"""Processes of one node whose roots have one path and are different folders say so; nobody else does."""

from __future__ import annotations

import os
import subprocess

import pytest

from nodecache import elsewhere
from tests.testbed.requirements import needs

PRIVATE = 'mount -t tmpfs -o mode=1777 private /var/tmp && exec "$@"'


@pytest.fixture
def private():
    """A prefix that gives a process a /var/tmp of its own, as containers give a /tmp."""
    needs("unshare", "mount", root=True)
    return ("unshare", "--mount", "--propagation=private", "sh", "-c", PRIVATE, "sh")


def test_of_four_processes_with_a_private_folder_each_all_but_the_first_name_the_cause_and_the_remedy(
    start, tiny, compiler, load_program, private, tmp_path
):
    go = tmp_path / "go"
    compiler.set(before=f"until [ -e {go} ]; do sleep 0.05; done")
    env = {"NODECACHE_ROOT": "/var/tmp/nodecache_test"}
    source = tiny()
    children = [start(load_program, "tiny", source, env=env, prefix=private) for _ in range(4)]
    compiler.wait_for(4)
    go.touch()
    done = [child.wait(60) for child in children]
    assert [each.json["role"] for each in done] == ["built"] * 4
    assert sorted(bool(each.err) for each in done) == [False, True, True, True]
    for each in done:
        if each.err:
            (line,) = each.err.splitlines()
            assert "building 'tiny' too, in another folder that it also sees as /var/tmp/nodecache_test" in line
            assert "a private /var/tmp each" in line
            assert "NODECACHE_ROOT" in line


@pytest.mark.parametrize("roots", [("a", "a"), ("a", "b")], ids=["one root", "two paths"])
def test_processes_that_share_a_root_or_were_given_different_ones_say_nothing(
    start, tiny, compiler, load_program, tmp_path, roots
):
    go = tmp_path / "go"
    compiler.set(before=f"until [ -e {go} ]; do sleep 0.05; done")
    source = tiny()
    children = [start(load_program, "tiny", source, env={"NODECACHE_ROOT": str(tmp_path / each)}) for each in roots]
    compiler.wait_for(len(set(roots)))
    go.touch()
    done = [child.wait(60) for child in children]
    assert not any("another process" in each.err for each in done)
    assert compiler.compiles == len(set(roots))


FORKS = """\
import os, shutil, signal, nodecache
children = []
def build(folder):
    pid = os.fork()
    if not pid:
        signal.pause()
    children.append(pid)
for _ in range(2):
    nodecache.get_or_build("folder", inputs={}, build=build)
    os.rename(os.environ["NODECACHE_ROOT"], os.environ["NODECACHE_ROOT"] + str(len(children)))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(len(children))
"""


def test_a_child_that_was_forked_during_the_build_does_not_keep_the_names(start):
    """The second build is in another folder of the same path, while the first one's child lives."""
    done = start(FORKS).wait(60)
    assert (done.status, done.out, done.err) == (0, "2\n", "")


def test_without_sockets_a_build_goes_on(start, tiny, load_program):
    needs("strace")
    how = (
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=socket",
        "-e",
        "inject=socket:error=EPERM",
    )
    done = start(load_program, "tiny", tiny(), prefix=how).wait(60)
    assert (done.json["role"], done.err) == ("built", "")


def test_only_places_where_code_may_run_and_this_user_may_write_are_named(monkeypatch, tmp_path):
    needs("mount", root=True)
    places = {name: tmp_path / name for name in ("good", "noexec", "read-only", "same")}
    for name, place in places.items():
        place.mkdir()
        options = {"good": "mode=1777", "noexec": "noexec", "read-only": "ro"}.get(name)
        if options:
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", place], check=True)
    try:
        monkeypatch.setattr(elsewhere, "_SHARED", (*map(str, places.values()), "/nowhere"))
        assert elsewhere._candidates(str(tmp_path)) == f" (if it is shared, {places['good']}/nodecache_{os.getuid()})"
    finally:
        for name in ("good", "noexec", "read-only"):
            subprocess.run(["umount", places[name]], check=True)
