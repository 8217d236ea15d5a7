"""The pytest plugin: one root for all workers of a run, builds before the tests, and a line of what was built.

Loaded by pytest wherever nodecache is installed, so it does nothing that nobody asked for: no root is made, nothing is
built and nothing is printed unless an option, the fixture or a load in a test calls for it.
"""

from __future__ import annotations

import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_VARIABLE = "NODECACHE_ROOT"
_OF_RUN = "_NODECACHE_RUN"
_COUNTS = ("built", "hit", "waited", "seconds")


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
        help="build before the tests, once: a source file or package.module:function, as `nodecache warm` (repeatable)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the root before a conftest can load anything."""
    chosen = early_config.known_args_namespace.nodecache_root
    if not chosen:
        return
    before = {name: os.environ.get(name) for name in (_VARIABLE, _OF_RUN)}
    early_config.add_cleanup(lambda: _put_back(before))
    if chosen == "run":
        chosen = _inherited() or _make_root(early_config)
    os.environ[_VARIABLE] = os.path.abspath(chosen)


def _inherited() -> str | None:
    """In a worker: what the controller has chosen for the run. A run that a test starts is another one."""
    parent, _, path = os.environ.get(_OF_RUN, "").partition(":")
    return path if "PYTEST_XDIST_WORKER" in os.environ and parent == str(os.getppid()) else None


def _make_root(config: pytest.Config) -> str:
    import shutil
    import tempfile

    path = tempfile.mkdtemp(prefix="nodecache-run-")
    config.add_cleanup(lambda: shutil.rmtree(path, ignore_errors=True))
    os.environ[_OF_RUN] = f"{os.getpid()}:{path}"
    return path


def _put_back(before: dict[str, str | None]) -> None:
    """Another run in this process is to find what it would have found."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.pluginmanager.register(_Run(), "nodecache-run")


@pytest.fixture(scope="session")
def nodecache_root() -> Path:
    """The root that all workers of this run share, made and checked: the one in use, or ``--nodecache-root``'s."""
    from pathlib import Path

    from nodecache.root import open_root

    return Path(open_root().path)


class _Run:
    """One run of pytest, or one worker's part in it."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_COUNTS, 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """On the controller, before there are workers: build what is asked for."""
        config = session.config
        targets = config.getoption("--nodecache-warm")
        if not targets or hasattr(config, "workerinput") or config.option.collectonly:
            return
        from nodecache.errors import SpecError
        from nodecache.warm import find_targets, warm

        try:
            failed = [done for done in warm(find_targets(targets), print) if done.how == "failed"]
        except SpecError as error:
            raise pytest.UsageError(f"--nodecache-warm: {error}") from error
        if failed:
            raise pytest.UsageError(f"--nodecache-warm: {failed[0]}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Count the modules that this process came to; a worker hands its counts to the controller."""
        extension = sys.modules.get("nodecache.extension")
        if extension is None:
            return
        for each in extension.loaded():
            role = "built" if each.role == "fetched" else each.role
            if role in _COUNTS:
                self._totals[role] += 1
            if role == "waited":
                self._totals["seconds"] += each.seconds
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["nodecache"] = self._totals

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take a worker's counts; one that crashed has none."""
        for name, number in getattr(node, "workeroutput", {}).get("nodecache", {}).items():
            self._totals[name] += number

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line, where an extension was loaded at all."""
        built, hit, waited = (int(self._totals[name]) for name in _COUNTS[:3])
        if built or hit or waited:
            terminalreporter.write_line(
                f"nodecache: {built} built, {hit} hit, {waited} waited for ({self._totals['seconds']:.1f} s in all)"
            )
