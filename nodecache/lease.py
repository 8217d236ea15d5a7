"""The lease: the right to build one recipe on this node, held by at most one process at any time.

``docs/lease.md`` writes the protocol down, with the reason for each step; the steps there, in the model
(``tests/test_lease_model.py``) and here carry the same names: *seen, look, told, claim, check, look again, told again,
write owner, sweep, build, publish, index, forget, record, erase, let go, ring*.

The truth is a kernel lock on a file that is never unlinked here, so a dead holder is succeeded at once and a living one
is never robbed, however long it is stopped. Ranks, ages, PIDs and clocks decide nothing.
"""

from __future__ import annotations

import os
import threading
import time

from nodecache import attempt, bell, errand, lock, owner
from nodecache.errors import BuildInterrupted, LeaseLost, LeaseTimeout, NestedLease
from nodecache.owner import Owner
from nodecache.root import Root, ensure_folders
from nodecache.waiting import Voice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeVar

    from nodecache.errors import NodecacheError

    Found = TypeVar("Found")

    class Claim(Protocol):
        """What carries a lease: a kernel lock, or its stand-in where there is none."""

        def previous(self) -> Owner | None:
            """The owner before, if it did not let go on purpose."""

        def write(self, record: Owner) -> None:
            """Put the owner record where others read it."""

        def is_mine(self) -> bool:
            """Whether this process still holds it."""

        def release(self) -> None:
            """Let go. In a child forked since: nothing."""


_nesting = threading.local()

ANSWER = 1.0
"""Seconds that a file system has at least to answer a lock call."""


class Lease:
    """A held lease. Use :func:`take` to get one; :meth:`release` lets go.

    Attributes:
        attempt: id of this try at building.
        recipe: key of the recipe.
        successor_of: the holder that died before, or None.
    """

    def __init__(self, root: Root, recipe: str, name: str, claim: Claim) -> None:
        self.attempt = attempt.new_id()
        self.recipe = recipe
        self._claim = claim
        self._pid = os.getpid()
        self._bell: lock.Descriptor | None = None
        self.successor_of = claim.previous()
        log = attempt.log_path(root, recipe, self.attempt)
        self.owner = owner.this_process(attempt=self.attempt, recipe=recipe, name=name, log=log)
        owner.note_thread(self.attempt, errand.caller())
        try:
            claim.write(self.owner)
            self._bell = bell.hang(bell_path(root, recipe))
        except OSError as error:
            raise root.failed(error, "writing the owner record") from error

    def is_mine(self) -> bool:
        """Whether this very process (not a child that it forked) holds the lease."""
        return os.getpid() == self._pid and self._claim.is_mine()

    def ensure_mine(self) -> None:
        """Return if the lease still is this process's.

        Raises:
            BuildInterrupted: this is a child that was forked during the build.
            LeaseLost: another process took it over, which only happens where there are no kernel locks.
        """
        if os.getpid() != self._pid:
            raise BuildInterrupted(
                f"The build of {self.owner.name!r} came back in another process than it began in. "
                f"Do not return from a forked child in a build function."
            )
        if not self._claim.is_mine():
            raise LeaseLost(
                f"The lease of {self.owner.name!r} was taken over by another process during the build. Nothing was "
                f"published here. Set NODECACHE_ROOT to a folder on a local disk, where locks work."
            )

    def release(self) -> None:
        """Let go, then wake who waits. Never fails: the descriptors are this process's own."""
        if os.getpid() == self._pid:
            owner.forget_thread(self.attempt)
            self._claim.release()
            if self._bell is not None:
                lock.close(self._bell)

    def __del__(self) -> None:
        """Let go: an exception, such as a signal handler's, may come before whoever took it knows that it has it."""
        if hasattr(self, "_bell"):
            self.release()


class KernelClaim:
    """A kernel lock on ``<root>/leases/<recipe>.lock``; its record lies in the locked file."""

    def __init__(self, fd: lock.Descriptor, path: str) -> None:
        self._fd = fd
        self._path = path

    def previous(self) -> Owner | None:
        """The record that is still there: whoever lets go on purpose erases it."""
        return owner.read(self._fd)

    def write(self, record: Owner) -> None:
        """Write the record into the locked file."""
        owner.write(self._fd, record)

    def is_mine(self) -> bool:
        """A kernel lock cannot be lost while its descriptor is open."""
        return lock.held(self._fd)

    def release(self) -> None:
        """Erase the record, and close. In a child that was forked since: nothing."""
        if lock.held(self._fd):
            owner.erase(self._fd)
            lock.close(self._fd)

    def __del__(self) -> None:
        self.release()


def lock_path(root: Root, recipe: str) -> str:
    """The recipe's lock file."""
    return root.at("leases", f"{recipe}.lock")


def bell_path(root: Root, recipe: str) -> str:
    """The recipe's named pipe."""
    return root.at("leases", f"{recipe}.bell")


def claim(root: Root, recipe: str, patience: float | None = None) -> Claim | None:
    """Ask for the recipe's lock without blocking; None while somebody else holds it.

    Raises:
        LockSilent: the file system has not answered for ``patience`` seconds.
    """
    path = lock_path(root, recipe)
    while True:
        try:
            fd = lock.open_lock(path)
        except FileNotFoundError:
            ensure_folders(root)
            continue
        except OSError as error:
            raise root.failed(error, "opening a lock file") from error
        try:
            if not lock.try_exclusive(fd, path, patience):
                return None
        except lock.LocksUnsupported as error:
            return _soft_claim(root, recipe, error)
        held = KernelClaim(fd, path)
        if lock.is_current(fd, path):
            return None if _is_softly_held(root, recipe) else held
        # The path was unlinked or replaced between opening and locking: this is a lock on nothing.
        lock.close(fd)


def _soft_claim(root: Root, recipe: str, cause: lock.LocksUnsupported) -> Claim | None:
    from nodecache.softlease import soft_claim

    # Locks that fail for one caller may have worked for another (a lock server that was restarted).
    record = owner.read_path(lock_path(root, recipe))
    if record is not None and owner.state(record) in ("running", "stopped"):
        return None
    return soft_claim(root, recipe, cause)


def _is_softly_held(root: Root, recipe: str) -> bool:
    """The same the other way round. Nothing is imported where there never was a soft lease."""
    if not os.path.isdir(root.at("leases", f"{recipe}.soft")):
        return False
    from nodecache.softlease import is_held

    return is_held(root, recipe)


def holder(root: Root, recipe: str) -> Owner | None:
    """The record of who holds the lease, or held it and died; None where there is none that can be read."""
    if os.path.isdir(root.at("leases", f"{recipe}.soft")):
        from nodecache.softlease import soft_holder

        return soft_holder(root, recipe) or owner.read_path(lock_path(root, recipe))
    return owner.read_path(lock_path(root, recipe))


def take(
    root: Root,
    recipe: str,
    *,
    name: str,
    look: Callable[[], Found | None],
    told: Callable[[], NodecacheError | None],
    timeout: float | None,
    voice: Voice,
) -> Lease | Found:
    """Wait until the entry is there, a failure is to be told, or the lease is this caller's.

    Args:
        root: the root.
        recipe: key of the recipe.
        name: what is being built, for messages.
        look: finds the finished entry, or None.
        told: the failure that this caller must be told, or None.
        timeout: seconds to wait for another builder; None for as long as it lives.
        voice: says who is waited for.

    Returns:
        What ``look`` found, or a held lease with nothing to be found under it.

    Raises:
        BuildError, RootError: what ``told`` gave.
        LeaseTimeout: the time passed while another process held the lease.

    Concurrency: any number of threads and processes may call it for the same recipe. A waiter that leaves, by an
    exception or by dying, disturbs nobody.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    ear = bell.Ear(bell_path(root, recipe))
    try:
        while True:
            # Renew before looking: what rings after this wakes the wait below, what rang before shows in the looks.
            ear.renew()
            found = look()
            if found is not None:
                return found
            failure = told()
            if failure is not None:
                raise failure
            try:
                held = claim(root, recipe, None if deadline is None else max(ANSWER, deadline - time.monotonic()))
            except lock.LockSilent as silence:
                raise unanswered(root, name, timeout or 0.0, silence) from None
            if held is not None:
                return _look_again(root, recipe, name, held, look, told)
            left = float("inf") if deadline is None else deadline - time.monotonic()
            seen = voice.wait_for(lambda: holder(root, recipe), ear)
            if left <= 0:
                raise _timed_out(name, timeout or 0.0, seen)
            if ear.wait(min(left, voice.patience())):
                # Whoever lets go has most often published, so that is looked at before anything else is set up anew.
                found = look()
                if found is not None:
                    return found
    finally:
        ear.close()


def _look_again(
    root: Root,
    recipe: str,
    name: str,
    held: Claim,
    look: Callable[[], Found | None],
    told: Callable[[], NodecacheError | None],
) -> Lease | Found:
    """Under the lock: the entry or the failure may have come since the last look."""
    try:
        _see_what_others_made(root)
        found = look()
        if found is None:
            failure = told()
            if failure is not None:
                raise failure
            return Lease(root, recipe, name, held)
    except BaseException:
        held.release()
        raise
    held.release()
    return found


def _see_what_others_made(root: Root) -> None:
    """Forget that a name was not there: an NFS client believes so for half a minute, until it reads the folder."""
    for name in ("entries", "recipes", "attempts"):
        try:
            os.listdir(root.at(name))
        except FileNotFoundError:
            pass


def unanswered(root: Root, name: str, timeout: float, silence: lock.LockSilent) -> LeaseTimeout:
    """What a caller is told whose time is over while the file system does not answer."""
    return LeaseTimeout(
        f"Waited {timeout:g} s for {name!r}: the file system has not answered a lock call on {silence} yet. "
        f"{root.remedy()}"
    )


def _timed_out(name: str, timeout: float, seen: Owner | None) -> LeaseTimeout:
    if seen is None:
        return LeaseTimeout(
            f"Waited {timeout:g} s for {name!r}, which another process has been building; it left no readable record. "
            f"Wait longer (timeout=), or see who has the lock file open (lsof)."
        )
    from nodecache.activity import phrase

    state = owner.state(seen)
    step = attempt.progress(seen.log)
    doing = phrase(seen)
    seconds = max(0.0, time.time() - seen.since)
    remedy = {
        "stopped": f"Continue it (kill -CONT {seen.pid}), or end it (kill -9) and its lease is free at once.",
        "dead": "It is dead; its lease is free as soon as the kernel has let go of it: call again.",
    }.get(state, "Wait longer (timeout=), or end it, and its lease is free at once.")
    thread = owner.thread_here(seen)
    if thread is not None:
        remedy = (
            f"It is thread {thread!r} of this very process. If that build waits for this call, neither can end: "
            f"get {name!r} before or after the build, not from a thread that it waits for."
        )
    return LeaseTimeout(
        f"Waited {timeout:g} s for {name!r}, which {seen.label} has been building for {seconds:.0f} s "
        f"({state}{', ' + step if step else ''}{doing}; log {seen.log}). {remedy}"
    )


class Nesting:
    """Marks a build as going on in this thread.

    Two threads that build in each other's order would wait for each other for ever, so a build inside a build is an
    error, unless the inner one is declared a leaf: one that never builds anything else.
    """

    def __init__(self, recipe: str, name: str, *, leaf: bool) -> None:
        self._mine = (recipe, name)
        self._leaf = leaf

        self._ended = False

    def enter(self) -> None:
        """Begin.

        Raises:
            NestedLease: it asks for itself, or for another that is not a leaf.
        """
        stack = self._stack()
        # An interrupted call may not have got as far as removing its own.
        outer = stack[:] = [nesting for nesting in stack if not nesting._ended]  # noqa: SLF001  # of this class
        if any(nesting._mine[0] == self._mine[0] for nesting in outer):  # noqa: SLF001
            raise NestedLease(
                f"The build of {self._mine[1]!r} asks for itself, in the same thread. Take the inner call out of it."
            )
        if outer and not self._leaf:
            name = outer[-1]._mine[1]  # noqa: SLF001
            raise NestedLease(
                f"The build of {name!r} asks for {self._mine[1]!r}: two builds that nest can wait for each "
                f"other for ever. Get {self._mine[1]!r} before, or declare it a leaf (leaf=True)."
            )
        stack.append(self)

    def leave(self) -> None:
        """End, in any thread, as often as one likes."""
        self._ended = True

    @staticmethod
    def _stack() -> list[Nesting]:
        """This thread's builds; none in a child that was forked during one."""
        if getattr(_nesting, "pid", None) != os.getpid():
            _nesting.pid = os.getpid()
            _nesting.stack = []
        stack: list[Nesting] = _nesting.stack
        return stack
