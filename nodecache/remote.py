"""The tier: a place that nodes share, looked in before a node compiles, and given what a node has built.

``NODECACHE_REMOTE`` names it: a folder on a shared file system, or an fsspec URL such as ``s3://bucket/path``.

    <url>/nodecache-1/recipes/<recipe>/<key>     a record: which archive, its size, what the build read, a signature
    <url>/nodecache-1/archives/<digest>.tar      the entry, as in nodecache.archive
    <url>/nodecache-1/claims/<recipe>            who builds, where others are to wait (NODECACHE_REMOTE_WAIT)

Nobody needs a lock there. Everything is written whole, and an archive before the record that speaks of it. Whatever
goes wrong with it is one warning and a build on this node, never the job's end: all of it runs in a thread that is
given NODECACHE_REMOTE_TIMEOUT seconds, and whose late result is dropped.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time

from nodecache import archive, attempt, errand, staging
from nodecache.archive import without_guards
from nodecache.digest import Digester
from nodecache.entry import Entry
from nodecache.errors import NodecacheError, SpecError
from nodecache.inputs import Inputs
from nodecache.printable import logger
from nodecache.root import setting
from nodecache.store import Stopped, TierFault, open_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nodecache.inputs import Eyes
    from nodecache.root import Root
    from nodecache.staging import Staging
    from nodecache.store import Store

    Answer = TypeVar("Answer")

VARIABLE = "NODECACHE_REMOTE"
TIMEOUT = 60.0
"""Seconds that the tier has to answer a look, and again to take an entry; NODECACHE_REMOTE_TIMEOUT overrides it."""

RECORDS = 32
"""Records that are read of one recipe, the newest; what they do not have is built."""

KEEP = 64
"""Records that a recipe may have in the remote cache; the node that adds one removes the oldest beyond that."""

_VERSION = "nodecache-1"
_HEAD = b"nodecache-remote 1"
_RECORD_LIMIT = 64 << 20
_CLAIM_LIMIT = 1 << 12
_KEY = re.compile(r"[0-9a-f]{40}")
_log = logger()


class Late(TierFault):
    """The tier has not answered in time; asking it again would cost that time again."""


class Record:
    """What the tier says of an entry.

    Attributes:
        key: the entry's key.
        digest: of the archive, which is its name.
        size: of the archive, in bytes.
        inputs: what the build read.
    """

    __slots__ = ("digest", "inputs", "key", "size")

    def __init__(self, key: str, digest: str, size: int, inputs: list[str]) -> None:
        self.key = key
        self.digest = digest
        self.size = size
        self.inputs = inputs


class Tier:
    """The tier, for one build.

    Args:
        root: the root of this node.
        recipe, name: what is built.

    Concurrency: for one thread. Other nodes do as they like with the same tier at the same time.
    """

    def __init__(self, root: Root, recipe: str, name: str) -> None:
        self._root = root
        self._recipe = recipe
        self._name = name
        self._url = os.environ[VARIABLE]
        self._store: Store | None = None
        self._broken = False
        self._late = False
        self._suspect = False
        self._claimed = b""
        secret = os.environ.get("NODECACHE_REMOTE_KEY")
        if secret is not None and not secret.strip():
            raise SpecError(
                "NODECACHE_REMOTE_KEY is set and empty, as a secret is that was not passed on. "
                "Set it to the secret, or unset it to trust the place as it is."
            )
        self._secret = None if secret is None else os.fsencode(secret)

    def fetch(self, eyes: Eyes, place: Staging) -> Entry | None:
        """Fetch, check, publish and index the entry that fits; None where this node has to build.

        Where NODECACHE_REMOTE_WAIT is set and another node builds, wait for that, as long as it says.

        Args:
            eyes: look at the inputs on this node.
            place: the builder's staging folder.
        """
        try:
            found = self._look(eyes, place)
            wait = _seconds("NODECACHE_REMOTE_WAIT", 0.0)
            if found is not None or wait <= 0 or self._broken:
                return found
            return self._claim_or_wait(eyes, place, wait)
        except Exception as error:  # noqa: BLE001  # whatever fsspec's many file systems raise
            self._give_up(error, "building here")
            return None

    def _look(self, eyes: Eyes, place: Staging) -> Entry | None:
        """One look; a record that is not as it should be is told, and the others count."""
        limit = _seconds("NODECACHE_REMOTE_TIMEOUT", TIMEOUT)
        deadline = time.monotonic() + limit
        records, faults = _bounded(self._records, limit)
        for record in records:
            if eyes.same(without_guards(Inputs.parse(record.inputs))) is None:
                continue
            try:
                return self._take(record, place, deadline - time.monotonic())
            except Late:
                raise
            except (TierFault, NodecacheError) as fault:
                faults.append(fault)
        if faults and not self._suspect:
            self._suspect = True  # what is there is to be replaced; said once, however often this node looks again
            self._fault(faults[0], "building here")
        return None

    def _records(self, stop: threading.Event) -> tuple[list[Record], list[Exception]]:
        store = self._open()
        found: list[Record] = []
        faults: list[Exception] = []
        names = [name for name in store.names(self._folder()) if _KEY.fullmatch(name)]
        for name in names[:RECORDS]:
            if stop.is_set():
                raise Stopped
            try:
                record = self._record(store, name)
            except TierFault as fault:
                faults.append(fault)
                continue
            if record is not None:
                found.append(record)
        return found, faults

    def _open(self) -> Store:
        if self._store is None:
            self._store = open_store(self._url, setting("NODECACHE_REMOTE_GROUP") or None)
        return self._store

    def _folder(self) -> str:
        return f"{_VERSION}/recipes/{self._recipe}"

    def _record(self, store: Store, key: str) -> Record | None:
        """A record of the tier, believed only where it is signed as this node demands."""
        data = store.read(f"{self._folder()}/{key}", _RECORD_LIMIT)
        if data is None:
            return None
        try:
            head, signature, body = data.split(b"\n", 2)
            if head != _HEAD:
                raise ValueError("unknown format")
            if self._secret is not None and not _is_signed(signature, self._sign(key, body)):
                raise TierFault(f"the record of {key} is not signed with NODECACHE_REMOTE_KEY")
            said = json.loads(body)
            record = Record(key, said["archive"], said["size"], [str(line) for line in said["inputs"]])
            if (said["recipe"], said["key"]) != (self._recipe, key) or not _KEY.fullmatch(record.digest):
                raise ValueError("it speaks of another entry")
            if type(record.size) is not int or not 0 < record.size < archive.SIZE_LIMIT + archive.MANIFEST_LIMIT:
                raise ValueError("no archive has that size")
            if Inputs.parse(record.inputs).key(self._recipe) != key:
                raise ValueError("its inputs are another key's")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TierFault(f"the record of {key} makes no sense ({error})") from error
        return record

    def _sign(self, key: str, body: bytes) -> bytes:
        import hmac

        text = b"%s\n%s\n%s\n%s" % (_HEAD, self._recipe.encode(), key.encode(), body)
        return hmac.new(self._secret or b"", text, "sha256").hexdigest().encode()

    def _take(self, record: Record, place: Staging, seconds: float) -> Entry:
        """Fetch an archive, check it, publish and index what is in it."""
        path = f"{place.path}/fetched.{os.urandom(4).hex()}.tar"
        source = f"{_VERSION}/archives/{record.digest}.tar"

        def copy(stop: threading.Event) -> None:
            state = Digester()
            size = 0
            with open(path, "xb") as file:

                def write(block: bytes) -> None:
                    nonlocal size
                    size += len(block)
                    state.update(block)
                    file.write(block)

                if not self._open().copy(source, record.size, write, stop):
                    raise TierFault(f"the archive of {record.key} is gone")
            if size != record.size or state.digest() != record.digest:
                raise TierFault(f"the archive of {record.key} is damaged")

        try:
            _bounded(copy, seconds)
            with open(path, "rb") as file:
                got = archive.receive(self._root, file.read, self._recipe)
        finally:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        if [each.key for each in got] != [record.key]:
            raise TierFault(f"the archive of {record.key} holds something else")
        _log.info("fetched %r from %s", self._name, shown(self._url))
        return Entry(record.key, self._root.at("entries", record.key))

    def _claim_or_wait(self, eyes: Eyes, place: Staging, wait: float) -> Entry | None:
        """Say that this node builds; where another one said so before, wait for it."""
        mine = json.dumps({"id": attempt.new_id(), "node": os.uname().nodename, "since": time.time()}).encode()
        path = f"{_VERSION}/claims/{self._recipe}"
        limit = _seconds("NODECACHE_REMOTE_TIMEOUT", TIMEOUT)
        if _bounded(lambda _: self._open().create(path, mine), limit):
            self._claimed = mine
            return None
        deadline = time.monotonic() + wait
        _log.info("waiting up to %g s for another node to build %r", wait, self._name)
        pause = 0.5
        while (left := deadline - time.monotonic()) > 0:
            errand.pause(min(left, pause * random.uniform(0.8, 1.2)))  # noqa: S311  # spreads the looks of many nodes
            pause = min(pause * 1.5, 10.0)
            # The claim first: whoever built put the entry there before the claim went.
            claim = _bounded(lambda _: self._open().read(path, _CLAIM_LIMIT), limit)
            found = self._look(eyes, place)
            if found is not None:
                return found
            if claim is None:  # that node has failed, or could not put its entry there: here each node for itself
                return None
        _log.warning("no node has built %r within %g s (NODECACHE_REMOTE_WAIT); building here", self._name, wait)
        _bounded(lambda _: self._open().write(path, mine), limit)  # it is stale, and now this node's
        self._claimed = mine
        return None

    def offer(self, entry: Entry) -> None:
        """Put a published entry there. Call it when the lease is let go: nobody here waits for it."""
        if self._broken:
            return
        place = None
        try:
            place = staging.create(self._root, attempt.new_id())
            path = f"{place.path}/offered.tar"
            record = self._pack(entry, path)
            _bounded(lambda stop: self._put(record, path, stop), _seconds("NODECACHE_REMOTE_TIMEOUT", TIMEOUT))
        except Exception as error:  # noqa: BLE001  # whatever fsspec's many file systems raise
            self._give_up(error, "not putting it there")
        finally:
            if place is not None:
                place.remove()

    def _pack(self, entry: Entry, path: str) -> Record:
        from nodecache.entry import read_manifest

        state = Digester()
        with open(path, "xb") as file:

            def write(block: bytes) -> None:
                state.update(block)
                file.write(block)

            archive.pack([entry], write)
            size = file.tell()
        manifest = read_manifest(entry.path)
        if manifest is None:
            raise TierFault(f"the manifest of {entry.key} is damaged")
        return Record(entry.key, state.digest(), size, manifest["inputs"])

    def _put(self, record: Record, path: str, stop: threading.Event) -> None:
        store = self._open()
        if not self._suspect and self._has(store, record.key):
            return
        target = f"{_VERSION}/archives/{record.digest}.tar"
        if self._suspect or store.size(target) != record.size:
            store.put(target, path, stop)
        body = json.dumps(
            {
                "recipe": self._recipe,
                "key": record.key,
                "archive": record.digest,
                "size": record.size,
                "inputs": record.inputs,
            }
        ).encode()
        signature = b"-" if self._secret is None else self._sign(record.key, body)
        if stop.is_set():
            raise Stopped
        store.write(f"{self._folder()}/{record.key}", b"\n".join((_HEAD, signature, body)))
        self._evict(store, record, stop)

    def _evict(self, store: Store, added: Record, stop: threading.Event) -> None:
        """Remove the oldest records beyond the limit, then their archives. A node that has just read one builds."""
        names = [name for name in store.names(self._folder()) if _KEY.fullmatch(name)]
        for name in names[KEEP:]:
            if stop.is_set():
                raise Stopped
            try:
                old = self._record(store, name)
            except TierFault:  # nobody here believes it, and its archive is not known
                continue
            store.remove(f"{self._folder()}/{name}")
            if old is not None and old.digest != added.digest:
                store.remove(f"{_VERSION}/archives/{old.digest}.tar")

    def _has(self, store: Store, key: str) -> bool:
        """Whether another node was quicker."""
        try:
            record = self._record(store, key)
        except TierFault:
            return False
        return record is not None and store.size(f"{_VERSION}/archives/{record.digest}.tar") == record.size

    def close(self) -> None:
        """Take this node's claim back, if it has one."""
        if not self._claimed or self._late:
            return
        path = f"{_VERSION}/claims/{self._recipe}"

        def drop(_: threading.Event) -> None:
            if self._open().read(path, _CLAIM_LIMIT) == self._claimed:
                self._open().remove(path)

        try:
            _bounded(drop, _seconds("NODECACHE_REMOTE_TIMEOUT", TIMEOUT))
        except Exception as error:  # noqa: BLE001  # whatever fsspec's many file systems raise
            self._give_up(error, "its claim stays")

    def _give_up(self, error: Exception, so: str) -> None:
        """Say what is wrong, unless that was said, and have no more to do with the tier than to take the claim back."""
        if not self._broken:
            self._fault(error, so)
        self._broken = True
        self._late = isinstance(error, Late)

    def _fault(self, error: Exception, so: str) -> None:
        what = str(error) if isinstance(error, TierFault | NodecacheError) else f"{type(error).__name__}: {error}"
        what = " ".join(what.split())
        _log.warning("%s (%s) is of no use for %r: %s; %s", VARIABLE, shown(self._url), self._name, what, so)


def _is_signed(signature: bytes, right: bytes) -> bool:
    import hmac

    return hmac.compare_digest(signature, right)


def shown(url: str) -> str:
    """A URL without the secrets that may be in it."""
    return re.sub(r"(?<=://)[^/@]*@", "", url).partition("?")[0]


def _seconds(name: str, usual: float) -> float:
    said = setting(name)
    if not said:
        return usual
    try:
        found = float(said)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TierFault(f"{name}={said!r} is no number of seconds")
    return min(found, 1e6)


def _bounded(work: Callable[[threading.Event], Answer], seconds: float) -> Answer:
    """Do it in a thread of its own that nobody waits for longer than this.

    Raises:
        Late: it has not ended. It is told to stop, and what it says later is dropped.
    """
    stop, done = threading.Event(), threading.Event()
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work(stop))
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="nodecache-remote", daemon=True).start()
    try:
        if not done.wait(max(0.0, seconds)):
            raise Late("it has not answered in time (NODECACHE_REMOTE_TIMEOUT)")
    finally:
        stop.set()
    if errors:
        raise errors[0]
    return answers[0]
