"""Torch: drop-ins for ``torch.utils.cpp_extension.load`` and ``load_inline``, and a patch that puts them in place.

The flags come from torch's own public functions, when something is built. A hit asks torch nothing: what decides them,
torch's identity, is in the key.
"""

from __future__ import annotations

import os
import re
import shlex
import sys

from nodecache.errors import RootError, SpecError, ToolchainError
from nodecache.extension import obtain
from nodecache.operators import Guard, in_text
from nodecache.root import setting
from nodecache.spec import CUDA_SUFFIXES, Flags, Source, Spec, arguments, paths, read_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    Path = str | os.PathLike[str]

_CUDA_FILES = (*CUDA_SUFFIXES, ".cuh")
_SYCL_FILES = (".sycl",)
_FOLDER_OPTIONS = ("-I", "-L", "-isystem", "-iquote", "-idirafter")
_NINJA = re.compile(r"\$(?:([$: ])|[\w-]+|\{[\w.-]+\})")
_QUOTED = re.compile(r"\\.|'[^']*'", re.DOTALL)
_versions: dict[str, list[str]] = {}


def load(
    name: str,
    sources: Path | Sequence[Path],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Path | Sequence[Path] | None = None,
    build_directory: Path | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> ModuleType | str:
    """``torch.utils.cpp_extension.load``, built once per node.

    Parameters, defaults, macros, flags and results are torch's. What differs: the files lie in nodecache's root, below
    ``build_directory`` or TORCH_EXTENSIONS_DIR where one is given (NODECACHE_ROOT wins over both); torch's own folders
    and its lock are not used; a repeated call gives the same module object; SYCL and ROCm are refused.

    Args:
        name: module name; ``TORCH_EXTENSION_NAME`` is defined to it. As in torch, other contents under the same name in
            the same process get ``<name>_v1``, ``<name>_v2``, ...
        sources: one path or several.
        extra_cflags, extra_cuda_cflags, extra_ldflags: each is unescaped as ninja does (``$$`` is ``$``), then split as
            a shell does, for so torch's ninja file has it. Relative paths begin in ``build_directory`` where they are
            there, else in the working folder.
        extra_sycl_cflags: must be empty.
        extra_include_paths: folders for ``-I``.
        build_directory: the files go below it; it need not be there.
        verbose: print the commands and what they said, when this call has built it.
        with_cuda: CUDA headers and libraries; None for "if a source is CUDA".
        with_sycl: must not be true.
        is_python_module: import it and return the module; else load its operators and return its path.
        is_standalone: build a program and return its path.
        keep_intermediates: only of use in torch's ROCm builds.

    Returns:
        The module, or a path.

    Raises:
        ValueError: ``is_python_module`` and ``is_standalone`` together.
        RuntimeError: as :func:`nodecache.load` (BuildError and ToolchainError are RuntimeErrors); SYCL or ROCm.

    Concurrency: as :func:`nodecache.load`.
    """
    del keep_intermediates
    with_cuda = _which_device([os.fspath(path) for path in listed(sources)], with_cuda, with_sycl, extra_sycl_cflags)
    return _load(
        name,
        read_sources(sources),
        cflags=extra_cflags,
        cuda_cflags=extra_cuda_cflags,
        ldflags=extra_ldflags,
        include_paths=extra_include_paths,
        build_directory=build_directory,
        verbose=verbose,
        with_cuda=with_cuda,
        kind=_kind(is_python_module=is_python_module, is_standalone=is_standalone),
    )


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | list[str] | dict[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Path | Sequence[Path] | None = None,
    build_directory: Path | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> ModuleType | str:
    """``torch.utils.cpp_extension.load_inline``, built once per node.

    Args:
        cpp_sources, cuda_sources: text, one string or several that are joined.
        sycl_sources: must be empty.
        functions: functions to bind: a name, a list, or a dictionary from name to docstring.
        with_pytorch_error_handling: bind through ``torch::wrap_pybind_function``.
        use_pch: taken and ignored: torch's precompiled header is one file that all processes write.
        no_implicit_headers: leave out ``#include <torch/extension.h>`` and its like.
        name: as for :func:`load`, and so are the flags, folders and switches that are not named here.

    Returns:
        The module, or a path.

    Raises:
        ValueError: ``functions`` is of another type.
        RuntimeError: as :func:`load`.

    Concurrency: as :func:`load`. No file is written where another process reads it.
    """
    del keep_intermediates, use_pch
    cpp, cuda = _texts(cpp_sources), _texts(cuda_sources)
    if _texts(sycl_sources):
        raise SpecError("SYCL sources are not built by nodecache. Use torch.utils.cpp_extension.load_inline for them.")
    if not no_implicit_headers:
        cpp = ["#include <torch/extension.h>", *cpp]
        cuda = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>", *cuda] if cuda else []
    if functions is not None:
        cpp.append(_binding(functions, with_pytorch_error_handling))
    # The text has no place; what it includes by quotes is looked for where torch would have put it.
    place = os.path.abspath(build_directory or os.environ.get("TORCH_EXTENSIONS_DIR") or os.getcwd())
    sources = [Source(f"{place}/main.cpp", "\n".join(cpp).encode("utf-8", "surrogateescape"))]
    if cuda:
        sources.append(Source(f"{place}/cuda.cu", "\n".join(cuda).encode("utf-8", "surrogateescape")))
    with_cuda = _which_device([source.path for source in sources], with_cuda, with_sycl, extra_sycl_cflags)
    return _load(
        name,
        sources,
        cflags=extra_cflags,
        cuda_cflags=extra_cuda_cflags,
        ldflags=extra_ldflags,
        include_paths=extra_include_paths,
        build_directory=build_directory,
        verbose=verbose,
        with_cuda=with_cuda,
        kind=_kind(is_python_module=is_python_module, is_standalone=False),
    )


def install() -> bool:
    """Send every JIT build through ``torch.utils.cpp_extension`` in this process to nodecache.

    See :func:`nodecache.patch.install`.
    """
    from nodecache import patch

    return patch.install()


def uninstall() -> None:
    """Put torch's own functions back. See :func:`nodecache.patch.uninstall`."""
    from nodecache import patch

    patch.uninstall()


def listed(value: Path | Sequence[Path]) -> Sequence[Path]:
    """Torch takes one path alone as well."""
    return [value] if isinstance(value, str | os.PathLike) else value


def _texts(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else [*(value or ())]


def _binding(functions: object, error_handling: bool) -> str:
    """The module definition, as torch generates it in content."""
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, list | tuple):
        functions = {function: function for function in functions}
    if not isinstance(functions, dict):
        raise SpecError(
            f"functions is a {type(functions).__name__}. Give a list of names, or a dict of name and docstring."
        )
    wrap = "torch::wrap_pybind_function({})" if error_handling else "{}"
    lines = [f'  m.def("{name}", {wrap.format(name)}, "{doc}");' for name, doc in functions.items()]
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"])


def _kind(*, is_python_module: bool, is_standalone: bool) -> str:
    if is_python_module and is_standalone:
        raise SpecError(
            "is_python_module and is_standalone exclude each other. Set is_python_module=False for a program."
        )
    return "program" if is_standalone else "module" if is_python_module else "library"


def _which_device(
    sources: list[str], with_cuda: bool | None, with_sycl: bool | None, sycl_cflags: Sequence[str] | None
) -> bool:
    """Whether the build takes CUDA; refuses what is not built here."""
    if with_sycl or sycl_cflags or any(path.endswith(_SYCL_FILES) for path in sources):
        raise ToolchainError("SYCL is not built by nodecache. Use torch.utils.cpp_extension.load for this extension.")
    if with_cuda is None:
        with_cuda = any(path.endswith(_CUDA_FILES) for path in sources)
    if with_cuda:
        import torch

        if torch.version.hip is not None:
            raise ToolchainError(
                "ROCm is not built by nodecache. Use torch.utils.cpp_extension.load for this extension."
            )
    return with_cuda


def _words(what: str, flags: Sequence[str] | None, build_directory: Path | None) -> tuple[str, ...]:
    """Flags as words. Torch writes them unquoted into a ninja file, so ninja and then a shell read them."""
    if flags is not None and not isinstance(flags, str):
        flags = [flag.strip() if isinstance(flag, str) else flag for flag in flags]
    words = [word for flag in arguments(what, flags) for word in _shell_words(_NINJA.sub(_unescaped, flag))]
    return _absolute(words, os.fspath(build_directory)) if build_directory else tuple(words)


def _unescaped(found: re.Match[str]) -> str:
    """What ninja makes of ``$$``, ``$:`` and ``$ ``; a variable of its own is not set here."""
    return found[1] or ""


def _shell_words(text: str) -> list[str]:
    """Words as a shell makes them; one is only started for what it alone knows."""
    rest = _QUOTED.sub("", text)
    try:
        if not any(sign in rest for sign in "$`*?["):
            return shlex.split(text)
        import subprocess

        command = ["/bin/sh", "-c", f"printf '%s\\0' {text}"]
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    except ValueError as error:
        raise SpecError(f"{text!r} cannot be split into flags: {error}. Correct its quotes.") from error
    except subprocess.CalledProcessError as error:
        raise SpecError(
            f"{text!r} cannot be split into flags: {os.fsdecode(error.stderr).strip()}. Correct it."
        ) from error
    return [os.fsdecode(word) for word in said.split(b"\0") if word]


def _absolute(words: list[str], folder: str) -> tuple[str, ...]:
    """Words with the paths that are below ``folder``, where torch's tools would run, made absolute."""
    found = []
    before = ""
    for word in words:
        option = next((option for option in _FOLDER_OPTIONS if word.startswith(option)), "")
        path = word[len(option) :]
        named = bool(option) or before in _FOLDER_OPTIONS or word[:1] not in "-@"
        place = os.path.join(folder, path)
        found.append(option + os.path.abspath(place) if named and path and os.path.exists(place) else word)
        before = word
    return tuple(found)


def _listed(value: Path | Sequence[Path] | None) -> list[object]:
    """Arguments as they count: none is an empty list, a tuple a list, a path its text."""
    given = [value] if isinstance(value, str | os.PathLike) else value or ()
    return [os.fspath(each) if isinstance(each, os.PathLike) else each for each in given]


def _load(
    name: str,
    sources: list[Source],
    *,
    cflags: Sequence[str] | None,
    cuda_cflags: Sequence[str] | None,
    ldflags: Sequence[str] | None,
    include_paths: Path | Sequence[Path] | None,
    build_directory: Path | None,
    verbose: bool,
    with_cuda: bool,
    kind: str,
) -> ModuleType | str:
    """Make the spec, get or build it, load it as torch does."""
    content = "".join(
        repr(part)
        for part in (
            *((s.path, s.digest) for s in sources),
            *map(_listed, (cflags, cuda_cflags, ldflags, include_paths)),
            kind,
            with_cuda,
        )
    )
    seen_as = name
    seen = _versions.setdefault(name, [])
    if content not in seen:
        seen.append(content)
    number = seen.index(content)
    name = f"{name}_v{number}" if number else name
    cuda_words = _words("extra_cuda_cflags", cuda_cflags, build_directory)
    if with_cuda and os.environ.get("CC"):
        cuda_words = ("-ccbin", os.environ["CC"], *cuda_words)
    edited = _program_flags(with_cuda=with_cuda)
    guard = Guard(seen_as, kind, in_text(sources, name), edited=True)
    spec = Spec(
        name,
        sources,
        cflags=_words("extra_cflags", cflags, build_directory),
        cuda_cflags=cuda_words,
        ldflags=_words("extra_ldflags", ldflags, build_directory),
        include_paths=paths("extra_include_paths", include_paths),
        frameworks=("torch", "cuda") if with_cuda else ("torch",),
        kind=kind,
        environment_flags=False,
        base_flags=(),
        framework_flags=lambda: _framework_flags(
            with_cuda=with_cuda,
            standalone=kind == "program",
            nvcc_standard=not any(word.startswith("-std=") for word in cuda_words),
        ),
        instead=None if kind == "program" else _Instead(guard, verbose=verbose),
        items=() if edited is None else (("torch COMMON_NVCC_FLAGS", "\n".join(edited)),),
    )

    def get() -> ModuleType | str:
        found = _obtained(spec, build_directory, verbose=verbose)
        if kind == "library":
            import torch

            torch.ops.load_library(found)  # type: ignore[no-untyped-call]  # torch's
        return found

    found: ModuleType | str = guard.run(get)
    return found


class _Instead:
    """Before a file is loaded: say how it was built, and keep torch from ending the process."""

    def __init__(self, guard: Guard, *, verbose: bool) -> None:
        self._guard = guard
        self._verbose = verbose

    def __call__(self, path: str, role: str) -> Any:
        if self._verbose and role == "built":
            self._print_log(path)
        return self._guard.before(path)

    def _print_log(self, path: str) -> None:
        from nodecache.printable import encodable, printable

        try:
            with open(os.path.join(os.path.dirname(path), "build.log"), encoding="utf-8", errors="replace") as log:
                said = encodable(printable(log.read()), sys.stdout)
                print(said, end="", flush=True)  # noqa: T201  # torch's ninja writes there, too
        except OSError:  # a result that is not kept may be on its way out
            pass


def _obtained(spec: Spec, build_directory: Path | None, *, verbose: bool) -> ModuleType | str:
    """Get or build it in the root that the caller, or else TORCH_EXTENSIONS_DIR, asks for."""
    variable = "TORCH_EXTENSIONS_DIR"
    chosen = os.fspath(build_directory) if build_directory else setting(variable)
    found: ModuleType | str
    if not chosen or setting("NODECACHE_ROOT"):
        found = obtain(spec, verbose=verbose)
        return found
    try:
        found = obtain(spec, verbose=verbose, root=os.path.join(chosen, f"nodecache_{os.getuid()}"))
    except RootError as error:
        if not build_directory:
            said = str(error).replace("(root=)", f"(from {variable})")
            raise type(error)(f"{said} Or correct {variable}={chosen}, which chose it.") from error
        # Code chose it, which knows nothing of this machine; the user cannot correct it.
        _warn_of_folder(chosen, error)
        return _obtained(spec, None, verbose=verbose)
    return found


_warned: set[str] = set()


def _warn_of_folder(folder: str, error: RootError) -> None:
    if folder in _warned:
        return
    from nodecache.printable import logger

    _warned.add(folder)
    logger().warning(
        "build_directory=%r cannot be used; the root that applies without it is used instead. %s",
        folder,
        str(error).replace(" (root=)", ""),
    )


def _program_flags(*, with_cuda: bool) -> list[str] | None:
    """COMMON_NVCC_FLAGS where the program has edited them in torch's module."""
    cpp_extension = sys.modules.get("torch.utils.cpp_extension")
    if not with_cuda or cpp_extension is None:
        return None
    from nodecache.torch_changes import changed_flags

    return changed_flags(cpp_extension)


def _framework_flags(*, with_cuda: bool, standalone: bool, nvcc_standard: bool) -> Flags:
    """Torch's own flags, which only a build needs."""
    from nodecache.torch_flags import framework_flags

    return framework_flags(with_cuda=with_cuda, standalone=standalone, nvcc_standard=nvcc_standard)


def __getattr__(name: str) -> object:
    """``share``, which needs ``torch.distributed``, when it is first asked for."""
    if name == "share":
        from nodecache.share import share

        return share
    raise AttributeError(f"module 'nodecache.torch' has no attribute {name!r}")
