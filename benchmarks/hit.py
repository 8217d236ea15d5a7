"""What a hit costs beside the bare dynamic load of the same file: medians over fresh processes, in milliseconds.

    python benchmarks/hit.py [processes]

Each process loads one extension (one source, five headers) once. ``load`` is ``nodecache.load`` in a process that has
imported nodecache; ``bare`` is the import machinery's load of the same file; ``again`` is a second ``load`` in the same
process; ``import`` is ``import nodecache``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = """\
#include <Python.h>
#include "h0.h"
#include "h1.h"
#include "h2.h"
#include "h3.h"
#include "h4.h"
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&def); }
"""

LOAD = """\
import json, sys, time
start = time.perf_counter()
import nodecache
imported = time.perf_counter()
module = nodecache.load("tiny", sys.argv[1])
loaded = time.perf_counter()
nodecache.load("tiny", sys.argv[1])
again = time.perf_counter()
print(json.dumps({"import": imported - start, "load": loaded - imported, "again": again - loaded,
                  "path": module.__nodecache__.path, "role": module.__nodecache__.role}))
"""

BARE = """\
import json, sys, time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
start = time.perf_counter()
loader = ExtensionFileLoader("tiny", sys.argv[1])
spec = spec_from_file_location("tiny", sys.argv[1], loader=loader)
loader.exec_module(module_from_spec(spec))
print(json.dumps({"bare": time.perf_counter() - start}))
"""


def run(code: str, argument: str, environment: dict[str, str]) -> dict:
    """One fresh process's figures, in seconds."""
    done = subprocess.run(
        [sys.executable, "-c", code, argument], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


def main(processes: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "tiny.cpp")
        source.write_text(SOURCE)
        for number in range(5):
            Path(folder, f"h{number}.h").write_text(f"// {number}\n")
        # Byte code is written as it is by default: compiling the package's text is not what a hit does.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["NODECACHE_ROOT"] = f"{folder}/root"
        path = run(LOAD, str(source), environment)["path"]
        figures: dict[str, list[float]] = {"bare": [], "load": [], "again": [], "import": []}
        for _ in range(processes):
            # In turns, so that what else the machine does falls on both.
            said = run(BARE, path, environment) | run(LOAD, str(source), environment)
            if said["role"] != "hit":
                raise SystemExit(f"not a hit: {said}")
            for name, found in figures.items():
                found.append(said[name] * 1000)
        medians = {name: statistics.median(found) for name, found in figures.items()}
        for name, found in figures.items():
            low, high = statistics.quantiles(found, n=10)[::8]
            print(f"{name:>7}  {medians[name]:6.3f} ms   (80% within {low:.3f} and {high:.3f})")
        above = medians["load"] - medians["bare"]
        print(f"a hit is {above:.3f} ms above the bare load, {medians['load'] / medians['bare']:.1f} times it")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
