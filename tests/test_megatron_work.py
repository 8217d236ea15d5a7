"""What holds for the Megatron helpers while they work: interrupts, threads, and memory."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.megatron_rules import same

pytest_plugins = ("tests.megatron_fixtures",)

REPOSITORY = Path(__file__).resolve().parent.parent

# Work of several seconds or more in each function, and what it needs.
LONG = {
    "build_blending_indices": """
size = 80_000_000
index, sample = np.zeros(size, np.int16), np.zeros(size, np.int64)
weights = np.random.default_rng(0).dirichlet(np.ones(30_000))
call = lambda: helpers.build_blending_indices(index, sample, weights, 30_000, size, False)
""",
    "build_blending_indices of few": """
size = 100_000_000
index, sample = np.zeros(size, np.int16), np.zeros(size, np.int64)
call = lambda: helpers.build_blending_indices(index, sample, np.array([0.3, 0.7]), 2, size, False)
""",
    "build_blending_indices of equals that form no ring": """
size = 2**34
index, sample = (np.lib.stride_tricks.as_strided(np.zeros(1, dtype), (size,), (0,)) for dtype in (np.int16, np.int64))
call = lambda: helpers.build_blending_indices(index, sample, np.full(128, 2.0**60), 128, size, False)
""",
    "build_exhaustive_blending_indices": """
sizes = np.random.default_rng(0).multinomial(80_000_000, np.random.default_rng(1).dirichlet(np.ones(5000)))
index, sample = np.zeros(sizes.sum(), np.int16), np.zeros(sizes.sum(), np.int64)
call = lambda: helpers.build_exhaustive_blending_indices(index, sample, sizes, 5000)
""",
    "build_sample_idx_int32": """
documents = 2**31 - 1
order = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (documents,), (0,))
call = lambda: helpers.build_sample_idx_int32(np.array([7], np.int32), order, 10**9, 1, 7 * documents, True, 1)
""",
    "build_mapping": """
bounds, sizes = np.arange(0, 2001, 2), np.full(2000, 9, np.int32)
call = lambda: helpers.build_mapping(bounds, sizes, 2**31 - 1, 2**62, 2**31 - 1, 0.0, 7, False, 2)
""",
    "build_blocks_mapping": """
bounds, sizes, titles = np.arange(0, 2001, 2), np.full(2000, 9, np.int32), np.zeros(1000, np.int32)
call = lambda: helpers.build_blocks_mapping(bounds, sizes, titles, 2**31 - 1, 2**62, 2**31 - 1, 7, False, False)
""",
}
INTERRUPTED = """
import os, signal, threading, time
import numpy as np
from nodecache import megatron

helpers = megatron.compile_helper()
{setup}
sent = []
def interrupt():
    time.sleep(0.3)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    call()
except KeyboardInterrupt:
    print(time.monotonic() - sent[0])
else:
    print("ended on its own")
"""


@pytest.mark.parametrize("name", LONG)
def test_an_interrupt_is_answered_within_a_second(helpers, helpers_root, monkeypatch, name):
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))
    program = INTERRUPTED.format(setup=LONG[name])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 1


def test_other_threads_run_and_call_at_once_while_one_works(helpers):
    weights = np.random.default_rng(3).dirichlet(np.ones(2000))
    size = 300_000
    results = [(np.zeros(size, np.int16), np.zeros(size, np.int64)) for _ in range(4)]

    def call(result):
        helpers.build_blending_indices(*result, weights, len(weights), size, False)

    threads = [threading.Thread(target=call, args=(result,)) for result in results]
    for thread in threads:
        thread.start()
    turns = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.001)
        turns += 1
    alone = (np.zeros(size, np.int16), np.zeros(size, np.int64))
    call(alone)
    for result in results:
        same(result, alone)
    assert turns > 5


MEMORY = """
import resource
import numpy as np
from nodecache import megatron

helpers = megatron.compile_helper()
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{setup}
np.ones(1 << 18)  # whatever numpy and malloc take for themselves
before = most()
result = call()
print((most() - before) * 1024 - {output})
"""
HELD = {
    "build_blending_indices": (
        """
count, size = 30_000, 60_000
weights = np.random.default_rng(0).dirichlet(np.ones(count))
index, sample = np.ones(size, np.int16), np.ones(size, np.int64)
helpers.build_blending_indices(index, sample, weights, 100, size, False)
call = lambda: helpers.build_blending_indices(index, sample, weights, count, size, False)
""",
        "0",
        16 * 30_000,
    ),
    "build_sample_idx": (
        """
documents = 4_000_000
sizes, order = np.full(documents, 700, np.int32), np.random.default_rng(0).permutation(documents).astype(np.int32)
call = lambda: helpers.build_sample_idx_int32(sizes, order, 1024, 1, 700 * documents, True, 1)
""",
        "8 * (700 * 4_000_000 // 1024)",
        0,
    ),
    "build_mapping": (
        """
bounds, sizes = np.arange(0, 4_000_001, 2), np.full(4_000_000, 9, np.int32)
call = lambda: helpers.build_mapping(bounds, sizes, 1, 10**9, 100, 0.1, 7, False, 2)
""",
        "12 * 2_000_000",
        0,
    ),
    "build_blocks_mapping": (
        """
bounds, sizes = np.arange(0, 4_000_001, 2), np.full(4_000_000, 9, np.int32)
titles = np.zeros(2_000_000, np.int32)
call = lambda: helpers.build_blocks_mapping(bounds, sizes, titles, 1, 10**9, 100, 7, False, False)
""",
        "16 * 2_000_000",
        0,
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_nothing_large_is_held_beside_the_output(helpers, helpers_root, monkeypatch, record_property, name):
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))
    setup, output, allowed = HELD[name]
    program = MEMORY.format(setup=setup, output=output)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    record_property("bytes beside the output", done.stdout.strip())
    # Besides what is allowed, a stack, and pages that are not whole.
    assert int(done.stdout) < allowed + (1 << 19)


def test_assertions_change_nothing():
    """Errors come from checks that are always made: the sources have no assertion that a build could leave out."""
    for path in (REPOSITORY / "csrc").iterdir():
        text = path.read_text()
        assert "assert(" not in text.replace("static_assert(", "")
        assert "NDEBUG" not in text
