"""Ranks of a gloo group, each with a root of its own: torch is imported once, then they are forked.

    python share_ranks.py '{"folder": ..., "timeout": 30, "ranks": [{"root": ..., "source": ..., "env": {}}, ...]}'

Each rank may also have ``before``, ``call``, ``instead`` and ``after``: Python text. Prints one JSON line with what
became of each rank.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import nodecache
from nodecache import torch as nodecache_torch

CALL = "nodecache.load('tiny', [source])"


def tell(path, said):
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(said, file)
    os.rename(f"{path}.part", path)


def rank(number, plan):
    mine = plan["ranks"][number]
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NODECACHE_ROOT": mine["root"], **mine.get("env", {})})
    torch.set_num_threads(1)
    dist.init_process_group(
        plan["backend"],
        init_method=f"file://{plan['folder']}/store",
        rank=number,
        world_size=len(plan["ranks"]),
        timeout=timedelta(seconds=plan["timeout"]),
    )
    names = {"nodecache": nodecache, "source": mine.get("source"), "rank": number, "os": os, "time": time, "dist": dist}
    names["share"] = nodecache_torch.share
    exec(mine.get("before", ""), names)
    dist.barrier()
    began = time.monotonic()
    said = {"rank": number}
    try:
        if "instead" in mine:
            exec(mine["instead"], names)
        else:
            call = eval(f"lambda: {mine.get('call', CALL)}", names)
            module = nodecache_torch.share(call, timeout=plan.get("share_timeout"))
            said.update(sum=module.add(2, 3), role=module.__nodecache__.role, path=module.__nodecache__.path)
            said["key"] = module.__nodecache__.key
    except BaseException as error:  # noqa: BLE001  # what became of it is the result
        said.update(error=type(error).__name__, text=str(error), trace=traceback.format_exc())
    said["seconds"] = time.monotonic() - began
    names["said"] = said
    exec(mine.get("after", ""), names)
    tell(f"{plan['folder']}/{number}.json", said)


def main():
    plan = json.loads(sys.argv[1])
    pids = []
    for number in range(len(plan["ranks"])):
        pid = os.fork()
        if pid == 0:
            try:
                rank(number, plan)
            except BaseException:  # noqa: BLE001  # a forked child goes no further
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        pids.append(pid)
        tell(f"{plan['folder']}/{number}.pid", pid)
    for pid in pids:
        os.waitpid(pid, 0)
    said = []
    for number in range(len(pids)):
        found = None
        with contextlib.suppress(FileNotFoundError), open(f"{plan['folder']}/{number}.json", encoding="utf-8") as file:
            found = json.load(file)
        said.append(found)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
