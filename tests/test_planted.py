"""Things in a root that do not belong there: each costs at most what it stands for, and every command goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nodecache
from nodecache.__main__ import main

KEYS = [character * 40 for character in "abcdef"]


@pytest.fixture
def planted(root, tiny):
    """A root with one good entry and six kinds of wreckage beside it."""
    good = nodecache.load("tiny", [tiny()]).__nodecache__
    entries, recipes = root / "entries", root / "recipes"
    (entries / KEYS[0]).mkdir(mode=0o700)  # a folder without a manifest
    shutil.copytree(entries / good.key, entries / KEYS[1])  # a manifest without its file
    (entries / KEYS[1] / "tiny.so").unlink()
    (entries / KEYS[2]).write_text("a file where a folder should be")
    shutil.copytree(entries / good.key, entries / KEYS[3])  # a manifest that is there twice
    manifest = entries / KEYS[3] / "manifest.json"
    manifest.chmod(0o600)
    manifest.write_text(manifest.read_text() * 2)
    (recipe,) = recipes.iterdir()
    (good_record,) = recipe.iterdir()
    (recipe / f"{good_record.name[:20]}-{KEYS[4]}").write_bytes(b"")
    (recipe / f"{good_record.name[:20]}-{KEYS[5]}").write_bytes(good_record.read_bytes() + b"{}")
    return good


def test_with_wreckage_in_the_root_hits_and_builds_go_on(planted, tiny, start, load_program, root):
    assert start(load_program, "tiny", tiny()).wait().json["role"] == "hit"
    assert start(load_program, "other", tiny("other")).wait().json["role"] == "built"
    assert start(load_program, "other", tiny("other")).wait().json["role"] == "hit"


@pytest.mark.parametrize(
    "command",
    [["status"], ["list"], ["stats"], ["history"], ["show", "tiny"], ["verify"], ["doctor"]],
    ids=lambda words: words[0],
)
def test_with_wreckage_in_the_root_no_command_ends_in_a_traceback(planted, command, start):
    ended = start(f"import sys; from nodecache.__main__ import main; sys.exit(main({command!r}))").wait(60)
    assert "Traceback" not in ended.err
    assert ended.status in (0, 1), ended.err


def test_verify_lists_what_is_damaged_and_prune_removes_it(planted, root, capsys):
    assert main(["verify"]) == 1
    said = capsys.readouterr().out
    assert all(key[:8] in said for key in KEYS[:4])
    main(["prune", "--max-size", "1GB"])
    left = {path.name for path in (root / "entries").iterdir()}
    assert left == {planted.key}, capsys.readouterr().out


def test_two_formats_share_a_root_and_neither_opens_what_the_other_made(root, tiny, start, load_program):
    """As two versions of nodecache on one node would."""
    newer = "import nodecache.recipe, nodecache.index\nnodecache.recipe.FORMAT += 'x'\nnodecache.index._HEAD += b'x'\n"
    other = f"{newer}{load_program}"
    source = tiny()
    first = start(load_program, "tiny", source).wait().json
    second = start(other, "tiny", source).wait().json
    assert (first["role"], second["role"]) == ("built", "built")
    assert first["key"] != second["key"]
    assert start(load_program, "tiny", source).wait().json == {
        **first,
        "role": "hit",
        "seconds": pytest.approx(0, abs=60),
    }
    assert start(other, "tiny", source).wait().json["role"] == "hit"
    assert {path.name for path in (root / "entries").iterdir()} == {first["key"], second["key"]}


def test_a_user_without_a_name_or_a_home_gets_a_root_with_missing_parents_and_writes_nowhere_else(
    tmp_path, tiny, load_program
):
    """A pod with a read-only root, a random uid and one writable volume."""
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 12345, 12345)
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp") and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    source = tiny()
    Path(source).parent.chmod(0o755)
    Path(source).chmod(0o644)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TMPDIR"},
        "HOME": "/",
        "NODECACHE_ROOT": str(volume / "a/b/c"),
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    command = [
        "setpriv",
        "--reuid=12345",
        "--regid=12345",
        "--clear-groups",
        sys.executable,
        "-c",
        load_program,
        "tiny",
        str(source),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["role"] == "built"
    assert (volume / "a/b/c/entries").stat().st_uid == 12345
    os.chown(volume, 0, 0)
    environment["NODECACHE_ROOT"] = str(volume / "d/e")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "NODECACHE_ROOT" in done.stderr.splitlines()[-1]
    assert not Path("/tmp/nodecache_12345").exists()


def test_an_index_record_with_something_behind_it_is_a_miss(root, tiny, start, load_program):
    source = tiny()
    start(load_program, "tiny", source).wait()
    (record,) = (root / "recipes").glob("*/*")
    record.write_bytes(record.read_bytes() + b"{}")
    assert start(load_program, "tiny", source).wait().json["role"] == "built"
