"""A machine with real NFS, on a kernel that has none: a User-mode Linux guest with an NFS server and its clients.

The guest has a kernel of its own and sees this machine's files, read-only. ``nfs_guest.sh`` is its first process.
"""

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.testbed.nodes import container
from tests.testbed.processes import run
from tests.testbed.requirements import needs

HERE = Path(__file__).parent
EXPORT = "/var/lib/nfs/export"
"""In the guest: what its server exports to anybody, by NFS 3 and 4.2."""

FOLDER = "/var/lib/nfs/tmp"
"""In the guest: a local folder that can be written."""

_ENDED = re.compile(r"^nfs_guest ended: (\d+)$", re.MULTILINE)


def in_guest(command, *, timeout):
    """Boot a guest, run one command as root in it, and end it; returns what the command wrote.

    The command must end with the status 0 within ``timeout`` seconds, boot included (some 4 s on a slow machine). Where
    the guest's kernel itself breaks down, which says nothing of the command, another one is booted, once.
    """
    programs = (
        "linux.uml",
        "gcc",
        "modprobe",
        "mount.nfs",
        "exportfs",
        "rpcbind",
        "rpc.nfsd",
        "rpc.mountd",
        "rpc.statd",
    )
    needs(*programs, "unshare", "setpriv", "bash", root=True)
    told = _boot(command, timeout)
    if _ENDED.search(told) is None:
        told = _boot(command, timeout)
    ended = _ENDED.search(told)
    assert ended is not None, f"two guests did not come to their end\n{told}"
    assert ended[1] == "0", f"exit status {ended[1]} in the guest: {command}\n{told}"
    return told[: ended.start()]


def _boot(command, timeout):
    """Run it in one guest; returns all that came out."""
    folder = Path(tempfile.mkdtemp(prefix="nodecache-nfs-", dir="/run"))  # a short path: sockets are made in it
    try:
        shim = folder / "xstate.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", shim, HERE / "nfs_guest.c"], check=True)
        first = folder / "first"
        started = ["bash", HERE / "nfs_guest.sh", *command]
        first.write_text(f"#!/bin/sh\nexec {shlex.join(map(str, started))}\n", encoding="utf-8")
        first.chmod(0o755)
        guest = ["linux.uml", "mem=512M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"]
        guest += [f"init={first}", "con=null", "con0=null,fd:1", f"uml_dir={folder}/", "umid=guest"]
        # Its processes are many, of groups of their own, and end with the container. Its kernel is not to be pid 1.
        inside = ["bash", "-c", f"LD_PRELOAD={shim} {shlex.join(guest)}; exit 0"]
        return run(container(*inside), timeout=timeout).replace("\r", "")
    finally:
        shutil.rmtree(folder)
