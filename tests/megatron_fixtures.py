"""Fixtures of the tests of the Megatron helpers: the helpers, and their peer."""

import fcntl
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import nodecache.megatron

PEER = "megatron-core==0.16.1"


def downloaded(requirement: str, place: Path) -> Path:
    """The requirement's wheel, fetched once for all workers and runs; skips (fails in CI) where pip cannot fetch it."""
    folder = place / requirement.replace("==", "-")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            if done.returncode != 0:
                missing(f"pip cannot fetch {requirement}: {done.stderr.strip()[-300:]}")
    return next(folder.glob("*.whl"))


def missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def peers() -> Path:
    return Path(sys.prefix) / "peers"


@pytest.fixture(scope="session")
def unpacked(peers):
    """Gives a folder for sys.path with a requirement's wheel in it, without what it depends on."""

    def unpack(requirement: str) -> Path:
        wheel = downloaded(requirement, peers)
        folder = wheel.parent / "unpacked"
        with (wheel.parent / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=wheel.parent) as beside, zipfile.ZipFile(wheel) as archive:
                    archive.extractall(f"{beside}/all")
                    Path(beside, "all").rename(folder)
        return folder

    return unpack


@pytest.fixture(scope="session")
def peer(peers):
    """Megatron-core's own helpers, out of its wheel."""
    wheel = downloaded(PEER, peers)
    inside = "megatron/core/datasets/helpers_cpp" + importlib.machinery.EXTENSION_SUFFIXES[0]
    path = wheel.parent / inside
    with (wheel.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(inside, wheel.parent)
    spec = importlib.util.spec_from_file_location("helpers_cpp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def helpers_root(tmp_path_factory) -> Path:
    """One root for the helpers of all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "megatron-root"


@pytest.fixture(scope="session")
def helpers(helpers_root):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODECACHE_ROOT", str(helpers_root))
        return nodecache.megatron.compile_helper()
