"""torch.multiprocessing with every start method, and DataLoader workers."""

import sys

import pytest

from tests.testbed.job import HERE
from tests.testbed.processes import Running
from tests.testbed.requirements import needs

pytest_plugins = ("tests.testbed.plugin",)
pytestmark = pytest.mark.integration

BEGIN = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import rank
import torch

SOURCE = {str(HERE / "tiny.cpp")!r}
"""
PROCESSES = f"""{BEGIN}
import torch.multiprocessing as mp

def work(index):
    rank.load(SOURCE)

if __name__ == "__main__":
    mp.start_processes(work, nprocs=4, start_method=sys.argv[1])
    rank.load(SOURCE)  # the parent comes last
"""
LOADER = f"""{BEGIN}
from torch.utils.data import DataLoader, Dataset

class Sums(Dataset):
    extension = None

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if self.extension is None:
            self.extension = rank.load(SOURCE)
        return self.extension.add(index, index)

if __name__ == "__main__":
    loader = DataLoader(Sums(), batch_size=2, num_workers=4, multiprocessing_context=sys.argv[1])
    sums = torch.cat(list(loader)).tolist()
    assert sums == [2 * index for index in range(32)], sums
    rank.load(SOURCE)
"""


def finish(job, text, method):
    """Run the program to its end; returns the seconds it took."""
    needs(modules=["torch"])
    program = job.folder / "program.py"
    program.write_text(text)
    job.hold()
    with Running([sys.executable, program, method], env={**job.env, "OMP_NUM_THREADS": "1"}) as running:
        return job.meet(4, running)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_of_every_start_method_compile_once(job, saw, method):
    seconds = finish(job, PROCESSES, method)
    job.check(nodes=1, ranks=5)
    saw(f"torch.multiprocessing, {method}", job, seconds)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_compile_once(job, saw, method):
    seconds = finish(job, LOADER, method)
    job.check(nodes=1, ranks=5)
    saw(f"DataLoader, {method}", job, seconds)
