"""The README: each Python example runs as it stands in a folder with nothing but the files that the README shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
FILES = re.findall(r"Put this into `([^`]+)`:\n\n```\w+\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_with_the_files_that_are_shown_before_it(number, start, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    before = README.partition(EXAMPLES[number])[0]
    for name, text in FILES:
        if text in before:
            (work / name).write_text(text)
    result = start(EXAMPLES[number], cwd=work).wait(100)
    assert result.status == 0, result.err
    assert result.err == ""
    assert result.out != ""


def test_the_first_block_is_python_and_needs_no_file():
    assert README.partition("```")[2].startswith("python\n")
    assert "Put this into" not in README.partition(EXAMPLES[0])[0]


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
    assert FILES
