"""nodecache.torch.load() beside torch.utils.cpp_extension.load() and the bare compiler: cold, hit, and many ranks.

    .venv/bin/python benchmarks/torch_load.py [HITS [COLD_BUILDS]]

HITS (default 9) and COLD_BUILDS (default 3; one takes a minute and a half) are rounds; in each the contestants take
turns, so that a slow minute hits them all. Medians and ratios are printed.

One process: a fresh one each time, that has imported torch and what it calls; the source includes torch/extension.h.
Ranks: forked from one process that has imported these, which then gives all of them one signal; the time is that of the
last one, from the signal to its module. Their source takes torch's flags and only the C API, so that it builds quickly.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

FULL = """\
#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x) { return x * 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); }
"""
LIGHT = """\
#include <Python.h>
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "light", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_light() { return PyModule_Create(&def); }
"""
ONE = """\
import json, sys, time
import torch
from {module} import load
began = time.perf_counter()
load(sys.argv[1], [sys.argv[2]], extra_cflags=["-O2"])
print(json.dumps(time.perf_counter() - began))
"""
RANKS = """\
import gc, json, os, sys, time
import torch
from {module} import load
count = int(sys.argv[3])
ready_read, ready_write = os.pipe()
go_read, go_write = os.pipe()
done_read, done_write = os.pipe()
end_read, end_write = os.pipe()
children = []
gc.freeze()  # as the gc module advises before a fork
for rank in range(count):
    child = os.fork()
    if child == 0:
        os.close(go_write)
        os.close(end_write)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
        os.write(ready_write, b"r")
        os.read(go_read, 1)
        try:
            load(sys.argv[1], [sys.argv[2]], extra_cflags=["-O2"])
            os.write(done_write, b"%-31.9f\\n" % time.perf_counter())
            os.close(done_write)
            os.read(end_read, 1)  # to end a process of this size would take time from the others
        finally:
            os._exit(0)
    children.append(child)
os.close(done_write)
ready = 0
while ready < count:
    ready += len(os.read(ready_read, count))
began = time.perf_counter()
os.close(go_write)
ended = open(done_read).read().split()
os.close(end_write)
for child in children:
    os.waitpid(child, 0)
assert len(ended) == count, ended
print(json.dumps(max(map(float, ended)) - began))
"""
OURS, THEIRS = "nodecache.torch", "torch.utils.cpp_extension"
NAMES = {OURS: "nodecache", THEIRS: "torch"}


def seconds(program: str, module: str, place: Path, *arguments: object) -> float:
    """Run a program, with its files below ``place``; the seconds that it measured."""
    environment = {
        **os.environ,
        "NODECACHE_ROOT": str(place / "nodecache"),
        "TORCH_EXTENSIONS_DIR": str(place / "torch"),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", program.format(module=module), *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def bare(source: Path, place: Path) -> float:
    """Seconds for the commands that torch would run, with nobody around them."""
    torch = Path(
        subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.__path__[0])"],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout.strip()
    )
    place.mkdir()
    searched = (torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    include = [word for folder in searched for word in ("-isystem", str(folder))]
    defines = ["-DTORCH_EXTENSION_NAME=full", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags = [*defines, *include, "-fPIC", "-std=c++20", "-O2"]
    libraries = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    began = time.perf_counter()
    subprocess.run(["c++", "-MMD", "-MF", place / "o.d", *flags, "-c", source, "-o", place / "o.o"], check=True)
    subprocess.run(["c++", place / "o.o", "-shared", *libraries, "-o", place / "full.so"], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure in turns and print."""
    hits, colds = (int(word) for word in [*sys.argv[1:], *("9", "3")[len(sys.argv) - 1 :]])
    found: dict[str, list[float]] = {}

    def note(what: str, took: float) -> None:
        found.setdefault(what, []).append(took)
        print(f"{what}: {took * 1000:.1f} ms", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        place = Path(folder)
        full, light = place / "full.cpp", place / "light.cpp"
        full.write_text(FULL)
        light.write_text(LIGHT)
        for number in range(max(1, colds)):
            shutil.rmtree(place / "one", ignore_errors=True)
            order = [OURS, THEIRS] if number % 2 else [THEIRS, OURS]
            note("bare compiler commands", bare(full, place / f"bare{number}"))
            for module in order:
                note(f"{NAMES[module]}, cold", seconds(ONE, module, place / "one", "full", full))
        for number in range(hits):
            order = [OURS, THEIRS] if number % 2 else [THEIRS, OURS]
            for module in order:
                note(f"{NAMES[module]}, hit", seconds(ONE, module, place / "one", "full", full))
            for module in order:
                shared = place / f"ranks{number}"
                note(f"{NAMES[module]}, last of 16 ranks, cold", seconds(RANKS, module, shared, "light", light, 16))
                for count in (16, 32):
                    took = seconds(RANKS, module, shared, "light", light, count)
                    note(f"{NAMES[module]}, last of {count} ranks, hit", took)

    medians = {what: statistics.median(values) for what, values in found.items()}
    width = max(map(len, medians))
    for what in sorted(medians, key=lambda what: what.partition(",")[2]):
        values = [value * 1000 for value in found[what]]
        print(f"{what:<{width}}  {medians[what] * 1000:10.1f} ms   ({min(values):.1f} to {max(values):.1f})")
    print()
    print(f"hit, one process:  torch / nodecache = {medians['torch, hit'] / medians['nodecache, hit']:.1f}")
    if medians:
        cold = medians["nodecache, cold"]
        print(f"cold: nodecache / torch = {cold / medians['torch, cold']:.3f}")
        print(f"cold: nodecache / bare compiler = {cold / medians['bare compiler commands']:.3f}")


if __name__ == "__main__":
    main()
