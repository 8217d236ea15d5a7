"""Exceptions at every point of a call: whatever is interrupted, and where, nothing stays held and nothing is left."""

from __future__ import annotations

import pytest

# A walk over one call. Point N is the Nth line that runs, in the caller's thread or in the errand's. In the caller's
# thread the exception is raised right there, as a signal handler's is; at a line of the errand's a signal reaches the
# caller.
WALK = """\
import importlib, json, os, pathlib, shutil, signal, subprocess, sys, threading, time
import nodecache, nodecache.cache, nodecache.folder, nodecache.prune
from nodecache import bell, errand, lease, lock, waiting
from nodecache.root import open_root

raises, role, unit, first, step = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
Raised = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[raises]
package = str(pathlib.Path(nodecache.__file__).parent)
place = open_root()
point, target, armed = 0, -1, False
mutex = threading.Lock()
main = threading.main_thread().ident
where = ""

def on_signal(*_):
    raise Raised

signal.signal(signal.SIGUSR1, on_signal)

def counts(frame, event, _):
    global point, armed, where
    code = frame.f_code
    if not armed or not code.co_filename.startswith(package):
        return None
    if unit == "opcode":
        frame.f_trace_opcodes = True
    if event != unit:
        return counts
    point += 1
    if point != target:
        return counts
    armed = False
    where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
    if threading.get_ident() == main:
        raise Raised
    left = current[0]
    signal.pthread_kill(main, signal.SIGUSR1)
    deadline = time.monotonic() + 5
    while left is not None and not left.abandoned and time.monotonic() < deadline:
        time.sleep(0.0002)  # the errand's thread goes on once the caller is hit
    return counts

current = [None]
real_init, real_work = errand.Errand.__init__, errand.Errand._work
def init(self, task):
    real_init(self, task)
    current[0] = self
def work(self):
    sys.settrace(counts)
    try:
        real_work(self)
    finally:
        sys.settrace(None)
errand.Errand.__init__, errand.Errand._work = init, work

def build(folder):
    (folder / "value").write_text("right")

def descriptors():
    return sorted(os.listdir("/proc/self/fd"), key=int)

def leftovers():
    found = [name for _, _, names in os.walk(place_path) for name in names if name.endswith(".tmp")]
    return found + os.listdir(place_path / "staging")

place_path = pathlib.Path(place.path)
other = subprocess.Popen(
    [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
)

def others_claim(recipe):
    other.stdin.write(recipe + "\\n")
    other.stdin.flush()
    return other.stdout.readline().strip()

def holds(recipe):
    deadline = time.monotonic() + 30
    while (held := lease.claim(place, recipe)) is None:
        assert time.monotonic() < deadline
    return held

def call(number):
    return nodecache.get_or_build("walk", {"number": number}, build)

def one(number):
    for name in os.listdir(place_path / "leases"):
        os.unlink(place_path / "leases" / name)
    for folder in ("recipes", "entries", "attempts"):
        shutil.rmtree(place_path / folder)
        os.mkdir(place_path / folder, 0o700)
    global point, armed, target, where
    point, target, where = 0, number, ""
    inputs = f"{number}"
    if role == "hit":
        inputs = "hit"
        call(inputs)
    held = None
    if role == "waiter":
        from nodecache.digest import digest_items
        recipe = digest_items([("kind", "folder walk"), ("input number", f"str:{inputs!r}")])
        os.makedirs(place_path / "leases", exist_ok=True)
        held = holds(recipe)
        free = threading.Timer(0.03, held.release)
        free.start()
    before = descriptors()
    armed = True
    sys.settrace(counts)
    try:
        call(inputs)
        ended = False
    except Raised as error:
        error.__traceback__ = None
        ended = True
    finally:
        armed = False
        sys.settrace(None)
    if held is not None:
        free.join()
        held.release()
    if not where:
        return False
    faults = []
    after = descriptors()
    if len(after) > len(before):
        faults.append(f"descriptors {sorted(set(after) - set(before))}")
    if leftovers():
        faults.append(f"left {leftovers()}")
    for name in os.listdir(place_path / "leases"):
        if name.endswith(".lock"):
            if others_claim(name[:-5]) != "free":
                faults.append("held")
    if lock._mutex._is_owned():
        faults.append("mutex")
    began = time.monotonic()
    if (call(inputs) / "value").read_text() != "right" or time.monotonic() - began > 1:
        faults.append(f"own second call: {time.monotonic() - began:.2f} s")
    if faults:
        print(f"{where} (point {number}): {'; '.join(faults)}", file=sys.stderr)
        wrong.append(where)
    return True

wrong, walked, number = [], 0, first
call("warm")
while one(number):
    walked += 1
    number += step
other.stdin.close()
other.wait(10)
print(json.dumps({"walked": walked, "wrong": wrong}))
"""

OTHER = """\
import sys
from nodecache import lease
from nodecache.root import open_root
for line in sys.stdin:
    held = lease.claim(open_root(), line.strip())
    print("busy" if held is None else "free", flush=True)
    if held is not None:
        held.release()
"""


def walk(start, *arguments, seconds=100):
    result = start(f"OTHER = {OTHER!r}\n{WALK}", *arguments).wait(seconds)
    assert result.status == 0, result.err[-4000:]
    assert result.json["wrong"] == [], result.err[-4000:]
    return result.json["walked"]


STEP = 9
"""One of so many lines is taken by each of the two quick walks."""


@pytest.mark.parametrize(("raised", "first"), [("KeyboardInterrupt", 1), ("SystemExit", 5)])
@pytest.mark.parametrize(("role", "points"), [("builder", 600), ("waiter", 300), ("hit", 60)])
def test_an_exception_at_any_line_leaves_nothing_held_and_nothing_behind(start, role, points, raised, first):
    """Another process gets the lease at once, and this one too; no descriptor more, no staging folder, no ``.tmp``."""
    assert walk(start, raised, role, "line", first, STEP) > points // STEP


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize(("role", "points"), [("builder", 600), ("waiter", 300), ("hit", 60)])
def test_an_exception_at_every_line_leaves_nothing_held_and_nothing_behind(start, role, points, raised):
    assert walk(start, raised, role, "line", 1, 1, seconds=1700) > points


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", ["builder", "waiter", "hit"])
def test_an_exception_at_any_instruction_leaves_nothing_held_and_nothing_behind(start, role):
    assert walk(start, "KeyboardInterrupt", role, "opcode", 1, 1, seconds=1700) > 300
