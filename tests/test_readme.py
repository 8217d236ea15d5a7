"""Each Python example of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
FAST = """\
#include <pybind11/pybind11.h>
int more();
PYBIND11_MODULE(fast, m) { m.def("more", &more); }
"""


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(example, start, tmp_path, monkeypatch):
    (tmp_path / "fast.cpp").write_text(FAST)
    (tmp_path / "more.cpp").write_text("int more() { return 1; }\n")
    result = start(example, cwd=tmp_path).wait(100)
    assert result.status == 0, result.err
    assert result.err == ""


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
