"""Megatron-core's own modules get nodecache's helpers where the package has no compiled ones, unchanged."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.testbed.slurm import Cluster

pytest_plugins = ("tests.megatron_fixtures", "tests.testbed.plugin")

REPOSITORY = Path(__file__).resolve().parent.parent
UTILS = "def compile_helpers():\n    raise SystemExit('make was run')\n"
INSTALL = "from nodecache.megatron import install\ninstall()\n"


@pytest.fixture
def package(tmp_path, monkeypatch, helpers_root):
    """A stand-in for the package: ``package(helpers_cpp=None)`` gives the environment in which it is found."""
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))

    def make(helpers_cpp=None):
        folder = tmp_path / "site/megatron/core/datasets"
        folder.mkdir(parents=True)
        for each in (folder, folder.parent):
            (each / "__init__.py").touch()
        (folder / "utils.py").write_text(UTILS)
        (folder / "helpers.py").write_text("from megatron.core.datasets.helpers_cpp import *\n")
        if helpers_cpp is not None:
            (folder / "helpers_cpp.py").write_text(helpers_cpp)
        return {"PYTHONPATH": f"{tmp_path / 'site'}:{REPOSITORY}"}

    return make


def test_the_helpers_module_is_nodecaches_where_the_package_has_none(package, start):
    program = INSTALL + (
        "import sys\n"
        "assert 'megatron' not in sys.modules\n"
        "from megatron.core.datasets import helpers, helpers_cpp\n"
        "import nodecache.megatron\n"
        "print(helpers.build_blending_indices.__module__, helpers_cpp is nodecache.megatron.compile_helper(),\n"
        "      helpers_cpp.__spec__.name)\n"
    )
    done = start(program, env=package()).wait()
    assert done.out == "nodecache_megatron True nodecache_megatron\n", done.err


def test_a_compiled_module_of_the_package_wins(package, start):
    program = INSTALL + "from megatron.core.datasets.helpers import own\nprint(own)\n"
    done = start(program, env=package("own = 'theirs'\n")).wait()
    assert done.out == "theirs\n", done.err


@pytest.mark.parametrize("early", [False, True], ids=["before", "after"])
def test_compile_helpers_runs_no_make_whether_it_was_imported_before_or_after(package, start, early):
    first = "import megatron.core.datasets.utils\n" if early else ""
    program = (
        f"{first}{INSTALL}{INSTALL}"
        "import sys\n"
        "from megatron.core.datasets.utils import compile_helpers\n"
        "compile_helpers()\n"
        "utils = sys.modules['megatron.core.datasets.utils']\n"
        "print('megatron.core.datasets.helpers_cpp' in sys.modules, type(utils.__spec__.loader).__name__)\n"
    )
    done = start(program, env=package()).wait()
    assert done.out == "True SourceFileLoader\n", done.err


def test_other_missing_modules_stay_missing(package, start):
    program = INSTALL + (
        "try:\n    import megatron.core.datasets.nothing\nexcept ModuleNotFoundError as error:\n    print(error.name)\n"
    )
    assert start(program, env=package()).wait().out == "megatron.core.datasets.nothing\n"


REAL = """\
import json, os, sys
sys.path.insert(0, sys.argv[1])
from nodecache.megatron import install
install()
import numpy as np
from megatron.core.datasets.utils import compile_helpers
compile_helpers()
from megatron.core.datasets import helpers
index = helpers.build_sample_idx(np.array([3, 5, 2], np.int32), np.array([0, 1, 2], np.int32), 4, 1, 10)
try:
    open(f"{sys.argv[1]}/probe", "w")
except OSError as error:
    refused = error.strerror
import nodecache
print(json.dumps([index.tolist(), nodecache.megatron.compile_helper().__nodecache__.role, refused,
                  sorted(os.listdir("/tmp")), os.path.exists("/nonexistent")]))
"""


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_four_tasks_of_srun_with_a_read_only_package_and_no_home_use_the_real_package(job, unpacked):
    """Two nodes; every node compiles once, and nothing is written but the root."""
    pytest.importorskip("torch")
    site = job.folder / "site"
    shutil.copytree(unpacked("megatron-core==0.16.1"), site, ignore=shutil.ignore_patterns("helpers_cpp*", "Makefile"))
    program = job.folder / "program.py"
    program.write_text(REAL)
    seal = " && ".join(f"mount --bind {path} {path} && mount -o remount,ro,bind {path}" for path in (site, REPOSITORY))
    script = f"{seal} && exec {sys.executable} {program} {site}"
    env = {**job.env, "HOME": "/nonexistent", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with Cluster(nodes=2, cpus=4) as cluster:
        step = ["srun", "-N2", "--ntasks-per-node=2", "unshare", "--mount", "--propagation=private", "sh", "-c", script]
        said = cluster.run(*step, timeout=200, env=env)
    told = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    assert len(told) == 4, said
    assert sorted(role for _, role, *_ in told) == ["built", "built", "waited", "waited"]
    sources = len(list((REPOSITORY / "csrc").glob("*.cpp")))
    assert sorted(job.compiles().values()) == [sources] * 2
    for index, _, refused, in_tmp, home in told:
        assert (index, refused, home) == ([[0, 0], [1, 1], [2, 0]], "Read-only file system", False)
        assert set(in_tmp) - {"torchinductor_root"} == {Path(job.root).name}  # torch's own, made by its import


def test_each_node_compiles_the_helpers_though_rank_0_never_asks(start, tmp_path):
    """A node is a root of its own here; two ranks share the first, and the second has one."""
    program = (
        "import os, nodecache.megatron\n"
        "assert os.environ['RANK'] != '0'\n"
        "print(nodecache.megatron.compile_helper().__nodecache__.role)\n"
    )
    where = {1: "a", 2: "a", 3: "b"}
    ranks = [
        start(program, env={"NODECACHE_ROOT": str(tmp_path / root), "RANK": str(rank), "WORLD_SIZE": "4"})
        for rank, root in where.items()
    ]
    done = [rank.wait(100) for rank in ranks]
    assert [each.status for each in done] == [0, 0, 0], done
    assert sorted(each.out for each in done[:2]) == ["built\n", "waited\n"]
    assert done[2].out == "built\n"
