"""The command line: every command, in a pipe and in a bare install, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import click
import pytest

import nodecache
from nodecache import cli, contents, plain
from nodecache.__main__ import main

BARE = """\
import sys
sys.modules["click"] = sys.modules["rich"] = None  # as if they were not installed
from nodecache.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def command(capsys):
    """Run a command in this process: ``command("list") -> (status, out, err)``."""

    def run(*words):
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.mark.parametrize("name", sorted(cli.app.commands))
def test_each_command_has_help_on_lines_of_80_columns(name, command):
    status, out, _ = command(name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: nodecache {name}")
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_of_commands_is_not_cut(command):
    status, out, _ = command("--help")
    assert status == 0
    assert set(re.findall(r"^  ([a-z]+)  ", out, re.MULTILINE)) >= set(cli.app.commands)
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize("words", [["lisst"], ["list", "--nope"], ["show"], ["prune"], ["run"], ["run", "-m"]])
def test_a_wrong_call_ends_with_2_and_says_why(words, command):
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["list", "stats", "history", "verify", "status", "report"])
def test_before_anything_was_built_a_command_says_so_and_makes_nothing(name, command, root):
    status, out, _ = command(name)
    assert status == 0
    assert out
    assert not root.exists()


@pytest.mark.parametrize("words", [["status"], ["list"], ["prune", "--all"], ["history"], ["doctor"], ["show", "x"]])
def test_a_folder_that_is_no_root_is_refused_and_left_alone(words, command, root):
    root.mkdir(mode=0o755)
    (root / "thesis.tex").write_text("years of work")
    status, out, err = command(*words)
    assert status == (1 if words == ["doctor"] else 2)
    assert "thesis.tex" in out + err
    assert "NODECACHE_ROOT" in out + err
    assert [entry.name for entry in root.iterdir()] == ["thesis.tex"]
    assert root.stat().st_mode & 0o777 == 0o755


def test_an_entry_is_found_by_name_key_and_first_digits(command, tiny):
    key = nodecache.load("tiny", [tiny()]).__nodecache__.key
    for word in ("tiny", key, key[:6]):
        status, out, _ = command("show", word, "--json")
        assert status == 0
        assert json.loads(out)["key"] == key
    status, _, err = command("show", "nope")
    assert status == 2
    assert "No entry" in err
    assert len(err.splitlines()) == 1


def test_digits_that_begin_several_keys_are_refused(command, tiny):
    first = {}
    for number in range(40):
        module = nodecache.load(f"m{number}", [tiny(f"m{number}")]) if number < 17 else None
        if module is None:
            break
        first.setdefault(module.__nodecache__.key[0], []).append(number)
    digit = next(digit for digit, numbers in first.items() if len(numbers) > 1)  # 17 keys, 16 digits
    status, _, err = command("show", digit)
    assert status == 2
    assert "Give more of it" in err


def test_a_list_in_a_pipe_is_not_cut(command, tiny):
    name = "n" * 190
    nodecache.load(name, [tiny(name)])
    status, out, _ = command("list")
    assert status == 0
    assert name in out
    assert json.loads(command("list", "--json")[1])[0]["name"] == name
    key = command("list", "--full")[1].splitlines()[1].split()[0]
    assert re.fullmatch("[0-9a-f]{40}", key)


def test_show_tells_files_steps_and_builder(command, tiny):
    nodecache.load("tiny", [tiny()])
    _, out, _ = command("show", "tiny")
    for part in (f"pid {os.getpid()}", "tiny.so", "build.log", "compile tiny.cpp", "link tiny.so"):
        assert part in out


def test_log_is_of_the_newest_build_and_survives_a_failure(command, tiny):
    source = tiny()
    nodecache.load("tiny", [source])
    assert "> step 1 of 2: compile tiny.cpp" in command("log", "tiny")[1]
    source.write_text(source.read_text().replace("a + b", "a +"))
    with pytest.raises(nodecache.BuildError) as caught:
        nodecache.load("tiny", [source])
    status, out, _ = command("log", "tiny")
    assert status == 0
    assert "error: " in out
    assert command("log", "tiny", "--path")[1].strip() == caught.value.log
    assert command("log", caught.value.attempt)[1] == out
    assert command("log", "nope")[0] == 2


def test_a_log_has_each_command_once_and_no_shell(command, tiny):
    nodecache.load("tiny", [tiny()])
    _, out, _ = command("log", "tiny")
    assert out.count("-c src/0/tiny.cpp") == 1
    assert "exit $s" not in out


def test_explain_names_what_differs(command, tiny):
    source = tiny()
    nodecache.load("tiny", [source], extra_cflags=["-DN=1"])
    nodecache.load("tiny", [source], extra_cflags=["-DN=2"])
    status, out, _ = command("explain", "tiny")
    assert status == 0
    assert "-DN=1" in out
    assert "-DN=2" in out


def test_verify_finds_a_flipped_byte_and_says_what_becomes_of_it(command, tiny, root):
    nodecache.load("tiny", [tiny()])
    assert command("verify")[0] == 0
    (entry,) = (root / "entries").iterdir()
    file = entry / "tiny.so"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()  # this process has mapped it
    file.write_bytes(data)
    status, out, _ = command("verify")
    assert status == 1
    assert "tiny: tiny.so has another digest. The next call that needs it builds it anew." in out
    assert command("verify", "tiny")[0] == 1


def test_status_warm_and_run_need_neither_click_nor_rich(start, tiny, tmp_path):
    status = start(BARE, "status", "--json").wait()
    assert (status.status, json.loads(status.out)["builds"]) == (0, [])
    assert start(BARE, "status").wait().status == 0
    warm = start(BARE, "warm", tiny()).wait()
    assert warm.status == 0, warm.err
    assert "built" in warm.out
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:], __name__)")
    run = start(BARE, "run", tmp_path / "program.py", "--json", "-x").wait()
    assert (run.status, run.out) == (0, "['--json', '-x'] __main__\n")


@pytest.mark.parametrize("name", sorted(set(cli.app.commands) - set(plain.COMMANDS)))
def test_every_other_command_says_in_one_line_what_to_install(name, start):
    result = start(BARE, name).wait()
    assert (result.status, result.out) == (2, "")
    assert result.err == f"nodecache: {name} needs click and rich. Install them: pip install 'nodecache[cli]'\n"


def test_run_does_not_import_click(start, tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(sorted({'click', 'rich'} & set(sys.modules)))")
    code = "import sys; from nodecache.__main__ import main; sys.exit(main(sys.argv[1:]))"
    result = start(code, "run", tmp_path / "program.py").wait()
    assert (result.status, result.out) == (0, "[]\n"), result.err


def test_keys_and_names_are_completed(start, tiny):
    key = nodecache.load("tiny", [tiny()]).__nodecache__.key
    code = "from nodecache.__main__ import main; main([])"

    def complete(words, number):
        environment = {"_NODECACHE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        return start(code, env=environment).wait().out.split()

    assert complete("nodecache show ti", 2) == ["plain,tiny"]
    assert complete(f"nodecache trace {key[:5]}", 2) == [f"plain,{key}"]
    assert complete("nodecache pru", 1) == ["plain,prune"]
    assert complete("nodecache prune --old", 2) == ["plain,--older-than"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(shell, command):
    status, out, _ = command("completion", shell)
    assert status == 0
    assert "_NODECACHE_COMPLETE" in out


def test_a_reader_that_leaves_early_gets_no_traceback(tiny, tmp_path):
    nodecache.load("tiny", [tiny()])
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from nodecache.__main__ import main; sys.exit(main(['report']))"
    with open(tmp_path / "err", "wb") as err:
        done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=err, timeout=60, check=False)
    os.close(writer)
    assert (tmp_path / "err").read_text() == ""
    assert done.returncode in (0, 1)  # click's own answer is 1


def test_a_root_that_others_can_write_to_is_one_line_and_2(command, tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "root").mkdir()
    monkeypatch.setenv("NODECACHE_ROOT", str(tmp_path / "open" / "root"))
    status, out, err = command("list")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "others may write" in err


def test_every_option_has_help():
    for name, each in cli.app.commands.items():
        for parameter in each.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", ["status", "list"])
@pytest.mark.parametrize(
    ("output", "status", "said"),
    [(">/dev/full", 2, "The output cannot be written: No space left on device"), (">&-", 0, ""), ("| true", None, "")],
)
def test_an_output_that_takes_nothing_is_told_without_a_traceback(name, output, status, said, root):
    shell = f'"{sys.executable}" -m nodecache {name} {output}'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert status in (None, done.returncode)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "inf", "nan", "x"])
def test_an_interval_that_is_none_is_refused(command, interval):
    status, _, err = command("status", "--watch", "--interval", interval)
    assert status == 2
    assert "--interval" in err


def test_a_name_made_of_hex_digits_is_the_name_and_not_the_beginning_of_a_key(command, tiny, caplog):
    other = nodecache.load("tiny", tiny()).__nodecache__.key
    digit = next(each for each in "abcdef" if each in other)
    name = other[:1] if other[0] in "abcdef" else digit
    mine = nodecache.load(name, tiny(name)).__nodecache__.key
    assert command("show", name)[1].splitlines()[1].split() == ["key", mine]
    assert mine in command("log", name, "--path")[1]
    assert command("explain", name)[0] == 0
    assert ("is a name, and" in caplog.text) == other.startswith(name)
    assert command("show", other)[1].splitlines()[1].split() == ["key", other]


def test_a_name_that_also_begins_a_key_is_said_to_be_one(tiny, monkeypatch, caplog, root):
    """The keys are made up, so that one certainly begins with the other's name."""
    nodecache.load("ad", tiny("ad"))
    held = contents.entries(contents.find_root())
    other = held[0]._replace(name="tiny", key=f"ad{held[0].key[2:]}")
    monkeypatch.setattr(contents, "entries", lambda _: [other, held[0]])
    assert contents.find_entry(None, "ad") is held[0]
    assert "1 keys of other names begin so" in caplog.text
    assert contents.find_entry(None, other.key) is other


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize(
    "words", [["report"], ["report", "-o", "page.html"], ["list"], ["status"], ["stats"], ["doctor"]], ids=" ".join
)
def test_a_root_with_odd_bytes_in_its_name_is_printed_in_any_locale(tmp_path, tiny, words, locale):
    place = os.fsencode(tmp_path) + b"/r\xc3\xb6\xff\xe2\x98\x83"
    environment = {**os.environb, b"NODECACHE_ROOT": place, **{k.encode(): v.encode() for k, v in locale.items()}}
    build = "import sys, nodecache; nodecache.load('tiny', sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tiny())], env=environment, check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-m", "nodecache", *words],
        env=environment,
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"Error" not in done.stderr


def test_torchs_verbose_output_prints_any_log_on_any_stream(start, tmp_path):
    """A compiler's words may have characters that the output's encoding lacks."""
    (tmp_path / "build.log").write_text("warnung: \u00fcberfl\u00fcssig \u2603\n", encoding="utf-8")
    code = "import sys; from nodecache.torch import _Instead; _Instead._print_log(None, sys.argv[1])"
    child = start(code, tmp_path / "odd.so", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict"})
    assert child.wait(60).status == 0, child.err
    assert child.out == "warnung: \\xfcberfl\\xfcssig \\u2603\n"
