"""CUDA: the toolkit, and the architectures to compile for.

The architectures come from the call's own flags, else from TORCH_CUDA_ARCH_LIST, else from the GPUs that this node has.
The index of a device never matters, nor which of them are visible to this process. Without any of the three there is
nothing to compile for, and that is an error, not a guess.
"""

from __future__ import annotations

import os
import re

from nodecache.compiler import find_host_compiler, recall_lines, remember_lines, run_tool, which
from nodecache.digest import digest_items
from nodecache.errors import SpecError, ToolchainError
from nodecache.packages import cuda_home, package_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nodecache.root import Root

# The names that torch understands in TORCH_CUDA_ARCH_LIST, for where it is not installed; as torch 2.13 has them.
NAMES = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}
_TABLE = re.compile(r"named_arches\s*=[^\[]*\[(.*?)\]\s*\)", re.DOTALL)
_ROW = re.compile(r"""\(\s*['"]([\w+]+)['"]\s*,\s*['"]([\d.;+PTX]+)['"]\s*\)""")


def names() -> dict[str, str]:
    """The names of architectures: those of the installed torch, read from its source, else of the built-in table."""
    folder = package_folder("torch")
    try:
        with open(f"{folder}/utils/cpp_extension.py", encoding="utf-8") as file:
            table = _TABLE.search(file.read())
    except OSError:
        table = None
    return dict(_ROW.findall(table[1])) if table else NAMES


class Toolkit:
    """A CUDA toolkit and what it compiles for.

    Attributes:
        nvcc: path of nvcc; empty where there is none.
        home: the toolkit's folder; likewise.
        flags: ``-gencode`` flags, sorted; empty where the call's own flags choose.
        items: what of it goes into the recipe.
    """

    __slots__ = ("flags", "home", "items", "nvcc")

    def __init__(self, nvcc: str, home: str, version: str, flags: list[str]) -> None:
        self.nvcc = nvcc
        self.home = home
        self.flags = flags
        self.items = [("cuda compiler", version), ("cuda architectures", " ".join(flags) or "from the flags")]

    def command(
        self,
        *,
        compiler: list[str],
        host_flags: list[str],
        flags: list[str],
        source: str,
        target: str,
        dependencies: str,
    ) -> list[str]:
        """The nvcc command for one source. ``host_flags`` go to the host compiler as they are."""
        import shlex

        waiting = iter(flags)
        flags = []
        for flag in waiting:
            # nvcc cannot take every folder; its host compiler can, and is who reads headers.
            if flag in ("-I", "-isystem", "-iquote"):
                host_flags = [*host_flags, flag + next(waiting, "")]
            else:
                flags.append(flag)
        # What nvcc passes on, it splits at commas and gives to a shell.
        host = [word for flag in host_flags for word in ("-Xcompiler", shlex.quote(flag).replace(",", "\\,"))]
        chosen = [] if nvcc_host(flags) else ["-ccbin", compiler[-1]]
        return [
            *(self.nvcc, *chosen, *self.flags, *host),
            *("--generate-dependencies-with-compile", "--dependency-output", dependencies),
            *flags,
            *("-c", source, "-o", target),
        ]

    def link_flags(self) -> list[str]:
        """What the linker needs for the CUDA runtime."""
        folder = next(
            (f"{self.home}/{name}" for name in ("lib64", "lib") if os.path.isdir(f"{self.home}/{name}")), self.home
        )
        return [f"-L{folder}", "-lcudart"]


def find_toolkit(root: Root, cuda_cflags: list[str], told: dict[str, str] | None = None) -> Toolkit:
    """The toolkit for a spec with CUDA sources.

    Args:
        root: where the tools' answers are remembered.
        cuda_cflags: the call's flags for nvcc.
        told: a recipe's items from which to take what this node cannot tell; such a toolkit cannot compile.

    Raises:
        ToolchainError: there is no nvcc, or nothing to compile for.
        SpecError: TORCH_CUDA_ARCH_LIST has a word that is no architecture.
    """
    told = told or {}

    def ask(item: str, answer: Callable[[], str]) -> str:
        try:
            return answer()
        except ToolchainError:
            if item not in told:
                raise
            return told[item]

    nvcc = home = ""

    def version() -> str:
        nonlocal nvcc, home
        nvcc, home, said = _nvcc(root)
        return said

    said = ask("cuda compiler", version)
    # As in torch: whoever passes an architecture to nvcc has chosen, and the list is left out.
    choice = [word for word in cuda_cflags if word.startswith(_CHOOSE_ARCHITECTURE)]
    flags = [] if choice else ask("cuda architectures", lambda: " ".join(architectures(root))).split()
    found = Toolkit(nvcc, home, said, flags)
    variables = " ".join(os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"))
    if choice and _asks_for_native([*cuda_cflags, *variables.split()]):
        found.items.append(("cuda native", ask("cuda native", lambda: " ".join(_devices_or_error(root)))))
    host = nvcc_host(cuda_cflags)
    if host:
        found.items.append(("cuda host compiler", ask("cuda host compiler", lambda: _host_compiler(root, host))))
    return found


def _host_compiler(root: Root, path: str) -> str:
    other = find_host_compiler(root, path)
    return f"{' '.join(other.programs)}\n{other.target}\n{other.version}"


def _nvcc(root: Root) -> tuple[str, str, str]:
    """Path of nvcc, the toolkit's folder, and what nvcc says of its version."""
    home = cuda_home()
    nvcc = which(os.environ.get("PYTORCH_NVCC") or (f"{home}/bin/nvcc" if home else "nvcc")) or which("nvcc")
    if nvcc is None:
        raise ToolchainError(
            "There is no CUDA compiler: nvcc is neither on PATH nor below CUDA_HOME. Install the CUDA toolkit, "
            "load its module, or set CUDA_HOME."
        )
    home = home or os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    memory = root.at("tools", digest_items([("nvcc", nvcc), ("path", os.path.realpath(nvcc))]))
    said = recall_lines(memory)
    if said is None:
        status, text = run_tool([nvcc, "--version"])
        if status:
            raise ToolchainError(f"{nvcc} --version failed: {text.strip()[:200]!r}. Correct CUDA_HOME.")
        said = [line.strip() for line in text.splitlines() if line.strip()]
        remember_lines(root, memory, said, [nvcc])
    return nvcc, home, "\n".join(said)


_CHOOSE_ARCHITECTURE = ("-arch", "--gpu-architecture", "-gencode", "--generate-code")


def _asks_for_native(flags: list[str]) -> bool:
    """Whether nvcc is told to compile for the GPUs that it sees."""
    pairs = zip(flags, [*flags[1:], ""], strict=False)
    names = ("-arch", "--gpu-architecture")
    return any(
        flag in [f"{name}=native" for name in names] or (flag in names and after == "native") for flag, after in pairs
    )


def host_choice(flags: list[str]) -> str | None:
    """The host compiler that ``-ccbin`` names, or None."""
    chosen = None
    for flag, after in zip(flags, [*flags[1:], ""], strict=False):
        option, equals, value = flag.partition("=")
        if option in ("-ccbin", "--compiler-bindir"):
            chosen = value if equals else after
    return chosen


def nvcc_host(flags: list[str]) -> str | None:
    """The host compiler that nvcc takes when nodecache names none: the last on its line wins, then NVCC_CCBIN."""
    before, after = (os.environ.get(name, "").split() for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"))
    return host_choice([*before, *flags, *after]) or os.environ.get("NVCC_CCBIN")


def architectures(root: Root) -> list[str]:
    """``-gencode`` flags for TORCH_CUDA_ARCH_LIST, or for this node's GPUs."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip()
    if not wanted or wanted == "native":
        wanted = " ".join(_devices_or_error(root))
    return gencode_flags(wanted)


def _devices_or_error(root: Root) -> list[str]:
    found = _devices(root)
    if not found:
        raise ToolchainError(
            "This node has no GPU to compile for, and no architecture is named. Set TORCH_CUDA_ARCH_LIST, "
            "for example TORCH_CUDA_ARCH_LIST='8.0 9.0', to build for the GPUs that the job will have."
        )
    return found


def gencode_flags(wanted: str) -> list[str]:
    """``-gencode`` flags for a list such as ``8.0;9.0a+PTX`` or ``Hopper``, sorted and without repeats.

    Source: torch's documentation of TORCH_CUDA_ARCH_LIST (separators, ``+PTX``, names); nvcc's of ``-gencode``.
    """
    words = wanted.replace(";", " ").replace(",", " ").split()
    flags = set()
    table = names() if any(word[:1].isalpha() for word in words) else {}
    for word in " ".join(table.get(word, word) for word in words).replace(";", " ").split():
        number, plus, ptx = word.partition("+")
        major, dot, minor = number.partition(".")
        if not (
            major.isdecimal()
            and dot
            and minor[:1].isdecimal()
            and minor.rstrip("af").isdecimal()
            and (not plus or ptx == "PTX")
        ):
            raise SpecError(
                f"TORCH_CUDA_ARCH_LIST has {word!r}, which is no architecture. Write numbers such as 9.0 or 9.0a, "
                f"with +PTX where wanted, or a name of {', '.join(table or names())}."
            )
        arch = major + minor
        flags.add(f"-gencode=arch=compute_{arch},code=sm_{arch}")
        if plus:
            flags.add(f"-gencode=arch=compute_{arch},code=compute_{arch}")
    return sorted(flags)


_QUESTION = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for device in range(count.value):
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        print(f"{major.value}.{minor.value}")
"""


def _devices(root: Root) -> list[str]:
    """Compute capabilities of this node's GPUs, asked once a boot from the driver.

    In a process of its own: whoever initialises CUDA can fork no workers that use it.
    """
    import subprocess

    from nodecache.interpreter import interpreter
    from nodecache.launchers import node

    nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia") or name == "dxg")
    if not nodes:
        return []
    # Containers of one node may have been given different GPUs; the names of their device files differ.
    memory = root.at("tools", digest_items([("devices", f"{node().boot_id} {' '.join(nodes)}")]))
    said = recall_lines(memory)
    if said is None:
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        try:
            done = subprocess.run(
                [interpreter(), "-I", "-S", "-c", _QUESTION],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolchainError(
                "The GPU driver does not answer within a minute. Set TORCH_CUDA_ARCH_LIST, or restart the driver."
            ) from error
        said = sorted(set(done.stdout.decode("ascii", "replace").split()))
        if said:
            remember_lines(root, memory, said, [])
    return said
