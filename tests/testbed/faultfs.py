"""A folder seen through FUSE, with faults that are switched while it is in use: a disk or a share that is not well.

Runs as a process of its own; the other half of this file is what that process does.
"""

import ctypes.util
import errno
import fcntl
import functools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.testbed.processes import Running, until
from tests.testbed.requirements import lacking, needs

FOR_EVER = 1e9


class FaultFS:
    """``folder/disk`` is a mount of ``folder/backing``; locks work on it until they are told not to.

    A fault is set by the name of a FUSE operation (``flock``, ``read``, ``rename``, ...), and is a dict with any of
    ``errno`` (a name), ``delay`` (seconds, ended early by the next change of faults), ``match`` (a part of the path),
    ``after`` (calls that pass first) and ``times`` (calls that fail).

    Attributes:
        path: the mount point.
    """

    def __init__(self, folder):
        self._backing, self.path = folder / "backing", folder / "disk"
        self._faults, self._struck = folder / "faults.json", folder / "struck"

    def __enter__(self):
        needs("umount", "setpriv", modules=("mfusepy",), root=True)
        if ctypes.util.find_library("fuse") is None:
            lacking("not installed: libfuse2")
        if not Path("/dev/fuse").exists():
            lacking("there is no /dev/fuse")
        for place in (self._backing, self.path):
            place.mkdir(mode=0o700)
        self._struck.touch()
        self.set()
        served = [sys.executable, "-m", "tests.testbed.faultfs", self._backing, self.path, self._faults, self._struck]
        self._server = Running(map(str, served), cwd=Path(__file__).parent.parent.parent)
        try:
            until(self._is_mounted, 20, "mount")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_mounted(self):
        assert self._server.process.poll() is None, self._server.output()
        return os.path.ismount(self.path)

    def __exit__(self, *_exc):
        # Without its server every call on the mount ends with an error, also those that nothing can interrupt.
        self._server.kill()
        self._server.__exit__()
        subprocess.run(["umount", "--lazy", self.path], capture_output=True, check=False)

    def set(self, clock=0, **faults):
        """From now on these faults and no others; ``clock`` is how many seconds the file times are ahead."""
        new = self._faults.with_suffix(".new")
        new.write_text(json.dumps({"clock": clock, "faults": faults}), encoding="utf-8")
        new.rename(self._faults)

    def struck(self):
        """The operations that met a fault so far, such as ``rename /root/staging/1``."""
        return self._struck.read_text(encoding="utf-8").splitlines()


class _Faults:
    """What is in the file of faults now."""

    def __init__(self, path, struck):
        self._path, self._struck = path, struck
        self._mutex = threading.Lock()
        self._stamp = None
        self._read()

    def _read(self):
        status = os.stat(self._path)
        if (status.st_ino, status.st_mtime_ns) != self._stamp:
            self._stamp = (status.st_ino, status.st_mtime_ns)
            said = json.loads(Path(self._path).read_text(encoding="utf-8"))
            self.clock = int(said["clock"] * 1e9)
            self._faults = said["faults"]
            self._calls = dict.fromkeys(self._faults, 0)
        return self._stamp

    def strike(self, operation, path):
        """Be late, or fail, if this call is to."""
        with self._mutex:
            stamp = self._read()
            fault = self._faults.get(operation)
            if fault is None or fault.get("match", "") not in path:
                return
            self._calls[operation] += 1
            number = self._calls[operation] - fault.get("after", 0)
            if not 1 <= number <= fault.get("times", number):
                return
            with open(self._struck, "a", encoding="utf-8") as file:
                file.write(f"{operation} {path}\n")
        end = time.monotonic() + fault.get("delay", 0)
        while time.monotonic() < end:
            time.sleep(0.02)
            with self._mutex:
                if self._read() != stamp:
                    break
        if "errno" in fault:
            number = getattr(errno, fault["errno"])
            raise OSError(number, os.strerror(number))


def _operations(backing, faults):
    """What mfusepy calls, operation by operation, with the names and arguments that it wants."""
    status_fields = ("mode", "nlink", "uid", "gid", "size", "ino", "blocks")
    disk_fields = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "flag", "frsize", "namemax")

    def at(path):
        return f"{backing}{path}"

    def getattr_(path, fh=None):
        status = os.lstat(at(path)) if fh is None else os.fstat(fh)
        times = {f"st_{kind}time": getattr(status, f"st_{kind}time_ns") + faults.clock for kind in "amc"}
        return {**{f"st_{field}": getattr(status, f"st_{field}") for field in status_fields}, **times}

    def utimens(path, times=None):
        ns = None if times is None else tuple(int(each) - faults.clock for each in times)
        os.utime(at(path), ns=ns, follow_symlinks=False)

    def truncate(path, length, fh=None):
        os.truncate(at(path) if fh is None else fh, length)

    def readdir(path, fh):
        # With a number of each: who reads a folder takes 0 for "not there".
        with os.scandir(at(path)) as found:
            return [(name, {"st_ino": 1}, 0) for name in (".", "..")] + [
                (each.name, {"st_ino": each.inode()}, 0) for each in found
            ]

    def statfs(path):
        status = os.statvfs(backing)
        return {f"f_{field}": getattr(status, f"f_{field}") for field in disk_fields}

    calls = {
        "getattr": getattr_,
        "readlink": lambda path: os.readlink(at(path)),
        "readdir": readdir,
        "mknod": lambda path, mode, dev: os.mknod(at(path), mode, dev),
        "mkdir": lambda path, mode: os.mkdir(at(path), mode),
        "unlink": lambda path: os.unlink(at(path)),
        "rmdir": lambda path: os.rmdir(at(path)),
        "symlink": lambda path, target: os.symlink(target, at(path)),
        "rename": lambda path, new: os.rename(at(path), at(new)),
        "link": lambda path, old: os.link(at(old), at(path)),
        "chmod": lambda path, mode: os.chmod(at(path), mode),
        "chown": lambda path, uid, gid: os.lchown(at(path), uid, gid),
        "truncate": truncate,
        "utimens": utimens,
        "statfs": statfs,
        # Each open file has a descriptor of its own here, so that locks below exclude as those above should.
        "open": lambda path, flags: os.open(at(path), flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)),
        "create": lambda path, mode, flags: os.open(at(path), flags | os.O_CREAT, mode),
        "read": lambda path, size, offset, fh: os.pread(fh, size, offset),
        "write": lambda path, data, offset, fh: os.pwrite(fh, data, offset),
        "fsync": lambda path, _, fh: os.fsync(fh),
        "fsyncdir": lambda path, _, fh: None,
        "release": lambda path, fh: os.close(fh),
        "flock": lambda path, fh, how: fcntl.flock(fh, how),
    }

    def faulty(name, call):
        @functools.wraps(call)  # mfusepy counts the arguments
        def operation(path, *arguments):
            faults.strike(name, path or "")
            return call(path, *arguments)

        return operation

    return {name: faulty(name, call) for name, call in calls.items()}


def _serve(backing, place, faults, struck):
    import mfusepy

    os.umask(0)
    files = mfusepy.Operations()
    files.use_ns = True
    for name, call in _operations(backing, _Faults(faults, struck)).items():
        setattr(files, name, call)
    options = {"use_ino": True, "attr_timeout": 0, "entry_timeout": 0, "big_writes": True}
    mfusepy.FUSE(files, place, foreground=True, fsname="backing", subtype="faultfs", **options)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
