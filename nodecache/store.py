"""Stores: where a tier keeps its files: a folder that nodes share, or whatever fsspec reaches.

A store lists, reads, puts and removes small and big files, whole or not at all. Nobody needs a lock on one.
"""

from __future__ import annotations

import errno
import os
import stat

from nodecache.trust import open_to_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any, Protocol

    class Store(Protocol):
        """What a tier needs of a place. Paths are relative, with slashes."""

        def names(self, folder: str) -> list[str]:
            """Names in a folder, newest first where the place tells times; none where there is no such folder."""

        def read(self, path: str, limit: int) -> bytes | None:
            """A file of at most ``limit`` bytes; None where there is none."""

        def copy(self, path: str, limit: int, write: Callable[[bytes], object], stop: threading.Event) -> bool:
            """Hand a file of at most ``limit`` bytes to ``write``, block by block; False where there is none."""

        def size(self, path: str) -> int | None:
            """A file's size in bytes; None where there is none."""

        def put(self, path: str, source: str, stop: threading.Event) -> None:
            """Put the local file ``source`` in place, whole or not at all."""

        def write(self, path: str, data: bytes) -> None:
            """Put a small file in place."""

        def create(self, path: str, data: bytes) -> bool:
            """Put a small file where there is none, as far as the place can tell; False where there is one."""

        def remove(self, path: str) -> None:
            """Remove a file, if it is there."""


BLOCK = 4 << 20
"""Bytes that are held in memory at a time."""


class TierFault(Exception):
    """What is wrong with a tier, for one line in the log."""


class Stopped(Exception):
    """The time for it is over, and nobody waits for the result."""


def open_store(url: str, group: str | None) -> Store:
    """The store at a URL or path.

    Args:
        url: a folder, ``file://...``, or what else fsspec knows.
        group: the group, by name or number, whose files are to be believed in a folder, besides the user's and root's.

    Raises:
        TierFault: it cannot be trusted, or fsspec is not there.
    """
    if "://" not in url and "::" not in url:
        return FolderStore(url, group)
    if url.startswith(("file://", "local://")) and "::" not in url:
        return FolderStore(url.partition("://")[2], group)
    return RemoteStore(url)


class FolderStore:
    """A folder on a file system that nodes share.

    Every folder and file that is read must belong to the user, to root or to the named group, and be closed to writers
    outside of them. It is checked on what was opened, not on its name.
    """

    def __init__(self, path: str, group: str | None) -> None:
        self._path = os.path.abspath(path)
        self._gid = None if group is None else _group(group)
        try:
            os.mkdir(self._path, 0o700)
        except FileExistsError:
            pass
        except FileNotFoundError as error:  # what should be mounted there is not, and a folder here would hide that
            raise TierFault(f"it cannot be made in {os.path.dirname(self._path)}; is that mounted here?") from error
        status = os.stat(self._path)
        self._check(self._path, status)
        self._folder_mode = 0o700 | (status.st_mode & 0o2070 if self._gid is not None else 0)

    def _check(self, path: str, status: os.stat_result) -> None:
        if status.st_uid not in (os.geteuid(), 0) and status.st_gid != self._gid:
            whom = "you, root or the group in NODECACHE_REMOTE_GROUP" if self._gid is not None else "you or root"
            raise TierFault(f"{path} belongs to uid {status.st_uid}, not to {whom}")
        if status.st_gid == self._gid and not status.st_mode & 0o002:  # its members are believed
            return
        fault = open_to_others(path, status, os.geteuid())
        if fault:
            raise TierFault(f"others may write to {path} ({fault[0]}); {fault[1]}")

    def _at(self, path: str) -> str:
        return f"{self._path}/{path}"

    def names(self, folder: str) -> list[str]:
        """Names in a folder, newest first."""
        found = []
        try:
            self._check(self._at(folder), os.stat(self._at(folder)))
            with os.scandir(self._at(folder)) as entries:
                for entry in entries:
                    try:
                        found.append((-entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
                    except FileNotFoundError:  # replaced or evicted by another node
                        continue
        except FileNotFoundError:
            return []
        return [name for _, name in sorted(found)]

    def _open(self, path: str, limit: int) -> int | None:
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EACCES):
                raise TierFault(f"{self._at(path)} is no file that this user may read") from error
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise TierFault(f"{self._at(path)} is no plain file")
            self._check(self._at(path), status)
            if status.st_size > limit:
                raise TierFault(f"{self._at(path)} has {status.st_size} bytes, more than it can have")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def copy(self, path: str, limit: int, write: Callable[[bytes], object], stop: threading.Event) -> bool:
        """Hand a file to ``write``, block by block."""
        fd = self._open(path, limit)
        if fd is None:
            return False
        try:
            while limit and (block := os.read(fd, min(BLOCK, limit))):
                _go_on(stop)
                write(block)
                limit -= len(block)
        finally:
            os.close(fd)
        return True

    def read(self, path: str, limit: int) -> bytes | None:
        """A small file."""
        import threading

        parts: list[bytes] = []
        return b"".join(parts) if self.copy(path, limit, parts.append, threading.Event()) else None

    def size(self, path: str) -> int | None:
        """A file's size."""
        fd = self._open(path, 1 << 62)
        if fd is None:
            return None
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def put(self, path: str, source: str, stop: threading.Event) -> None:
        """Copy to a temporary name, flush, rename."""
        with open(source, "rb") as file:
            self._put(path, lambda: file.read(BLOCK), stop)

    def write(self, path: str, data: bytes) -> None:
        """The same for a small file."""
        import threading

        blocks = iter((data, b""))
        self._put(path, lambda: next(blocks), threading.Event())

    def _put(self, path: str, read: Callable[[], bytes], stop: threading.Event) -> None:
        target = self._at(path)
        self._make(os.path.dirname(path))
        temporary = f"{target}.{os.urandom(6).hex()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                while block := read():
                    view = memoryview(block)
                    while view:
                        _go_on(stop)
                        view = view[os.write(fd, view) :]
                self._share(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none: the file system tells, atomically."""
        self._make(os.path.dirname(path))
        try:
            fd = os.open(self._at(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(fd, data)
            self._share(fd)
        finally:
            os.close(fd)
        return True

    def _share(self, fd: int) -> None:
        """Let the named group read, whatever the umask and the folder's group."""
        if self._gid is not None:
            os.fchown(fd, -1, self._gid)
            os.fchmod(fd, 0o640)

    def _make(self, folder: str) -> None:
        at = self._path
        for part in folder.split("/"):
            at = f"{at}/{part}"
            try:
                os.mkdir(at, 0o700)
            except FileExistsError:
                self._check(at, os.stat(at))
                continue
            if self._gid is not None:
                os.chown(at, -1, self._gid)
                os.chmod(at, self._folder_mode)

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            os.unlink(self._at(path))
        except FileNotFoundError:
            pass


# What puts a file whole, or not at all: nobody sees half of one, so no temporary name is needed.
_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "ocilake", "oss", "r2", "memory"}


class RemoteStore:
    """Whatever fsspec reaches. It is trusted as far as its credentials are, and NODECACHE_REMOTE_KEY."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        except ImportError as error:
            raise TierFault("fsspec is not installed; pip install 'nodecache[remote]'") from error
        # A file system of one's own: what another thread or the parent before a fork had is not safe to use.
        self._fs: Any
        self._fs, self._path = url_to_fs(url, skip_instance_cache=True)
        protocols = self._fs.protocol
        self._whole = bool(_WHOLE & {protocols} if isinstance(protocols, str) else _WHOLE & set(protocols))

    def _at(self, path: str) -> str:
        return f"{self._path.rstrip('/')}/{path}"

    def names(self, folder: str) -> list[str]:
        """Names in a folder, newest first where the file system tells times."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._at(folder), detail=True)
        except FileNotFoundError:
            return []
        names = [(-_changed(each), str(each["name"]).rstrip("/").rpartition("/")[2]) for each in found]
        return [name for _, name in sorted(names)]

    def read(self, path: str, limit: int) -> bytes | None:
        """A small file, in one request."""
        try:
            data = self._fs.cat_file(self._at(path), start=0, end=limit + 1)
        except FileNotFoundError:
            return None
        except OSError:
            if self.size(path) != 0:
                raise
            data = b""  # of an empty file, S3 has no range to give
        if len(data) > limit:
            raise TierFault(f"{path} has more bytes than it can have")
        return bytes(data)

    def copy(self, path: str, limit: int, write: Callable[[bytes], object], stop: threading.Event) -> bool:
        """Hand a file to ``write``, block by block."""
        try:
            with self._fs.open(self._at(path), "rb", block_size=BLOCK) as file:
                while block := file.read(min(BLOCK, limit + 1)):
                    _go_on(stop)
                    if len(block) > limit:
                        raise TierFault(f"{path} has more bytes than its record says")
                    write(block)
                    limit -= len(block)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """A file's size."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._at(path))["size"])
        except FileNotFoundError:
            return None

    def put(self, path: str, source: str, stop: threading.Event) -> None:
        """Put a file whole, or under a temporary name that is then renamed."""
        self._put(path, lambda target: self._fs.put_file(source, target), stop)

    def write(self, path: str, data: bytes) -> None:
        """The same for a small file."""
        import threading

        self._put(path, lambda target: self._fs.pipe_file(target, data), threading.Event())

    def _put(self, path: str, put: Callable[[str], object], stop: threading.Event) -> None:
        target = self._at(path)
        if self._whole:
            put(target)
            return
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        temporary = f"{target}.{os.urandom(6).hex()}.tmp"
        try:
            put(temporary)
            _go_on(stop)
            self._fs.mv(temporary, target)
        except BaseException:
            try:
                self._fs.rm_file(temporary)
            except Exception:  # noqa: BLE001, S110  # the first fault is the one to tell
                pass
            raise

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none, as far as the place can tell."""
        if not self._whole:
            self._fs.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
        try:
            self._fs.pipe_file(self._at(path), data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, ValueError, NotImplementedError, OSError) as error:
            if self.read(path, 1 << 16) is not None:  # servers refuse in many words, which s3fs does not all know
                return False
            if isinstance(error, OSError) and error.errno != errno.ENOSYS:
                raise
            # It cannot tell: then the last one who wrote has it.
            self._fs.pipe_file(self._at(path), data)
            return self.read(path, 1 << 16) == data
        return True

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            self._fs.rm_file(self._at(path))
        except FileNotFoundError:
            pass


def _changed(details: dict[str, Any]) -> float:
    """When a file was written, in seconds since the epoch; 0 where fsspec's file system does not tell."""
    for field in ("LastModified", "last_modified", "mtime", "updated", "created"):
        said = details.get(field)
        if isinstance(said, str):
            said = _date(said)
        if hasattr(said, "timestamp"):
            return float(said.timestamp())
        if isinstance(said, int | float):
            return float(said)
    return 0.0


def _date(text: str) -> object:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _group(said: str) -> int:
    import grp

    if said.isdecimal():
        return int(said)
    try:
        return grp.getgrnam(said).gr_gid
    except KeyError as error:
        raise TierFault(f"NODECACHE_REMOTE_GROUP={said!r} is no group here") from error


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped
