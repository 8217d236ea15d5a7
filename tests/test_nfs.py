"""The root on real NFS, versions 4.2 and 3: in a guest that has it, where `nfs_checks.py` is run."""

import os
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.testbed.nfs_guest import FOLDER, in_guest

pytestmark = pytest.mark.integration


@pytest.mark.timeout(420)
@pytest.mark.parametrize("checks", ["nfs4 or no-lock-daemon", "not (nfs4 or no-lock-daemon)"])
def test_on_real_nfs_the_lease_keeps_its_promises(checks):
    """The lock daemon of one guest is ended by its checks, so the others have a guest of their own."""
    pytest_there = ["-m", "pytest", "--color=no", "-p", "no:cacheprovider", f"--basetemp={FOLDER}/pytest"]
    chosen = [str(REPOSITORY / "tests/nfs_checks.py"), "-k", checks, "--durations=0"]
    environment = ["env", f"CI={os.environ.get('CI', '')}", f"PYTHONPATH={REPOSITORY}"]
    print(in_guest([*environment, sys.executable, *pytest_there, *chosen], timeout=200))
