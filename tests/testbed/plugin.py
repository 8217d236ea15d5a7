"""pytest plugin of the tests with real launchers: a job for each, and a table of what they saw in the summary."""

import shutil

import pytest

from tests.testbed.job import Job, shared_folder
from tests.testbed.requirements import needs

COLUMNS = ("launcher", "nodes", "ranks", "compiles", "seconds", "longest wait")


@pytest.fixture
def job():
    """A new job with an empty cache on every machine."""
    needs("g++", root=True)
    folder = shared_folder()
    this = Job(folder)
    yield this
    shutil.rmtree(this.root, ignore_errors=True)
    shutil.rmtree(folder)


@pytest.fixture
def saw(record_property):
    """Write what a test saw as one row of the table: from the ranks' reports, but for what is ``known``."""

    def write(launcher, job, seconds, **known):
        reports = job.reports()
        row = {
            "launcher": launcher,
            "nodes": len({report["hostname"] for report in reports}),
            "ranks": len(reports),
            "compiles": job.compiles().total(),
            "seconds": round(seconds, 2),
            "longest wait": round(max((report["seconds"] for report in reports), default=0), 2),
        }
        for column in COLUMNS:
            record_property(column, known.get(column, row[column]))

    return write


def pytest_terminal_summary(terminalreporter):
    """Print the rows of all tests that wrote one."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    found = [dict(report.user_properties) for report in reports if getattr(report, "when", None) == "call"]
    rows = [tuple(str(row[column]) for column in COLUMNS) for row in found if set(COLUMNS) <= set(row)]
    if not rows:
        return
    widths = [max(map(len, cells)) for cells in zip(COLUMNS, *rows, strict=True)]
    terminalreporter.section("real launchers")
    for first, *numbers in (COLUMNS, *rows):
        cells = [first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]
        terminalreporter.line("  ".join(cells))
