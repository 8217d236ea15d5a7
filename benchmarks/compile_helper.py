# ruff: noqa: E501  # rows of a table and programs of other processes
"""compile_helper(): cold and hit, beside NeMo AutoModel's, the bare compiler and the bare loader.

    .venv/bin/python benchmarks/compile_helper.py [ROUNDS]

Each measurement is a fresh process on a root of its own, torch imported before the clock starts; the contestants take
turns, so that a slow minute hits them all. Medians and ratios are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PEER = "nemo-automodel==0.7.0"

OURS = """\
import json, sys, time
{torch}
from nodecache import megatron
began = time.perf_counter()
module = megatron.compile_helper()
print(json.dumps({{"seconds": time.perf_counter() - began, "role": module.__nodecache__.role}}))
"""
THEIRS = """\
import json, sys, time, types
import torch
from pathlib import Path
name = "nemo_automodel"
for part in ("", ".components", ".components.datasets", ".components.datasets.llm", ".components.datasets.llm.megatron"):
    package = types.ModuleType(name + part)
    package.__path__ = [sys.argv[1] + "/" + (name + part).replace(".", "/")]
    sys.modules[name + part] = package
import importlib
utils = importlib.import_module(name + ".components.datasets.llm.megatron.megatron_utils")
utils._HELPER_CACHE_ROOT = Path(sys.argv[2])
began = time.perf_counter()
utils.compile_helper()
print(json.dumps({"seconds": time.perf_counter() - began}))
"""
LOADER = """\
import json, sys, time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
began = time.perf_counter()
loader = ExtensionFileLoader("nodecache_megatron", sys.argv[1])
spec = spec_from_file_location("nodecache_megatron", sys.argv[1], loader=loader)
loader.exec_module(module_from_spec(spec))
print(json.dumps({"seconds": time.perf_counter() - began}))
"""


def peer() -> Path:
    """NeMo AutoModel's wheel, unpacked."""
    place = Path(sys.prefix) / "peers" / PEER.replace("==", "-")
    if not (place / "nemo_automodel").exists():
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PEER]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
            wheel.extractall(place)
    return place


def run(code: str, *arguments: object, root: Path, count: int = 1) -> list[dict]:
    """Run the program in ``count`` processes at once; what each printed."""
    environment = {**os.environ, "NODECACHE_ROOT": str(root), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [json.loads(child.communicate(timeout=600)[0].splitlines()[-1]) for child in children]


def bare_compile() -> float:
    """Seconds for the very commands that the build ran, one after the other where it ran them so."""
    import sysconfig

    from nodecache.megatron import _CFLAGS, _SOURCES, _source_folder

    include = ["-isystem", sysconfig.get_path("include")]
    jobs = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        waiting = [str(_source_folder() / name) for name in _SOURCES]
        running: list[subprocess.Popen] = []
        objects = []
        while waiting or running:
            while waiting and len(running) < jobs:
                source = waiting.pop(0)
                objects.append(f"{place}/{Path(source).stem}.o")
                define = "-DNODECACHE_MODULE_NAME=nodecache_megatron"
                flags = ["-O2", *_CFLAGS, "-fPIC", define, *include]
                running.append(subprocess.Popen(["c++", *flags, "-c", source, "-o", objects[-1]]))
            time.sleep(0.002)
            running = [child for child in running if child.poll() is None]
        subprocess.run(["c++", "-shared", *objects, "-o", f"{place}/m.so"], check=True)
        return time.perf_counter() - began


def main() -> None:
    """Measure in turns and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    theirs = peer()
    found: dict[str, list[float]] = {}
    compiles: dict[str, set[int]] = {}

    def note(what: str, seconds: float) -> None:
        found.setdefault(what, []).append(seconds)

    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        place = Path(tempfile.mkdtemp(prefix="bench-"))
        with_torch, without = OURS.format(torch="import torch"), OURS.format(torch="")
        note("bare compiler commands, 2 at once", bare_compile())
        note("nodecache, cold", run(with_torch, root=place / "a")[0]["seconds"])
        note("NeMo AutoModel, cold", run(THEIRS, theirs, place / "theirs", root=place)[0]["seconds"])
        hit = run(with_torch, root=place / "a")[0]
        assert hit["role"] == "hit"
        note("nodecache, hit", hit["seconds"])
        note("NeMo AutoModel, hit", run(THEIRS, theirs, place / "theirs", root=place)[0]["seconds"])
        shared = next((place / "a" / "entries").glob("*/*.so"))
        note("bare dynamic load of the same file", run(LOADER, shared, root=place)[0]["seconds"])
        for ranks in (1, 8):
            began = time.perf_counter()
            ended = run(without, root=place / f"cold{ranks}", count=ranks)
            note(f"{ranks} rank(s) cold, no torch, wall time with interpreter start", time.perf_counter() - began)
            compiles.setdefault(f"{ranks} rank(s)", set()).add(sum(each["role"] == "built" for each in ended))
        shutil.rmtree(place)

    medians = {what: statistics.median(values) for what, values in found.items()}
    width = max(map(len, medians))
    for what, seconds in medians.items():
        print(
            f"{what:<{width}}  {seconds * 1000:10.1f} ms   ({min(found[what]) * 1000:.1f} to {max(found[what]) * 1000:.1f})"
        )
    print()
    print(f"cold: nodecache / NeMo AutoModel = {medians['nodecache, cold'] / medians['NeMo AutoModel, cold']:.3f}")
    print(f"hit:  NeMo AutoModel / nodecache = {medians['NeMo AutoModel, hit'] / medians['nodecache, hit']:.1f}")
    print(f"builds in each round: {compiles}")


if __name__ == "__main__":
    main()
