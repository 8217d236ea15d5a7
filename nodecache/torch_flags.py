"""Torch's own compiler and linker flags, from its public functions. Only a build asks for them; a hit does not."""

from __future__ import annotations

from nodecache.errors import ToolchainError
from nodecache.spec import Flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def framework_flags(*, with_cuda: bool, standalone: bool, nvcc_standard: bool = True) -> Flags:
    """Torch's own flags, from its public functions.

    Args:
        with_cuda: with CUDA's headers and libraries.
        standalone: for a program.
        nvcc_standard: whether nvcc gets torch's C++ standard; it cannot take two.

    Raises:
        ToolchainError: torch is not installed, or is a build without CUDA where that is wanted.
    """
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        from nodecache.interpreter import described

        raise ToolchainError(
            f"torch cannot be imported ({error}). Install it: {described()} -m pip install torch"
        ) from error
    if with_cuda and torch.version.cuda is None:
        raise ToolchainError(
            f"torch {torch.__version__} is a build without CUDA: it has no libraries to link a CUDA extension with. "
            f"Install a CUDA build of torch, or set with_cuda=False."
        )
    device = "cuda" if with_cuda else "cpu"
    search = [word for path in _device_paths(cpp_extension.include_paths, device) for word in ("-isystem", path)]
    # In no public function: until 2.8 torch told pybind11 the compiler's ABI so.
    old = [int(part) for part in torch.__version__.split(".")[:2]] < [2, 9]
    abi: list[str] = getattr(cpp_extension, "_get_pybind11_abi_build_flags", list)() if old else []
    common = [*abi, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *search]
    if not standalone:
        common.insert(0, "-DTORCH_API_INCLUDE_EXTENSION_H")
    folders = [*dict.fromkeys(_device_paths(cpp_extension.library_paths, device))]
    libraries = [
        "c10",
        *(["c10_cuda"] if with_cuda else []),
        "torch_cpu",
        *(["torch_cuda"] if with_cuda else []),
        "torch",
    ]
    if not standalone:
        libraries.append("torch_python")
    ldflags = [f"-L{folder}" for folder in folders] + [f"-l{library}" for library in libraries]
    if standalone:
        ldflags.append(f"-Wl,-rpath,{folders[0]}")
    if with_cuda:
        ldflags.append("-lcudart")
    standard = _standard(cpp_extension)
    nvcc = [*getattr(cpp_extension, "COMMON_NVCC_FLAGS", ()), *common, *([standard] if nvcc_standard else [])]
    return Flags([*common, standard], nvcc, ldflags)


def _device_paths(function: object, device: str) -> list[str]:
    """Call ``include_paths`` or ``library_paths`` of any release: by device since 2.6, by ``cuda=`` before."""
    import inspect

    if "device_type" in inspect.signature(function).parameters:  # type: ignore[arg-type]
        found: list[str] = function(device)  # type: ignore[operator]
    else:
        found = function(cuda=device == "cuda")  # type: ignore[operator]
    return found


def _standard(cpp_extension: ModuleType) -> str:
    """The ``-std=`` that this torch compiles extensions with, which only its source says."""
    import inspect
    import re

    found = re.findall(r"-std=c\+\+(\d\d)", inspect.getsource(cpp_extension))
    return f"-std=c++{max(found, key=found.count) if found else 17}"
