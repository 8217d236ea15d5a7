"""Folders: anything that must be made once per node, by a function of the caller's."""

from __future__ import annotations

import os
import time
from pathlib import Path

from nodecache import attempt, errand, hold
from nodecache.cache import Product, Request
from nodecache.digest import digest_items
from nodecache.entry import unfit
from nodecache.errors import BuildError, BuildInterrupted, SpecError
from nodecache.inputs import Inputs
from nodecache.root import open_root
from nodecache.spec import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodecache.cache import Outcome
    from nodecache.staging import Staging

KIND_LIMIT = 64


def get_or_build(
    kind: str,
    inputs: Mapping[str, object],
    build: Callable[[Path], None],
    *,
    timeout: float | None = None,
    leaf: bool = False,
    root: str | os.PathLike[str] | None = None,
) -> Path:
    """Make something once per node: a generated kernel, an index file, a folder of tables.

    Args:
        kind: what sort of thing it is; a word of letters, digits, ``_``, ``-`` and ``.``, at most 64 long. Two
            kinds never share an entry.
        inputs: everything that decides the result. Values are strings, bytes, numbers, booleans, None, lists, tuples
            and dicts of them, or :class:`pathlib.Path`, which stands for the content of that file.
        build: called as ``build(folder)`` in the one process that builds; fills the empty folder with plain files.
        timeout: seconds to wait for another builder; None for as long as it lives.
        leaf: declares that ``build`` never asks for another build, so it may itself be asked for inside one.
        root: another root than the default. NODECACHE_ROOT, where set, wins.

    Returns:
        The entry's folder: read-only files, and ``manifest.json``. No prune takes it while this process, or a
        child that it forked since, lives; a program started by ``exec`` asks for itself.

    Raises:
        SpecError: ``kind`` or ``inputs`` make no sense.
        BuildError: ``build`` raised, here or in the process that this one waited for; the cause is its text, and in
            the process that built also ``__cause__``.
        LeaseTimeout: the time passed while another process built.
        NestedLease: called inside another build, and not declared a leaf.
        RootError: the root cannot be used.

    Concurrency: any number of threads and processes may call it at once. One builds; if it dies, another does. An
    exception from ``build`` is told to all who waited and is not tried again for them. KeyboardInterrupt and SystemExit
    end the builder only. So do MemoryError and OSErrors of this machine's limits (no space, too many files), until a
    second build has met one: then all who waited get a RootError that says so.
    """
    began = time.monotonic()
    if not kind or len(kind) > KIND_LIMIT or not all(c.isalnum() or c in "_-." for c in kind) or not kind.isascii():
        raise SpecError(f"Kind {kind!r} is no short word. Use at most {KIND_LIMIT} letters, digits, '_', '-' and '.'.")
    if not hasattr(inputs, "items") or not all(isinstance(name, str) for name in inputs):
        raise SpecError(f"inputs is no mapping of names to values: {inputs!r:.80}. Give a dict whose keys are strings.")
    timeout = seconds("timeout", timeout)
    place = open_root(root)
    items = [
        ("kind", f"folder {kind}"),
        *sorted((f"input {name}", _canonical(value)) for name, value in inputs.items()),
    ]

    def run(folder: Staging, attempt_id: str) -> Product:
        log = attempt.log_path(place, recipe, attempt_id)
        try:
            errand.in_caller(build, Path(folder.entry))
        except (BuildError, BuildInterrupted, MemoryError):
            raise
        except OSError as error:
            from nodecache.limit import LIMITS

            if error.errno in LIMITS:
                raise
            raise _as_failure(kind, error, attempt_id, log) from error
        except Exception as error:
            raise _as_failure(kind, error, attempt_id, log) from error
        wrong = unfit(folder.entry)
        if wrong is not None:
            raise _as_failure(kind, ValueError(f"what it left cannot be kept: {wrong}"), attempt_id, log)
        return Product(Inputs(), {})

    recipe = digest_items(items)
    seen = attempt.last_failure(place, recipe)
    request = Request(
        place, recipe, items=items, name=kind, kind=f"folder {kind}", roots=[], seen=seen, build=run, leaf=leaf
    )
    found = request.look()
    if found is None or not hold.take(place, found.key):
        outcomes: list[Outcome] = []

        def use(outcome: Outcome) -> None:
            hold.take(place, outcome.entry.key)  # while no prune can have the recipe's lease
            outcomes.append(outcome)

        request.obtain(use, timeout=timeout, verbose=False, began=began)
        found = outcomes[0].entry
    return Path(found.path)


def _as_failure(kind: str, error: Exception, attempt_id: str, log: str) -> BuildError:
    """An exception of the caller's build function, as text that other processes can be told."""
    import traceback

    with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    said = "".join(traceback.format_exception_only(error)).strip()  # whatever its __str__ does
    first = f"Error building {kind!r}: {said}".encode("utf-8", "backslashreplace").decode()
    return BuildError(
        f"{first}\nThe traceback is in {log}. Correct the build function and call again.",
        attempt=attempt_id,
        first_error=first,
        log=log,
    )


def _canonical(value: object) -> str:
    """A value as text, the same for equal values and different for different ones."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, os.PathLike):
        from nodecache.digest import digest_file

        try:
            return f"file:{digest_file(os.fspath(value))}"
        except OSError as error:
            raise SpecError(f"Input file {value} cannot be read: {error.strerror}. Check the path.") from error
    if isinstance(value, list | tuple):
        return f"list:[{','.join(_canonical(element) for element in value)}]"
    if isinstance(value, dict):
        pairs = sorted((_canonical(key), _canonical(element)) for key, element in value.items())
        return f"dict:{{{','.join(f'{key}={element}' for key, element in pairs)}}}"
    raise SpecError(
        f"An input of type {type(value).__name__} has no fixed text. Use strings, numbers, lists, dicts, or a Path for "
        f"the content of a file."
    )
