"""``nodecache status``: what is being built, by whom, and who waits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest

from nodecache.__main__ import main

RANK3 = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
WATCH = "import sys; from nodecache.__main__ import main; sys.exit(main(['status', '--watch', '--interval', '0.1']))"


def told(capsys, *words):
    """Exit status and builds."""
    status = main(["status", "--json", *words])
    return status, json.loads(capsys.readouterr().out)["builds"]


def test_an_empty_root_has_no_builds(capsys, root):
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": str(root), "builds": []}


def test_a_running_build_is_told_with_its_builder_step_and_command(start, tiny, compiler, load_program, capsys):
    compiler.set(before="sleep 60")
    child = start(load_program, "tiny", tiny(), env=RANK3)
    compiler.wait_for(1)
    status, (build,) = told(capsys)
    assert status == 0
    assert (build["pid"], build["name"], build["state"], build["rank"]) == (child.pid, "tiny", "running", 3)
    assert build["step"] == "step 1 of 2: compile tiny.cpp"
    (command,) = build["commands"]
    assert command.startswith(str(compiler.path))
    assert command.endswith("-c src/0/tiny.cpp -o obj/0.o")
    assert os.path.exists(build["log"])
    child.kill()
    child.wait()
    assert main(["status"]) == 1
    out = capsys.readouterr().out
    assert f"pid {child.pid} (rank 3)" in out
    assert "dead" in out
    assert "nothing to delete" in out


def test_waiters_are_counted(start, tiny, compiler, load_program, capsys, wait_until):
    compiler.set(before="sleep 60")
    source = tiny()
    first = start(load_program, "tiny", source)
    compiler.wait_for(1)
    assert told(capsys)[1][0]["waiters"] == 0
    others = [start(load_program, "tiny", source) for _ in range(3)]
    wait_until(lambda: told(capsys)[1][0]["waiters"] == 3, 20, "three waiters")
    others[0].kill()
    others[0].wait()
    assert told(capsys)[1][0]["waiters"] == 2
    first.kill()


def test_a_stopped_builder_is_told_from_a_running_and_a_dead_one(start, tiny, compiler, load_program, capsys):
    compiler.set(before="sleep 60")
    child = start(load_program, "tiny", tiny())
    compiler.wait_for(1)
    child.kill(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    status, (build,) = told(capsys)
    assert (status, build["state"]) == (3, "stopped")
    child.kill(signal.SIGCONT)
    child.kill()


BLOCKS = """\
import os, sys
os.mkfifo("blocks")
# The parent is blocked in the kernel until its child has executed a program, and the child waits for somebody to write.
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "blocks", os.O_RDONLY, 0)])
"""


@pytest.mark.parametrize("state", ["stopped", "blocked"])
def test_a_compiler_that_cannot_go_on_is_told_with_its_pid_its_cpu_time_and_the_age_of_its_output(
    state, start, tiny, compiler, load_program, capsys, tmp_path, wait_until
):
    (tmp_path / "blocks.py").write_text(BLOCKS)
    compiler.set(before="kill -STOP $$" if state == "stopped" else f"exec {sys.executable} {tmp_path / 'blocks.py'}")
    child = start(load_program, "tiny", tiny())
    compiler.wait_for(1)
    pid = int(compiler.counter.read_text().split()[0])

    def halted():
        (build,) = told(capsys)[1]
        return [build["processes"][0], build["output_age"]] if build["processes"][0]["state"] == state else None

    wait_until(halted, 20, f"process that is {state}")
    process, age = halted()
    assert process["pid"] == pid
    assert 0 <= process["cpu_seconds"] < 5
    assert 0 <= age < 60
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    how = {"stopped": f"stopped (kill -CONT {pid} continues it)", "blocked": "blocked in the kernel"}[state]
    assert re.search(rf"  process  \S+ \(pid {pid}\) {re.escape(how)}.*, \d+\.\d s of CPU time\n", out)
    assert re.search(r"  output   last \d+ s ago\n", out)
    child.kill()
    child.wait()
    assert main(["status"]) == 1
    assert "output" not in capsys.readouterr().out


def test_a_compiler_at_work_is_told_with_its_cpu_time(start, tiny, compiler, load_program, capsys, wait_until):
    compiler.set(before=f"exec {sys.executable} -c 'while True: pass'")
    child = start(load_program, "tiny", tiny())
    compiler.wait_for(1)
    pid = int(compiler.counter.read_text().split()[0])
    wait_until(lambda: told(capsys)[1][0]["processes"][0]["cpu_seconds"] > 0.2, 30, "CPU time")
    (process,) = told(capsys)[1][0]["processes"]
    assert (process["pid"], process["state"]) == (pid, "running")
    child.kill()


def test_processes_that_end_while_they_are_read_or_are_hidden_are_left_out(
    monkeypatch, start, tiny, compiler, wait_until
):
    from nodecache import activity
    from nodecache.root import open_root
    from nodecache.status import builds

    compiler.set(before="sleep 60")
    child = start("import sys, nodecache; nodecache.load('tiny', sys.argv[1:])", tiny())
    compiler.wait_for(1)
    read = activity.read_bytes

    def hidden(path):
        if path != f"/proc/{child.pid}/stat" and path.startswith("/proc/"):
            raise PermissionError(path) if path.endswith("environ") else ProcessLookupError(path)
        return read(path)

    def programs():
        return [process.program for process in builds(open_root())[0].processes]

    wait_until(lambda: programs() == ["sleep"], 20, "compiler")
    with monkeypatch.context() as kernel:
        kernel.setattr(activity.os.path, "exists", lambda _: False)  # it has no lists of children
        assert programs() == ["sleep"]
    monkeypatch.setattr(activity, "read_bytes", hidden)
    assert programs() == []
    child.kill()


def test_status_reads_only(start, tiny, compiler, load_program, capsys, root):
    compiler.set(before="sleep 60")
    child = start(load_program, "tiny", tiny())
    compiler.wait_for(1)

    def listing():
        return sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*"))

    before = listing()
    assert main(["status"]) == 0
    assert listing() == before
    child.kill()


def test_watch_goes_on_until_it_is_interrupted_and_tells_of_each_change(
    start, tiny, compiler, load_program, wait_until
):
    compiler.set(before="sleep 60")
    watch = start(WATCH)
    wait_until(lambda: "Nothing is being built" in watch.out, 20, "first look")
    child = start(load_program, "tiny", tiny())
    wait_until(lambda: "step 1 of 2: compile tiny.cpp" in watch.out, 20, "the build")
    child.kill()
    child.wait()
    wait_until(lambda: "dead" in watch.out, 20, "its death")
    watch.kill(signal.SIGINT)
    result = watch.wait()
    assert (result.status, result.err) == (1, "")
    assert result.out.count("Nothing is being built") == 1


def test_watched_as_json_each_look_is_a_document_on_a_line(start, root, wait_until):
    watch = start(WATCH.replace("'--watch'", "'--watch', '--json'"))
    wait_until(lambda: watch.out.count("\n") >= 2, 20, "two looks")
    watch.kill(signal.SIGINT)
    result = watch.wait()
    assert (result.status, result.err) == (0, "")
    assert [json.loads(line) for line in result.out.splitlines()[:2]] == [{"root": str(root), "builds": []}] * 2


def test_on_a_terminal_long_commands_are_cut_to_its_columns():
    from nodecache.status import _cut

    command = f"/usr/bin/c++ {'-I/a/long/folder ' * 20}-c src/0/a.cpp -o obj/0.o"
    assert _cut(command, None) == command
    short = _cut(command, 80)
    assert len(short) + len("  command  ") <= 80
    assert short.startswith("/usr/bin/c++ ... ")
    assert short.endswith("-c src/0/a.cpp -o obj/0.o")


def test_a_builder_that_died_after_publishing_has_finished(start, tiny, load_program, capsys):
    """Its module aborts while it is initialized: the entry is whole all the same."""
    source = tiny(extra="#include <stdlib.h>\nstatic int dead = (abort(), 0);")
    child = start(load_program, "tiny", source)
    assert child.wait(60).status == -signal.SIGABRT, child.err
    status, found = told(capsys)
    assert status == 0
    assert [build["state"] for build in found] == ["finished"]
    assert main(["doctor", "--json"]) == 0
    assert "died while it built" not in capsys.readouterr().out
