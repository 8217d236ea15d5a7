"""The datasets of Megatron-core and NeMo AutoModel, over real files, with our helpers in the place of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest_plugins = ("tests.megatron_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("megatron_user.py")
OURS = "nodecache_megatron"


@pytest.mark.parametrize(
    ("user", "requirement", "theirs"),
    [
        ("megatron", "megatron-core==0.16.1", "megatron.core.datasets.helpers_cpp"),
        ("automodel", "nemo-automodel==0.7.0", "nemo_automodel_megatron_helpers"),
    ],
)
def test_a_real_dataset_yields_the_same_samples_in_the_same_order(
    helpers, helpers_root, unpacked, tmp_path, monkeypatch, user, requirement, theirs
):
    pytest.importorskip("torch")
    packages = unpacked(requirement)
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))
    monkeypatch.setenv("PYTHONPATH", str(PROGRAM.parent.parent))
    # A build of their own finds ninja where the environment has it.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    told, samples = {}, {}
    for choice in ("own", "nodecache"):
        command = [sys.executable, PROGRAM, user, packages, tmp_path, choice]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told[choice] = json.loads(done.stdout.splitlines()[-1])
        with np.load(tmp_path / f"{user}-{choice}.npz") as archive:
            samples[choice] = dict(archive)
    assert [told[choice].pop("used") for choice in ("own", "nodecache")] == [theirs, OURS]
    assert told["own"] == told["nodecache"]
    assert told["own"]["samples"] > 1000
    assert told["own"]["kinds"] == ["BlendedDataset", "GPTDataset"]
    assert samples["own"].keys() == samples["nodecache"].keys()
    for name, expected in samples["own"].items():
        np.testing.assert_array_equal(samples["nodecache"][name], expected, name)
    # The order is a real one: a sample in another place would have been noticed.
    labels = samples["own"]["weighted-0-labels"]
    assert len(np.unique(labels, axis=0)) > len(labels) // 2
