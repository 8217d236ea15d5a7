"""Share: each recipe built once in a process group, and its entry sent to the nodes that need it.

All ranks go through the same steps, and every decision is taken from what all have told all:

1. *probe*: each rank makes the call in a mode in which a miss is told instead of built;
2. *gather*: node, recipe, and whether the entry is there; from that follows for each recipe the rank that provides it,
   one that has it, or else the lowest that lacks it;
3. *build*: the provider builds in a background thread;
4. *send*: the archive goes from node to node in a binary tree, in bounded pieces, each passed on as it comes;
5. *receive*: each node unpacks, checks, publishes and indexes; then all probe again, and hit.

While anything takes time, it does so in a thread, and the ranks meet in short rounds. So no collective is older than a
round, and a group's timeout says how long a rank may be silent, not how long a build may take.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from _thread import get_ident
from collections import deque

from nodecache import archive, attempt, staging
from nodecache.digest import Digester
from nodecache.errors import ArchiveError, BuildError, LeaseTimeout, NodecacheError, SpecError
from nodecache.extension import obtain, watchers
from nodecache.index import look
from nodecache.inputs import Eyes
from nodecache.launchers import node
from nodecache.printable import logger
from nodecache.spec import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    import torch

    from nodecache.entry import Entry
    from nodecache.recipe import Recipe
    from nodecache.root import Root
    from nodecache.spec import Spec
    from nodecache.staging import Staging

    Result = TypeVar("Result")

ROUND = 0.2
"""Seconds between two meetings of all ranks while something is going on."""

CHUNK = 1 << 20
"""Bytes of one message."""

CHUNKS = 4
"""Messages to one node between two meetings."""

_log = logger()


# gloo's threads let go of a collective's tensors a moment after it has ended. Were they the last to have one, they
# would need the GIL for that, and at the interpreter's end they would abort the process.
_tensors: deque[torch.Tensor] = deque(maxlen=1024)


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    _tensors.append(tensor)
    return tensor


def share(call: Callable[[], Result], *, group: Any = None, timeout: float | None = None) -> Result:
    """Make a call that loads something, with each build done once in the group instead of once per node.

    It is collective: every rank of the group has to call it, in the same order among the group's other collectives, as
    with a barrier. What the ranks load may differ.

    Args:
        call: any call of a loader: ``lambda: nodecache.load(...)``, ``nodecache.megatron.compile_helper``. It may be
            made several times, from a thread.
        group: a process group; None for the default one. Where it is not gloo's, a gloo group of the same ranks is made
            for the time of the call.
        timeout: seconds that the whole may take; None for as long as it takes.

    Returns:
        What ``call`` returned on this rank.

    Raises:
        BuildError: a build failed, here or on another rank: on every rank, with the compiler's words.
        LeaseTimeout: ``timeout`` has passed on some rank: on every rank.
        SpecError: there is no process group, or this process is not in it.
        RuntimeError: a rank died or cannot be reached: the group's own error. Nothing half is published.
        Exception: whatever else ``call`` raised here; where it did so on another rank only, a BuildError tells.

    Concurrency: one thread per process. Nodes whose processor, torch or compiler differ have another recipe and get a
    build of their own. A node that cannot take what it was sent builds for itself. Others may load the same without
    sharing at the same time.
    """
    import torch.distributed as dist

    timeout = seconds("timeout", timeout)
    if not (dist.is_available() and dist.is_initialized()):
        raise SpecError("There is no process group to share in. Call torch.distributed.init_process_group first.")
    whole = dist.group.WORLD if group is None else group
    if dist.get_rank(whole) < 0:
        raise SpecError("This process is not in the group. Call share on the group's ranks only.")
    own = None
    if dist.get_backend(whole) != "gloo":
        ranks = dist.get_process_group_ranks(whole)
        whole = own = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    try:
        done: Result = _Sharing(call, whole, timeout).run()
    finally:
        if own is not None:
            dist.destroy_process_group(own)
    return done


class _Missing(BaseException):
    """A probe's miss. No Exception: the caller's function is not to handle it."""

    def __init__(self, root: Root, spec: Spec, recipe: Recipe) -> None:
        super().__init__(recipe.key)
        self.root = root
        self.spec = spec
        self.recipe = recipe


class _Transfer:
    """The way of one entry through the group.

    Attributes:
        recipe: its recipe.
        members: ranks: the provider, then one of each node that receives it.
        size: bytes of the archive; 0 where there is nothing to send.
        digest: of the archive.
    """

    def __init__(self, recipe: str, members: list[int]) -> None:
        self.recipe = recipe
        self.members = members
        self.size = 0
        self.digest = ""

    def rounds(self) -> int:
        """Rounds from the first piece sent to the last one received."""
        return -(-self.size // (CHUNK * CHUNKS)) + _depth(len(self.members) - 1) - 1 if self.size else 0


def _depth(position: int) -> int:
    """Steps from the tree's root: a node's children are at twice its position plus one and two."""
    return (position + 1).bit_length() - 1


class _Sharing:
    def __init__(self, call: Callable[[], Any], group: Any, timeout: float | None) -> None:
        import torch.distributed as dist

        self._call = call
        self._group = group
        self._rank = dist.get_rank(group)
        self._began = time.monotonic()
        self._timeout = timeout
        self._missing: _Missing | None = None
        self._result: list[Any] = []
        self._have: dict[str, tuple[Root, Entry]] = {}
        self._place: Staging | None = None

    def run(self) -> Any:
        """All of it."""
        tries: dict[tuple[str, object], int] = {}  # by recipe and node: the same on every rank
        while True:
            self._together(None if self._result else self._probe)
            told = self._gather(self._tell())
            wanted = sorted({each["missing"] for each in told if each["missing"]})
            if not wanted:
                return self._result[0]
            transfers = []
            mine: Callable[[], None] | None = None
            for recipe in wanted:
                receivers = []
                for rank in _leaders(told, recipe):
                    place = told[rank]["node"]
                    tried = tries[recipe, place] = tries.get((recipe, place), 0) + 1
                    here = self._misses(recipe) and told[self._rank]["node"] == place
                    if tried == 1:
                        receivers.append(rank)
                    elif tried == 2 and rank == self._rank:  # what was sent does not fit here
                        mine = self._build
                    elif tried > 2 and here:  # it cannot be kept, so every rank makes the call for itself
                        mine = self._make_call
                if not receivers:
                    continue
                holder = next((rank for rank, each in enumerate(told) if recipe in each["have"]), None)
                if holder is None and receivers[0] == self._rank:
                    mine = self._build
                transfers.append(_Transfer(recipe, receivers if holder is None else [holder, *receivers]))
            self._together(mine)
            self._send([each for each in transfers if len(each.members) > 1])

    def _misses(self, recipe: str) -> bool:
        return self._missing is not None and self._missing.recipe.key == recipe

    def _tell(self) -> dict[str, Any]:
        here = node()
        root = self._missing.root if self._missing else next((root for root, _ in self._have.values()), None)
        place = os.stat(root.path) if root else None  # containers of one node may each have a root of this name
        return {
            "node": (here.hostname, here.boot_id, (place.st_dev, place.st_ino) if place else None),
            "missing": self._missing.recipe.key if self._missing else None,
            "have": sorted(self._have),
        }

    def _probe(self) -> None:
        self._missing = None
        self._have.clear()

        def watch(root: Root, spec: Spec, recipe: Recipe, entry: Entry | None) -> None:
            if entry is None:
                self._have.pop(recipe.key, None)  # it vanished between the look and the load
                raise _Missing(root, spec, recipe)
            self._have[recipe.key] = (root, entry)

        watchers[get_ident()] = watch
        try:
            self._result = [self._call()]
        except _Missing as missing:
            self._missing = missing
        finally:
            del watchers[get_ident()]

    def _make_call(self) -> None:
        self._result = [self._call()]
        self._missing = None

    def _build(self) -> None:
        """Build what is missing here, or wait for this node's process that does."""
        missing = self._missing
        if missing is None:
            return
        obtain(missing.spec, root=missing.root.path)
        entry = look(missing.root, missing.recipe.key, Eyes(missing.recipe.roots))
        if entry is not None:
            self._have[missing.recipe.key] = (missing.root, entry)

    def _send(self, transfers: list[_Transfer]) -> None:
        """Send what is in demand, and take what this rank has asked for."""
        if not transfers:
            return
        began = time.monotonic()
        mine = [each for each in transfers if self._rank in each.members]
        files: dict[str, str] = {}
        try:
            offers: dict[str, tuple[int, str]] = {}
            self._together(lambda: offers.update(self._pack(mine, files)) if mine else None)
            found = {recipe: offer for each in self._gather(offers) for recipe, offer in each.items()}
            for each in transfers:
                each.size, each.digest = found.get(each.recipe, (0, ""))
            mine = [each for each in mine if each.size]
            ways = [_Way(each, self._rank, files[each.recipe], self._group, transfers.index(each)) for each in mine]
            try:
                for number in range(max(each.rounds() for each in transfers)):
                    for way in ways:
                        way.begin(number)
                    for way in ways:
                        way.end()
                    self._meet(running=False, failed=False)
            finally:
                for way in ways:
                    way.close()
            self._together(lambda: self._receive(ways, began))
        finally:
            if self._place is not None:
                self._place.remove()
                self._place = None

    def _pack(self, mine: list[_Transfer], files: dict[str, str]) -> dict[str, tuple[int, str]]:
        """Make a folder for what comes and goes; the size and digest of each archive that goes."""
        root = self._missing.root if self._missing else next(iter(self._have.values()))[0]
        try:
            self._place = staging.create(root, attempt.new_id())
        except (OSError, NodecacheError) as error:  # what comes is passed on, and cannot be kept
            _log.warning("this node takes no entries from others: %s", error)
            files.update({each.recipe: "" for each in mine})
            return {}
        offers = {}
        for each in mine:
            files[each.recipe] = path = f"{self._place.path}/{each.recipe}.tar"
            if each.members[0] == self._rank and each.recipe in self._have:
                try:
                    offers[each.recipe] = _pack_one(self._have[each.recipe][1], path)
                except (OSError, NodecacheError) as error:
                    _log.warning("this node's entry cannot be sent to others: %s", error)
        return offers

    def _receive(self, ways: list[_Way], began: float) -> None:
        """Unpack, check, publish, index what came since ``began``; what cannot be is built here instead."""
        missing = self._missing
        for way in ways:
            if way.fault is None and way.parent is not None and missing and missing.recipe.key == way.transfer.recipe:
                try:
                    with open(way.path, "rb") as file:
                        (got,) = archive.receive(missing.root, file.read, way.transfer.recipe)
                    seconds = time.monotonic() - began
                    attempt.note(
                        missing.root,
                        missing.spec,
                        "build",
                        "fetched",
                        recipe=got.recipe,
                        key=got.key,
                        attempt=attempt.new_id(),
                        started=time.time() - seconds,
                        seconds=seconds,
                    )
                except (OSError, NodecacheError) as error:
                    way.fault = error
            if way.fault is not None:
                _log.warning("what another node sent cannot be used, so it is built here: %s", way.fault)

    def _together(self, work: Callable[[], object] | None) -> None:
        """Do it in a thread while all ranks meet; return when all are ready.

        Raises:
            BaseException: what it raised.
            BuildError: another rank failed.
            LeaseTimeout: the time is over.
        """
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                if work is not None:
                    work()
            except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="nodecache-share", daemon=True)
        if work is None:
            done.set()
        else:
            thread.start()
        while True:
            done.wait(ROUND)
            running, failed = self._meet(running=not done.is_set(), failed=bool(errors))
            if failed:
                self._raise(errors.pop() if errors else None)
            if not running:
                if work is not None:
                    thread.join()
                return

    def _meet(self, *, running: bool, failed: bool) -> tuple[int, int]:
        """One round: how many ranks are still at it, and how many have failed."""
        import torch
        import torch.distributed as dist

        late = self._timeout is not None and time.monotonic() - self._began > self._timeout
        state = _kept(torch.tensor([running, failed, late], dtype=torch.int32))
        dist.all_reduce(state, group=self._group)
        still, wrong, over = state.tolist()
        if over and not wrong:
            raise LeaseTimeout(
                f"What is shared was not there on {still or 'all'} of the group's ranks within "
                f"timeout={self._timeout} s (share's own limit, not the group's). Give it more time, or see what the "
                f"builder does: nodecache status."
            )
        return still, wrong

    def _raise(self, error: BaseException | None) -> None:
        """On every rank, after one has failed: its own error, or the first one's words."""
        said = None
        if error is not None:
            build = error if isinstance(error, BuildError) else None
            said = {
                "text": str(error) if isinstance(error, NodecacheError) else f"{type(error).__name__}: {error}",
                "attempt": build.attempt if build else "",
                "first_error": build.first_error if build else "",
                "log": build.log if build else "",
                "host": node().hostname,
            }
        told = self._gather(said)
        if error is not None:
            try:
                raise error
            finally:  # its traceback knows this frame, and must not be known by it: the group would live on with both
                del error
        rank, first = next((rank, each) for rank, each in enumerate(told) if each is not None)
        raise BuildError(
            f"{first['text']}\nThis is what rank {rank} of the group was told on {first['host']}, which built it for "
            f"this one, too.",
            attempt=first["attempt"],
            first_error=first["first_error"],
            log=first["log"],
        )

    def _gather(self, mine: Any) -> list[Any]:
        """What each rank says; as ``all_gather_object``, with tensors that stay."""
        import torch
        import torch.distributed as dist

        data = pickle.dumps(mine)
        world = dist.get_world_size(self._group)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(sizes, _kept(torch.tensor([len(data)])), group=self._group)
        most = max(int(_kept(size)) for size in sizes)
        pieces = [torch.empty(most, dtype=torch.uint8) for _ in range(world)]
        piece = _kept(torch.frombuffer(bytearray(data.ljust(most, b"\0")), dtype=torch.uint8))
        dist.all_gather(pieces, piece, group=self._group)
        return [
            pickle.loads(_kept(piece).numpy()[: int(size)].tobytes())  # noqa: S301  # from ranks of this very program
            for piece, size in zip(pieces, sizes, strict=True)
        ]


def _leaders(told: list[dict[str, Any]], recipe: str) -> list[int]:
    """Of each node that lacks an entry the lowest rank that does, in order."""
    found: dict[object, int] = {}
    for rank, each in enumerate(told):
        if each["missing"] == recipe:
            found.setdefault(each["node"], rank)
    return sorted(found.values())


def _pack_one(entry: Entry, path: str) -> tuple[int, str]:
    state = Digester()
    with open(path, "xb") as file:

        def write(block: bytes) -> None:
            state.update(block)
            file.write(block)

        archive.pack([entry], write)
        return file.tell(), state.digest()


class _Way:
    """This rank's part in a transfer: what comes from its parent goes into a file and, a round later, to its children.

    Memory: the pieces of two rounds. A node that cannot write them still passes them on.
    """

    def __init__(self, transfer: _Transfer, rank: int, path: str, group: Any, tag: int) -> None:
        import torch.distributed as dist

        members = transfer.members
        position = members.index(rank)

        def at(place: int) -> int:
            return dist.get_global_rank(group, members[place])

        self.transfer = transfer
        self.path = path
        self.fault: Exception | None = None
        self.parent = at((position - 1) // 2) if position else None
        self._children = [at(place) for place in (2 * position + 1, 2 * position + 2) if place < len(members)]
        self._depth = _depth(position)
        self._group = group
        self._tag = tag
        self._last: list[torch.Tensor] = []
        self._coming: list[torch.Tensor] = []
        self._works: list[Any] = []
        self._state = Digester()
        self._left = transfer.size
        self._file = None
        try:
            self._file = open(path, "rb" if self.parent is None else "xb")  # noqa: SIM115  # see close
        except OSError as error:
            self.fault = error

    def begin(self, number: int) -> None:
        """Ask for this round's pieces, and pass those of the last one on."""
        import torch
        import torch.distributed as dist

        if self.parent is None:
            self._last = self._read(number)
        for piece in self._last:
            for child in self._children:
                self._works.append(dist.isend(piece, child, group=self._group, tag=self._tag))
        if self.parent is not None:
            self._coming = [
                torch.empty(size, dtype=torch.uint8) for size in _sizes(self.transfer.size, number - self._depth + 1)
            ]
            self._works += [dist.irecv(piece, self.parent, group=self._group, tag=self._tag) for piece in self._coming]

    def end(self) -> None:
        """Wait for all that was begun, and keep what came."""
        for work in self._works:
            work.wait()
        self._works = []
        if self.parent is None:
            return
        for piece in self._coming:
            data = piece.numpy().tobytes()
            self._state.update(data)
            self._left -= len(data)
            try:
                if self._file is not None and self.fault is None:
                    self._file.write(data)
            except OSError as error:
                self.fault = error
        self._last, self._coming = self._coming, []

    def _read(self, number: int) -> list[torch.Tensor]:
        """The provider's pieces of a round. Where they cannot be read, others come in their place, and are refused."""
        import torch

        found = []
        for size in _sizes(self.transfer.size, number):
            data = b""
            try:
                data = self._file.read(size) if self._file is not None else b""
            except OSError as error:
                self.fault = error
            found.append(torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8))
        return found

    def close(self) -> None:
        """Close the file, and see whether it is what was sent."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self.fault = error
        if self.parent is not None and self.fault is None and self._state.digest() != self.transfer.digest:
            self.fault = ArchiveError("it did not come whole. It will be built here.")


def _sizes(total: int, number: int) -> list[int]:
    """Sizes of the pieces of a round; none before the first and after the last."""
    at, end = number * CHUNK * CHUNKS, min(total, (number + 1) * CHUNK * CHUNKS)
    return [min(CHUNK, end - start) for start in range(at, end, CHUNK)] if number >= 0 else []
