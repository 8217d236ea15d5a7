"""Compile: from a recipe to a checked file in staging.

Ninja runs the steps, under a supervisor that ends them all when this process is gone. Compilers work in the staging
folder with relative paths, on a snapshot of the sources, and write only there.
"""

from __future__ import annotations

import os
import shutil
import time

from nodecache import elf
from nodecache.attempt import log_path
from nodecache.diagnosis import ended_from_outside, endings, failure_text, first_error, raise_if_limited
from nodecache.digest import read_bytes
from nodecache.errors import BuildError, BuildInterrupted, InputsChanged
from nodecache.inputs import Inputs
from nodecache.jobs import job_count
from nodecache.learn import Began, learn, parse_dependencies, parse_link_dependencies, state
from nodecache.ninja import ninja_path, step_times, write_ninja
from nodecache.plan import LINK_DEPENDENCIES, named_libraries, plan, snapshot_name
from nodecache.printable import logger
from nodecache.supervised import Supervised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nodecache.recipe import Recipe
    from nodecache.root import Root
    from nodecache.spec import Spec
    from nodecache.staging import Staging


_FILE_CLOCK = 5
"""CLOCK_REALTIME_COARSE, with which this kernel stamps files; Python has no name for it (linux/time.h)."""

_BUILDS = 5
"""Builds in one call before a file that changes during each of them is an error."""


class Built:
    """A checked result in staging.

    Attributes:
        inputs: what was read.
        steps: per step its name, start and end in milliseconds since the build began.
        unknown: why it is not known what the tools read, so that this result cannot be published; or None.
    """

    def __init__(self, inputs: Inputs, steps: list[dict[str, Any]], unknown: str | None) -> None:
        self.inputs = inputs
        self.steps = steps
        self.unknown = unknown


def compile_spec(root: Root, spec: Spec, recipe: Recipe, staging: Staging, attempt: str) -> Built:
    """Compile and link a spec into ``staging.entry``.

    Raises:
        ToolchainError: Python's headers, or a framework's, are missing; known before anything is compiled.
        BuildError: a tool failed, or made nothing usable.
        InputsChanged: a file that it reads changed during each of several builds.
        BuildInterrupted: the tools were killed.
        StagingCleaned: somebody removed what they were working on.
        RootError: no space, no right to write, a file size limit.
    """
    log = log_path(root, recipe.key, attempt)
    steps = plan(spec, recipe, staging)
    _snapshot(root, spec, staging)
    before: dict[str, str] = {}
    for build in range(_BUILDS):
        if build:
            _clear(root, spec, staging)
        write_ninja(root, staging, steps, log)
        began = _file_time(staging)
        failed: BuildError | None = None
        try:
            _run(root, spec, recipe, staging, attempt, log)
            _check(spec, f"{staging.entry}/{spec.file_name}", attempt, log)
        except BuildError as error:
            failed = error
        recipe.linked += [library for library in named_libraries(recipe) if library not in recipe.linked]
        inputs, late = _learn(recipe, staging, began)
        # A file server's clock may run ahead of ours. What has not changed since the last build did not change in this.
        moved = [path for path in late if not (state(path) and state(path) == before.get(path))]
        if failed is not None and (not moved or build == _BUILDS - 1):
            raise failed
        if not moved:
            return Built(inputs, step_times(staging, steps), _unknown(spec, recipe, staging))
        what = f"{moved[0]} {late[moved[0]]} while {spec.name!r} was being built"
        logger().warning("%s: building it again", what)
        before = {path: state(path) for path in late}
    cause = f"Error building extension {spec.name!r}: {what}, and so it was in each of {_BUILDS} builds"
    remedy = "Stop what writes to that file, then call again."
    raise InputsChanged(f"{cause}. {remedy}", attempt=attempt, first_error=cause, log=log)


def _clear(root: Root, spec: Spec, staging: Staging) -> None:
    """Leave only the sources' snapshot of a build, for the next one to start from."""
    try:
        for folder in ("obj", "step"):
            shutil.rmtree(f"{staging.path}/{folder}")
        os.mkdir(f"{staging.path}/obj")
        for name in ("build.ninja", ".ninja_log", ".ninja_deps", f"entry/{spec.file_name}"):
            if os.path.lexists(f"{staging.path}/{name}"):
                os.unlink(f"{staging.path}/{name}")
    except OSError as error:
        raise root.failed(error, "clearing the staging folder") from error


def known_inputs(recipe: Recipe, staging: Staging) -> str:
    """What a failed build is known to have read, as text for its record; compilers write it even when they fail."""
    now = time.time_ns()
    inputs, _ = _learn(recipe, staging, Began(-1, now, now))
    return "\n".join(inputs.lines())


def _learn(recipe: Recipe, staging: Staging, began: Began) -> tuple[Inputs, dict[str, str]]:
    """What the tools have written down that they read."""
    try:
        names = os.listdir(f"{staging.path}/obj")
    except FileNotFoundError:
        return Inputs(), {}
    read: list[str] = []
    linked = [*recipe.linked]
    for name in names:
        path = f"{staging.path}/obj/{name}"
        if name == LINK_DEPENDENCIES:
            linked += parse_link_dependencies(_text(path), staging.path)
        elif name.endswith(".d"):
            found = [os.path.join(staging.path, said) for said in parse_dependencies(_text(path))]
            # The assembler also tells of files of before, by the names that the compiler gave them: they are not there.
            read += [said for said in found if not name.endswith(".as.d") or os.path.exists(said)]
    return learn(recipe, read, linked, [os.path.realpath(staging.path), os.path.realpath(staging.tmp)], began)


def _unknown(spec: Spec, recipe: Recipe, staging: Staging) -> str | None:
    """Why it is not known what was read, or None: a flag or a wrapper may have led the dependency output elsewhere."""
    for number, source in enumerate(spec.sources):
        path = f"{staging.path}/obj/{number}.d"
        written = os.path.exists(path) and snapshot_name(number, source) in parse_dependencies(_text(path))
        if not written and not source.path.endswith(".s"):
            return f"{os.path.basename(source.path)}'s compiler did not write down what it read (obj/{number}.d)"
    if recipe.compiler.link_deps and not os.path.exists(f"{staging.path}/obj/{LINK_DEPENDENCIES}"):
        return "the linker did not write down what it read"
    return None


def _text(path: str) -> str:
    return os.fsdecode(read_bytes(path))


def _snapshot(root: Root, spec: Spec, staging: Staging) -> None:
    """Write the sources as they were when the call began; messages and ``__FILE__`` speak of the originals."""
    try:
        os.mkdir(f"{staging.path}/obj")
        for number, source in enumerate(spec.sources):
            path = f"{staging.path}/{snapshot_name(number, source)}"
            os.makedirs(os.path.dirname(path))
            said = os.fsencode(source.path).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            with open(path, "xb") as file:
                if not source.path.endswith((".s", ".S")):
                    file.write(b'#line 1 "%s"\n' % said)
                file.write(source.data.removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise root.failed(error, "writing the sources' snapshot") from error


def _file_time(staging: Staging) -> Began:
    """Times that file systems stamp on what changes from now on, and on nothing that changed before.

    File times advance in ticks of some milliseconds, so the tick in which the caller may have written a header is
    waited out.
    """
    fd = os.open(f"{staging.path}/began", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        first = now = _tick(fd)
        for _ in range(100):  # a file system may keep whole seconds; then inputs are compared in seconds
            if now.there > first.there and now.here > first.here:
                break
            time.sleep(0.001)
            now = _tick(fd)
        return now
    finally:
        os.close(fd)


def _tick(fd: int) -> Began:
    os.fchmod(fd, 0o600)
    status = os.fstat(fd)
    return Began(status.st_dev, status.st_ctime_ns, time.clock_gettime_ns(_FILE_CLOCK))


def _run(root: Root, spec: Spec, recipe: Recipe, staging: Staging, attempt: str, log: str) -> None:
    """Run ninja; turn what went wrong into the right exception."""
    command = [ninja_path(), "-j", str(job_count())]
    with Supervised(root, staging, command, log, recipe.environment) as tools:
        word, number = tools.wait()
    if word == "exit" and number == 0:
        return
    output = _output(log)
    # 130 is ninja's status when a signal stopped it.
    ended = endings(staging)
    if word != "exit" or number == 130 or ended_from_outside(ended):
        raise BuildInterrupted(
            f"The build of {spec.name!r} was killed from outside ({word} {number}). Nothing was published; "
            f"the log is {log}. Call again."
        )
    raise_if_limited(root, staging, output)  # first: a tool that finds no space misses its own file afterwards
    if _was_cleaned(spec, staging, output):
        raise staging.cleaned(root, spec.name)
    raise BuildError(
        failure_text(spec.name, output, log, ended),
        attempt=attempt,
        first_error=f"Error building extension {spec.name!r}: {first_error(output, ended)}",
        log=log,
    )


def _was_cleaned(spec: Spec, staging: Staging, output: str) -> bool:
    """Whether somebody removed what the tools were working on; that says nothing about the sources."""
    ours = ["build.ninja", "entry", "obj", "tmp", *(f"step/{number}.sh" for number in range(1, len(spec.sources) + 2))]
    ours += [snapshot_name(number, source) for number, source in enumerate(spec.sources)]
    if not all(os.path.exists(f"{staging.path}/{name}") for name in ours):
        return True
    places = (staging.path, os.path.realpath(staging.tmp))
    return any(
        "No such file or directory" in line and any(place in line for place in places)
        for line in output.splitlines()
        if not line.startswith(">")
    )


def _output(log: str) -> str:
    return read_bytes(log).decode("utf-8", "replace")


def _check(spec: Spec, output: str, attempt: str, log: str) -> None:
    """Whether the tools left what they should have."""
    if not os.path.isfile(output):
        wrong: str | None = "it is not there"
    elif spec.kind == "program":
        wrong = None if os.path.getsize(output) else "it is empty"
    else:
        wrong = elf.fault(output, f"PyInit_{spec.name}" if spec.kind == "module" else None)
    if wrong is None:
        return
    cause = f"Error building extension {spec.name!r}: the tools ended well, but {spec.file_name} is not usable: {wrong}"
    if "does not export" in wrong:
        remedy = f"Name the module {spec.name} in its source, as PYBIND11_MODULE({spec.name}, m) does."
    else:
        remedy = "See whether CXX names a wrapper that does less than a compiler."
    raise BuildError(f"{cause}.\nThe full log is {log}. {remedy}", attempt=attempt, first_error=cause, log=log)


def write_log_head(root: Root, path: str, lines: list[str]) -> None:
    """Begin a log."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, "".join(f"# {line}\n" for line in [*lines, time.strftime("%Y-%m-%d %H:%M:%S %z")]).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise root.failed(error, "writing the log") from error
