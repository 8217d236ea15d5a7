"""Failed or interrupted: decided by how the tools ended, whatever they print."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

import nodecache
from nodecache.errors import BuildError, SpecError
from tests import lease_checks

if TYPE_CHECKING:
    import psutil

TELLS = """\
import json, sys, nodecache
try:
    nodecache.load(sys.argv[1], sys.argv[2:])
except nodecache.NodecacheError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""

QUOTES = [
    "Terminated signal terminated program",
    "Killed signal terminated program cc1plus",
    "> exit status 143",
    "ld terminated with signal 9",
]


@pytest.mark.parametrize("quote", QUOTES)
def test_a_diagnostic_that_quotes_a_signal_is_a_failure_told_once(start, tiny, compiler, quote):
    source = tiny(extra=f'#error "{quote}"')
    compiler.set(before="sleep 1.5")
    children = [start(TELLS, "tiny", source) for _ in range(3)]
    for child in children:
        kind, message = child.wait(30).json
        assert kind == "BuildError"
        assert "a compiler was killed" not in message
    assert compiler.compiles == 1


@pytest.mark.parametrize(
    "line", ["g++: fatal error: Terminated signal terminated program cc1plus", "> exit status 143"]
)
def test_a_compiler_that_prints_a_drivers_own_words_has_failed(tiny, compiler, line):
    compiler.set(instead=f"echo '{line}' >&2; echo 'compilation terminated.' >&2; exit 1")
    with pytest.raises(BuildError):
        nodecache.load("tiny", [tiny()])


SLOW = "constexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); } constexpr long slow = f(45);"


def _kill_cc1plus(root, wait_until, number: int) -> None:
    found: list[psutil.Process] = []
    wait_until(
        lambda: found.extend(each for each in lease_checks.marked(root) if each.name() == "cc1plus") or found,
        30,
        "cc1plus",
    )
    os.kill(found[0].pid, number)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGTERM, "BuildInterrupted"), (signal.SIGHUP, "BuildInterrupted"), (signal.SIGKILL, "BuildError")],
)
def test_a_compiler_proper_that_a_signal_ends_is_known_by_that_signal(
    start, tiny, root, wait_until, monkeypatch, number, kind
):
    """Out of memory is told with its remedy; who is asked to end has given no verdict."""
    monkeypatch.setenv("CXXFLAGS", "-fconstexpr-ops-limit=99999999999 -fno-diagnostics-show-caret")
    child = start(TELLS, "tiny", tiny(extra=SLOW))
    _kill_cc1plus(root, wait_until, number)
    said, message = child.wait(30).json
    assert said == kind, message
    assert (kind == "BuildInterrupted") or "a compiler was killed, most often for memory" in message


def test_the_headline_is_the_compilers_first_line_where_none_names_a_place(tiny, compiler):
    compiler.set(instead="echo 'broken compiler' >&2; echo 'second line' >&2; exit 1")
    with pytest.raises(BuildError) as failure:
        nodecache.load("tiny", [tiny()])
    assert str(failure.value).splitlines()[0].endswith(": broken compiler")


@pytest.mark.parametrize("value", ["5", float("nan"), 10**19, 10**400, -1, -0.5, float("inf"), [5], True, 1j], ids=repr)
@pytest.mark.parametrize("call", ["load", "load_inline", "get_or_build"])
def test_a_time_limit_that_is_none_is_refused_by_its_name(tiny, call, value):
    calls = {
        "load": lambda: nodecache.load("tiny", [tiny()], timeout=value),
        "load_inline": lambda: nodecache.load_inline("tiny", "int f();", timeout=value),
        "get_or_build": lambda: nodecache.get_or_build("folder", {}, lambda _: None, timeout=value),
    }
    with pytest.raises(SpecError, match="timeout is not"):
        calls[call]()
