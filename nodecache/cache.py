"""Get or build: the one primitive. It returns a finished entry, and at most one process per node builds it.

Extensions are its first user (:mod:`nodecache.extension`); anything else that must be made once per node is the next
(:mod:`nodecache.folder`).
"""

from __future__ import annotations

import os
import time

from nodecache import attempt, entry, errand, index, lease, limit, lock, owner, staging
from nodecache.elsewhere import Presence, warn
from nodecache.entry import Entry
from nodecache.errors import (
    BuildError,
    InputsChanged,
    LeaseLost,
    LeaseTimeout,
    NodecacheError,
    RootError,
    StagingCleaned,
)
from nodecache.inputs import Eyes, Inputs
from nodecache.root import Root, Telling, ensure_folders, make_folder, setting
from nodecache.waiting import Voice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nodecache.lease import Lease
    from nodecache.owner import Owner
    from nodecache.remote import Tier
    from nodecache.staging import Staging


class Outcome:
    """How a call came to its entry.

    Attributes:
        role: ``built``, ``fetched`` (from NODECACHE_REMOTE), ``waited`` (for another process or thread) or ``hit``.
        entry: the entry.
        seconds: seconds that it took, waiting included.
        builder: who built it while this call waited, where known.
    """

    __slots__ = ("builder", "entry", "role", "seconds")

    def __init__(self, role: str, found: Entry, seconds: float, builder: Owner | None = None) -> None:
        self.role = role
        self.entry = found
        self.seconds = seconds
        self.builder = builder

    def __repr__(self) -> str:
        by = f", builder={self.builder.label!r}" if self.builder else ""
        return f"Outcome({self.role}, key={self.entry.key!r}, seconds={self.seconds:.3f}{by})"


class Product:
    """What a build function leaves in ``staging.entry``.

    Attributes:
        inputs: what it read besides what the recipe says.
        about: more for the manifest.
        unknown: why it is not known what was read, so that the result cannot be published; or None.
    """

    __slots__ = ("about", "inputs", "unknown")

    def __init__(self, inputs: Inputs, about: dict[str, Any], unknown: str | None = None) -> None:
        self.inputs = inputs
        self.about = about
        self.unknown = unknown


class Request:
    """One call's wish for an entry.

    Attributes:
        root, recipe: where, and the recipe's key.
        items: the recipe's named values.
        name: for messages.
        kind: ``module``, ``library``, ``program``, or the caller's own.
        seen: the last failure's id when the call began, before it looked: what fails after that is told to it.
        build: fills ``staging.entry``; gets the staging folder and the attempt's id.
        failed_inputs: what a failed build is known to have read, as text.
        leaf: whether it may be built inside another build.
        travels: whether another node's result is as good, so that NODECACHE_REMOTE applies.
    """

    __slots__ = (
        "_cleaned",
        "_seen",
        "build",
        "eyes",
        "failed_inputs",
        "items",
        "kind",
        "leaf",
        "name",
        "recipe",
        "root",
        "travels",
    )

    def __init__(
        self,
        root: Root,
        recipe: str,
        *,
        items: list[tuple[str, str]],
        name: str,
        kind: str,
        roots: list[str],
        seen: str | None,
        build: Callable[[Staging, str], Product],
        failed_inputs: Callable[[Staging], str] = lambda _: "",
        leaf: bool = False,
        travels: bool = False,
    ) -> None:
        self.root = root
        self.recipe = recipe
        self.items = items
        self.name = name
        self.kind = kind
        self.build = build
        self.failed_inputs = failed_inputs
        self.leaf = leaf
        self.travels = travels
        self.eyes = Eyes(roots)
        self._seen = seen
        self._cleaned = False

    def look(self) -> Entry | None:
        """The entry as things are now, or None."""
        return index.look(self.root, self.recipe, self.eyes)

    def _look_afresh(self) -> Entry | None:
        self.eyes.forget()
        return self.look()

    def _told(self) -> NodecacheError | None:
        def same(text: str) -> bool:
            return self.eyes.same(Inputs.parse(text.split("\n"))) is not None

        return attempt.told(self.root, self.recipe, self._seen, same)

    def obtain(self, use: Callable[[Outcome], None], *, timeout: float | None, verbose: bool, began: float) -> None:
        """On a miss: wait for the entry or build it, and hand it to ``use`` while it is sure to be there."""
        ensure_folders(self.root)
        nesting = lease.Nesting(self.recipe, self.name, leaf=self.leaf)

        def protocol() -> None:
            try:
                while not self._obtain(use, timeout, Voice(self.name, verbose=verbose), began):
                    pass
            finally:
                nesting.leave()

        try:
            nesting.enter()
            errand.run(protocol)
        finally:
            nesting.leave()

    def _obtain(self, use: Callable[[Outcome], None], timeout: float | None, voice: Voice, began: float) -> bool:
        """Wait for the entry or build it; false to ask for it again: the lease was lost, or staging cleaned."""
        try:
            with Telling(self.root, "asking for the lease"):
                got = lease.take(
                    self.root,
                    self.recipe,
                    name=self.name,
                    look=self._look_afresh,
                    told=self._told,
                    timeout=timeout,
                    voice=voice,
                )
        except BaseException as error:
            ends = {BuildError: "failed", RootError: "failed", LeaseTimeout: "timeout"}
            self._note_wait(voice, ends.get(type(error), "left"))
            raise
        finally:
            voice.end()
        if isinstance(got, Entry):
            role = "waited" if voice.holder else "hit"
            try:
                errand.in_caller(use, Outcome(role, got, time.monotonic() - began, voice.holder))
            finally:
                self._note_wait(voice, "waited")
            return True
        self._note_wait(voice, "took over")
        tier = self._tier()
        try:
            try:
                patience = None if timeout is None else max(lease.ANSWER, began + timeout - time.monotonic())
                made = self._build(got, use, began, tier, patience)
            except LeaseLost as lost:
                from nodecache.printable import logger

                logger().warning("%s", lost)
                return False
            except StagingCleaned as cleaned:
                self._begin_again(cleaned)
                return False
            except (RootError, OSError, MemoryError) as error:
                self._record_limit(got, error)
                raise
            finally:
                got.release()
            if tier is not None and made is not None:
                tier.offer(made)
        finally:
            if tier is not None:
                tier.close()
        limit = setting("NODECACHE_MAX_SIZE")
        if limit:
            from nodecache.prune import keep_within

            keep_within(self.root, limit)
        return True

    def _begin_again(self, cleaned: StagingCleaned) -> None:
        """Once in a call: say that its files were removed, and go on. Whoever waits may build it now, or this call."""
        if self._cleaned:
            raise cleaned
        self._cleaned = True
        from nodecache.printable import logger

        logger().warning(
            "files of %r were removed from its staging folder during the build, which starts over now. "
            "Keep temp cleaners away from %s.",
            self.name,
            self.root.path,
        )

    def _tier(self) -> Tier | None:
        """The place that nodes share, where there is one."""
        if not (self.travels and setting("NODECACHE_REMOTE")):
            return None
        from nodecache.remote import Tier

        return Tier(self.root, self.recipe, self.name)

    def _build(
        self,
        held: Lease,
        use: Callable[[Outcome], None],
        began: float,
        tier: Tier | None = None,
        patience: float | None = None,
    ) -> Entry | None:
        """Under the lease: build, publish, index; or record the failure. Returns what was built and published."""
        with Telling(self.root, "preparing a build"):
            dead = staging.sweep(self.root, held.successor_of, patience)
            self._say_succession(held, dead)
            make_folder(self.root, attempt.folder(self.root, self.recipe))
            try:
                place = staging.create(self.root, held.attempt, patience)
            except lock.LockSilent as silence:
                raise lease.unanswered(self.root, self.name, time.monotonic() - began, silence) from None
        presence: Presence | None = None
        try:
            started = time.time()
            presence = Presence(self.root, held.owner)
            if presence.elsewhere:
                warn(self.root, self.name)
            fetched = tier.fetch(self.eyes, place) if tier is not None else None
            if fetched is not None:
                held.ensure_mine()
                place.remove()
                attempt.forget_failure(self.root, self.recipe, held.attempt)
                self._note(held, "fetched", started, fetched.key)
                errand.in_caller(use, Outcome("fetched", fetched, time.monotonic() - began))
                return None
            try:
                product = self.build(place, held.attempt)
            except (BuildError, RootError, OSError) as error:
                if not held.is_mine():
                    raise
                if place.was_cleaned():
                    raise place.cleaned(self.root, self.name) from error
                if not isinstance(error, BuildError):
                    raise
                # Nobody can compare a file that keeps changing: everybody who waited is told.
                inputs = "" if isinstance(error, InputsChanged) else self.failed_inputs(place)
                place.remove()  # before anybody can be told: after that, perhaps nobody builds and sweeps for long
                self._record(held, error, inputs)
                self._note(held, "failed", started)
                raise
            held.ensure_mine()
            if place.was_cleaned():
                raise place.cleaned(self.root, self.name)
            found = self._publish(held, place, product, started)
            errand.in_caller(use, Outcome("built", found, time.monotonic() - began))
            return found if found.published else None
        finally:
            if presence is not None:
                presence.close()
            place.remove()

    def _record(self, held: Lease, error: BuildError, inputs: str) -> None:
        """Tell those who wait. Where that cannot be written, they build, and the caller still gets the cause."""
        try:
            attempt.record_failure(self.root, self.recipe, error, held.owner.label, inputs)
        except RootError as full:
            from nodecache.printable import logger

            logger().warning("the failure of %r could not be recorded: %s", self.name, full)

    def _record_limit(self, held: Lease, error: BaseException) -> None:
        """Tell those who wait what this machine refused; they would only meet it as well. Space is measured now."""
        met = limit.limit_in(self.root, error)
        if met is None or not held.is_mine():
            return
        try:
            limit.record(
                self.root,
                self.recipe,
                met,
                builder=held.owner.label,
                attempt_id=held.attempt,
                seen=self._seen,
            )
        except RootError as full:
            from nodecache.printable import logger

            logger().warning("what stopped the build of %r could not be recorded: %s", self.name, full)

    def _publish(self, held: Lease, place: Staging, product: Product, started: float) -> Entry:
        """Seal, rename, index."""
        key = product.inputs.key(self.recipe)
        try:
            manifest = entry.seal(
                place.entry,
                {
                    "key": key,
                    "recipe": self.recipe,
                    "kind": self.kind,
                    "name": self.name,
                    "attempt": held.attempt,
                    "started": started,
                    "seconds": time.time() - started,
                    "builder": {field: getattr(held.owner, field) for field in ("pid", "host", "rank", "launcher")},
                    "items": self.items,
                    "inputs": product.inputs.lines(),
                    **product.about,
                },
            )
            if product.unknown:
                from nodecache.printable import logger

                logger().warning("%r is used but not kept: %s", self.name, product.unknown)
                return Entry("", place.entry, published=False)
            found = entry.publish(self.root, place.entry, key)
            place.remove()  # before anybody can find it, for the same reason
            index.add(
                self.root, self.recipe, found, product.inputs, (entry.read_manifest(found.path) or manifest)["files"]
            )
        except OSError as error:
            raise self.root.failed(error, "publishing") from error
        attempt.forget_failure(self.root, self.recipe, held.attempt)
        self._note(held, "built", started, key)
        return found

    def _say_succession(self, held: Lease, dead: list[str]) -> None:
        from nodecache.printable import logger

        log = logger()
        before = held.successor_of
        another = before is not None and before.pid != os.getpid()
        if before is not None and another and not lock.is_local(self.root.path) and owner.lives(before):
            log.warning(
                "%s has the lease of %r as well: the file system has given one lock to two. %s",
                before.label,
                self.name,
                self.root.remedy(),
            )
        elif before is not None:
            log.warning("took over the lease of %r from %s, which died while it was building", self.name, before.label)
        if dead:
            log.info("cleaned up after dead builders: %s", " ".join(dead))

    def _note(self, held: Lease, how: str, started: float, key: str = "") -> None:
        """A line of history for a build."""
        attempt.note(
            self.root,
            self,
            "build",
            how,
            recipe=self.recipe,
            key=key,
            attempt=held.attempt,
            started=started,
            seconds=time.time() - started,
        )

    def _note_wait(self, voice: Voice, how: str) -> None:
        """A line of history for a wait, if there was one: which attempt it was for, and how it ended."""
        if voice.waited:
            attempt.note(
                self.root,
                self,
                "wait",
                how,
                recipe=self.recipe,
                attempt=voice.holder.attempt if voice.holder else "",
                started=voice.started,
                seconds=voice.waited,
                here=voice.here,
            )
