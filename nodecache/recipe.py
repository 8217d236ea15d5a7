"""The recipe: everything that is known before compiling, and its key.

A recipe is a list of named values. Its digest is the recipe key; the list itself goes into the manifest, so that
``nodecache.explain`` can say what a key was made of. Files lie somewhere, and where is not part of it: include roots
and source folders are numbered, and the compiler is told to write the numbers where it would write paths.
"""

from __future__ import annotations

import os
import sys

from nodecache.compiler import find_compiler
from nodecache.digest import digest_file, digest_items, read_bytes
from nodecache.errors import SpecError
from nodecache.inputs import LIBRARIES
from nodecache.packages import ABSENT, UNTOLD, identity
from nodecache.spec import split_words

TYPE_CHECKING = False  # importing typing costs a hit milliseconds; checkers know the name
if TYPE_CHECKING:
    from nodecache.compiler import Compiler
    from nodecache.root import Root
    from nodecache.spec import Spec

FORMAT = "4"
# Read by compilers, linkers and nvcc without showing in any command line.
ENVIRONMENT = (
    "GCC_EXEC_PREFIX",
    "CCC_OVERRIDE_OPTIONS",
    "LD_RUN_PATH",
    "SOURCE_DATE_EPOCH",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "CRAY_CPU_TARGET",
    "CRAYPE_LINK_TYPE",
)
# The same, of folders; the number is the rank of headers found there.
SEARCHED = {
    "CPATH": 200,
    "C_INCLUDE_PATH": 400,
    "CPLUS_INCLUDE_PATH": 400,
    "COMPILER_PATH": None,
    "LIBRARY_PATH": LIBRARIES + 500,
}
_NATIVE = ("-march=native", "-mtune=native", "-mcpu=native")
# Options with a folder, joined or as the next word, and its rank: the order in which GCC searches.
_FOLDER_OPTIONS = {
    "-iquote": 0,
    "-isystem": 300,
    "-idirafter": 500,
    "-I": 100,
    "-L": LIBRARIES,
    "-B": None,
    "-isysroot": None,
    "--sysroot=": None,
}
_FILE_OPTIONS = ("-include", "-imacros", "-T")
# Options whose next word is no file, whatever lies in the working folder.
_WORD_OPTIONS = frozenset(
    (
        *("-D", "-U", "-A", "-x", "-u", "-z", "-l", "-e", "-G", "-target", "-arch", "-o", "-MF", "-MT", "-MQ"),
        *("--param", "-Xclang", "-Xassembler", "-Xpreprocessor", "-Xptxas", "-Xcompiler", "-std", "-gencode", "-code"),
        *("-ccbin", "--compiler-bindir", "--gpu-architecture", "--gpu-code", "--generate-code"),
    )
)
_RESPONSE_DEPTH = 10


class Recipe:
    """A recipe and its key.

    Args:
        root: where what the tools said is remembered.
        spec: what to build.
        compiler: who compiled it elsewhere, where this node has no compiler.
        told: the items of that build, likewise.

    Attributes:
        key: digest of ``items``.
        items: named values, in a fixed order.
        compiler: who compiles it.
        command: how it is called, with the flags that CXX brings along.
        roots: numbered folders: the sources' own first, then include and library paths.
        ranks: per root the first and the last place in the compiler's order of search that it has.
        cflags, cuda_cflags, ldflags: complete, with absolute paths, as the tools get them.
        environment: variables that name folders, with absolute paths, as the tools get them.
        linked: files that the flags name.
        cuda: CUDA toolkit and GPU architecture flags, or None.
    """

    __slots__ = (
        "cflags",
        "command",
        "compiler",
        "cuda",
        "cuda_cflags",
        "environment",
        "items",
        "key",
        "ldflags",
        "linked",
        "ranks",
        "roots",
    )

    def __init__(
        self, root: Root, spec: Spec, compiler: Compiler | None = None, told: dict[str, str] | None = None
    ) -> None:
        self.roots: list[str] = []
        self.ranks: list[tuple[int, int]] = []
        self.linked: list[str] = []
        cflags, ldflags = list(spec.cflags), list(spec.ldflags)
        if spec.environment_flags:
            cflags = [*split_words(os.environ.get("CXXFLAGS", "")), *cflags]
            ldflags = [*split_words(os.environ.get("LDFLAGS", "")), *ldflags]
        cflags, ldflags = _unfold(cflags), _unfold(ldflags)
        cuda_cflags = _unfold(list(spec.cuda_cflags)) if spec.cuda else []
        self.compiler = compiler or find_compiler(root, _chosen_linker(ldflags))
        sources = [
            (
                f"source {number}",
                f"{self._place(os.path.dirname(source.path), 0)[1]}/{os.path.basename(source.path)} {source.digest}",
            )
            for number, source in enumerate(spec.sources)
        ]
        includes = [f"-I{path}" for path in spec.include_paths]
        words, said_words = self._flags(self.compiler.words)
        self.command = [*self.compiler.command, *words]
        self.cflags, said_cflags = self._flags([*spec.base_flags, *includes, *cflags])
        self.cuda_cflags, said_cuda = self._flags([*spec.base_flags[1:], *includes, *cuda_cflags] if spec.cuda else [])
        self.ldflags, said_ldflags = self._flags(ldflags)
        self.environment: dict[str, str] = {}
        searched = [self._folders(name) for name in SEARCHED if os.environ.get(name)]
        self.cuda = None
        self.items = [
            ("format", FORMAT),
            ("kind", spec.kind),
            ("name", spec.name),
            *node_items(),
            ("compiler", self.compiler.version),
            ("compiler path", " ".join(self.compiler.programs)),
            ("compiler flags", "\n".join(said_words)),
            ("target", self.compiler.target),
            ("linker", self.compiler.linker),
            ("dependency output", self.compiler.dependency_output),
            *sources,
            ("cflags", "\n".join(said_cflags)),
            ("ldflags", "\n".join(said_ldflags)),
            *searched,
            *((f"env {name}", os.environ[name]) for name in ENVIRONMENT if name in os.environ),
            *((f"framework {name}", _framework(name, told)) for name in spec.frameworks if name != "pybind11"),
            *((f"file {os.path.basename(path)}", _digest(path)) for path in self.linked),
        ]
        everything = " ".join(
            [
                *(*words, *self.cflags, *self.ldflags, *self.cuda_cflags),
                *(os.environ.get(name, "") for name in ENVIRONMENT),
            ]
        )
        if any(flag in everything for flag in _NATIVE):
            self.items.append(("cpu", cpu_features()))
        if spec.cuda:
            from nodecache.cuda import find_toolkit

            self.cuda = find_toolkit(root, cuda_cflags, told)
            self.items += [("cuda cflags", "\n".join(said_cuda)), *self.cuda.items]
        self.items += spec.items
        self.key = digest_items(self.items)

    def _place(self, path: str, rank: int | None) -> tuple[str, str]:
        """An absolute folder, and how the key says it."""
        path = os.path.abspath(path)
        # Not every compiler can map a path with '=' in it, so there the path itself may reach the binary. What no
        # header or library is searched in by its name (a rank of None) is not numbered either.
        if "=" in path or rank is None:
            return path, path
        rank += len(self.roots)
        if path not in self.roots:
            self.roots.append(path)
            self.ranks.append((rank, rank))
        number = self.roots.index(path)
        low, high = self.ranks[number]
        self.ranks[number] = (min(low, rank), max(high, rank))
        return path, f"{{root {number}}}"

    def _folders(self, name: str) -> tuple[str, str]:
        """A variable that lists folders; an empty one is the working folder, which the tools do not share."""
        places = [self._place(folder, SEARCHED[name]) for folder in os.environ[name].split(":")]
        self.environment[name] = ":".join(path for path, _ in places)
        return f"env {name}", ":".join(said for _, said in places)

    def _flags(self, flags: list[str]) -> tuple[list[str], list[str]]:
        """Flags with absolute paths, and as the key says them."""
        real: list[str] = []
        said: list[str] = []
        waiting = iter(flags)
        for flag in waiting:
            option = next((o for o in _FOLDER_OPTIONS if flag.startswith(o)), None)
            if option is not None:
                path, name = self._place(flag[len(option) :] or next(waiting, ""), _FOLDER_OPTIONS[option])
                real += [f"{option}{path}"] if option[-1] == "=" else [option, path]
                said += [option, name]
            elif flag in _FILE_OPTIONS:
                path = next(waiting, "")
                real += [flag, os.path.abspath(path) if os.path.exists(path) else path]
                said += [flag, os.path.basename(path)]
                if os.path.isfile(real[-1]):
                    self.linked.append(real[-1])
            elif flag in _WORD_OPTIONS:
                word = next(waiting, "")
                real += [flag, word]
                said += [flag, word]
            elif flag == "-Xlinker":
                one, name = self._linker_word(next(waiting, ""))
                real += [flag, one]
                said += [flag, name]
            else:
                one, name = self._other(flag)
                real.append(one)
                said.append(name)
        return real, said

    def _other(self, flag: str) -> tuple[str, str]:
        """A flag that is a file, names one after ``-Wl,`` or ``=``, or neither."""
        if not flag.startswith("-"):
            return self._named("", flag)
        if flag.startswith("-Wl,"):
            words: list[tuple[str, str]] = []
            for word in flag.split(","):
                after_rpath = words and words[-1][0] in ("-rpath", "--rpath", "-R", "-soname", "-h", "-Map")
                words.append((word, word) if after_rpath else self._linker_word(word))
            return ",".join(real for real, _ in words), ",".join(said for _, said in words)
        option, equals, value = flag.partition("=")
        if equals and ("/" in value or "." in value) and option[:2] not in ("-D", "-U") and "prefix-map" not in option:
            return self._named(option + equals, value)
        return flag, flag

    def _linker_word(self, word: str) -> tuple[str, str]:
        """One word for the linker: ``--version-script=exports.map`` names a file."""
        option, equals, value = word.rpartition("=")
        if option.lstrip("-") in ("rpath", "soname", "Map", "rpath-link"):
            return word, word
        if value.startswith("@"):
            return self._named(f"{option}{equals}@", value[1:])
        if not equals and "/" not in value and "." not in value:
            return word, word  # "now" of "-z,now" is no file, whatever lies in the working folder
        return self._named(f"{option}{equals}", value)

    def _named(self, before: str, value: str) -> tuple[str, str]:
        """What may be a file; then its content counts, and where it is does not."""
        if not value or not os.path.isfile(value):
            return before + value, before + value
        path = os.path.abspath(value)
        self.linked.append(path)
        return before + path, f"{before}{{file {os.path.basename(path)}}}"


def _unfold(flags: list[str], depth: int = 0) -> list[str]:
    """Flags with response files (``@file``) replaced by what is in them, as the compiler would."""
    found: list[str] = []
    for flag in flags:
        if flag[:1] == "@" and os.path.isfile(flag[1:]):
            if depth == _RESPONSE_DEPTH:
                raise SpecError(f"Response file {flag[1:]} includes itself. Correct it.")
            found += _unfold(split_words(read_bytes(flag[1:]).decode("utf-8", "surrogateescape")), depth + 1)
        else:
            found.append(flag)
    return found


def _digest(path: str) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise SpecError(f"{path}, which the flags name, cannot be read: {error.strerror}. Check its rights.") from error


def _chosen_linker(ldflags: list[str]) -> str | None:
    chosen = [flag.partition("=")[2] for flag in ldflags if flag.startswith(("-fuse-ld=", "--ld-path="))]
    return chosen[-1] if chosen else None


def _framework(name: str, told: dict[str, str] | None) -> str:
    """A framework's identity; where this node has only its libraries, that of the build that is told of."""
    found = identity(name)
    return told.get(f"framework {name}", found) if told and found in (ABSENT, UNTOLD) else found


def node_items() -> list[tuple[str, str]]:
    """What of this node a binary depends on, whatever compiles it."""
    return [*python_items(), ("machine", os.uname().machine), ("c library", _c_library())]


def python_items() -> list[tuple[str, str]]:
    """What of this interpreter a binary depends on."""
    import _imp

    return [
        ("python", f"{sys.implementation.name} {sys.version.split()[0]}"),
        ("python abi", " ".join([_imp.extension_suffixes()[0], f"abiflags={getattr(sys, 'abiflags', '')}"])),
    ]


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        return "not glibc"


def cpu_features() -> str:
    """What ``native`` means on this machine: the first processor's model and feature lines.

    Source: ``/proc/cpuinfo``, whose first block names vendor, family, model, stepping and flags on x86-64, and
    implementer, part and features on arm64.
    """
    wanted = (
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "features",
        "cpu implementer",
        "cpu part",
        "cpu variant",
        "cpu",
        "isa",
    )
    # Not the whole file: the kernel asks every processor for its clock while it is read.
    with open("/proc/cpuinfo", "rb", buffering=0) as file:
        block = file.read(1 << 14).decode("utf-8", "replace").partition("\n\n")[0]
    found = []
    for line in block.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in wanted:
            found.append(f"{name.strip()}={value.strip()}")
    return "; ".join(found)
