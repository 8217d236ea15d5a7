"""What a test needs of the machine: skipped with the reason where it is missing, but a failure under CI=true."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def needs(*programs, modules=(), root=False):
    """Go on only if all programs and Python modules are installed and, with ``root``, namespaces can be made."""
    missing = [program for program in programs if shutil.which(program) is None]
    missing += [module for module in modules if find_spec(module) is None]
    if missing:
        lacking(f"not installed: {', '.join(missing)}")
    if root and not _privileged():
        lacking("needs root and CAP_SYS_ADMIN")


def lacking(reason):
    """End the test: on a developer's machine as skipped, in CI, which installs everything, as failed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must provide this: {reason}", pytrace=False)
    pytest.skip(reason)


def _privileged():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    sys_admin = 21
    return os.geteuid() == 0 and int(effective, 16) >> sys_admin & 1 == 1
