"""``nodecache status``: what is being built, and by whom."""

from __future__ import annotations

import json
import os

from nodecache.__main__ import main


def test_an_empty_root_has_no_builds(capsys, root):
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": str(root), "builds": []}


def test_a_running_build_is_told_with_its_builder_and_step(start, tiny, compiler, load_program, capsys):
    compiler.set(before="sleep 60")
    child = start(
        load_program, "tiny", tiny(), env={"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
    )
    compiler.wait_for(1)
    assert main(["status", "--json"]) == 0
    (build,) = json.loads(capsys.readouterr().out)["builds"]
    assert (build["pid"], build["name"], build["state"], build["rank"]) == (child.pid, "tiny", "running", 3)
    assert build["step"] == "step 1 of 2: compile tiny.cpp"
    assert os.path.exists(build["log"])
    child.kill()
    child.wait()
    assert main(["status"]) == 1
    assert f"pid {child.pid} (rank 3)" in capsys.readouterr().out
