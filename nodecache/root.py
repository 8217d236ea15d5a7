"""The root: the private folder that holds everything of one user on one node.

It is opened without following links, belongs to the caller alone, and lies where nobody else can swap it:
the loader runs what is in it. How it is laid out is written down in ``docs/design.md``.
"""

from __future__ import annotations

import errno
import os
import stat

from nodecache.errors import RootError, UnsafeRoot, of_the_kernel

VARIABLE = "NODECACHE_ROOT"
FOLDERS = ("recipes", "entries", "leases", "staging", "attempts", "tools")
MARK = "nodecache-root"
LEAST_BYTES = 1 << 16
LEAST_INODES = 32
"""What the smallest build takes of a file system."""


def default_root() -> str:
    """``/tmp/nodecache_<uid>``: node-local, and the same whatever HOME, USER and TMPDIR say."""
    return f"/tmp/nodecache_{os.getuid()}"  # checked like any other root before use


class Root:
    """A checked root.

    Attributes:
        path: absolute path, free of links.
        source: what the user set to get it, for messages (``NODECACHE_ROOT``, ``root=`` or ``the default``).
    """

    __slots__ = ("path", "source")

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source

    def at(self, *parts: str) -> str:
        """Path below the root."""
        return "/".join((self.path, *parts))

    def remedy(self) -> str:
        """How to get another root, for the end of a message."""
        return f"Set {VARIABLE} to a folder of your own on a local disk."

    def failed(self, error: OSError, doing: str) -> RootError:
        """``error`` as an exception that says what, where, how much, and what to do about it."""
        cause, remedy = self._told(error, doing)
        failed = RootError(f"{cause} {remedy}")
        failed.number = error.errno
        failed.place = self.path if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        failed.remedy = remedy
        return failed

    def _told(self, error: OSError, doing: str) -> tuple[str, str]:
        """What went wrong, and what to do about it."""
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            try:
                disk = os.statvfs(self.path)
                left = f"{disk.f_bavail * disk.f_frsize} bytes and {disk.f_favail} inodes are left"
            except OSError:
                left = "how much is left cannot be told"
            return (
                f"No space for {doing} in {self.path} ({name}: {left}). Nothing was published.",
                f"Free some, or {self.remedy()[0].lower()}{self.remedy()[1:]}",
            )
        if error.errno == errno.EFBIG:
            cause = f"A file grew past this process's file size limit while {doing} in {self.path} ({name})."
            return f"{cause} Nothing was published.", "Raise it (ulimit -f unlimited)."
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            what, how = ("processes", "-u") if error.errno == errno.EAGAIN else ("memory", "-v")
            return (
                f"This process may have no more {what}, so {doing} failed ({name}). Nothing was published.",
                f"Allow more (ulimit {how}, or the job's limit), or run fewer compilers at once (NODECACHE_JOBS=1).",
            )
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return f"Too many files are open for {doing} in {self.path} ({name}).", "Allow more: ulimit -n 4096."
        if error.errno == errno.ENOTDIR:
            for path in map(self.at, FOLDERS):
                if os.path.lexists(path) and not os.path.isdir(path):
                    return f"{path} is not a folder, as it should be.", f"Move it away: mv {path} {path}.old"
        from nodecache.remedy import at, fitting

        where = at(error, self)
        named = "" if where == self.path else f" at {where}"
        return f"{doing} failed in {self.path}{named}: {error.strerror} ({name}).", fitting(error, self)


class Telling:
    """While it is entered, an OSError becomes one that says what was being done, and what to do about it.

    Not one that is no system call's, such as the TimeoutError of a signal handler, and not FileNotFoundError: what has
    vanished is looked for again.
    """

    def __init__(self, root: Root, doing: str) -> None:
        self._root = root
        self._doing = doing

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and of_the_kernel(error) and not isinstance(error, FileNotFoundError):
            raise self._root.failed(error, self._doing) from error


def setting(name: str) -> str:
    """The value of one of nodecache's variables; empty where it is unset, empty or blank."""
    value = os.environ.get(name, "")
    return value if value.strip() else ""


def open_root(path: str | os.PathLike[str] | None = None, *, mark: bool = True) -> Root:
    """Find, make and check the root.

    Args:
        path: a folder that the caller asks for. NODECACHE_ROOT, where set, wins over it: whoever runs the
            job has the last word over whoever wrote it.
        mark: make an empty folder a root; false for a look that changes nothing.

    Returns:
        The root, private to the caller: mode 0700, owned by this uid, and not replaceable by others.

    Raises:
        UnsafeRoot: it belongs to another user, is a link, or lies below a folder where others may swap it.
        RootError: it cannot be made or used, or holds other things; the message names the variable that chose it.

    Concurrency: any number of processes may call this at once, the first one makes the folder.
    """
    chosen = setting(VARIABLE)
    if chosen:
        source, wanted = VARIABLE, chosen
    elif path is not None:
        source, wanted = "root=", os.fspath(path)
    else:
        source, wanted = "the default", default_root()
    absolute = os.path.abspath(wanted)
    if "\n" in absolute or "\0" in absolute:
        raise RootError(f"The root {absolute!r} ({source}) has a line break in its name. Choose another folder.")
    root = Root(absolute, source)
    chain = _chain(absolute)
    if chain is None or any(stat.S_ISLNK(status.st_mode) for _, status in chain):
        # A link that the user chose is the user's business; the default name is guessable, so never a link there.
        parent, name = os.path.split(absolute)
        if source == "the default":
            root = Root(os.path.join(os.path.realpath(parent), name), source)
        else:
            root = Root(os.path.realpath(absolute), source)
        _make(root)
        chain = _chain(root.path)
        if chain is None:
            raise RootError(f"The root {root.path} ({source}) keeps vanishing. Stop whatever is removing it.")
    _check(root, chain, mark=mark)
    return root


def _chain(path: str) -> list[tuple[str, os.stat_result]] | None:
    """A path's folders from ``/`` down to itself with their status; None where it cannot be followed."""
    found = [("/", os.lstat("/"))]
    at = ""
    try:
        for part in path.strip("/").split("/"):
            at = f"{at}/{part}"
            found.append((at, os.lstat(at)))
    except OSError:
        return None
    return found


def _make(root: Root) -> None:
    """Make the root and what it lies in; whoever else is doing the same is welcome."""
    for _ in range(100):
        missing = [root.path]
        while not os.path.isdir(parent := os.path.dirname(missing[-1])):
            missing.append(parent)
        try:
            while missing:
                try:
                    os.mkdir(missing[-1], 0o700)
                except FileExistsError:
                    pass
                missing.pop()
            os.lstat(root.path)
        except FileNotFoundError:  # somebody removed the parent between two steps: begin again
            continue
        except OSError as error:
            raise _unusable(root, error) from error
        return
    raise RootError(
        f"The root {root.path} ({root.source}) keeps vanishing, or nobody can make it. Set {VARIABLE} to a folder on a "
        f"disk, or stop whatever is removing it."
    )


def _unusable(root: Root, error: OSError) -> RootError:
    from nodecache.remedy import REFUSED

    refused = error.errno in (errno.EPERM, errno.ENOSYS)
    remedy = REFUSED if refused else f"Set {VARIABLE} to a folder that you can write."
    return RootError(f"The root {root.path} ({root.source}) cannot be used: {error.strerror}. {remedy}")


def _check(root: Root, chain: list[tuple[str, os.stat_result]], *, mark: bool) -> None:
    """Refuse a root that another user could have written to; tighten one's own."""
    uid = os.geteuid()
    _, status = chain[-1]
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeRoot(
            f"The root {root.path} is a symbolic link (owner uid {status.st_uid}): somebody could lead you to "
            f"code that is not yours. Remove it (rm {root.path}), or set {VARIABLE} to a folder of your own."
        )
    if not stat.S_ISDIR(status.st_mode):
        raise RootError(f"The root {root.path} ({root.source}) is not a folder. Remove it, or {_set_another()}")
    if status.st_uid != uid:
        raise UnsafeRoot(
            f"The root {root.path} belongs to uid {status.st_uid}, you are uid {uid}: its code is not yours to load. "
            f"Have its owner or root remove it, or {_set_another()}"
        )
    for folder, above in chain[:-1]:
        if above.st_uid not in (0, uid) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
            from nodecache.trust import check_above

            check_above(root, folder, above, uid)
    if status.st_mode & 0o077:
        _tighten(root)
    if mark:
        _check_mark(root, uid)


def _check_mark(root: Root, uid: int) -> None:
    """Refuse a folder of somebody's that was no root from its beginning. One status call where it was."""
    try:
        status = os.lstat(f"{root.path}/{MARK}")
    except FileNotFoundError:
        from nodecache.mark import claim

        claim(root)
        return
    except OSError as error:
        raise _unusable(root, error) from error
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (uid, 0):
        raise UnsafeRoot(
            f"{root.path}/{MARK} is not a plain file of yours (uid {status.st_uid}). Remove it, or {_set_another()}"
        )


def _set_another() -> str:
    return f"set {VARIABLE} to a folder of your own."


def _tighten(root: Root) -> None:
    """Take everybody else's rights to one's own root away, and say so."""
    from nodecache.printable import logger

    try:
        fd = os.open(root.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            _refuse_strangers(root, fd)
            _refuse_other_use(root, status)
            os.fchmod(fd, 0o700)
            _refuse_strangers(root, fd)  # who came in between
        finally:
            os.close(fd)
    except OSError as error:
        raise _unusable(root, error) from error
    logger().warning(
        "the root %s was open to others (mode %04o); it is 0700 now", root.path, stat.S_IMODE(status.st_mode)
    )


def _refuse_other_use(root: Root, status: os.stat_result) -> None:
    """A folder that others use, or that has something else in it, is not to be closed to them."""
    from nodecache.mark import foreign

    if status.st_mode & stat.S_ISVTX or foreign(root.path):
        raise UnsafeRoot(
            f"The root {root.path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}) and used for other "
            f"things than builds. Close it to them (chmod 700), or set {VARIABLE} to a folder of its own, such as "
            f"{root.path.rstrip('/')}/nodecache."
        )


def _refuse_strangers(root: Root, fd: int) -> None:
    """While a root was open to others, they may have left folders in it that stay theirs."""
    for name in os.listdir(fd):
        owner = os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid
        if owner not in (os.geteuid(), 0):
            raise UnsafeRoot(
                f"The root {root.path} was open to others, and {name} in it belongs to uid {owner}. "
                f"Remove the root (rm -rf {root.path}), or {_set_another()}"
            )


def check_folder(root: Root, path: str) -> None:
    """Refuse a folder below the root that another user could have written to: one status call, as a rule.

    Whoever has it open from a time when the root was not closed needs no way to it.

    Raises:
        UnsafeRoot: it belongs to somebody else, or others may write to it.
        RootError: it is not a folder.
        FileNotFoundError: there is none.
    """
    status = os.lstat(path)
    if not is_private(status):
        from nodecache.trust import check_inside

        check_inside(root, path, status)


def is_private(status: os.stat_result) -> bool:
    """Whether a status is that of a folder to which, by its owner and mode, only the user and root may write."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def ensure_folders(root: Root) -> None:
    """Make the root's folders. Needed before anything is written; a hit does not write.

    Concurrency: idempotent, and safe against others doing the same.
    """
    for name in FOLDERS:
        make_folder(root, root.at(name))


def check_space(root: Root, *, runs_code: bool) -> None:
    """Refuse what is known to fail, before time is spent on it: a full root, and code where none may run.

    Raises:
        RootError: as it says.
    """
    try:
        disk = os.statvfs(root.path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):  # a sandbox: the build itself will find out
            return
        raise _unusable(root, error) from error
    if runs_code and disk.f_flag & os.ST_NOEXEC:
        raise RootError(
            f"The root {root.path} ({root.source}) is on a file system that is mounted noexec: what is built there "
            f"could not be loaded. Set {VARIABLE} to a folder where code may run."
        )
    if disk.f_flag & os.ST_RDONLY:
        raise root.failed(OSError(errno.EROFS, os.strerror(errno.EROFS)), "building")
    blocks, inodes = (disk.f_bfree, disk.f_ffree) if os.geteuid() == 0 else (disk.f_bavail, disk.f_favail)
    # Some file systems have no fixed size or number of inodes, and say 0 of 0.
    full = disk.f_blocks and blocks * disk.f_frsize < LEAST_BYTES
    if full or (disk.f_files and inodes < LEAST_INODES):
        raise root.failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "building")


def make_folder(root: Root, path: str) -> None:
    """Make one folder below the root, private to the user; no error if it is there and private.

    Raises:
        UnsafeRoot, RootError: as :func:`check_folder`, or it cannot be made.
    """
    for _ in range(100):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            try:
                check_folder(root, path)
            except FileNotFoundError:
                continue
            return
        except FileNotFoundError:  # the root itself went away under us
            _make(root)
            parent = os.path.dirname(path)
            if parent != root.path:
                make_folder(root, parent)
        except OSError as error:
            raise root.failed(error, f"making {os.path.basename(path)}") from error
        else:
            return
    raise RootError(f"{path} keeps vanishing while it is made. Stop whatever is cleaning {root.path}.")


def replace_file(root: Root, path: str, data: bytes) -> None:
    """Put a small file in place, whole or not at all.

    Raises:
        RootError: no space, no permission, ...; what was there before still is.
    """
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            make_folder(root, os.path.dirname(path))
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        try:
            os.rename(temporary, path)
        except IsADirectoryError:  # it cannot be meant
            os.rename(path, f"{temporary}.folder.tmp")
            os.rename(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:  # the first one is to be told
            pass
        raise root.failed(error, f"writing {os.path.basename(path)}") from error
