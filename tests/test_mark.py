"""A folder is a root by its own mark; without it nothing is made, and nothing deleted."""

from __future__ import annotations

import os
import re
import shutil

import pytest

import nodecache
from nodecache import mark
from nodecache.__main__ import main
from nodecache.errors import RootError
from nodecache.root import open_root

HEX = "0123456789" * 4
FOREIGN = ["attempts/run1/result.txt", f"entries/{HEX}/blob", "entries/2024.pruned/diary", "leases/notes", "diary"]


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("file", FOREIGN)
def test_a_folder_of_the_users_own_is_refused_and_nothing_in_it_changes(file, tiny, root, capsys):
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("mine")
    root.chmod(0o700)
    before = listing(root)
    with pytest.raises(RootError, match=rf"{root}.* is not nodecache's: it has .*NODECACHE_ROOT"):
        nodecache.load("tiny", [tiny()])
    assert main(["prune", "--all"]) == 2
    assert "is not nodecache's" in capsys.readouterr().err
    assert listing(root) == before


@pytest.mark.parametrize("file", [file for file in FOREIGN if "/" in file and HEX not in file])
def test_prune_leaves_names_alone_that_nodecache_does_not_make(file, tiny, root):
    nodecache.load("tiny", [tiny()])
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("mine")
    os.utime((root / file).parent, (0, 0))
    os.utime(root / file, (0, 0))
    assert main(["prune", "--all"]) == 0
    assert (root / file).read_text() == "mine"


@pytest.mark.parametrize("made", [True, False])
def test_a_new_or_empty_folder_gets_a_mark_and_the_tag_of_a_cache(made, root):
    if made:
        root.mkdir(0o700)
    open_root()
    assert re.fullmatch(r"nodecache-root 1 [0-9a-f]{32}\n", (root / mark.NAME).read_text())
    assert (root / mark.TAG).read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert len(listing(root)) == 2


def test_a_look_at_an_empty_folder_marks_nothing(root, capsys):
    root.mkdir(0o700)
    assert main(["list"]) == 0
    assert main(["prune", "--all"]) == 0
    assert listing(root) == []


def test_a_root_of_a_version_that_made_no_mark_is_adopted(tiny, root):
    nodecache.load("tiny", [tiny()])
    (root / mark.NAME).unlink()
    nodecache.extension._modules.clear()
    assert nodecache.load("tiny", [tiny()]).__nodecache__.role == "hit"
    assert (root / mark.NAME).exists()


def test_nothing_is_deleted_under_a_mark_that_is_not_nodecaches(tiny, root, capsys):
    nodecache.load("tiny", [tiny()])
    (root / mark.NAME).write_text("")
    assert main(["prune", "--all"]) == 2
    assert mark.NAME in capsys.readouterr().err
    assert len(list((root / "entries").iterdir())) == 1


def test_many_processes_make_one_mark(start, root):
    code = """\
import sys, os
from nodecache.root import open_root, ensure_folders
while not os.path.exists(sys.argv[1]):
    pass
for number in range(10):
    root = open_root()
    ensure_folders(root)
    print(open(root.at("nodecache-root")).read().strip())
"""
    children = [start(code, root.parent / "begin") for _ in range(16)]
    (root.parent / "begin").touch()
    ends = [child.wait() for child in children]
    assert [end.err for end in ends if end.status] == []
    assert len({line for end in ends for line in end.out.splitlines()}) == 1
    assert not list(root.glob("*.tmp"))


def test_what_a_process_leaves_that_was_killed_while_it_marked_is_no_hindrance(root):
    root.mkdir(0o700)
    (root / f"{mark.NAME}.0123456789ab.tmp").write_text("")
    open_root()
    shutil.rmtree(root)


def test_prune_says_removed_only_of_what_is_gone(tiny, root, capsys):
    nodecache.load("tiny", [tiny()])
    (root / "entries" / HEX).write_text("a file where a folder should be")
    main(["prune", "--all"])
    told = capsys.readouterr().out
    assert (f"removed {HEX[:12]}" in told) == (not (root / "entries" / HEX).exists())
    assert not list((root / "entries").iterdir())
