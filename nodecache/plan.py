"""The plan: the commands that make a spec's file, with relative paths in the staging folder."""

from __future__ import annotations

import os
import sys

from nodecache.errors import SpecError, ToolchainError
from nodecache.interpreter import described
from nodecache.packages import package_folder
from nodecache.spec import Flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nodecache.recipe import Recipe
    from nodecache.spec import Source, Spec
    from nodecache.staging import Staging

LINK_DEPENDENCIES = "link.d"
"""Name of the file in which the linker says what it read."""


SIGNALS = "obj/signals"
"""File, in the staging folder, with one line per program that a signal ended: 128 and the signal's number."""

WATCH = "step/watch.sh"
"""Script, in the staging folder, under which gcc starts the programs below it."""

# gcc's driver ends with 1 whether the compiler below it found an error or was killed. So a shell between the two notes
# the signal. It ends by the same signal, so that the driver says what it always says.
WATCH_TEXT = f"""\
"$@"
s=$?
[ $s -le 128 ] || {{ echo $s >> {SIGNALS}; kill -$((s-128)) $$; }}
exit $s
"""

STATUSES = "obj/statuses"
"""File, in the staging folder, with the exit status of each step that failed, one per line."""


class Step:
    """One command of a build.

    Attributes:
        what: for people, such as ``compile a.cpp``.
        output: what it makes, relative to the staging folder.
        inputs: outputs of other steps that it needs.
        command: one string a word.
    """

    __slots__ = ("command", "inputs", "output", "what")

    def __init__(self, what: str, output: str, inputs: list[str], command: list[str]) -> None:
        self.what = what
        self.output = output
        self.inputs = inputs
        self.command = command


def plan(spec: Spec, recipe: Recipe, staging: Staging) -> list[Step]:
    """The steps that make a spec's file; the link comes last.

    Raises:
        ToolchainError: Python's headers, or a framework's, are missing.
    """
    search = _search_flags(spec)
    maps = [f"-ffile-prefix-map={staging.path}=/nodecache/build"]
    # The last that matches wins, so the longest goes last.
    for number, folder in sorted(enumerate(recipe.roots), key=lambda pair: len(pair[1])):
        if "=" not in folder:
            maps.append(f"-ffile-prefix-map={folder}=/nodecache/root{number}")
    framework = spec.framework_flags() if spec.framework_flags else Flags([], [], [])
    defines = [f"-DNODECACHE_MODULE_NAME={spec.name}", f"-DTORCH_EXTENSION_NAME={spec.name}"]
    watch = [] if "-wrapper" in [*recipe.command, *recipe.cflags, *recipe.ldflags] else _signal_watch(recipe)
    steps: list[Step] = []
    objects = []
    for number, source in enumerate(spec.sources):
        name = snapshot_name(number, source)
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
                *watch,
                *maps,
                *defines,
                *framework.cflags,
                *("-fPIC", *_gcc_flags(spec, recipe), "-iquote", folder),
                *recipe.cflags,
                *search,
                *([f"-Wa,--MD,obj/{number}.as.d"] if recipe.compiler.as_deps else []),
                # Behind the user's flags, so that what was read is always written here.
                *("-MD", "-MF", f"obj/{number}.d", "-MT", target),
                *("-c", name, "-o", target),
            ]
        steps.append(Step(f"compile {os.path.basename(source.path)}", target, [], command))
    dependency = [f"-Wl,--dependency-file=obj/{LINK_DEPENDENCIES}"] if recipe.compiler.link_deps else []
    toolkit = recipe.cuda.link_flags() if recipe.cuda else []
    output = f"entry/{spec.file_name}"
    shared = [] if spec.kind == "program" else ["-shared"]
    ldflags = [*recipe.ldflags, *framework.ldflags, *toolkit, *dependency]
    command = [*recipe.command, *shared, *objects, *ldflags, "-o", output]
    steps.append(Step(f"link {spec.file_name}", output, objects, command))
    return steps


def _signal_watch(recipe: Recipe) -> list[str]:
    """Flags by which gcc notes what signal ended a program that it started; none for other compilers.

    Compilers behind ccache or distcc are left alone: these may refuse the flag, or run elsewhere.
    """
    if "Free Software Foundation" not in recipe.compiler.version or len(recipe.compiler.command) > 1:
        return []
    behind = {os.path.basename(path) for path in map(os.path.realpath, recipe.compiler.programs)}
    if behind & {"ccache", "distcc", "icecc", "sccache"}:
        return []
    return ["-wrapper", f"/bin/sh,{WATCH}"]


def _gcc_flags(spec: Spec, recipe: Recipe) -> list[str]:
    """Flags that only GCC needs.

    It writes down system headers by the file that a link leads to, where that name is shorter, and so hides the link.
    It also marks inline variables as unique in the process, so an edited module would get those of the module from
    before the edit, with their old values. Torch's headers rely on that mark to share theirs with its libraries.
    """
    if "Free Software Foundation" not in recipe.compiler.version:
        return []
    return ["-fno-canonical-system-headers", *([] if "torch" in spec.frameworks else ["-fno-gnu-unique"])]


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
            f"pybind11 is not installed for {described()}, and {spec.name!r} needs its headers. "
            f"Install it: {described()} -m pip install pybind11"
        )
    include = sysconfig.get_path("include")
    if not os.path.isfile(f"{include}/Python.h"):
        raise ToolchainError(
            f"Python.h is not in {include}: the headers of Python {sys.version.split()[0]} are not installed. "
            f"Install them (apt-get install python3-dev, dnf install python3-devel), or use a Python that has them."
        )
    folders += dict.fromkeys([include, sysconfig.get_path("platinclude")])
    return [word for folder in folders for word in ("-isystem", folder)]


def snapshot_name(number: int, source: Source) -> str:
    """Where a source's snapshot is."""
    return f"src/{number}/{os.path.basename(source.path)}"


def named_libraries(recipe: Recipe) -> list[str]:
    """Libraries that ``-l`` finds in the folders that ``-L`` names, for linkers that do not say what they read."""
    folders = [recipe.ldflags[at + 1] for at, flag in enumerate(recipe.ldflags[:-1]) if flag == "-L"]
    found = []
    for flag in recipe.ldflags:
        if flag.startswith("-l") and len(flag) > 2:
            names = [flag[3:]] if flag[2] == ":" else [f"lib{flag[2:]}.so", f"lib{flag[2:]}.a"]
            candidates = [f"{folder}/{name}" for folder in folders for name in names]
            found += [path for path in candidates if os.path.isfile(path)][:1]
    return found
