"""Doctor: whether this node can build and keep extensions, before a job finds out. Nothing is built.

Each finding has a cause and, where something is wrong, a remedy. What another process holds is never to be deleted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

from nodecache import libstdcxx, lock, status
from nodecache.compiler import find_compiler, run_tool, which
from nodecache.contents import entries
from nodecache.cuda import architectures
from nodecache.errors import NodecacheError, RootError
from nodecache.interpreter import described, interpreter
from nodecache.launchers import node
from nodecache.mark import foreign
from nodecache.packages import cuda_home, package_folder
from nodecache.root import FOLDERS, LEAST_BYTES, VARIABLE, Root, default_root, make_folder, open_root, setting
from nodecache.tables import count, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodecache.compiler import Compiler

GOOD, NOTE, WRONG = "good", "note", "wrong"
LOCK_SECONDS = 10.0
"""Seconds that a file system has for each lock call."""

_LITTLE = 200 << 20
_NETWORK = re.compile(
    r"nfs|lustre|cifs|smb|smbfs|fuse\.|9p|afs|ceph|gpfs|beegfs|gluster|panfs|pvfs|orangefs|wekafs|ncpfs|virtiofs"
)
# The other process of the lock's trial: 0 granted, 3 busy, 4 not supported, 5 another answer.
_TRY = """\
import errno, fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError as error:
    busy, cannot = (errno.EWOULDBLOCK, errno.EACCES), (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, 524)
    sys.exit(3 if error.errno in busy else 4 if error.errno in cannot else 5)
"""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        check: what it is about, such as ``compiler``.
        level: ``good``; ``note`` (works, and is worth knowing); ``wrong`` (builds or loads will fail).
        says: the cause, a sentence.
        remedy: what to do; empty where there is nothing.
    """

    check: str
    level: str
    says: str
    remedy: str = ""


def findings() -> list[Finding]:
    """Look at everything. Takes seconds at most; only where locks are silent each trial takes its time limit."""
    found = [*_where(), *_tools()]
    place = None
    for finding in _root():
        if isinstance(finding, Root):
            place = finding
        else:
            found.append(finding)
    if place is not None:
        locks = list(_locks(place))
        found += [*_disk(place), *locks]
        # What is being built, and what was left, shows by locks.
        if all(finding.level != WRONG for finding in locks):
            found += _leftovers(place)
    return found


def exit_status(found: list[Finding]) -> int:
    """What ``nodecache doctor`` ends with: 1 when something is wrong."""
    return 1 if any(finding.level == WRONG for finding in found) else 0


def _where() -> Iterator[Finding]:
    here = node()
    yield Finding("node", GOOD, f"{here.label}, launcher {here.launcher}")
    for note in here.notes:
        yield Finding("node", NOTE, note, "Numbers are labels only; correct the variable if messages should name it.")


def _tools() -> Iterator[Finding]:
    yield from _python()
    with tempfile.TemporaryDirectory() as folder:
        memory = Root(folder, "the doctor's own")  # asks anew, and leaves nothing
        try:
            found = find_compiler(memory)
            version = found.version.partition("\n")[0]
            yield Finding("compiler", GOOD, f"{' '.join([*found.command, *found.words])} ({version}), {found.linker}")
            yield from _cpp_library(found)
        except NodecacheError as error:
            yield _wrong("compiler", error)
        yield _ninja()
        yield _pybind11()
        yield _torch()
        yield from _cuda(memory)


def _cpp_library(compiler: Compiler) -> Iterator[Finding]:
    """Whether this process's C++ library is as new as the one that the compiler links against."""
    try:
        paths = libstdcxx.linked(compiler), libstdcxx.loaded()
        versions = [libstdcxx.newest(path) if path else None for path in paths]
    except (OSError, NodecacheError) as error:
        yield Finding("libstdc++", NOTE, f"The C++ libraries cannot be compared: {error}")
        return
    ours, theirs = versions
    if ours is None or theirs is None:
        return
    named = [
        f"GLIBCXX_{'.'.join(map(str, version))} ({path})" for version, path in zip((ours, theirs), paths, strict=True)
    ]
    if ours <= theirs:
        yield Finding("libstdc++", GOOD, f"the compiler's has {named[0]}, the one that Python loads {named[1]}")
        return
    yield Finding(
        "libstdc++",
        NOTE,
        f"The compiler links against {named[0]}, and Python loads an older one, {named[1]}: what uses newer parts of "
        "the C++ library will not load.",
        "Set CXX to the compiler that Python's library belongs to, or add -static-libstdc++ to extra_ldflags.",
    )


def _python() -> Iterator[Finding]:
    import sysconfig

    include = sysconfig.get_path("include")
    version = sys.version.split()[0]
    if os.path.isfile(f"{include}/Python.h"):
        yield Finding("python", GOOD, f"{described()} ({version}), headers in {include}")
    else:
        yield Finding(
            "python",
            WRONG,
            f"Python.h is not in {include}: the headers of Python {version} are not installed.",
            "Install them (apt-get install python3-dev, dnf install python3-devel), or use a Python that has them.",
        )


def _ninja() -> Finding:
    path = package_folder("ninja")
    program = f"{path}/data/bin/ninja" if path else ""
    if not os.access(program, os.X_OK):
        beside = os.path.join(os.path.dirname(described()), "ninja")
        program = beside if os.access(beside, os.X_OK) else which("ninja") or ""
    if not program:
        return Finding("ninja", WRONG, "ninja is not installed.", f"Install it: {described()} -m pip install ninja")
    try:
        code, said = run_tool([program, "--version"])
    except NodecacheError as error:
        return _wrong("ninja", error)
    if code:
        return Finding("ninja", WRONG, f"{program} fails: {said.strip()[:200]}", f"{described()} -m pip install ninja")
    return Finding("ninja", GOOD, f"{program} ({said.strip()})")


def _pybind11() -> Finding:
    folder = package_folder("pybind11")
    if folder and os.path.isfile(f"{folder}/include/pybind11/pybind11.h"):
        return Finding("pybind11", GOOD, f"headers in {folder}/include")
    return Finding(
        "pybind11",
        WRONG,
        f"pybind11 is not installed for {described()}; sources that include it, and load_inline, need its headers.",
        f"Install it: {described()} -m pip install pybind11",
    )


def _torch() -> Finding:
    folder = package_folder("torch")
    if folder is None:
        return Finding("torch", NOTE, "torch is not installed; only builds that ask for it need it.")
    try:
        with open(f"{folder}/version.py", encoding="utf-8") as file:
            said = dict(re.findall(r"^(__version__|cuda)\b[^=]*= '?([^'\n]*)'?", file.read(), re.MULTILINE))
    except OSError as error:
        return Finding("torch", WRONG, f"torch in {folder} cannot be read: {error.strerror}.", "Install it again.")
    cuda = said.get("cuda", "None")
    kind = "for the CPU" if cuda == "None" else f"for CUDA {cuda}"
    return Finding("torch", GOOD, f"{said.get('__version__', 'of an unknown version')}, built {kind}, in {folder}")


def _cuda(memory: Root) -> Iterator[Finding]:
    home = cuda_home()
    nvcc = which(f"{home}/bin/nvcc") if home else None
    nvcc = nvcc or which("nvcc")
    if nvcc is None:
        yield Finding("cuda", NOTE, "There is no nvcc; only CUDA sources need it. Load its module, or set CUDA_HOME.")
        return
    yield Finding("cuda", GOOD, f"{nvcc}, toolkit in {home}")
    try:
        flags = architectures(memory)
        yield Finding("cuda", GOOD, f"compiles for {' '.join(flag.rpartition('=')[2] for flag in flags)}")
    except NodecacheError as error:
        level = WRONG if os.environ.get("TORCH_CUDA_ARCH_LIST") else NOTE
        yield Finding("cuda", level, *_split(str(error)))


def _root() -> Iterator[Finding | Root]:
    path = os.path.abspath(setting(VARIABLE) or default_root())
    strangers = foreign(path)
    if strangers:
        yield Finding(
            "root",
            WRONG,
            f"{path} has {', '.join(strangers[:3])} in it, so it is a folder for something else.",
            f"Set {VARIABLE} to a folder that is nodecache's alone.",
        )
        return
    try:
        root = open_root()
        yield from _folders(root)
        found = os.lstat(root.path)
        yield Finding("root", GOOD, f"{root.path} ({root.source}), mode {found.st_mode & 0o7777:04o}, yours")
        yield root
    except RootError as error:
        yield _wrong("root", error)


def _folders(root: Root) -> Iterator[Finding]:
    """Each of the root's folders that is damaged, or open to others."""
    for name in FOLDERS:
        try:
            make_folder(root, root.at(name))
        except RootError as error:
            yield _wrong(name, error)


def _disk(root: Root) -> Iterator[Finding]:
    kind = lock.file_system(root.path)
    disk = os.statvfs(root.path)
    if _NETWORK.match(kind):
        yield Finding(
            "file system",
            NOTE,
            f"The root is on a network file system ({kind}): it works, but slowly, and its locks are the server's.",
            f"Set {VARIABLE} to a folder on a local disk.",
        )
    else:
        yield Finding("file system", GOOD, f"{kind}")
    if disk.f_flag & os.ST_NOEXEC:
        yield Finding(
            "file system",
            WRONG,
            f"{root.path} is on a file system that is mounted noexec: what is built there cannot be loaded.",
            f"Set {VARIABLE} to a folder where code may run.",
        )
    if disk.f_flag & os.ST_RDONLY:
        yield Finding(
            "file system",
            WRONG,
            f"{root.path} is on a file system that is mounted read-only: what is there loads, nothing can be built.",
            f"Set {VARIABLE} to a folder that you can write.",
        )
    yield _space("space", root.path, "the root", f"Free some (nodecache prune), or set {VARIABLE} to another disk.")
    temporary = os.environ.get("TMPDIR")
    if temporary and os.path.isdir(temporary):
        yield _space("space", temporary, "the compilers' temporary files", "Free some, or set TMPDIR to another disk.")
    home = os.path.expanduser("~")
    kind = lock.file_system(home)
    if _NETWORK.match(kind):
        below = (root.path + "/").startswith(os.path.realpath(home) + "/")
        yield Finding(
            "home",
            NOTE,
            f"HOME is on a network file system ({kind}), and the root is {'below' if below else 'not below'} it.",
            f"Unset {VARIABLE}, or set it to a folder on a local disk." if below else "",
        )
    yield from _triton(home)


def _triton(home: str) -> Iterator[Finding]:
    """Triton's own cache, where there is one or will be: nodes that share it replace each other's open files."""
    chosen = os.environ.get("TRITON_CACHE_DIR")
    base = os.environ.get("TRITON_HOME")
    path = chosen or f"{base or home}/.triton/cache"
    kind = lock.file_system(os.path.realpath(path))
    if not _NETWORK.match(kind) or not (chosen or base or os.path.exists(path) or package_folder("triton")):
        return
    source = "TRITON_CACHE_DIR" if chosen else "TRITON_HOME" if base else "the default, below HOME"
    yield Finding(
        "triton",
        NOTE,
        f"Triton's cache {path} ({source}) is on a network file system ({kind}): when another node replaces a kernel "
        f"in it, a rank can end with 'Stale file handle'.",
        f"Set TRITON_CACHE_DIR to a folder on a local disk that stays there after the job, such as "
        f"/tmp/triton_{os.getuid()}.",
    )


def _space(check: str, path: str, what: str, remedy: str) -> Finding:
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    told = disk.f_blocks > 0  # some file systems do not say
    inodes = f", {disk.f_favail} inodes" if disk.f_files else ""
    says = f"{size(free)}{inodes} free for {what} ({path})"
    if told and (free < LEAST_BYTES or (disk.f_files and disk.f_favail < 32)):
        return Finding(check, WRONG, f"Only {says}.", remedy)
    if told and free < _LITTLE:
        return Finding(check, NOTE, f"Only {says}.", remedy)
    return Finding(check, GOOD, says)


def _locks(root: Root) -> Iterator[Finding]:
    """Try in the root whether a lock keeps a second process out, and whether its end lets it in."""
    path = root.at("staging", f"doctor-{os.urandom(6).hex()}")
    kind = lock.file_system(root.path)
    local = f"Set {VARIABLE} to a folder on a local disk."
    answers = True
    try:
        fd = lock.open_lock(path)
        _try_lock(path)  # where calls do not return, this process must not be in one: then nothing could end it
        if not lock.try_exclusive(fd, path, LOCK_SECONDS, tell=False):
            yield Finding("locks", WRONG, f"A new file's lock is held by somebody on {kind}.", local)
            return
        while_held = _try_lock(path)
        lock.close(fd)
        after = _try_lock(path)
    except lock.LocksUnsupported as error:
        yield Finding(
            "locks",
            NOTE,
            f"There are no kernel locks here ({error}): owner records with proof of death stand in for them.",
            local,
        )
        return
    except (lock.LockSilent, subprocess.TimeoutExpired):
        answers = False
        yield Finding(
            "locks", WRONG, f"A lock call had no answer within {LOCK_SECONDS:g} s on {kind}: builds would hang.", local
        )
        return
    except (OSError, RootError) as error:
        yield Finding("locks", WRONG, f"Locks cannot be tried in {root.path}: {error}", local)
        return
    finally:
        if answers:  # else to remove what another process waits for may have no answer either
            try:
                os.unlink(path)
            except OSError:
                pass
    if (while_held, after) == (3, 0):
        yield Finding("locks", GOOD, f"a lock on {kind} keeps a second process out, and lets it in when it ends")
    elif while_held == 0:
        yield Finding(
            "locks",
            WRONG,
            f"Locks do not exclude on {kind}: a second process was granted one that this process held.",
            local,
        )
    else:
        yield Finding("locks", WRONG, f"Locks on {kind} answer oddly ({while_held} while held, {after} after).", local)


def _try_lock(path: str) -> int:
    """What another process is told; one that is told nothing in time is killed and, as that may not help, left."""
    trial = subprocess.Popen(
        [interpreter(), "-I", "-S", "-c", _TRY, path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return trial.wait(LOCK_SECONDS)
    except BaseException:
        trial.kill()
        raise


def _leftovers(root: Root) -> Iterator[Finding]:
    held = entries(root)
    yield Finding("entries", GOOD, f"{count(len(held), 'entry')}, {size(sum(each.size for each in held))}")
    for build in status.builds(root):
        who = f"{build.owner.name!r}: {build.owner.label}"
        since = time.strftime("%H:%M:%S", time.localtime(build.owner.since))
        if build.state == "dead":
            yield Finding(
                "leftovers",
                WRONG,
                f"{who} died while it built, which began at {since}. Its lease is free.",
                "Find out why it died, and call again; the next build cleans up after it.",
            )
        elif build.state == "finished":
            yield Finding("builds", NOTE, f"{who} ended after it had published what it built; all can use it.")
        elif build.state == "stopped":
            yield Finding(
                "builds",
                NOTE,
                f"{who} is stopped in the middle of a build, which began at {since}.",
                f"Continue it: kill -CONT {build.owner.pid}",
            )
        else:
            yield Finding("builds", GOOD, f"{who} is building, since {since} ({build.seconds:.0f} s); leave it alone")
    try:
        names = os.listdir(root.at("staging"))
    except NotADirectoryError:  # told above
        return
    dead = sum(_is_leftover(root.at("staging", name)) for name in names)
    if dead:
        yield Finding(
            "leftovers",
            NOTE,
            f"{count(dead, 'folder')} of dead builders in {root.at('staging')}: the next build cleans up.",
        )


def _is_leftover(path: str) -> bool:
    """Whether a staging folder's lock is free, so that its builder is dead."""
    import fcntl

    try:
        if time.time() - os.lstat(path).st_mtime < 10:  # perhaps just being made
            return False
        fd = os.open(f"{path}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _wrong(check: str, error: NodecacheError) -> Finding:
    return Finding(check, WRONG, *_split(str(error)))


def _split(message: str) -> tuple[str, str]:
    """A message's cause and remedy: the last sentence is the remedy."""
    cause, _, remedy = message.rpartition(". ")
    return (f"{cause}.", remedy) if cause else (message, "")
