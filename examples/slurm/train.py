"""A training step with an extension of one's own; `train.sbatch` starts it on every rank.

No rank is special here: whichever comes first on a node builds, all others wait for it, and a second run builds
nothing.
"""

from pathlib import Path
from types import ModuleType

import nodecache


def extension() -> ModuleType:
    """The extension, built on this node if it was not yet; `nodecache warm train:extension` calls it too."""
    return nodecache.load("train_step", [Path(__file__).parent / "step.cpp"])


if __name__ == "__main__":
    step = extension()
    weight = 1.0
    for _ in range(100):
        weight = step.descend(weight, 0.1)
    here = nodecache.node()
    print(f"rank {here.rank}: weight {weight:.2e} on {here.hostname}")
