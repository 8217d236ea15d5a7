"""What a test needs of the machine: skipped with the reason where it is missing, but a failure under CI=true."""

import os
import shutil
from pathlib import Path

import pytest

PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def needs(*programs, root=False, reason=None):
    """Go on only if all programs are installed (and, with ``root``, if this process is root with its own mounts).

    ``reason`` is one that the caller found by itself; None means that there is none.
    """
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    if missing:
        lacking(f"not installed: {', '.join(missing)}")
    if root and not _privileged():
        lacking("needs root and CAP_SYS_ADMIN")
    if reason is not None:
        lacking(reason)


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
