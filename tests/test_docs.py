"""The documentation: every command that it shows runs, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodecache import cli

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(
    str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "```console" in path.read_text(encoding="utf-8")
)
FENCE = re.compile(r"(?:Put this into `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
END = "== end of"
SLOW = ("tutorial.md", "howto/from-torch.md", "howto/from-megatron.md")
"""Pages whose builds take tens of seconds."""


def steps(page):
    """A page's files and console blocks, in order: ``("file", name, text)`` and ``("run", command, output)``."""
    found = []
    for block in FENCE.finditer((DOCS / page).read_text(encoding="utf-8")):
        if block["file"]:
            found.append(("file", block["file"], block["text"]))
        elif block["kind"] == "console":
            for part in block["text"].removeprefix("$ ").split("\n$ "):
                command, _, output = part.strip("\n").partition("\n")
                found.append(("run", command, output))
    return found


def fits(shown, printed):
    """Whether a page's output stands for what was printed; ``...`` stands for anything."""
    parts = [re.escape(part) for part in shown.split("...")]
    return re.fullmatch(".*".join(parts), printed.strip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.integration] if page in SLOW else []) for page in PAGES]
)
def test_the_commands_of_a_page_run_and_print_what_it_says(page, tmp_path, root):
    work = tmp_path / "work"
    work.mkdir()
    script = ["set -u -o pipefail"]
    for number, (kind, what, text) in enumerate(steps(page)):
        if kind == "file":
            script.append(f"cat > {what} <<'END-OF-FILE'\n{text}END-OF-FILE")
        else:
            script.append(f"{what}\necho; echo {END} {number} $?")
    (tmp_path / "nodecache").write_text(f'#!/bin/sh\nexec {sys.executable} -m nodecache "$@"\n')
    (tmp_path / "nodecache").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    printed = re.split(rf"\n{END} (\d+) (\d+)\n", done.stdout)
    results = {int(number): (int(status), text) for text, number, status in zip(*[iter(printed)] * 3, strict=False)}
    for number, (kind, what, shown) in enumerate(steps(page)):
        if kind == "run":
            status, text = results[number]
            assert status == 0, f"$ {what}\n{text}"
            assert fits(shown, text), f"$ {what}\nshown:\n{shown}\nprinted:\n{text}"


def test_there_are_pages_with_commands():
    assert len(PAGES) >= 5
    assert sum(kind == "run" for page in PAGES for kind, _, _ in steps(page)) >= 25


def test_the_pages_name_no_command_that_is_not_there():
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:    |\$ )(.*)$", text, re.MULTILINE)
    named = {word for line in code for word in re.findall(r"\bnodecache ([a-z]+)\b", line)} - {"import"}
    assert len(named) > 8
    assert named <= set(cli.app.commands)


@pytest.mark.parametrize(("shown", "printed"), [("a ... c", "a b c"), ("...", ""), ("x\n...", "x\ny\n"), ("a", "a\n")])
def test_dots_stand_for_anything(shown, printed):
    assert fits(shown, printed)


@pytest.mark.parametrize(("shown", "printed"), [("a", "b"), ("a ... c", "a b"), ("", "x"), ("a.c", "abc")])
def test_and_nothing_else_does(shown, printed):
    assert not fits(shown, printed)
