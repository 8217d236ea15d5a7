"""The documentation: every command that it shows runs, and prints what it says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nodecache import cli, plain

pytest_plugins = ("tests.megatron_fixtures",)

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(
    str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "```console" in path.read_text(encoding="utf-8")
)
FENCE = re.compile(r"(?:Put this into `(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
END = "== end of"
SLOW = ("tutorial.md", "howto/from-torch.md", "howto/from-megatron.md")
"""Pages whose builds take tens of seconds."""


NOT_VARIABLES = {
    *("AGE", "ARCHIVE", "COMMAND", "FILE", "FOLDER", "KEY", "MODULE", "SIZE", "TARGET"),  # arguments of commands
    *("HH", "HHIII", "IBBHQQ", "IHHII", "IIIBBH", "IIQQQQIIQQ"),  # formats of binary records
    *("COMMON_HIP", "COMMON_MSVC", "COMMON_NVCC_FLAGS", "MSVC_"),  # names in torch's module
    *("CXXABI_", "GCC_", "GLIBCXX_", "GLIBC_"),  # versions of symbols
    *("CS_GNU_LIBC_VERSION", "SC_CLK_TCK", "PTX"),
    # Set for the tools, or where nodecache's own processes meet.
    *("LC_ALL", "NINJA_STATUS", "PWD", "PYTEST_XDIST_WORKER"),
}
"""Words in capitals that are not variables a user could set."""


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


EXAMPLES = [
    pytest.param(block["text"], id=f"{page}-{number}")
    for page in sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    for number, block in enumerate(FENCE.finditer((DOCS / page).read_text(encoding="utf-8")))
    if block["kind"] == "python" and not block["file"]
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_python_example_runs_by_itself(example, start, tiny, tmp_path):
    """Some load ``fast.cpp``, which the reader has."""
    tiny(name="fast", folder=tmp_path)
    done = start(example, cwd=tmp_path).wait(100)
    assert (done.status, done.err) == (0, "")


def test_there_are_pages_with_commands():
    assert len(EXAMPLES) >= 6
    assert len(PAGES) >= 5
    assert sum(kind == "run" for page in PAGES for kind, _, _ in steps(page)) >= 25


def test_the_pages_name_no_command_that_is_not_there():
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:    |\$ )(.*)$", text, re.MULTILINE)
    named = {word for line in code for word in re.findall(r"\bnodecache ([a-z]+)\b", line)} - {"import"}
    assert len(named) > 8
    assert named <= set(cli.app.commands)


def blocks():
    """Each block of code in the pages and the README: fenced or indented, with the page's name."""
    for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"```\w*\n(.*?)```|((?:^    .*\n)+)", text, re.DOTALL | re.MULTILINE):
            yield path.name, textwrap.dedent("".join(block))


def test_no_block_mixes_shell_and_python():
    python = re.compile(r"^(import|from) \w|^\w+ = \w+\.\w+\(", re.MULTILINE)
    shell = re.compile(r"^(\$ )?(pip|python|torchrun|nodecache|make|export|srun|mpirun|apt-get) ", re.MULTILINE)
    found = list(blocks())
    assert sum(bool(python.search(text)) for _, text in found) > 10
    assert sum(bool(shell.search(text)) for _, text in found) > 10
    assert [(page, text) for page, text in found if python.search(text) and shell.search(text)] == []


def test_extras_are_quoted_for_shells_that_expand_brackets():
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    lines = [(path.name, line) for path in pages for line in path.read_text(encoding="utf-8").splitlines()]
    named = [(page, line) for page, line in lines if re.search(r"nodecache\[\w+\]", line)]
    assert len(named) > 4
    assert [each for each in named if not re.search(r"""(["'])nodecache\[\w+\]\1""", each[1])] == []


def test_one_place_lists_the_commands_that_work_without_extras():
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    section = text.partition("## Without extras")[2].partition("work after a plain")[0]
    assert set(re.findall(r"`nodecache (\w+)`", section)) == set(plain.COMMANDS)


def settings():
    """Variables in the tables of the settings page."""
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    return {name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def words_of_the_code():
    """Constants that look like a variable's name, in all modules but the launchers' (their page has its own test)."""
    for path in (DOCS.parent / "nodecache").glob("*.py"):
        if path.name != "launchers.py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_the_settings_page_has_every_variable_that_the_code_reads_and_no_other():
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    words = {word for word in words_of_the_code() if re.fullmatch(r"[A-Z][A-Z0-9_]+", word)}
    variables = words - NOT_VARIABLES
    assert {word for word in words if word.startswith("NODECACHE_")} <= settings()
    assert [name for name in sorted(variables) if f"`{name}`" not in text] == []
    assert sorted(settings() - words) == []
    assert words >= NOT_VARIABLES, "remove what the code does not have any more"


def test_every_row_of_the_settings_says_what_it_means_and_what_is_the_default():
    text = (DOCS / "settings.md").read_text(encoding="utf-8").partition("## What compilers get")[0]
    rows = re.findall(r"^\| `.*$", text, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if row.count(" | ") != 2 or not row.split(" | ")[1].strip()] == []


def test_one_name_is_used_for_the_function_that_installs_the_patch():
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    assert [path.name for path in pages if "nodecache.patch" in path.read_text(encoding="utf-8")] == []


def test_the_reference_has_the_compiled_helpers_with_their_arguments(helpers):
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    names = [name for name in dir(helpers) if name.startswith("build_")]
    assert len(names) == 6
    for name in names:
        assert re.search(rf"^{name}\(", text, re.MULTILINE)
    source = (DOCS.parent / "csrc/binding.cpp").read_text(encoding="utf-8")
    for call in re.findall(r"= signature\((.*?)\);", source, re.DOTALL):
        name, *arguments = re.findall(r'"(\w+)"', call)
        if not name.endswith("int64"):
            shown = re.search(rf"^{name}\((.*?)\)", text, re.MULTILINE | re.DOTALL)
            assert re.findall(r"\w+", shown[1]) == arguments


def test_the_reference_has_the_options_and_fixtures_of_the_pytest_plugin():
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    source = (DOCS.parent / "nodecache/pytest_plugin.py").read_text(encoding="utf-8")
    options = set(re.findall(r'"(--nodecache-\w+)"', source))
    fixtures = re.findall(r"@pytest.fixture.*\ndef (\w+)", source)
    assert len(options) == 2
    assert fixtures
    for name in (*options, *fixtures):
        assert f"`{name}" in text


@pytest.mark.parametrize(("shown", "printed"), [("a ... c", "a b c"), ("...", ""), ("x\n...", "x\ny\n"), ("a", "a\n")])
def test_dots_stand_for_anything(shown, printed):
    assert fits(shown, printed)


@pytest.mark.parametrize(("shown", "printed"), [("a", "b"), ("a ... c", "a b"), ("", "x"), ("a.c", "abc")])
def test_and_nothing_else_does(shown, printed):
    assert not fits(shown, printed)
