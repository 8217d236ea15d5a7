"""Each module answers as one that was built without a cache would, whatever was edited before: see differential.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.requirements import needs


def differences(tmp_path: Path, timeout: float, *arguments: str) -> re.Match[str]:
    """Run the program in a mount namespace of its own; what it counted."""
    needs("unshare", "mount", root=True)
    program = Path(__file__).parent / "differential.py"
    namespace = ("unshare", "--mount", "--propagation", "private")
    done = subprocess.run(
        [*namespace, sys.executable, program, *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    found = re.search(r"^0 differences: (\d+) sequences, (\d+) loads, (\d+) states, .*$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-4000:]
    assert found is not None, done.stdout[-4000:]
    print(found.group())
    return found


def test_a_few_random_sequences_of_edits_give_what_a_build_without_a_cache_gives(tmp_path):
    found = differences(tmp_path, 110, "--sequences", "5", "--steps", "8")
    assert int(found[1]) >= 5
    assert int(found[3]) > 5  # the edits did change something


@pytest.mark.soak
def test_three_hundred_random_sequences_of_edits_give_what_a_build_without_a_cache_gives(tmp_path):
    found = differences(tmp_path, 3500, "--sequences", "300", "--steps", "6", "--seed", "1")
    assert int(found[1]) >= 300
