"""The patch: every library in the process that JIT-builds through ``torch.utils.cpp_extension`` goes through nodecache.

``load`` and ``load_inline`` are replaced for who looks them up from now on. ``_jit_compile``, which both end in, is
replaced for who has imported them before, and ``_maybe_write``, by which those write the file that other ranks read, is
made atomic. What nodecache does not build (SYCL, ROCm) goes on to torch, and so does a call that uses a parameter which
nodecache does not know, or helpers of torch that the program has changed. Where somebody else has replaced ``load`` or
``load_inline``, theirs stays, and ends in ``_jit_compile`` like torch's.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys

from nodecache import torch as ours
from nodecache.errors import ToolchainError
from nodecache.import_hook import after_import, is_awaited
from nodecache.spawned import cover
from nodecache.torch_changes import Globals
from nodecache.torch_folder import leave_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

_TARGET = "torch.utils.cpp_extension"
_KNOWN = {
    "load": frozenset(inspect.signature(ours.load).parameters),
    "load_inline": frozenset(inspect.signature(ours.load_inline).parameters),
    "_jit_compile": frozenset(inspect.signature(ours.load).parameters),
    "_maybe_write": frozenset({"filename", "new_content"}),
}
_REQUIRED = {
    "load": {"name", "sources", "build_directory"},
    "load_inline": {"name", "cpp_sources", "functions"},
    "_jit_compile": {"name", "sources", "build_directory"},
    "_maybe_write": {"filename", "new_content"},
}
_ENTRIES: dict[str, Callable[..., Any]] = {
    "load": ours.load,
    "load_inline": ours.load_inline,
    "_jit_compile": ours.load,
}
_before: dict[str, Any] = {}
_put: dict[str, Any] = {}
_told: set[str] = set()


def install() -> bool:
    """Send torch's JIT builds through nodecache, from now on, in this process.

    Returns:
        Whether the patch is in place. False when this torch's functions are not those that it was written for: then a
        warning on the logger ``nodecache`` says which, and torch is left alone.

    Raises:
        ToolchainError: torch is not installed.

    Concurrency: call it once, before threads build; again is no error. Children of ``multiprocessing`` have it too,
    whatever their start method; programs that this process starts do not.
    """
    return _install(fresh=False)


def _install(*, fresh: bool) -> bool:
    """``install``; ``fresh`` when torch's module has just been imported, so nobody has changed it."""
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise ToolchainError(f"torch cannot be imported ({error}). Install it, or do not install the patch.") from error
    if _before:
        return True
    wrong = _mismatch(cpp_extension)
    if wrong:
        from nodecache.printable import logger

        logger().warning("torch is left alone: %s. Update nodecache, or call nodecache.torch.load yourself.", wrong)
        return False
    _before.update({name: getattr(cpp_extension, name) for name in _KNOWN})
    entries = {name: _before[name] for name in _ENTRIES if _is_torchs(cpp_extension, _before[name])}
    watched = Globals(cpp_extension, entries, fresh=fresh)
    for name, function in _ENTRIES.items():
        if name in entries:
            _put[name] = _instead(cpp_extension, name, function, watched)
    if _is_torchs(cpp_extension, _before["_maybe_write"]):
        _put["_maybe_write"] = _write_atomically
    for name, function in _put.items():
        setattr(cpp_extension, name, function)
    cover(_is_active)
    return True


def uninstall() -> None:
    """Put torch's functions back; what somebody else has replaced since is left to them, and goes on to torch's."""
    cpp_extension = sys.modules.get(_TARGET)
    for name, function in _put.items():
        if getattr(cpp_extension, name) is function:
            setattr(cpp_extension, name, _before[name])
    _before.clear()
    _put.clear()


def _is_torchs(cpp_extension: ModuleType, function: Any) -> bool:
    """Whether a function is the one that torch has written there."""
    code = getattr(function, "__code__", None)
    return code is not None and getattr(function, "__globals__", None) is vars(cpp_extension)


def _mismatch(cpp_extension: ModuleType) -> str | None:
    """Why this torch cannot be patched rightly, or None."""
    for name, known in _KNOWN.items():
        function = getattr(cpp_extension, name, None)
        if function is None:
            return f"{_TARGET}.{name} is not there"
        if not _is_torchs(cpp_extension, function):
            if name == "_jit_compile":
                return f"{_TARGET}.{name} has been replaced by {getattr(function, '__module__', 'something')}"
            continue
        try:
            signature = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return f"the parameters of {_TARGET}.{name} cannot be read"
        unknown = [
            each for each in signature if each not in known and signature[each].default is inspect.Parameter.empty
        ]
        if unknown and name != "_jit_compile":  # which gets what load and load_inline have filled in
            return f"{_TARGET}.{name} demands parameters that are not known ({', '.join(sorted(unknown))})"
        missing = _REQUIRED[name] - set(signature)
        if missing:
            return f"{_TARGET}.{name} lacks parameters ({', '.join(sorted(missing))})"
    return None


def _instead(
    cpp_extension: ModuleType, name: str, function: Callable[..., Any], watched: Globals
) -> Callable[..., Any]:
    """``function`` in place of torch's function ``name``, called by torch's own parameters."""
    theirs = _before[name]
    signature = inspect.signature(theirs)
    new = {each: _default(cpp_extension, each, theirs) for each in signature.parameters if each not in _KNOWN[name]}

    @functools.wraps(theirs)
    def call(*arguments: Any, **named: Any) -> Any:
        given = _bound(signature, arguments, named)
        # Torch refuses a call that cannot be bound, too, and programs look for its own words.
        if given is None or not _before or _is_torchs_own(given):
            return theirs(*arguments, **named)
        reason = _not_ours(name, given, new, watched)
        if reason:
            _warn_once(reason)
            return theirs(*arguments, **named)
        folder = _torchs_folder(cpp_extension, given["name"])
        # Torch's loads fill in their default folder, and so do programs that ask torch for it: nobody chose it.
        if folder is not None and _same_folder(given.get("build_directory"), folder):
            given["build_directory"] = None
        found = function(**given)
        if folder is not None and not given.get("build_directory"):
            leave_link(folder, found)
        return found

    return call


def _bound(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments by parameter, or None where the call does not fit."""
    try:
        return signature.bind(*arguments, **named).arguments
    except TypeError:
        return None


def _default(cpp_extension: ModuleType, parameter: str, function: Callable[..., Any]) -> Any:
    """What a parameter is when nobody sets it: ``_jit_compile`` has no default where ``load`` has one."""
    for each in (function, getattr(cpp_extension, "load", None), getattr(cpp_extension, "load_inline", None)):
        known = inspect.signature(each).parameters.get(parameter) if each is not None else None
        if known is not None and known.default is not known.empty:
            return known.default
    return None


def _not_ours(name: str, given: dict[str, Any], new: dict[str, Any], watched: Globals) -> str | None:
    """Why only torch can do what this call asks for, or None; takes out of ``given`` what is at its default."""
    for parameter, default in new.items():
        value = given.pop(parameter, default)
        if value is not default and not (type(value) is type(default) and value == default):
            return f"the call sets {parameter!r}, a parameter of this torch that nodecache does not know"
    changed = watched.changed(name, _put)
    if changed:
        return f"the program has changed {', '.join(f'{_TARGET}.{each}' for each in changed)}"
    return None


def _warn_once(reason: str) -> None:
    if reason not in _told:
        from nodecache.printable import logger

        _told.add(reason)
        logger().warning(
            "torch builds this extension itself, without nodecache, because %s. To share the build, pass what you need "
            "as arguments of load.",
            reason,
        )


def _torchs_folder(cpp_extension: ModuleType, name: Any) -> str | None:
    """The folder that torch would build in; None where it cannot be made, which matters to torch alone."""
    try:
        folder: str = cpp_extension._get_build_directory(name, False)  # noqa: SLF001  # torch's own call
    except (OSError, TypeError):
        return None
    return folder


def _same_folder(given: Any, folder: str) -> bool:
    return isinstance(given, str | os.PathLike) and os.path.abspath(os.fspath(given)) == os.path.abspath(folder)


def _is_torchs_own(given: dict[str, Any]) -> bool:
    """What nodecache does not build: SYCL, and CUDA sources for ROCm."""
    sources = [os.fspath(path) for path in ours.listed(given.get("sources") or ())]
    if given.get("with_sycl") or given.get("sycl_sources") or any(path.endswith(".sycl") for path in sources):
        return True
    cuda = (
        given.get("with_cuda") or given.get("cuda_sources") or any(path.endswith((".cu", ".cuh")) for path in sources)
    )
    return bool(cuda) and sys.modules["torch"].version.hip is not None


def _write_atomically(filename: str, new_content: str) -> None:
    """Write a file if its content differs, whole or not at all: other ranks read it at the same time."""
    try:
        with open(filename, encoding="utf-8") as file:
            if file.read() == new_content:
                return
    except FileNotFoundError:
        pass
    temporary = f"{filename}.{os.getpid()}.{os.urandom(4).hex()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(new_content)
    os.replace(temporary, filename)


def install_on_import() -> None:
    """Install the patch now if ``torch.utils.cpp_extension`` is imported, else when it is."""
    if _TARGET in sys.modules:
        install()
    elif not is_awaited(_TARGET):
        after_import(_TARGET, lambda _: _install(fresh=True))
        cover(_is_active)


def _is_active() -> bool:
    """Whether the patch is installed, or will be when torch's module is imported."""
    return bool(_before) or is_awaited(_TARGET)


def run(arguments: list[str]) -> None:
    """Run a program as ``python`` would, with the patch: ``[script, argument, ...]`` or ``["-m", module, ...]``.

    The program is ``__main__``: with its own folder on ``sys.path``, exit status and traceback.
    """
    import runpy
    import zipfile

    install_on_import()
    sys.excepthook = _hook_without_ours(sys.excepthook, runpy.__spec__.origin if runpy.__spec__ else None)
    first = os.getcwd() if arguments[0] == "-m" else os.path.dirname(os.path.realpath(arguments[0]))
    if not sys.flags.safe_path:
        sys.path[0] = first
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    if os.path.isdir(arguments[0]) or arguments[0].endswith(".pyc") or zipfile.is_zipfile(arguments[0]):
        runpy.run_path(arguments[0], run_name="__main__")
        return
    path = os.path.abspath(arguments[0])
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        print(  # noqa: T201  # as Python says it
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr
        )
        sys.exit(2)
    _run_as_main(path, text)


def _run_as_main(path: str, text: bytes) -> None:
    """Run a script in a ``__main__`` that stays there, for what threads and exit handlers look up."""
    import builtins
    from importlib.machinery import SourceFileLoader
    from types import ModuleType

    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __builtins__=builtins, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(text, path, "exec", dont_inherit=True), vars(module))  # noqa: S102  # what it is for


def _hook_without_ours(
    hook: Callable[[type[BaseException], BaseException, TracebackType | None], Any], runner: str | None
) -> Callable[[type[BaseException], BaseException, TracebackType | None], Any]:
    """An exception hook that begins the traceback where the program's own frames begin."""
    ours_too = (run.__code__, _run_as_main.__code__)

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        start = trace
        while start is not None and start.tb_frame.f_code is not run.__code__:
            start = start.tb_next
        if start is not None:
            while start is not None and (
                start.tb_frame.f_code in ours_too or start.tb_frame.f_code.co_filename in ("<frozen runpy>", runner)
            ):
                start = start.tb_next
            error, trace = error.with_traceback(start), start
        hook(kind, error, trace)

    return show
