"""Packages that nobody here wrote: pinned, and installed once, below the virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
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
            _pip("install", *options, "--target", f"{folder}/all", *pins, env=env)
            Path(folder, "all", "pins.txt").write_text(wanted)
            Path(folder, "all").rename(place)
    return place


def file_of(pin: str, path: str) -> Path:
    """One file of a package's wheel, as it is there; the first who asks downloads it.

    Args:
        pin: the requirement, with its exact version.
        path: the file's path in the wheel.
    """
    place = Path(sys.prefix) / "foreign" / "files" / pin / path
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=place.parent) as folder:
                _pip("download", "--only-binary", ":all:", "--dest", folder, pin)
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    Path(archive.extract(path, f"{folder}/all")).rename(place)
    return place


def _pip(command: str, *words: str, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps", *words],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode:
        lacking(f"pip {command} failed for {' '.join(words)}: {done.stderr.strip()[-500:]}")
