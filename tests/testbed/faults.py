"""Faults at chosen system calls, injected by strace."""

import os

from tests.testbed.requirements import needs


def traced(*command, inject):
    """The command line that runs ``command`` and all that it starts with a fault such as ``flock:error=ENOLCK``."""
    needs("strace")
    call = inject.partition(":")[0]
    quiet = ["-f", "--seccomp-bpf", "-qq", "-o", os.devnull]
    return ["strace", *quiet, "-e", f"trace={call}", "-e", f"inject={inject}", *command]
