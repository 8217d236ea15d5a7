"""A hit is cheap: no process, no lock, no heavy import, few system calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.requirements import needs

MEASURE = """\
import json, os, sys
import nodecache
before = set(sys.modules)
os.write(2, b"BEGIN")
module = nodecache.load("tiny", sys.argv[1])
os.write(2, b"END")
print(json.dumps({"role": module.__nodecache__.role, "modules": sorted(set(sys.modules) - before),
                  "all": sorted(sys.modules)}))
"""

BARE = """\
import os, sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("tiny", sys.argv[1], loader=ExtensionFileLoader("tiny", sys.argv[1]))
os.write(2, b"BEGIN")
module_from_spec(spec)
os.write(2, b"END")
"""


@pytest.fixture
def five_headers(tiny, tmp_path) -> Path:
    """A source with five headers."""
    names = [f"h{number}.h" for number in range(5)]
    source = tiny(extra="\n".join(f'#include "{name}"' for name in names))
    for name in names:
        (source.parent / name).write_text(f"// {name}\n")
    return source


def calls(tmp_path, code: str, *arguments: object) -> list[str]:
    """The lines that strace writes between BEGIN and END."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-o", trace, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"no process may be traced here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if '"BEGIN"' in line)
    end = next(at for at, line in enumerate(lines) if '"END"' in line)
    return lines[begin + 1 : end]


def test_a_hit_makes_few_system_calls_starts_no_process_and_takes_no_lock(five_headers, start, tmp_path):
    built = start(MEASURE, five_headers).wait()
    assert built.json["role"] == "built", built.err
    path = next(str(p) for p in (Path(os.environ["NODECACHE_ROOT"]) / "entries").glob("*/tiny.so"))
    loaders = calls(tmp_path, BARE, path)
    made = calls(tmp_path, MEASURE, five_headers)
    kinds = {match.group(1) for line in made if (match := re.match(r"\d+ +(\w+)\(", line))}
    starts = {"clone", "clone3", "fork", "vfork", "execve"}
    assert not kinds & {*starts, "flock", "fcntl", "write", "mkdir", "rename", "unlink"}
    searched = len(os.environ["PATH"].split(":"))
    assert len(made) - len(loaders) <= 80 + searched


AGAIN = MEASURE.replace(
    'os.write(2, b"END")', "[nodecache.load('tiny', sys.argv[1]) for _ in range(49)]\nos.write(2, b\"END\")"
)


def test_fifty_hits_of_each_of_eight_processes_at_once_take_no_lock_and_start_nothing(
    five_headers, start, load_program, tmp_path
):
    assert start(load_program, "tiny", five_headers).wait().json["role"] == "built"
    needs("strace")
    traces = [tmp_path / f"trace{number}" for number in range(8)]
    children = [
        start(
            AGAIN,
            five_headers,
            prefix=("strace", "-f", "--seccomp-bpf", "-qq", "-o", str(trace), "-e", "trace=process,flock,write"),
        )
        for trace in traces
    ]
    for child, trace in zip(children, traces, strict=True):
        done = child.wait(100)
        assert done.status == 0, done.err
        assert done.json["role"] == "hit"
        lines = trace.read_text().splitlines()
        begin = next(at for at, line in enumerate(lines) if '"BEGIN"' in line)
        end = next(at for at, line in enumerate(lines) if '"END"' in line)
        assert lines[begin + 1 : end] == []


def test_a_hit_imports_nothing(five_headers, start):
    """Promise 6: neither torch nor psutil nor filelock, and no module of the standard library that costs anything."""
    start(MEASURE, five_headers).wait()
    hit = start(MEASURE, five_headers, python=sys.executable).wait()
    assert hit.status == 0, hit.err
    assert hit.json["role"] == "hit"
    assert hit.json["modules"] == ["tiny"]


def test_importing_the_package_is_light(start):
    """In a bare interpreter: what a site's own files import is not this package's."""
    code = "import sys; before = set(sys.modules); import nodecache, json; print(json.dumps(sorted(sys.modules)))"
    child = start(code, prefix=(), python=sys.executable)
    loaded = set(child.wait().json)
    heavy = {"torch", "psutil", "filelock", "numpy", "logging", "subprocess", "shlex", "threading", "typing", "hashlib"}
    heavy |= {"ninja", "pathlib", "importlib.util", "importlib.metadata", "dataclasses", "tempfile", "shutil"}
    assert not loaded & heavy


def test_a_hit_with_pybind11_imports_no_import_machinery(tiny, start, tmp_path):
    source = tiny(extra="#include <pybind11/detail/common.h>")
    assert start(MEASURE, source).wait().json["role"] == "built"
    hit = start(MEASURE, source).wait().json
    assert hit["role"] == "hit"
    assert hit["modules"] == ["tiny"]


def test_a_hit_needs_no_compiler_process_in_a_copy_of_the_memory(five_headers, compiler, start):
    """The counting compiler is a script; its version is remembered all the same."""
    start(MEASURE, five_headers).wait()
    asked = compiler.path.read_text()
    compiler.path.write_text(asked.replace("exec c++", f"echo run >> {compiler.path.parent}/runs; exec c++"))
    start(MEASURE, five_headers).wait()  # it changed: asked again
    runs = compiler.path.parent / "runs"
    before = runs.read_text()
    assert start(MEASURE, five_headers).wait().json["role"] == "hit"
    assert runs.read_text() == before


def test_a_load_again_in_one_process_gives_the_same_module(five_headers, start):
    code = """\
import nodecache, sys, json
one, other = (nodecache.load("tiny", sys.argv[1]) for _ in range(2))
print(json.dumps(one is other))
"""
    assert start(code, five_headers).wait().json is True


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_any_locale_hits_the_same_entry(locale, tmp_path, start, tiny, load_program):
    source = tiny(folder=tmp_path / "prøject", extra='#include "ü.h"')
    (source.parent / "ü.h").write_text("")
    first = start(load_program, "tiny", source).wait()
    again = start(load_program, "tiny", source, env={"LC_ALL": locale, "PYTHONUTF8": "0"}).wait()
    assert again.status == 0, again.err
    assert (again.json["key"], again.json["role"]) == (first.json["key"], "hit")


HIT_OR_3 = """\
import resource, sys
import nodecache
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(0 if nodecache.load("tiny", sys.argv[1]).__nodecache__.role == "hit" else 3)
"""


def test_a_root_that_nobody_can_write_still_serves_hits(five_headers, start):
    start(MEASURE, five_headers).wait()
    child = start(HIT_OR_3, five_headers)
    assert child.wait().status == 0, child.err


def test_a_hit_of_an_extension_with_torch_finds_torchs_libraries(tiny, start):
    """The builder has imported torch for its flags; who only loads must find the libraries as well."""
    pytest.importorskip("torch")
    source = tiny(expression="(a + b) * (sizeof(c10::Device) > 0)", extra="#include <c10/core/Device.h>")
    code = """\
import json, sys
import nodecache
module = nodecache.load("tiny", sys.argv[1], frameworks=["torch"])
print(json.dumps([module.add(2, 3), module.__nodecache__.role]))
"""
    first = start(code, source).wait(110)
    assert first.json == [5, "built"], first.err
    again = start(code, source).wait()
    assert again.json == [5, "hit"], again.err
