"""Compile: from a recipe to a checked file in staging.

Ninja runs the steps, under a supervisor that ends them all when this process is gone. Compilers work in the staging
folder with relative paths, on a snapshot of the sources, and write only there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time

from nodecache import elf, lock
from nodecache.attempt import log_path
from nodecache.compiler import which
from nodecache.digest import read_bytes
from nodecache.errors import BuildError, BuildInterrupted, RootError, SpecError, ToolchainError
from nodecache.inputs import Inputs, learn, parse_dependencies, parse_link_dependencies
from nodecache.jobs import job_count
from nodecache.packages import package_folder
from nodecache.spec import Flags
from nodecache.staging import MARK, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from nodecache.recipe import Recipe
    from nodecache.root import Root
    from nodecache.spec import Source, Spec
    from nodecache.staging import Staging

TAIL_LINES = 200
"""Lines of output that the builder's exception carries at most."""

_LINK_DEPENDENCIES = "link.d"
_LONG = 100_000  # bytes; Linux takes no argument of 128 KiB, and ninja gives the shell the whole command as one
# What the compiler driver says, in the C locale, when something below it was asked to end (strsignal's words).
_ENDED_FROM_OUTSIDE = re.compile(r"(?:Terminated|Hangup|Interrupt) signal terminated program")

# What the log holds besides the tools' output: its head, the steps and their commands, and ninja's own words.
_OURS = re.compile(r"# |> |\[\d+/\d+\] |FAILED: |\. \./step/\d+\.sh|ninja: build stopped")


class Built:
    """A checked result in staging.

    Attributes:
        inputs: what was read.
        steps: per step its name, start and end in milliseconds since the build began.
        raced: why this result may be used and not published (an input changed while it was being read), or None.
    """

    def __init__(self, inputs: Inputs, steps: list[dict[str, Any]], raced: str | None) -> None:
        self.inputs = inputs
        self.steps = steps
        self.raced = raced


def compile_spec(root: Root, spec: Spec, recipe: Recipe, staging: Staging, attempt: str) -> Built:
    """Compile and link a spec into ``staging.entry``.

    Raises:
        ToolchainError: Python's headers, or a framework's, are missing; known before anything is compiled.
        BuildError: a tool failed, or made nothing usable.
        BuildInterrupted: the tools were killed.
        RootError: no space, no right to write, a file size limit.
    """
    log = log_path(root, recipe.key, attempt)
    search = _search_flags(spec)
    steps = _plan(spec, recipe, staging, search)
    _snapshot(root, spec, staging)
    _write_ninja(root, staging, steps, log)
    began = _file_time(staging)
    _run(root, spec, recipe, staging, attempt, log)
    output = f"{staging.entry}/{spec.file_name}"
    _check(spec, output, attempt, log)
    for library in _named_libraries(recipe):
        if library not in recipe.linked:
            recipe.linked.append(library)
    inputs, changed = _learn(recipe, staging, began)
    raced = f"{changed} while it was being built" if changed else _unknown(spec, recipe, staging)
    return Built(inputs, _times(staging, steps), raced)


def known_inputs(recipe: Recipe, staging: Staging) -> str:
    """What a failed build is known to have read, as text for its record; compilers write it even when they fail."""
    inputs, _ = _learn(recipe, staging, time.time_ns())
    return "\n".join(inputs.lines())


def _learn(recipe: Recipe, staging: Staging, began: int) -> tuple[Inputs, str | None]:
    """What the tools have written down that they read."""
    try:
        names = os.listdir(f"{staging.path}/obj")
    except FileNotFoundError:
        return Inputs(), None
    read: list[str] = []
    linked = [*recipe.linked]
    for name in names:
        path = f"{staging.path}/obj/{name}"
        if name == _LINK_DEPENDENCIES:
            linked += parse_link_dependencies(_text(path), staging.path)
        elif name.endswith(".d"):
            found = [os.path.join(staging.path, said) for said in parse_dependencies(_text(path))]
            # The assembler also tells of files of before, by the names that the compiler gave them: they are not there.
            read += [said for said in found if not name.endswith(".as.d") or os.path.exists(said)]
    return learn(recipe, read, linked, [staging.path, os.path.realpath(staging.tmp)], began)


def _unknown(spec: Spec, recipe: Recipe, staging: Staging) -> str | None:
    """Why it is not known what was read, or None: a flag or a wrapper may have led the dependency output elsewhere."""
    for number, source in enumerate(spec.sources):
        path = f"{staging.path}/obj/{number}.d"
        written = os.path.exists(path) and _snapshot_name(number, source) in parse_dependencies(_text(path))
        if not written and not source.path.endswith(".s"):
            return f"{os.path.basename(source.path)}'s compiler did not write down what it read (obj/{number}.d)"
    if recipe.compiler.link_deps and not os.path.exists(f"{staging.path}/obj/{_LINK_DEPENDENCIES}"):
        return "the linker did not write down what it read"
    return None


def _text(path: str) -> str:
    return os.fsdecode(read_bytes(path))


def _search_flags(spec: Spec) -> list[str]:
    """Where Python's and the frameworks' headers are; refuses before compiling what cannot compile."""
    import sysconfig

    folders = []
    text = b"\n".join(source.data for source in spec.sources)
    # torch brings a pybind11 of its own, which its flags name.
    pybind11 = package_folder("pybind11") if "torch" not in spec.frameworks else None
    needs_pybind11 = "pybind11" in spec.frameworks or (b"<pybind11/" in text and "torch" not in spec.frameworks)
    if pybind11 and os.path.isfile(f"{pybind11}/include/pybind11/pybind11.h"):
        folders.append(f"{pybind11}/include")
    elif needs_pybind11:
        raise ToolchainError(
            f"pybind11 is not installed for {sys.executable}, and {spec.name!r} needs its headers. "
            f"Install it: {sys.executable} -m pip install pybind11"
        )
    include = sysconfig.get_path("include")
    if not os.path.isfile(f"{include}/Python.h"):
        raise ToolchainError(
            f"Python.h is not in {include}: the headers of Python {sys.version.split()[0]} are not installed. "
            f"Install them (apt-get install python3-dev, dnf install python3-devel), or use a Python that has them."
        )
    folders += dict.fromkeys([include, sysconfig.get_path("platinclude")])
    return [word for folder in folders for word in ("-isystem", folder)]


def _plan(
    spec: Spec, recipe: Recipe, staging: Staging, search: list[str]
) -> list[tuple[str, str, list[str], list[str]]]:
    """The steps: ``(what it does, output, inputs, command)``, all but the first relative to the staging folder."""
    maps = [f"-ffile-prefix-map={staging.path}=/nodecache/build"]
    # The last that matches wins, so the longest goes last.
    for number, folder in sorted(enumerate(recipe.roots), key=lambda pair: len(pair[1])):
        if "=" not in folder:
            maps.append(f"-ffile-prefix-map={folder}=/nodecache/root{number}")
    framework = spec.framework_flags() if spec.framework_flags else Flags([], [], [])
    defines = [f"-DNODECACHE_MODULE_NAME={spec.name}", f"-DTORCH_EXTENSION_NAME={spec.name}"]
    steps: list[tuple[str, str, list[str], list[str]]] = []
    objects = []
    for number, source in enumerate(spec.sources):
        name = _snapshot_name(number, source)
        target = f"obj/{number}.o"
        objects.append(target)
        folder = os.path.dirname(source.path)
        if source.cuda:
            if recipe.cuda is None:
                raise SpecError(f"{source.path} is CUDA and the recipe has no toolkit. This is a bug in nodecache.")
            command = recipe.cuda.command(
                compiler=recipe.compiler.command,
                host_flags=["-fPIC", *maps, *recipe.command[len(recipe.compiler.command) :]],
                flags=[*defines, *framework.cuda_cflags, *search, *recipe.cuda_cflags, "-I", folder],
                source=name,
                target=target,
                dependencies=f"obj/{number}.d",
            )
        else:
            command = [
                *recipe.command,
                *maps,
                *defines,
                *framework.cflags,
                *("-fPIC", "-iquote", folder),
                *recipe.cflags,
                *search,
                *([f"-Wa,--MD,obj/{number}.as.d"] if recipe.compiler.as_deps else []),
                # Behind the user's flags, so that what was read is always written here.
                *("-MD", "-MF", f"obj/{number}.d", "-MT", target),
                *("-c", name, "-o", target),
            ]
        steps.append((f"compile {os.path.basename(source.path)}", target, [], command))
    dependency = [f"-Wl,--dependency-file=obj/{_LINK_DEPENDENCIES}"] if recipe.compiler.link_deps else []
    toolkit = recipe.cuda.link_flags() if recipe.cuda else []
    output = f"entry/{spec.file_name}"
    shared = [] if spec.kind == "program" else ["-shared"]
    ldflags = [*recipe.ldflags, *framework.ldflags, *toolkit, *dependency]
    command = [*recipe.command, *shared, *objects, *ldflags, "-o", output]
    steps.append((f"link {spec.file_name}", output, objects, command))
    return steps


def _snapshot_name(number: int, source: Source) -> str:
    return f"src/{number}/{os.path.basename(source.path)}"


def _snapshot(root: Root, spec: Spec, staging: Staging) -> None:
    """Write the sources as they were when the call began; messages and ``__FILE__`` speak of the originals."""
    try:
        os.mkdir(f"{staging.path}/obj")
        for number, source in enumerate(spec.sources):
            path = f"{staging.path}/{_snapshot_name(number, source)}"
            os.makedirs(os.path.dirname(path))
            said = os.fsencode(source.path).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            with open(path, "xb") as file:
                if not source.path.endswith((".s", ".S")):
                    file.write(b'#line 1 "%s"\n' % said)
                file.write(source.data.removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise root.failed(error, "writing the sources' snapshot") from error


def _write_ninja(root: Root, staging: Staging, steps: list[tuple[str, str, list[str], list[str]]], log: str) -> None:
    """One rule a step, and a script a step, which says in the log that it begins: ninja tells of it when it has ended.

    The scripts keep the shell's part out of what ninja repeats when a step fails.
    """
    lines = ["rule step", "  command = . $script", "  description = $what", ""]
    to_log = f">> {shlex.quote(log)}"
    try:
        os.mkdir(f"{staging.path}/step")
        for number, (what, output, inputs, command) in enumerate(steps, 1):
            words = shlex.join(_shortened(staging, number, command))
            said = shlex.quote(f"> step {number} of {len(steps)}: {what}\n> {words}\n")
            # Not every ninja tells the status, and that of a killed compiler says most.
            end = f'{{ s=$?; echo "> exit status $s" {to_log}; exit $s; }}'
            with open(f"{staging.path}/step/{number}.sh", "xb") as file:
                file.write(os.fsencode(f"printf %s {said} {to_log}\n{words} || {end}\n"))
            lines.append(f"build {output}: step {' '.join(inputs)}")
            lines += [f"  script = ./step/{number}.sh", f"  what = {what.replace('$', '$$')}"]
        with open(f"{staging.path}/build.ninja", "xb") as file:
            file.write(os.fsencode("\n".join(lines) + "\n"))
    except OSError as error:
        raise root.failed(error, "writing build.ninja") from error


def _shortened(staging: Staging, number: int, command: list[str]) -> list[str]:
    """A command that is too long for one argument, with its flags in a response file."""
    if sum(len(os.fsencode(word)) + 3 for word in command) < _LONG:
        return command
    first = next((at for at, word in enumerate(command) if word.startswith("-")), len(command))
    quoted = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in command[first:]]
    with open(f"{staging.path}/obj/{number}.rsp", "xb") as file:
        file.write(os.fsencode("\n".join(quoted) + "\n"))
    nvcc = os.path.basename(command[0]) == "nvcc"
    return [*command[:first], *(["--options-file"] if nvcc else []), f"{'' if nvcc else '@'}obj/{number}.rsp"]


def _ninja() -> str:
    """Path of ninja: the one that pip brought, else the one on PATH."""
    try:
        import ninja

        path = os.path.join(ninja.BIN_DIR, "ninja")
        if os.access(path, os.X_OK):
            return path
    except ImportError:
        pass
    found = which("ninja")
    if found is None:
        raise ToolchainError(f"ninja is not installed. Install it: {sys.executable} -m pip install ninja")
    return found


def _file_time(staging: Staging) -> int:
    """A time that the kernel stamps on what changes from now on, and on nothing that changed before.

    File times advance in ticks of some milliseconds, so the tick in which the caller may have written a header is
    waited out.
    """
    before = time.time_ns()
    fd = os.open(f"{staging.path}/began", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(100):  # a file system may keep whole seconds; then inputs are compared in seconds
            os.fchmod(fd, 0o600)
            now = os.fstat(fd).st_ctime_ns
            if now > before:
                break
            time.sleep(0.001)
        return min(now, time.time_ns())  # a share's clock may be ahead
    finally:
        os.close(fd)


def build_environment(staging: Staging, variables: dict[str, str]) -> dict[str, str]:
    """The environment of a build's processes; ``variables`` with folders that are relative in the caller's."""
    left_out = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "NINJAFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Messages are read by programs, here and in continuous integration: English, and the same for everybody.
    return (
        environment
        | variables
        | {
            "LC_ALL": "C",
            "TMPDIR": staging.tmp,
            MARK: staging.mark,
            "NINJA_STATUS": "[%f/%t] ",
            "PWD": staging.path,
        }
    )


class Supervised:
    """A command under a supervisor: it and all that it started end when this process does, or leaves the context."""

    def __init__(
        self, root: Root, staging: Staging, command: list[str], log: str, variables: dict[str, str] | None = None
    ) -> None:
        self._root = root
        self._staging = staging
        self._variables = variables or {}
        self._command = command
        self._log = log

    def __enter__(self) -> Self:
        control_read, self._control = lock.pipe()
        self._status, status_write = lock.pipe()
        builder = _pidfd()
        given = [control_read, status_write, *([] if builder is None else [builder])]
        program = os.path.join(os.path.dirname(__file__), "supervise.py")
        try:
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable or "python3", "-I", "-S", program),
                        *(
                            str(-1 if builder is None else builder),
                            str(control_read),
                            str(status_write),
                            self._staging.path,
                        ),
                        *self._command,
                    ],
                    cwd=self._staging.path,
                    env=build_environment(self._staging, self._variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=given,
                    start_new_session=True,
                )
        except OSError as error:
            self._close()
            raise self._root.failed(error, "starting the build") from error
        finally:
            for fd in given:
                lock.close(fd)
        return self

    def wait(self) -> tuple[str, int]:
        """Wait for the command: ``("exit", status)``, ``("signal", number)`` or ``("gone", 0)``."""
        said = b""
        while more := os.read(self._status, 64):
            said += more
            if said.endswith(b"\n"):
                word, _, number = said.decode().strip().partition(" ")
                return word, int(number)
        return "gone", 0

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._process.wait() != 0:  # it was killed itself: what it watched over is nobody's now
            reap([self._staging.mark])

    def _close(self) -> None:
        try:
            os.write(self._control, b".")  # a child forked behind Python's back may keep the pipe itself open
        except OSError:
            pass
        lock.close(self._control)
        lock.close(self._status)


def _pidfd() -> lock.Descriptor | None:
    """A descriptor that becomes readable when this process is dead, or None where the kernel has none."""
    try:
        return lock.note(os.pidfd_open, os.getpid())
    except OSError:
        return None


def _run(root: Root, spec: Spec, recipe: Recipe, staging: Staging, attempt: str, log: str) -> None:
    """Run ninja; turn what went wrong into the right exception."""
    command = [_ninja(), "-j", str(job_count())]
    with Supervised(root, staging, command, log, recipe.environment) as tools:
        word, number = tools.wait()
    if word == "exit" and number == 0:
        return
    output = _output(log)
    # 130 is ninja's status when a signal stopped it. Whoever ends a whole job signals the compilers first or alone.
    if word != "exit" or number == 130 or _ENDED_FROM_OUTSIDE.search(output):
        raise BuildInterrupted(
            f"The build of {spec.name!r} was killed from outside ({word} {number}). Nothing was published; "
            f"the log is {log}. Call again."
        )
    if not os.path.exists(f"{staging.path}/build.ninja"):
        raise BuildInterrupted(
            f"The staging folder of {spec.name!r} was removed during the build ({staging.path}). Nothing was kept. "
            f"Keep temp cleaners away from {root.path}, and call again."
        )
    _raise_if_limited(root, staging, output)
    raise BuildError(
        failure_text(spec.name, output, log),
        attempt=attempt,
        first_error=f"Error building extension {spec.name!r}: {first_error(output)}",
        log=log,
    )


def _output(log: str) -> str:
    return read_bytes(log).decode("utf-8", "replace")


def _raise_if_limited(root: Root, staging: Staging, output: str) -> None:
    """A tool that could not write did not fail; this machine refused it something."""
    import errno

    said = "\n".join(line for line in output.splitlines() if not _quotes_the_source(line))
    for sentence, number in (
        ("No space left on device", errno.ENOSPC),
        ("Disk quota exceeded", errno.EDQUOT),
        ("File size limit exceeded", errno.EFBIG),
        ("File too large", errno.EFBIG),
        ("Read-only file system", errno.EROFS),
    ):
        if sentence not in said:
            continue
        temporary = os.path.realpath(staging.tmp)
        elsewhere = os.stat(temporary).st_dev != os.stat(root.path).st_dev
        if number == errno.ENOSPC and elsewhere and _free(temporary) < _free(root.path):
            raise RootError(
                f"No space for the compilers' temporary files in {temporary} (ENOSPC, {_free(temporary)} bytes are "
                f"left). Nothing was published. Free some, or set TMPDIR to a folder with more."
            )
        raise root.failed(OSError(number, os.strerror(number)), "compiling")


def _quotes_the_source(line: str) -> bool:
    """Whether a line repeats the programmer's own words: a command, a marked line of source, ``#error``."""
    return bool(re.match(r"\[\d|> |\s*\d* \||[^:]+:\d+:(\d+:)? (error|warning|note):", line))


def _free(path: str) -> int:
    """Bytes that this user may still write where ``path`` is."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


def first_error(output: str) -> str:
    """The first error in a compiler's output, with its file and line; else the last line that says something."""
    lines = [line for line in output.splitlines() if line.strip()]
    killed = next((line.strip() for line in lines if _says_killed(line)), None)
    if killed is not None:
        return f"a compiler was killed, most often for memory ({killed.removeprefix('> ')})"
    for mark in (": error: ", ": fatal error: ", "error: ", "undefined reference", "cannot find ", " error", "Error"):
        for line in lines:
            if mark in line and not line.startswith((">", "[", "#")):
                return line.strip()
    said = [line for line in lines if not _OURS.match(line)]
    return said[-1].strip() if said else "the tool said nothing"


def _says_killed(line: str) -> bool:
    """Whether a line of output tells of SIGKILL, which is the kernel's way out of memory."""
    return line == "> exit status 137" or "Killed signal terminated" in line or "ld terminated with signal 9" in line


def failure_text(name: str, output: str, log: str) -> str:
    """What the builder's exception says: cause, the tail of the tools' output, where the rest is, remedy."""
    said = output.splitlines()
    lines = [line for line in said if not _OURS.match(line)] or [line for line in said if line.startswith("> exit")]
    remedy = "Correct the cause and call again."
    if any(_says_killed(line) for line in said):
        remedy = "Run fewer compilers at once (NODECACHE_JOBS=1), or give the job more memory, and call again."
    cut = f"(the last {TAIL_LINES} lines)\n" if len(lines) > TAIL_LINES else ""
    tail = "\n".join(lines[-TAIL_LINES:])
    return f"Error building extension {name!r}: {first_error(output)}\n\n{cut}{tail}\n\nThe full log is {log}. {remedy}"


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


def _named_libraries(recipe: Recipe) -> list[str]:
    """Libraries that ``-l`` finds in the folders that ``-L`` names, for linkers that do not say what they read."""
    folders = [recipe.ldflags[at + 1] for at, flag in enumerate(recipe.ldflags[:-1]) if flag == "-L"]
    found = []
    for flag in recipe.ldflags:
        if flag.startswith("-l") and len(flag) > 2:
            names = [flag[3:]] if flag[2] == ":" else [f"lib{flag[2:]}.so", f"lib{flag[2:]}.a"]
            candidates = [f"{folder}/{name}" for folder in folders for name in names]
            found += [path for path in candidates if os.path.isfile(path)][:1]
    return found


def _times(staging: Staging, steps: list[tuple[str, str, list[str], list[str]]]) -> list[dict[str, Any]]:
    """When each step ran, from ninja's log: tab-separated start, end (ms), mtime, output, hash."""
    names = {output: what for what, output, _, _ in steps}
    found = []
    for line in _text(f"{staging.path}/.ninja_log").splitlines():
        fields = line.split("\t")
        if len(fields) >= 5 and fields[3] in names:
            found.append({"step": names[fields[3]], "start_ms": int(fields[0]), "end_ms": int(fields[1])})
    return sorted(found, key=lambda step: (step["start_ms"], step["end_ms"]))


def write_log_head(root: Root, path: str, lines: list[str]) -> None:
    """Begin a log."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, "".join(f"# {line}\n" for line in [*lines, time.strftime("%Y-%m-%d %H:%M:%S %z")]).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise RootError(str(root.failed(error, "writing the log"))) from error
