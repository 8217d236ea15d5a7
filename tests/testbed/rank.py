"""One rank of a test job: load the extension given by its source, use it, and write down what was seen."""

import json
import os
import sys
import time
import uuid
from pathlib import Path


def main(source):
    """Load, call, report. The report appears whole or not at all."""
    began = time.monotonic()
    import nodecache  # noqa: PLC0415 - its import is part of the time
    from nodecache.node import node  # noqa: PLC0415

    module = nodecache.load("tiny", [source])
    seconds = time.monotonic() - began
    assert module.add(2, 3) == 5
    report(node(), seconds, file=module.__file__)


def report(seen, seconds, **more):
    """Leave one JSON file in the folder that the job named."""
    told = {**seen._asdict(), "seconds": seconds, "pid": os.getpid(), **more}
    folder = Path(os.environ["TESTBED_REPORTS"])
    name = uuid.uuid4().hex
    part = folder / f"{name}.part"
    part.write_text(json.dumps(told), encoding="utf-8")
    part.rename(folder / f"{name}.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
