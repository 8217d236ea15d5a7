"""``sys.executable`` is not a Python: applications that embed one, frozen ones, stubs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from nodecache import interpreter
from nodecache.errors import ToolchainError
from tests.conftest import REPOSITORY

APPLICATION = """\
#include <Python.h>
#include <stdio.h>
int main(int argc, char** argv) {
    FILE* starts = fopen(argv[1], "a");
    fprintf(starts, "%d\\n", argc);
    fclose(starts);
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.executable, argv[0]);
    PyConfig_SetBytesString(&config, &config.home, argv[2]);
    PyStatus status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    int code = PyRun_SimpleString(argv[3]);
    return Py_FinalizeEx() < 0 || code != 0;
}
"""

LOADS = """\
import sys
sys.path[:0] = {path!r}
import nodecache
module = nodecache.load("tiny", [{source!r}])
print("sum", module.add(2, 3), module.__nodecache__.role)
"""


def _embeddable() -> list[str]:
    """A Python that has a shared or static library to link with: this one, else Debian's; its folders and flags."""
    for python in (sys.executable, "/usr/bin/python3"):
        told = subprocess.run(
            [
                *(python, "-I", "-c"),
                (
                    "import json, sys, sysconfig as s; v = s.get_config_var; print(json.dumps([sys.base_prefix, "
                    "s.get_path('include'), v('LIBDIR'), v('LDLIBRARY'), v('VERSION'), v('Py_ENABLE_SHARED')]))"
                ),
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
        prefix, include, folder, library, version, shared = json.loads(told.stdout)
        name = f"python{version}"
        if shared and os.path.exists(f"{include}/Python.h") and os.path.exists(f"{folder}/{library}"):
            return [prefix, version, f"-I{include}", f"-L{folder}", f"-l{name}", f"-Wl,-rpath,{folder}"]
    return []


def test_an_application_that_embeds_python_is_not_started_again(tmp_path, tiny):
    prefix, version, *flags = _embeddable()
    if version != sysconfig.get_config_var("VERSION"):
        pytest.fail(f"the library that can be embedded is Python {version}'s; install that of this one")
    (tmp_path / "main.c").write_text(APPLICATION)
    program = tmp_path / "application"
    subprocess.run(["cc", str(tmp_path / "main.c"), "-o", str(program), *flags], check=True)
    packages = [str(REPOSITORY), sysconfig.get_path("purelib")]
    text = LOADS.format(path=packages, source=str(tiny()))
    starts = tmp_path / "starts"
    done = subprocess.run(
        [program, starts, prefix, text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout == "sum 5 built\n", done.stderr
    assert len(starts.read_text().splitlines()) == 1


@pytest.mark.parametrize("value", ["", None, "/bin/true", "python3", "/nowhere/bin/python3"], ids=repr)
def test_a_load_works_whatever_sys_executable_says(start, tiny, value):
    code = f"import sys; sys.executable = {value!r}\n" + LOADS.format(path=[], source=str(tiny()))
    child = start(code)
    assert child.wait(60).out == "sum 5 built\n", child.err


def test_a_stub_with_a_pythons_name_elsewhere_is_not_started(tmp_path, monkeypatch):
    stub = tmp_path / "python3"
    stub.write_text("#!/bin/sh\nexit 3\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    assert interpreter.interpreter() != str(stub)


def test_the_interpreter_of_a_virtual_environment_is_taken_as_it_is():
    assert interpreter.interpreter() == sys.executable


def test_where_there_is_no_python_program_the_message_names_what_is_missing(tmp_path, monkeypatch):
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(Path("/opt/application")))
    monkeypatch.setattr(sys, "_base_executable", "")
    with pytest.raises(ToolchainError, match=rf"sys.executable is '/opt/application'.*{tmp_path}/bin/python3") as error:
        interpreter.interpreter()
    assert "Install the interpreter" in str(error.value)
