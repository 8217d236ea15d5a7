"""What a file, the environment or a tool said cannot steer the terminal on which it is shown."""

from __future__ import annotations

import json
import logging
import pickle
import re

import pytest

import nodecache
from nodecache import errors, tables
from nodecache.__main__ import main
from nodecache.printable import logger, one_line, printable
from tests.conftest import REPOSITORY

HOSTILE = "\x1b]0;owned\x07\x1b[2Jnode\r\u202e\x9b1mx\udcff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字\twith tab\nand line", "plain äöü 漢字\twith tab\nand line"),
        ("\x1b[01;31m\x1b[Kerror:\x1b[m\x1b[K no", "error: no"),
        ("\x1b]8;;https://gcc.gnu.org/\x07-Wall\x1b]8;;\x07", "-Wall"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("one\r\ntwo\rthree", "one\ntwo\\x0dthree"),
        ("\x9b31m\x85", "\\x9b31m\\x85"),
        ("a\u202eb\u2066c\u2028", "a\\u202eb\\u2066c\\u2028"),
        ("caf\udce9 \ud800 \U000e0041", "caf\\xe9 \\ud800 \\U000e0041"),
    ],
)
def test_controls_become_readable_and_decoration_goes(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown
    shown.encode()


def test_a_cell_is_one_line():
    assert one_line("a\nb\tc\x1b[2J") == "a\\nb\\tc\\x1b[2J"


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_every_exception_has_a_printable_text_and_survives_pickling(kind):
    error = kind(f"cause {HOSTILE}")
    assert str(error) == f"cause {printable(HOSTILE)}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_log_records_are_printable(caplog):
    logger().warning("host %s", HOSTILE)
    logger().warning("nothing to clean: %d", 3)
    assert caplog.messages == [f"host {printable(HOSTILE)}", "nothing to clean: 3"]
    assert logger().filters == logging.getLogger("nodecache").filters


def test_all_code_logs_through_the_logger_that_cleans():
    others = [
        path.name
        for path in (REPOSITORY / "nodecache").glob("*.py")
        if path.name != "printable.py" and "getLogger(" in path.read_text()
    ]
    assert others == []


def test_a_table_shows_what_it_was_given_in_one_line_each(capsys):
    tables.show(["name"], [[HOSTILE + "\n"]])
    assert capsys.readouterr().out == f"name\n{printable(HOSTILE)}\\n\n"


@pytest.mark.parametrize("command", ["show", "explain", "list", "log", "history", "report", "status", "doctor"])
def test_no_command_prints_a_control_that_a_file_of_the_root_holds(command, tiny, root, capsys):
    nodecache.load("tiny", [tiny()])
    (manifest,) = root.glob("entries/*/manifest.json")
    said = json.loads(manifest.read_text())
    said["builder"]["host"] = said["name"] = HOSTILE
    said["items"][0][1] += HOSTILE
    manifest.chmod(0o600)
    manifest.write_text(json.dumps(said))
    log = manifest.parent / "build.log"
    log.chmod(0o600)
    log.write_bytes(b"\x1b[2J\x1b]0;owned\x07\r")
    lines = (root / "attempts/history").read_text().splitlines()
    for line in lines:
        event = {**json.loads(line), "host": HOSTILE, "name": HOSTILE}
        (root / "attempts/history").write_text(json.dumps(event) + "\n")
    key = [manifest.parent.name] if command in ("show", "explain", "log") else []
    main([command, *key])
    told = capsys.readouterr()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\udcff]", told.out + told.err)


def test_a_compilers_escape_sequences_reach_no_message(tiny, compiler):
    compiler.set(instead=r'printf "tiny.cpp:1:1: error: \033[2J\033]0;owned\007 bad\n"; exit 1')
    with pytest.raises(nodecache.BuildError) as failure:
        nodecache.load("tiny", [tiny()])
    for text in (str(failure.value), failure.value.first_error):
        assert "owned\\x07" in text
        assert not re.search("[\x07\x1b]", text)
