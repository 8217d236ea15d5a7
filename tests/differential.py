"""Random edits, each followed by a load whose answer is compared with a build that uses no cache at all.

    unshare --mount --propagation private python tests/differential.py --sequences 20

One sequence is a workspace with a source, headers in every kind of folder, a static library and an included binary
file. Between loads its files are edited (in place, by rename, with the modification time set back, all with the same
size), folders are swapped, names appear that hide others, flags and environment change. The loads happen in this
process, in a new one, and under other Python versions where those are installed. Needs a mount namespace of its own: it
edits a folder of system headers. Hypothesis shortens a sequence that fails.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

import nodecache  # noqa: E402

SYSTEM = Path("/usr/include/protocols/system.h")
LOCAL = Path("/usr/local/include/protocols/system.h")
"""Headers that the compiler finds by itself, the second one first; ``/usr`` is a copy that only this process sees."""

SOURCE = """\
#include <Python.h>
#include "beside.h"
#include "deep/outer.h"
#include <user.h>
#include <marked.h>
#include <protocols/system.h>
#include <environment.h>
#ifndef FLAG
#define FLAG 0
#endif
#ifndef CXXFLAG
#define CXXFLAG 0
#endif
extern "C" int archived(void);
asm(".section .rodata\\n.globl data\\n.hidden data\\ndata: .incbin \\"DATA\\"\\n.text\\n");
extern "C" __attribute__((visibility("hidden"))) const char data[];
static const int parts[] = {SOURCE, BESIDE, INNER, USER, MARKED, SYSTEM, ENVIRONMENT, FLAG, CXXFLAG};
extern "C" __attribute__((visibility("default"))) long long value(void) {
    long long all = 0;
    for (int part : parts) all = all * 10 + part;
    return (all * 10 + archived()) * 10 + (data[0] - '0');
}
static PyObject *get(PyObject *, PyObject *) { return PyLong_FromLongLong(value()); }
static PyMethodDef methods[] = {{"value", get, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "same", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_same(void) { return PyModule_Create(&module); }
"""

BOUND = """\
#include <pybind11/pybind11.h>
#include "beside.h"
PYBIND11_MODULE(same, m) { m.def("value", [] { return SOURCE * 10 + BESIDE; }); }
"""

LOAD = """\
import ast, sys, nodecache
module = nodecache.load("same", **ast.literal_eval(sys.argv[1]))
print(module.value(), module.__nodecache__.role)
"""

HEADERS = {
    "beside": "src/beside.h",
    "inner": "src/deep/inner.h",
    "user": "inc/user.h",
    "marked": "marked/marked.h",
    "system": str(SYSTEM),
    "environment": "env0/environment.h",
}
DIGITS = st.integers(0, 9)
COUNTS = {"sequences": 0, "loads": 0, "states": 0, "hits in a new process": 0}


def other_pythons() -> list[str]:
    """Other Python versions on PATH, with the headers that an extension needs."""
    question = "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    found = []
    for minor in range(11, 20):
        python = shutil.which(f"python3.{minor}")
        if python is None or minor == sys.version_info.minor:
            continue
        asked = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == "True":
            found.append(python)
    return found


PYTHONS = other_pythons()


class Workspace(RuleBasedStateMachine):
    """A workspace, and what may happen to it between two loads."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="differential-"))
        self.root = self.base / "one"
        self.flag: int | None = None
        self.cxxflag: int | None = None
        self.environment = ""
        self.bound = False
        self.builds = 0
        self.keys: set[str] = set()
        COUNTS["sequences"] += 1

    @initialize(digits=st.lists(DIGITS, min_size=9, max_size=9), bound=st.integers(0, 11))
    def make(self, digits: list[int], bound: int) -> None:
        os.environ["NODECACHE_ROOT"] = str(self.base / "cache")
        LOCAL.unlink(missing_ok=True)
        self.bound = bound == 0
        self.environment = "env0"
        for (name, path), digit in zip(HEADERS.items(), digits, strict=False):
            self.write(path, f"#define {name.upper()} {digit}\n", "rename")
        self.write("env1/environment.h", f"#define ENVIRONMENT {digits[6]}\n", "rename")
        self.write("src/deep/outer.h", '#include "inner.h"\n', "rename")
        self.write("data.bin", str(digits[7]), "rename")
        for folder in ("inc", "early", "lib"):
            (self.root / folder).mkdir(exist_ok=True)
        self.edit_source(digits[8], "rename")
        self.archive(digits[0])

    def write(self, path: str, text: str, how: str) -> None:
        """Write a file: ``in place``, by ``rename``, or ``restored``: in place, with its times as they were."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        times = os.stat(file).st_mtime_ns if file.exists() else 1
        if how == "rename":
            new = file.with_name(f".{file.name}.new")
            new.write_text(text)
            os.utime(new, ns=(1, 1))
            new.rename(file)
            os.utime(file.parent, ns=(1, 1))
        else:
            file.write_text(text)
        if how == "restored":
            os.utime(file, ns=(times, times))

    HOW = st.sampled_from(["in place", "rename", "restored"])

    @rule(name=st.sampled_from(sorted(HEADERS)), digit=DIGITS, how=HOW)
    def edit_header(self, name: str, digit: int, how: str) -> None:
        # Package managers replace system headers; docs/key.md says that one edited in place is not seen.
        self.write(HEADERS[name], f"#define {name.upper()} {digit}\n", "rename" if name == "system" else how)

    @rule(digit=DIGITS, how=HOW)
    def edit_source(self, digit: int, how: str) -> None:
        text = BOUND if self.bound else SOURCE.replace("DATA", str(self.root / "data.bin"))
        self.write("src/same.cpp", f"#define SOURCE {digit}\n{text}", how)

    @rule(digit=DIGITS, how=HOW)
    def edit_data(self, digit: int, how: str) -> None:
        self.write("data.bin", str(digit), how)

    @rule(digit=DIGITS)
    def archive(self, digit: int) -> None:
        """Replace the static library."""
        made = self.base / "made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        (made / "archived.c").write_text(f"int archived(void) {{ return {digit}; }}\n")
        subprocess.run(["cc", "-fPIC", "-c", "archived.c"], cwd=made, check=True)
        subprocess.run(["ar", "rcD", "libarchived.a", "archived.o"], cwd=made, check=True)
        os.utime(made / "libarchived.a", ns=(1, 1))
        (made / "libarchived.a").rename(self.root / "lib/libarchived.a")

    @rule(digit=DIGITS, name=st.sampled_from(["user.h", "marked.h", "protocols/system.h", "environment.h"]))
    def hide(self, digit: int, name: str) -> None:
        """Put a header of that name into the folder that is searched first."""
        self.write(f"early/{name}", f"#define {Path(name).stem.upper()} {digit}\n", "rename")

    @rule(name=st.sampled_from(["user.h", "marked.h", "protocols/system.h", "environment.h"]))
    def reveal(self, name: str) -> None:
        (self.root / "early" / name).unlink(missing_ok=True)

    @rule(digit=DIGITS)
    def link_system(self, digit: int) -> None:
        """The system's header becomes a link to one of several, as update-alternatives does."""
        self.write(str(SYSTEM.with_name(f"system.{digit}.h")), f"#define SYSTEM {digit}\n", "rename")
        new = SYSTEM.with_name("new")
        new.symlink_to(f"system.{digit}.h")
        new.rename(SYSTEM)
        os.utime(SYSTEM.parent, ns=(1, 1))

    @rule(digit=st.none() | DIGITS)
    def install_locally(self, digit: int | None) -> None:
        """A header below /usr/local comes before the system's, or goes."""
        if digit is None:
            LOCAL.unlink(missing_ok=True)
        else:
            self.write(str(LOCAL), f"#define SYSTEM {digit}\n", "rename")

    @rule()
    def swap_folders(self) -> None:
        """Two folders change names; no file in them changes."""
        for one, other in (("env0", "spare"), ("env1", "env0"), ("spare", "env1")):
            (self.root / one).rename(self.root / other)

    @rule()
    def lead_a_link_elsewhere(self) -> None:
        """The user's include folder becomes a link to a copy, or to another copy of it."""
        real = self.root / f"inc.{self.builds}.{len(os.listdir(self.root))}"
        shutil.copytree(self.root / "inc", real)
        (self.root / "inc.new").symlink_to(real.name)
        if not (self.root / "inc").is_symlink():
            (self.root / "inc").rename(self.root / f"{real.name}.old")
        (self.root / "inc.new").rename(self.root / "inc")

    @rule()
    def move(self) -> None:
        """Work on in a copy of the whole workspace."""
        other = self.base / ("two" if self.root.name == "one" else "one")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(self.root, other, symlinks=True)
        self.root = other
        if not self.bound:
            text = (self.root / "src/same.cpp").read_text()
            here = "one" if other.name == "two" else "two"
            (self.root / "src/same.cpp").write_text(text.replace(f"/{here}/data.bin", f"/{other.name}/data.bin"))

    @rule(flag=st.none() | DIGITS)
    def change_flag(self, flag: int | None) -> None:
        self.flag = flag

    @rule(flag=st.none() | DIGITS)
    def change_cxxflags(self, flag: int | None) -> None:
        self.cxxflag = flag

    @rule(folder=st.sampled_from(["env0", "env1"]))
    def change_cpath(self, folder: str) -> None:
        self.environment = folder

    def arguments(self) -> dict[str, list[str]]:
        """What ``nodecache.load`` gets."""
        flag = [] if self.flag is None else [f"-DFLAG={self.flag}"]
        return {
            "sources": [str(self.root / "src/same.cpp")],
            "extra_cflags": [*flag, "-isystem", str(self.root / "marked")],
            "extra_ldflags": [f"-L{self.root}/lib", "-larchived"],
            "extra_include_paths": [str(self.root / "early"), str(self.root / "inc")],
        }

    def without_cache(self) -> int:
        """The answer of a build from nothing."""
        said = self.arguments()
        self.builds += 1
        output = self.base / f"bare{self.builds}.so"
        includes = [sysconfig.get_path("include")]
        if self.bound:
            import pybind11

            includes.append(pybind11.get_include())
        command = [
            *("c++", "-std=c++17", "-fPIC", "-shared", *os.environ.get("CXXFLAGS", "").split(), *said["extra_cflags"]),
            *(f"-I{folder}" for folder in said["extra_include_paths"]),
            *(word for folder in includes for word in ("-isystem", folder)),
            *(*said["sources"], "-o", str(output), *said["extra_ldflags"]),
        ]
        if self.bound:
            program = '#include "beside.h"\n#include <cstdio>\nint main() { printf("%d", SOURCE * 10 + BESIDE); }\n'
            first = Path(said["sources"][0]).read_text().partition("\n")[0]
            (self.root / "src/answer.cpp").write_text(f"{first}\n{program}")
            subprocess.run(["c++", str(self.root / "src/answer.cpp"), "-o", str(output)], check=True)
            return int(subprocess.run([str(output)], check=True, capture_output=True).stdout)
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(output))
        library.value.restype = ctypes.c_longlong
        return int(library.value())

    def set_environment(self) -> None:
        os.environ["CPATH"] = str(self.root / self.environment)
        os.environ.pop("CXXFLAGS", None)
        if self.cxxflag is not None:
            os.environ["CXXFLAGS"] = f"-DCXXFLAG={self.cxxflag}"

    @invariant()
    def load_here(self) -> None:
        if not self.environment:  # nothing is made yet
            return
        self.set_environment()
        module = nodecache.load("same", **self.arguments())
        COUNTS["loads"] += 1
        COUNTS["states"] += module.__nodecache__.key not in self.keys
        self.keys.add(module.__nodecache__.key)
        assert module.value() == self.without_cache()
        if self.builds % 3 == 0:
            self.load_elsewhere(self.builds % (1 + len(PYTHONS)))

    @rule(choice=st.integers(0, len(PYTHONS)))
    def load_elsewhere(self, choice: int) -> None:
        """In a new process, of this Python or another."""
        python = PYTHONS[choice - 1] if choice and not self.bound else sys.executable
        self.set_environment()
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [python, "-c", LOAD, repr(self.arguments())], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        value, role = done.stdout.split()
        COUNTS["loads"] += 1
        COUNTS["hits in a new process"] += role == "hit"
        assert int(value) == self.without_cache()

    def teardown(self) -> None:
        shutil.rmtree(self.base)


def main() -> None:
    """Run sequences until their number is reached, and print what they did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None, help="another seed gives other sequences")
    chosen = parser.parse_args()
    upper = tempfile.mkdtemp()
    subprocess.run(["mount", "-t", "tmpfs", "none", upper], check=True)
    for name in ("new", "work"):
        os.mkdir(f"{upper}/{name}")
    folders = f"lowerdir=/usr,upperdir={upper}/new,workdir={upper}/work"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", folders, "/usr"], check=True)
    began = time.monotonic()
    machine = Workspace if chosen.seed is None else type(f"Workspace{chosen.seed}", (Workspace,), {})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=chosen.sequences,
            stateful_step_count=chosen.steps,
            deadline=None,
            database=None,
            derandomize=chosen.seed is None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    counted = ", ".join(f"{number} {name}" for name, number in COUNTS.items())
    print(f"0 differences: {counted}; pythons: {1 + len(PYTHONS)}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
