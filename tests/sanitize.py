"""The Megatron helpers under AddressSanitizer and UndefinedBehaviorSanitizer, with all assertions on.

    python tests/sanitize.py

Builds the sources in a temporary folder once for each vector width, and lets each build work on adversarial, random
and invalid input. All must give the same results and the same errors as a build without sanitizers and assertions. At
last a copy of the sources that writes past an output must be found out.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from nodecache.megatron import _CFLAGS, _SOURCES  # noqa: E402
from tests.megatron_rules import KINDS, blend_arrays, blended, exhausted, same, slow_blend  # noqa: E402

SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
CHECKED = (*_CFLAGS, "-O1", "-g1", "-fno-omit-frame-pointer", "-D_GLIBCXX_ASSERTIONS", "-UNDEBUG", *SANITIZERS)
BARE = (*_CFLAGS, "-DNDEBUG")
# What blend.cpp is told that the CPU has: everything that it has, AVX2 but not AVX-512, nothing.
WIDTHS = {
    "own": "",
    "avx2": "-D__builtin_cpu_supports(name)=(name[3]=='2'&&__builtin_cpu_supports(name))",
    "plain": "-D__builtin_cpu_supports(name)=0",
}
BROKEN = ("sample[i * sample_stride]", "sample[(i + 1) * sample_stride]")


def build(place: Path, csrc: Path) -> dict[str, Path]:
    """Compile everything, two at a time or as many as there are cores; the modules by name."""
    broken = place / "broken"
    broken.mkdir()
    texts = {path.name: path.read_text() for path in csrc.iterdir()}
    assert any(BROKEN[0] in text for text in texts.values()), "there is nothing left to break"
    for name, text in texts.items():
        (broken / name).write_text(text.replace(*BROKEN))

    def compile_one(name: str, source: Path, flags: tuple[str, ...]) -> Path:
        target = place / f"{name}-{source.stem}.o"
        define = "-DNODECACHE_MODULE_NAME=helpers"
        include = ["-isystem", sysconfig.get_path("include")]
        subprocess.run(["c++", *flags, "-fPIC", define, *include, "-c", source, "-o", target], check=True)
        return target

    def link(name: str, objects: list[Path], flags: tuple[str, ...]) -> Path:
        target = place / name / "helpers.so"
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["c++", "-shared", *flags, *objects, "-o", target], check=True)
        return target

    rest = [name for name in _SOURCES if name != "blend.cpp"]
    searches = [name for name in _SOURCES if name.startswith("blend")]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        checked = {name: pool.submit(compile_one, "checked", csrc / name, CHECKED) for name in rest}
        bare = [pool.submit(compile_one, "bare", csrc / name, BARE) for name in _SOURCES]
        blends = {
            width: pool.submit(compile_one, width, csrc / "blend.cpp", (*CHECKED, *filter(None, [flag])))
            for width, flag in WIDTHS.items()
        }
        changed = [pool.submit(compile_one, "broken", broken / name, CHECKED) for name in searches]
    objects = {name: each.result() for name, each in checked.items()}
    modules = {name: link(name, [*objects.values(), one.result()], SANITIZERS) for name, one in blends.items()}
    whole = [path for name, path in objects.items() if name not in searches]
    modules["broken"] = link("broken", [*whole, *(each.result() for each in changed)], SANITIZERS)
    modules["bare"] = link("bare", [each.result() for each in bare], ())
    return modules


def load(path: str):
    loader = ExtensionFileLoader("helpers", path)
    module = module_from_spec(spec_from_file_location("helpers", path, loader=loader))
    loader.exec_module(module)
    return module


def preload() -> str:
    """The sanitizers' libraries, and libstdc++, whose exceptions they must see from the beginning."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    found = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    ]
    return " ".join(os.path.realpath(path) for path in found)


def work(module) -> str:
    """Call everything with everything; a digest of all results and errors."""
    digest = hashlib.sha256()
    for name, part in (("blends", blends_of), ("samples", samples_of), ("mappings", mappings_of), ("bad", bad_of)):
        count = 0
        for outcome in part(module):
            count += 1
            for each in outcome:
                digest.update(each.tobytes() if isinstance(each, np.ndarray) else str(each).encode())
        print(f"{count} {name}", end=", ", file=sys.stderr)
    return digest.hexdigest()


def blends_of(module):
    random = np.random.default_rng(9)
    for kind in KINDS.values():
        for count in (1, 2, 3, 8, 9, 32, 63, 64, 65, 66, 128, 130, 500):
            weights = kind(random, count)
            got = blended(module, weights, int(random.integers(1, 1500)))
            short = int(min(len(got[0]), 150))
            same([one[:short] for one in got], slow_blend(weights, short))
            yield got
        yield blended(module, kind(random, 5000), 6000)
        yield blended(module, kind(random, 17_000), 8_000)
        strided = np.repeat(kind(random, 70), 3)[::3]
        index, sample = np.full((300, 2), -1, np.int16)[:, 1], np.full((300, 2), -1, np.int64)[::-1, 0]
        module.build_blending_indices(index, sample, strided, 70, 300, False)
        yield index, sample
    yield blended(module, np.r_[0.0, np.ones(32_767)], 40_000)
    yield blended(module, random.dirichlet(np.ones(17_000)), 60_000)
    for count in (1, 5, 40, 64, 65, 150, 1000):
        for most in (1, 3, 60):
            sizes = random.integers(0, most + 1, count)
            got = exhausted(module, sizes)
            if count <= 150:
                same(got, slow_blend(sizes / max(sizes.sum(), 1), int(sizes.sum()), sizes))
            yield got
        yield exhausted(module, random.multinomial(5000, random.dirichlet(np.ones(count))))
    for count in (20, 300, 2000, 17_000):  # nearly all different, and spent at nearly the same time
        yield exhausted(module, np.ceil(random.exponential(100_000 / count, count)).astype(np.int64))
    changed_meanwhile(module)


def changed_meanwhile(module):
    """Blends whose weights another thread changes: their results mean nothing, and stay within their arrays."""
    random = np.random.default_rng(11)
    for count in (100, 300, 3000, 17_000):
        for other in (1e17, np.nan):
            weights = 1e17 * (1 + random.random(count))
            done = threading.Event()
            thread = threading.Thread(target=change, args=(weights, other, done))
            thread.start()
            try:
                blended(module, weights, 30_000)
            except ValueError:  # changed before they were looked at
                assert np.isnan(other)
            finally:
                done.set()
                thread.join()


def change(weights, other, done):
    """Change weights for 0.2 seconds or till it is done, and then make them valid again, so that all blends end."""
    some = [1e17 * (1 + np.random.default_rng(seed).random(len(weights))) for seed in range(10)]
    end = time.monotonic() + 0.2
    while time.monotonic() < end and not done.is_set():
        for each in some:
            weights[:] = each
        weights[::7] = other
    weights[:] = some[0]


def samples_of(module):
    random = np.random.default_rng(10)
    for width in ("32", "64"):
        build_index = getattr(module, f"build_sample_idx_int{width}")
        for _ in range(400):
            sizes = random.integers(0, random.integers(1, 60), random.integers(1, 40)).astype(np.int32)
            sizes[random.random(len(sizes)) < 0.02] = 2**31 - 1
            epochs = int(random.integers(1, 4))
            order = np.concatenate([random.permutation(len(sizes)) for _ in range(epochs)]).astype(np.int32)
            extra, drop, length = int(random.integers(0, 2)), bool(random.integers(0, 2)), int(random.integers(2, 90))
            total = int(sizes.sum(dtype=np.int64))
            length = max(length, epochs * total // 10_000)
            if total or not extra:
                yield (build_index(sizes, order, min(length, 2**31 - 1), epochs, total, drop, extra),)


def mappings_of(module):
    random = np.random.default_rng(11)
    for _ in range(400):
        bounds = np.concatenate([[0], np.cumsum(random.integers(0, 9, random.integers(1, 15)))])
        sizes = random.integers(0, 60, bounds[-1]).astype(np.int32)
        sizes[random.random(len(sizes)) < 0.03] = random.choice([512, 513, 2**31 - 1])
        epochs, most = int(random.integers(1, 5)), int(random.choice([0, 1, 7, 10**6]))
        length, seed = int(random.integers(2, 200)), int(random.integers(1, 2**31))
        short = float(random.choice([0, 0.1, 0.4, 0.6, 1, 1e-8]))
        fewest = int(random.integers(-1, 5))
        yield (module.build_mapping(bounds, sizes, epochs, most, length, short, seed, False, fewest),)
        titles = random.integers(0, 250, len(bounds) - 1).astype(np.int32)
        yield (module.build_blocks_mapping(bounds, sizes, titles, epochs, most, length, seed, False, fewest > 1),)


def strange():
    """What no argument, or hardly any, should be."""
    whole = [-(2**63), -(2**31), -1, 0, 1, 2, 3, 50, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63, 2**70]
    others = [None, True, "x", b"x", 1.5, float("nan"), float("inf"), 1e-300, 1j, [], {}, object]
    arrays = [
        *(
            np.array(values)
            for values in (
                [-1],
                [0, 3],
                [9, 9, 9],
                [2**31],
                [2**62] * 3,
                [2**63 - 1, -(2**63)],
                [-(2**63), 2**63 - 1],
                [0.5, 1],
                [np.nan],
                [[1]],
            )
        ),
        *(np.zeros(0, dtype) for dtype in (np.int32, np.int64, np.float64)),
        *(np.arange(20).astype(dtype)[::-3] for dtype in ("i1", "u8", "i2", ">i4", "f4", "M8[s]", "O", "S3")),
        *(np.frombuffer(bytearray(8 * 9 + 1), dtype, 9, 1) for dtype in (np.int16, np.int32, np.int64, np.float64)),
        np.broadcast_to(np.int32(7), (2**33,)),
        np.array(5),
    ]
    return [*whole, *others, *arrays]


def bad_of(module):
    """Each argument, and then random pairs of them, replaced by everything strange: results or clean errors."""
    random = np.random.default_rng(12)
    sizes, order = np.array([3, 5, 2], np.int32), np.array([0, 1, 2], np.int32)
    good = {
        "build_blending_indices": [None, None, [0.5, 0.25, 0.25], 3, 9, False],
        "build_exhaustive_blending_indices": [None, None, [2, 3, 4], 3],
        "build_sample_idx_int32": [sizes, order, 4, 1, 10, True, 1],
        "build_sample_idx_int64": [sizes, order, 4, 1, 10, True, 1],
        "build_mapping": [[0, 3, 5], [10, 20, 30, 5, 9], 1, 10, 40, 0.1, 7, False, 2],
        "build_blocks_mapping": [[0, 3, 5], [10, 20, 30, 5, 9], [1, 1], 1, 10, 40, 7, False, False],
    }
    for name, arguments in good.items():
        places = [(place,) for place in range(len(arguments))]
        places += [tuple(random.choice(len(arguments), 2, replace=False)) for _ in range(12)]
        for chosen in places:
            for number, value in enumerate(strange()):
                given = list(arguments)
                if "blending" in name:
                    given[:2] = blend_arrays(9)
                for place in chosen:
                    given[place] = value if place == chosen[0] else strange()[random.integers(len(strange()))]
                if endless(name, given):
                    continue
                try:
                    result = getattr(module, name)(*given)
                except (ValueError, TypeError, IndexError) as error:
                    yield name, chosen, number, type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error))
                except MemoryError:
                    yield (name,)
                else:
                    yield [np.asarray(one) for one in (given[:2] if result is None else [result])]


def endless(name, given):
    """Whether the work is right, and more than there is time or memory for."""
    large = [one for one in given if isinstance(one, int) and one > 2**20]
    huge = [one for one in given if isinstance(one, np.ndarray) and one.size > 2**20]
    rows = [one for one in given[3:5] if isinstance(one, int) and 2**20 < one < 2**60] if "sample" in name else []
    return bool(huge or rows) or ("mapping" in name and len(large) > 1)


def shortened(text: str) -> str:
    """Without the deep frames of a sanitizer's report, which are Python's."""
    return "".join(line[:300] + "\n" for line in text.splitlines() if not re.match(r" +#([6-9]|\d\d) ", line))


def main() -> int:
    """Build all, and let each work in a process of its own."""
    if len(sys.argv) == 3 and sys.argv[1] == "--work":
        warnings.simplefilter("ignore")
        sys.stdout.write(work(load(sys.argv[2])) + "\n")
        return 0
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        modules = build(Path(folder), REPOSITORY / "csrc")
        options = {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        }

        def working(name: str) -> subprocess.CompletedProcess:
            checked = {} if name == "bare" else {**options, "LD_PRELOAD": preload()}
            command = [sys.executable, __file__, "--work", str(modules[name])]
            return subprocess.run(command, env={**os.environ, **checked}, capture_output=True, text=True, check=False)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            results = dict(zip(modules, pool.map(working, modules), strict=True))
    broken = results.pop("broken")
    for name, done in results.items():
        sys.stdout.write(f"{name}: {shortened(done.stderr)}exit status {done.returncode}\n")
        digests[name] = done.stdout.splitlines()[-1] if done.returncode == 0 else None
    found = broken.returncode != 0 and "heap-buffer-overflow" in broken.stderr and "blend" in broken.stderr
    sys.stdout.write(f"a copy that writes past its output: {'found out' if found else 'NOT found out'}\n")
    if not found:
        sys.stdout.write(shortened(broken.stderr))
    agree = len(set(digests.values())) == 1 and None not in digests.values()
    sys.stdout.write("all results and errors agree\n" if agree else f"DIFFERENCE OR FAULT: {digests}\n")
    return 0 if agree and found else 1


if __name__ == "__main__":
    sys.exit(main())
