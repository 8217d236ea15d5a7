"""One rank of a test job: load the extension given by its source, use it, and write down what was seen."""

import json
import os
import sys
import time
import uuid
from pathlib import Path


def load(source, timeout=None):
    """Say that this rank asks for the extension, load it (waiting ``timeout`` seconds at most), and report."""
    reports = Path(os.environ["TESTBED_REPORTS"])
    name = uuid.uuid4().hex
    (reports / f"{name}.asked").touch()
    began = time.monotonic()
    import nodecache

    module = nodecache.load("tiny", [source], timeout=timeout and float(timeout))
    seconds = time.monotonic() - began
    assert module.add(2, 3) == 5
    told = {**nodecache.node()._asdict(), "seconds": seconds, "pid": os.getpid()}
    part = reports / f"{name}.part"
    part.write_text(json.dumps(told), encoding="utf-8")
    part.rename(reports / f"{name}.json")  # whole or not at all
    return module


if __name__ == "__main__":
    load(*sys.argv[1:])
