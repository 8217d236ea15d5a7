"""The pytest plugin: one root for all workers of a run, builds before the tests, and a line of what was built.

Loaded by pytest wherever nodecache is installed, so it does nothing that nobody asked for: no root is made, nothing is
built and nothing is printed unless an option, the fixture or a load in a test calls for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from nodecache.errors import SpecError
from nodecache.extension import loaded
from nodecache.root import VARIABLE, open_root

_COUNTS = ("built", "hit", "waited")
_totals = pytest.StashKey[dict[str, float]]()
_of_run = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("nodecache", "extensions built once per node")
    group.addoption(
        "--nodecache-root",
        metavar="FOLDER",
        help="root for this run, in all its workers; 'run' for one of its own that is removed afterwards "
        "(default: NODECACHE_ROOT, else the user's)",
    )
    group.addoption(
        "--nodecache-warm",
        metavar="TARGET",
        action="append",
        default=[],
        help="build before the tests, once: a .cpp file, package.module:function, or a name that pyproject.toml "
        "declares; as `nodecache warm` (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """On the controller: choose the root, which workers inherit, and build what is asked for."""
    config.stash[_totals] = {}
    if hasattr(config, "workerinput"):
        return
    chosen = config.getoption("--nodecache-root")
    if chosen == "run":
        chosen = config.stash[_of_run] = tempfile.mkdtemp(prefix="nodecache-run-")
    if chosen:
        os.environ[VARIABLE] = os.path.abspath(chosen)
    targets = config.getoption("--nodecache-warm")
    if targets and not config.option.collectonly:
        from nodecache.warm import find_targets, warm

        try:
            failed = [done for done in warm(find_targets(targets), print) if done.how == "failed"]
        except SpecError as error:
            raise pytest.UsageError(f"--nodecache-warm: {error}") from error
        if failed:
            raise pytest.UsageError(f"--nodecache-warm: {failed[0]}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's own root."""
    folder = config.stash.get(_of_run, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def nodecache_root() -> Path:
    """The root that all workers of this run share, made and checked: the one in use, or ``--nodecache-root``'s."""
    return Path(open_root().path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count the modules that this process came to; a worker hands its counts to the controller."""
    counts = dict.fromkeys((*_COUNTS, "seconds"), 0.0)
    for each in loaded():
        counts["built" if each.role == "fetched" else each.role] += 1
        counts["seconds"] += each.seconds if each.role == "waited" else 0
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["nodecache"] = counts
    else:
        _add(session.config, counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take a worker's counts; one that crashed has none."""
    counts = getattr(node, "workeroutput", {}).get("nodecache")
    if counts:
        _add(node.config, counts)  # type: ignore[attr-defined]  # xdist's


def _add(config: pytest.Config, counts: dict[str, float]) -> None:
    totals = config.stash[_totals]
    for name, number in counts.items():
        totals[name] = totals.get(name, 0) + number


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line, where an extension was loaded at all."""
    totals = config.stash[_totals]
    if any(totals.get(name) for name in _COUNTS):
        built, hit, waited = (int(totals.get(name, 0)) for name in _COUNTS)
        terminalreporter.write_line(
            f"nodecache: {built} built, {hit} hit, {waited} waited for ({totals['seconds']:.1f} s waited in all)"
        )
