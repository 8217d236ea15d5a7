"""Extensions: from sources to an imported module. The whole path of a hit reads top to bottom in :func:`load`.

    spec -> recipe key -> index: inputs unchanged? -> entry -> module

A hit takes no lock, starts no process and imports nothing but this package's light modules. A miss goes on in
:mod:`nodecache.cache`.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from nodecache.attempt import last_failure, note
from nodecache.errors import BuildInterrupted, LoadError, ToolchainError
from nodecache.index import look
from nodecache.inputs import Eyes
from nodecache.recipe import Recipe
from nodecache.root import open_root, setting
from nodecache.spec import Spec, arguments, paths, read_sources, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from nodecache.cache import Outcome
    from nodecache.entry import Entry
    from nodecache.root import Root
    from nodecache.spec import Flags

    Path = str | os.PathLike[str]

_VANISHED_TRIES = 5


def load(
    name: str,
    sources: Path | Sequence[Path],
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Path | Sequence[Path] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    verbose: bool = False,
    timeout: float | None = None,
    *,
    frameworks: Sequence[str] = (),
    root: Path | None = None,
) -> ModuleType:
    """Build an extension once per node, and import it.

    Args:
        name: the module's name, an ASCII identifier; the source defines ``PyInit_<name>``. The macros
            ``NODECACHE_MODULE_NAME`` and ``TORCH_EXTENSION_NAME`` are defined to it.
        sources: one path or several: C++ (``.cpp .cc .cxx .c++ .C .c``, all compiled as C++), assembler (``.s .S``),
            CUDA (``.cu``).
        extra_cflags: arguments for the C++ compiler, one string each, after ``-O2 -std=c++17 -fPIC`` and CXXFLAGS.
        extra_ldflags: arguments for the linker driver, after LDFLAGS; also objects and libraries.
        extra_include_paths: folders for ``-I``.
        extra_cuda_cflags: arguments for nvcc.
        verbose: say on the logger ``nodecache`` what is done; changes neither key nor command.
        timeout: seconds to wait for another builder; None for as long as it lives.
        frameworks: of ``pybind11``, ``torch`` and ``cuda``, those that must be there. pybind11's headers are found
            without. For ``torch``, its flags and libraries are added.
        root: another root than the default. NODECACHE_ROOT, where set, wins.

    Returns:
        The module. One process gets the same object for the same key; after a source or header has changed, the same
        name gives a new one, and the old one goes on working. Its ``__nodecache__`` tells how this process came to it
        (role, key, seconds).

    Raises:
        SpecError: the name, a source or a flag makes no sense.
        ToolchainError: there is no compiler, or headers are missing.
        BuildError: the compiler failed, here or in the process that this one waited for, with the compiler's words.
        BuildInterrupted: the build was killed from outside.
        LeaseTimeout: the time passed while another process built.
        LoadError: it was built, and cannot be imported.
        RootError, UnsafeRoot: the root cannot be used.

    Concurrency: any number of threads and processes may call it at any time, without a barrier before or after. One
    process of the node compiles, the others wait for it; if it dies, another goes on.
    """
    wanted = arguments("frameworks", frameworks)
    spec = Spec(
        name,
        read_sources(sources),
        cflags=arguments("extra_cflags", extra_cflags),
        cuda_cflags=arguments("extra_cuda_cflags", extra_cuda_cflags),
        ldflags=arguments("extra_ldflags", extra_ldflags),
        include_paths=paths("extra_include_paths", extra_include_paths),
        frameworks=wanted,
        framework_flags=_torch_flags(wanted) if "torch" in wanted else None,
    )
    module: ModuleType
    if "torch" not in wanted:
        module = obtain(spec, verbose=verbose, timeout=timeout, root=root)
        return module
    from nodecache.operators import Guard, in_text

    guard = Guard(name, spec.kind, in_text(spec.sources, name), edited=False)
    spec.instead = lambda path, _: guard.before(path)
    module = guard.run(lambda: obtain(spec, verbose=verbose, timeout=timeout, root=root))
    return module


def _torch_flags(frameworks: tuple[str, ...]) -> Callable[[], Flags]:
    """Torch's flags, asked when they are needed."""

    def ask() -> Flags:
        from nodecache.torch_flags import framework_flags

        return framework_flags(with_cuda="cuda" in frameworks, standalone=False)

    return ask


def obtain(spec: Spec, *, verbose: bool = False, timeout: float | None = None, root: Path | None = None) -> Any:
    """Get or build what a spec describes, and load it.

    Returns:
        For the kind ``module`` the module, else the path of the file.
    """
    began = time.monotonic()
    if timeout is not None:
        timeout = seconds("timeout", timeout)
    place = open_root(root)
    entry: Entry | None
    missing: ToolchainError | None = None
    try:
        recipe = Recipe(place, spec)
    except ToolchainError as error:
        from nodecache.seeds import without_compiler

        missing = error
        recipe, entry = without_compiler(place, spec, missing)
        seen = None
    else:
        seen = last_failure(place, recipe.key)
        entry = look(place, recipe.key, Eyes(recipe.roots)) or _seeded(recipe)
    go_on = watchers.get(get_ident()) if watchers else None
    if entry is not None:
        if go_on is not None:
            go_on(place, spec, recipe, entry)
        try:
            loaded = _use(spec, entry.file(spec.file_name), "hit", entry.key, began)
        except FileNotFoundError:
            # A pruner or temp cleaner took it between the look and the load: a miss.
            if missing is not None:
                raise missing from None
        else:
            if "NODECACHE_STATS" in os.environ and setting("NODECACHE_STATS"):
                took = time.monotonic() - began
                started = time.time() - took
                note(place, spec, "hit", "hit", recipe=recipe.key, key=entry.key, started=started, seconds=took)
            return loaded
    if go_on is not None:
        go_on(place, spec, recipe, None)
    return _miss(place, spec, recipe, seen=seen, verbose=verbose, timeout=timeout, began=began)


watchers: dict[int, Callable[[Root, Spec, Recipe, Entry | None], None]] = {}
"""By thread, who is told of each hit and miss in it before more is done (:mod:`nodecache.share`)."""


def _seeded(recipe: Recipe) -> Entry | None:
    if "NODECACHE_SEEDS" not in os.environ:
        return None
    from nodecache.seeds import look_in_seeds

    return look_in_seeds(recipe)


def _miss(
    place: Root, spec: Spec, recipe: Recipe, *, seen: str | None, verbose: bool, timeout: float | None, began: float
) -> Any:
    """Wait for the entry or build it, then load it."""
    from nodecache.cache import Request
    from nodecache.root import Telling, check_space

    if "NODECACHE_NO_BUILD" in os.environ:
        _refuse_to_build(place, spec, recipe, fetched=bool(setting("NODECACHE_REMOTE")))
    check_space(place, runs_code=spec.kind != "program")
    loaded: list[Any] = []

    def build(staging: Any, attempt: str) -> Any:
        from nodecache.attempt import log_path
        from nodecache.cache import Product
        from nodecache.compile import compile_spec, write_log_head
        from nodecache.source_texts import pack

        if "NODECACHE_NO_BUILD" in os.environ:
            _refuse_to_build(place, spec, recipe, fetched=False)
        check_space(place, runs_code=spec.kind != "program")  # a wait may lie between the first check and this
        log = log_path(place, recipe.key, attempt)
        write_log_head(place, log, [f"nodecache builds {spec.name!r}, attempt {attempt}", f"recipe {recipe.key}"])
        with Telling(place, "building"):
            built = compile_spec(place, spec, recipe, staging, attempt)
            if "torch" in spec.frameworks and spec.kind != "program":
                from nodecache.operators import write_down

                write_down(staging.entry, spec.file_name)
            _keep_log(log, f"{staging.entry}/build.log")
        about = {"steps": built.steps, "file": spec.file_name, "sources": pack(spec.sources)}
        return Product(built.inputs, about, built.unknown)

    def failed_inputs(staging: Any) -> str:
        from nodecache.compile import known_inputs

        return known_inputs(recipe, staging)

    def use(outcome: Outcome) -> None:
        entry = outcome.entry
        if not entry.published and spec.kind != "module":  # it goes with the staging folder, before anybody opens it
            raise BuildInterrupted(
                f"{spec.name!r} was built, but it is not known which files it read, so it could not be kept. Remove "
                f"the flag or compiler wrapper that redirects dependency output (-MF, -MD), then call again."
            )
        builder = outcome.builder
        module = _use(
            spec, entry.file(spec.file_name), outcome.role, entry.key, began, builder.rank if builder else None
        )
        loaded.append(module)
        if outcome.role == "built":
            from nodecache.rank_roots import tell_of_rank_roots

            tell_of_rank_roots(place)

    for _ in range(_VANISHED_TRIES):
        request = Request(
            place,
            recipe.key,
            items=recipe.items,
            name=spec.name,
            kind=spec.kind,
            roots=recipe.roots,
            seen=seen,
            build=build,
            failed_inputs=failed_inputs,
            travels=True,
        )
        try:
            request.obtain(use, timeout=timeout, verbose=verbose, began=began)
        except FileNotFoundError as error:
            vanished = error
            continue
        return loaded[-1]
    raise LoadError(
        f"{spec.name!r} keeps vanishing after it was published ({vanished.filename}). "
        f"Stop whatever is cleaning {place.path}."
    )


def _refuse_to_build(place: Root, spec: Spec, recipe: Recipe, *, fetched: bool) -> None:
    """Raise what NODECACHE_NO_BUILD asks for, unless a tier may still have the entry."""
    from nodecache.seeds import builds_are_off, not_built

    if builds_are_off() and not fetched:
        raise not_built(place, spec, recipe)


def _keep_log(log: str, copy: str) -> None:
    import shutil

    shutil.copyfile(log, copy)


_modules: dict[str, ModuleType] = {}
_importing: dict[str, threading.RLock] = {}


def loaded() -> list[Loaded]:
    """How this process came to each module that it has."""
    return [vars(module)["__nodecache__"] for module in _modules.values()]


class Loaded:
    """How this process came to a module: its ``__nodecache__``.

    Attributes:
        role: ``built``, ``fetched`` (from NODECACHE_REMOTE), ``waited`` or ``hit``.
        key: the entry's key; empty when the result was used and not kept.
        path: the shared object.
        seconds: seconds that the call took.
        builder_rank: rank of the process that was waited for, where known.
    """

    __slots__ = ("builder_rank", "key", "path", "role", "seconds")

    def __init__(self, role: str, key: str, path: str, seconds: float, builder_rank: int | None) -> None:
        self.role = role
        self.key = key
        self.path = path
        self.seconds = seconds
        self.builder_rank = builder_rank

    def __repr__(self) -> str:
        return f"Loaded({self.role!r}, key={self.key!r}, seconds={self.seconds:.3f})"


def _use(spec: Spec, path: str, role: str, key: str, began: float, builder_rank: int | None = None) -> Any:
    """Load a finished file; the same file gives the same module.

    Raises:
        FileNotFoundError: it is gone.
        LoadError: the loader refuses it.
    """
    if spec.instead is not None:
        other = spec.instead(path, role)
        if other is not None:
            return other
    if spec.kind != "module":
        os.stat(path)
        return path
    known = _modules.get(path)
    if known is not None:
        return known
    with _import_lock(spec.name):
        known = _modules.get(path)
        if known is None:
            if "torch" in spec.frameworks:
                # The builder has imported it. Everybody must: its libraries are only found once they are loaded.
                import torch  # noqa: F401

            known = _import(spec.name, path)
            vars(known)["__nodecache__"] = Loaded(role, key, path, time.monotonic() - began, builder_rank)
            # A result that is not kept lies in a folder that is about to go: its path may come again.
            if key:
                _modules[path] = known
    return known


def _import_lock(name: str) -> threading.RLock:
    """One lock per module name, because submodules are shared by name while a module is initialized.

    A lock for all would deadlock with the import system's own.
    """
    # threading, and what it imports, would cost a hit more than all the rest.
    from _thread import RLock

    return _importing.setdefault(name, RLock())


def _renew_locks() -> None:
    """In a forked child: the parent's threads, which may hold them, are not here."""
    _importing.clear()


os.register_at_fork(after_in_child=_renew_locks)


def _import(name: str, path: str) -> ModuleType:
    # As importlib does it. The package importlib itself imports warnings, contextlib and more; its frozen core is here.
    from _frozen_importlib import ModuleSpec, _init_module_attrs
    from _frozen_importlib_external import ExtensionFileLoader

    loader = ExtensionFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path)
    spec.has_location = True
    # pybind11 3 and later keeps each finished module in the interpreter under the name in its spec, and returns it for
    # every later file whose spec has that name. So each file is initialized under a name of its own.
    own = ModuleSpec(f"_nodecache_{os.urandom(8).hex()}.{name}", loader, origin=path)
    own.has_location = True
    before = sys.modules.get(name)
    _release_submodules(name)
    try:
        module = loader.create_module(spec)
        if getattr(module, "__spec__", None) is not None:  # another file's module, which was loaded under this name
            module = loader.create_module(own)
        module.__name__ = name  # classes take their __module__ from it
        _init_module_attrs(own, module)
        loader.exec_module(module)
        module.__spec__ = spec
    except ImportError as error:
        os.stat(path)  # gone: not the loader's fault
        from nodecache.load_failure import load_failure

        raise LoadError(load_failure(name, path, error), name=name, path=path) from error
    finally:
        # Python enters a module with single-phase initialization there, in place of a package of the same name.
        if before is not None and "__nodecache__" not in vars(before):
            sys.modules[name] = before
    return module


def _release_submodules(name: str) -> None:
    """Let the next module of a name make its own submodules.

    pybind11's ``def_submodule`` takes an existing one from ``sys.modules`` by its name, and adds functions to it as
    overloads, behind those of the module from before an edit. That module keeps its submodules as attributes.
    """
    if not any(module.__name__ == name for module in list(_modules.values())):
        return
    for other, module in list(sys.modules.items()):
        # What was imported has a spec; what an init function made has none.
        if other.startswith(f"{name}.") and getattr(module, "__spec__", None) is None:
            del sys.modules[other]
