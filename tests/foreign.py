"""Packages that nobody here wrote: pinned, and installed once, below the virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tests.testbed.requirements import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def installed(
    name: str, pins: Iterable[str], options: Iterable[str] = (), env: Mapping[str, str] | None = None
) -> Path:
    """A folder for PYTHONPATH with the packages of ``pins`` and no others; the first who asks installs them.

    Args:
        name: of the folder, one for each list of pins.
        pins: requirements with exact versions; what they depend on is among them.
        options: more for pip.
        env: variables for pip.
    """
    place = Path(sys.prefix) / "foreign" / name
    wanted = "\n".join((f"Python {sys.version.split()[0]}", *options, *pins))
    pinned = place / "pins.txt"
    place.parent.mkdir(exist_ok=True)
    with FileLock(f"{place}.lock"):
        if pinned.exists() and pinned.read_text() == wanted:
            return place
        shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*command, *options, "--target", f"{folder}/all", *pins],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            if done.returncode:
                lacking(f"pip could not install what {name!r} needs: {done.stderr.strip()[-500:]}")
            Path(folder, "all", "pins.txt").write_text(wanted)
            Path(folder, "all").rename(place)
    return place
