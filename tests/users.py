"""Other users: programs that run as somebody without a passwd entry, HOME or USER, with this package."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

as_root = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="needs root to become other users"
)


def _is_open(path: Path) -> bool:
    """Whether others can reach it: it may lie below a private home."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


PYTHON = sys.executable if _is_open(Path(sys.executable).resolve()) else "/usr/bin/python3"
"""This interpreter where other users can reach it, else the system's."""


@functools.cache
def _packages() -> tuple[str, str]:
    """Values of PYTHONPATH and PATH: with this package and what it needs, or copies where others cannot reach them."""
    installed = Path(sysconfig.get_path("purelib"))
    if _is_open(REPOSITORY / "nodecache") and _is_open(installed / "psutil"):
        return f"{REPOSITORY}:{installed}", "/usr/bin:/bin"
    place = Path(tempfile.mkdtemp(prefix="nodecache-test-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    for package in (REPOSITORY / "nodecache", *(installed / name for name in ("psutil", "filelock", "pybind11"))):
        shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "bin").mkdir()
    shutil.copy(shutil.which("ninja", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"), place / "bin")
    return str(place), f"{place}/bin:/usr/bin:/bin"


def as_user(uid: int, *, gid: int | None = None) -> tuple[str, ...]:
    """A prefix: run as that user."""
    version = subprocess.run(
        [PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=False
    )
    if version.stdout.split() != [str(part).encode() for part in sys.version_info[:2]]:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing(f"no Python {sys.version_info[0]}.{sys.version_info[1]} that other users can reach")
    modules, programs = _packages()
    return (
        *("setpriv", "--reuid", str(uid), "--regid", str(gid or uid), "--clear-groups"),
        *("env", "-i", f"PATH={programs}", f"PYTHONPATH={modules}", "PYTHONDONTWRITEBYTECODE=1"),
    )
