"""The recipe: everything that is known before compiling, and its key.

A recipe is a list of named values. Its digest is the recipe key; the list itself goes into the manifest, so that
``nodecache.explain`` can say what a key was made of. Files lie somewhere, and where is not part of it: include roots
and source folders are numbered, and the compiler is told to write the numbers where it would write paths.
"""

from __future__ import annotations

import os
import sys

from nodecache.compiler import find_compiler
from nodecache.digest import digest_bytes, digest_items, read_bytes
from nodecache.packages import identity
from nodecache.spec import split_words

TYPE_CHECKING = False  # importing typing costs a hit milliseconds; checkers know the name
if TYPE_CHECKING:
    from nodecache.root import Root
    from nodecache.spec import Spec

FORMAT = "1"
# Read by compilers, linkers and nvcc without showing in any command line.
ENVIRONMENT = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "CCC_OVERRIDE_OPTIONS",
    "LD_RUN_PATH",
    "SOURCE_DATE_EPOCH",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
)
_NATIVE = ("-march=native", "-mtune=native", "-mcpu=native")
_INCLUDE_OPTIONS = ("-isystem", "-iquote", "-idirafter", "-I")
_FILE_OPTIONS = ("-include", "-imacros", "-T")


class Recipe:
    """A recipe and its key.

    Attributes:
        key: digest of ``items``.
        items: named values, in a fixed order.
        compiler: who compiles it.
        roots: numbered folders: the sources' own first, then include and library paths.
        cflags, cuda_cflags, ldflags: complete, with absolute paths, as the tools get them.
        linked: files that the link flags name.
        cuda: CUDA toolkit and GPU architecture flags, or None.
    """

    __slots__ = ("cflags", "compiler", "cuda", "cuda_cflags", "items", "key", "ldflags", "linked", "roots")

    def __init__(self, root: Root, spec: Spec) -> None:
        self.roots: list[str] = []
        self.linked: list[str] = []
        cflags, ldflags = list(spec.cflags), list(spec.ldflags)
        if spec.environment_flags:
            cflags = [*split_words(os.environ.get("CXXFLAGS", "")), *cflags]
            ldflags = [*split_words(os.environ.get("LDFLAGS", "")), *ldflags]
        self.compiler = find_compiler(root, _chosen_linker(ldflags))
        sources = [
            (
                f"source {number}",
                f"{self._root_number(os.path.dirname(source.path))}/{os.path.basename(source.path)} {source.digest}",
            )
            for number, source in enumerate(spec.sources)
        ]
        includes = [f"-I{path}" for path in spec.include_paths]
        self.cflags, said_cflags = self._flags([*spec.base_flags, *includes, *cflags])
        self.cuda_cflags, said_cuda = self._flags(
            [*spec.base_flags[1:], *includes, *spec.cuda_cflags] if spec.cuda else []
        )
        self.ldflags, said_ldflags = self._flags(ldflags)
        self.cuda = None
        self.items = [
            ("format", FORMAT),
            ("kind", spec.kind),
            ("name", spec.name),
            *python_items(),
            ("machine", os.uname().machine),
            ("c library", _c_library()),
            ("compiler", self.compiler.version),
            ("compiler path", " ".join(self.compiler.programs)),
            ("target", self.compiler.target),
            ("linker", self.compiler.linker),
            *sources,
            ("cflags", "\n".join(said_cflags)),
            ("ldflags", "\n".join(said_ldflags)),
            *((f"env {name}", os.environ[name]) for name in ENVIRONMENT if name in os.environ),
            *((f"framework {name}", identity(name)) for name in spec.frameworks if name != "pybind11"),
        ]
        text = " ".join(self._everything(cflags, ldflags, spec))
        if any(flag in text for flag in _NATIVE):
            self.items.append(("cpu", cpu_features()))
        if spec.cuda:
            from nodecache.cuda import find_toolkit

            self.cuda = find_toolkit(root, spec.cuda_cflags)
            self.items += [("cuda cflags", "\n".join(said_cuda)), *self.cuda.items]
        self.key = digest_items(self.items)

    def _everything(self, cflags: list[str], ldflags: list[str], spec: Spec) -> list[str]:
        """All text that could ask for the building machine's own CPU, response files included."""
        text = [
            *spec.base_flags,
            *cflags,
            *ldflags,
            *spec.cuda_cflags,
            *(os.environ.get(name, "") for name in ENVIRONMENT),
        ]
        for flag in text[:]:
            if flag.startswith("@") and os.path.isfile(flag[1:]):
                content = read_bytes(flag[1:])
                self.items.append((f"response file {os.path.basename(flag)}", digest_bytes(content)))
                text.append(content.decode("utf-8", "replace"))
        return text

    def _root_number(self, folder: str) -> int:
        if folder not in self.roots:
            self.roots.append(folder)
        return self.roots.index(folder)

    def _place(self, path: str) -> tuple[str, str]:
        """An absolute folder, and how the key says it."""
        path = os.path.abspath(path)
        # The compiler cannot map a path with '=' in it, so there the path itself would reach the binary.
        if "=" in path:
            return path, path
        return path, f"{{root {self._root_number(path)}}}"

    def _flags(self, flags: list[str]) -> tuple[list[str], list[str]]:
        """Flags with absolute paths, and as the key says them."""
        real: list[str] = []
        said: list[str] = []
        waiting = iter(flags)
        for flag in waiting:
            option = next((o for o in (*_INCLUDE_OPTIONS, "-L") if flag.startswith(o)), None)
            if option is not None:
                value = flag[len(option) :] or next(waiting, "")
                path, name = self._place(value)
                real += [option, path]
                said += [option, name]
            elif flag in _FILE_OPTIONS:
                path = next(waiting, "")
                real += [flag, os.path.abspath(path) if os.path.exists(path) else path]
                said += [flag, os.path.basename(path)]
                if flag == "-T":
                    self.linked.append(real[-1])
            else:
                one, name = self._other(flag)
                real.append(one)
                said.append(name)
        return real, said

    def _other(self, flag: str) -> tuple[str, str]:
        """A flag that is a file, names one after ``-Wl,``, or neither."""
        if flag.startswith("@"):
            return "@" + os.path.abspath(flag[1:]), "@" + os.path.basename(flag)
        if not flag.startswith("-"):
            path = os.path.abspath(flag)
            if os.path.isfile(path):
                self.linked.append(path)
                return path, f"{{file {os.path.basename(path)}}}"
            return flag, flag
        if flag.startswith("-Wl,") and "rpath" not in flag:
            words = [self._linker_word(word) for word in flag.split(",")]
            return ",".join(real for real, _ in words), ",".join(said for _, said in words)
        return flag, flag

    def _linker_word(self, word: str) -> tuple[str, str]:
        """One word for the linker: ``--version-script=exports.map`` names a file."""
        option, equals, value = word.rpartition("=")
        if not value or not os.path.isfile(value):
            return word, word
        self.linked.append(os.path.abspath(value))
        return f"{option}{equals}{self.linked[-1]}", f"{option}{equals}{{file {os.path.basename(value)}}}"


def _chosen_linker(ldflags: list[str]) -> str | None:
    chosen = [flag.partition("=")[2] for flag in ldflags if flag.startswith(("-fuse-ld=", "--ld-path="))]
    return chosen[-1] if chosen else None


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
    block = read_bytes("/proc/cpuinfo").decode("utf-8", "replace").partition("\n\n")[0]
    found = []
    for line in block.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in wanted:
            found.append(f"{name.strip()}={value.strip()}")
    return "; ".join(found)
