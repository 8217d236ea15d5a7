"""The lease's protocol, explored in full: every interleaving of three calls, a crash at every step, a cleaner.

A state is what the file system and the kernel hold, and where each call stands. A step is one that other processes can
see the two sides of. Each call runs once; a newcomer is one that has not begun yet, a waiter that leaves is one that
dies. The cleaner unlinks the lock file once, at any moment.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from nodecache import lease, limit

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = 2
"""Parts of a complete entry; each takes one *build* step."""

TRIES = limit.TRIES

ENDS = ("built", "hit", "failed", "was told", "dead")


class Call(NamedTuple):
    """One call, at its next step.

    Attributes:
        at: the next step, or how it ended.
        inode: the lock file that it has open.
        seen: id of the last failure when it began.
        due: whether a failure was recorded since it began, so that it is to be told of it.
        late: whether it was granted the lock after the lock file had been unlinked.
        fails: whether its compile has failed.
        limited: whether this machine refused its compile something.
    """

    at: str = "seen"
    begun: bool = False
    inode: int | None = None
    seen: int | None = None
    due: bool = False
    late: bool = False
    fails: bool = False
    limited: bool = False


class State(NamedTuple):
    """What there is.

    Attributes:
        path: the inode that the lock file's path leads to; None while there is none.
        holders, owners: for each inode who has it locked, and whose record lies in it.
        stagings: how many parts each call's staging folder has; None where there is none.
        published: how many parts the entry has; None before it is there.
        indexed: whether the index names it.
        failure: id of the recorded failure or limit.
        limits: how many builds in a row met a limit that the record tells of; 0 where it is a failure.
        unlinked: whether the cleaner has been there.
    """

    calls: tuple[Call, ...]
    path: int | None = 0
    holders: tuple[int | None, ...] = (None, None)
    owners: tuple[int | None, ...] = (None, None)
    stagings: tuple[int | None, ...] = ()
    published: int | None = None
    indexed: bool = False
    failure: int | None = None
    limits: int = 0
    unlinked: bool = False


class Violation(Exception):
    """A promise that does not hold, and the shortest way to it."""


class Protocol:
    """The steps of ``nodecache/lease.py``, under the same names. A subclass has one thing wrong."""

    first = "seen"
    after_seen = "look"
    after_look = "told"
    after_build = "publish"
    after_forget = "erase"
    limits = True
    """Whether this machine may refuse a compile something."""

    def steps(self, state: State, me: int) -> Iterator[tuple[str, State]]:
        """What a call can do next: the step's name and the state after it."""
        call = state.calls[me]
        if call.at in ENDS:
            return
        begun = change(state, me, begun=True)
        for after in getattr(self, call.at.replace(" ", "_"))(begun, me):
            yield call.at, after
        if call.begun:
            yield f"{call.at}: dies", crash(state, me)

    def seen(self, state, me):
        yield change(state, me, at=self.after_seen, seen=state.failure)

    def look(self, state, me):
        yield change(state, me, at="hit" if state.indexed else self.after_look)

    def told(self, state, me):
        yield from self.tell(state, me, change(state, me, at="open"))

    def tell(self, state, me, onward):
        call = state.calls[me]
        if state.failure is None or state.failure == call.seen:
            yield onward
            return
        if not call.due:
            raise Violation("a call is told of a failure that was recorded before it began")
        if 0 < state.limits < TRIES:  # its cause may have gone
            yield onward
        yield change(unlock(state, me), me, at="was told")

    def open(self, state, me):  # the first half of "claim"
        path = state.path
        if path is None:
            path = 1
            state = state._replace(path=path)
        yield change(state, me, at="claim", inode=path)

    def claim(self, state, me):
        inode = state.calls[me].inode
        if state.holders[inode] is None:
            held = state._replace(holders=put(state.holders, inode, me))
            yield change(held, me, at="check", late=state.unlinked)
        else:  # the wait, which ends at a ring or a tick: at any moment
            yield change(state, me, at="look", inode=None)

    def check(self, state, me):
        if state.calls[me].inode == state.path:
            yield change(state, me, at="look again")
        else:
            yield change(unlock(state, me), me, at="open", inode=None)

    def look_again(self, state, me):
        yield change(unlock(state, me), me, at="hit") if state.indexed else change(state, me, at="told again")

    def told_again(self, state, me):
        yield from self.tell(state, me, change(state, me, at="write owner"))

    def write_owner(self, state, me):
        before = state.owners[state.calls[me].inode]
        if before is not None and state.calls[before].at != "dead":
            raise Violation("a living call is said to be dead")
        owners = put(state.owners, state.calls[me].inode, me)
        yield change(state._replace(owners=owners), me, at="sweep")

    def sweep(self, state, me):
        swept = tuple(None if self.is_swept(state, other) else parts for other, parts in enumerate(state.stagings))
        yield change(state._replace(stagings=swept), me, at="build")

    def is_swept(self, state, other):
        return state.calls[other].at == "dead"

    def build(self, state, me):
        parts = state.stagings[me]
        tried = state.failure is not None and state.limits in (0, TRIES)
        if parts is None and tried and state.calls[me].due and not state.unlinked:
            raise Violation("a call compiles what failed after it began")
        if parts is None and state.indexed and not state.unlinked:
            raise Violation("a call compiles what is there")
        more = state._replace(stagings=put(state.stagings, me, (parts or 0) + 1))
        if more.stagings[me] < WHOLE:
            yield change(more, me, at="build")
        else:
            yield change(more, me, at=self.after_build)
            yield change(more, me, at="record", fails=True)
            if self.limits:
                yield change(more, me, at="record", fails=True, limited=True)

    def publish(self, state, me):
        if state.published is None:
            state = state._replace(published=state.stagings[me] or 0)
        yield change(state._replace(stagings=put(state.stagings, me, None)), me, at="index")

    def index(self, state, me):
        yield change(state._replace(indexed=True), me, at="forget")

    def forget(self, state, me):
        yield change(state._replace(failure=None, limits=0), me, at=self.after_forget)

    def record(self, state, me):
        calls = tuple(
            call._replace(due=True) if call.begun and number != me else call for number, call in enumerate(state.calls)
        )
        stagings = put(state.stagings, me, None)
        call = state.calls[me]
        before = state.limits if state.failure != call.seen else 0
        limits = min(before + 1, TRIES) if call.limited else 0
        recorded = state._replace(calls=calls, failure=me, limits=limits, stagings=stagings)
        yield change(recorded, me, at="erase", limited=False)

    def erase(self, state, me):
        yield change(state._replace(owners=put(state.owners, state.calls[me].inode, None)), me, at="let go")

    def let_go(self, state, me):
        yield change(unlock(state, me), me, at="ring")

    def ring(self, state, me):
        yield change(state, me, at="failed" if state.calls[me].fails else "built")


def put(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


def change(state: State, me: int, **fields: object) -> State:
    return state._replace(calls=put(state.calls, me, state.calls[me]._replace(**fields)))


def unlock(state: State, me: int) -> State:
    return state._replace(holders=tuple(None if holder == me else holder for holder in state.holders))


def crash(state: State, me: int) -> State:
    return change(unlock(state, me), me, at="dead", inode=None)


def ensure_promises(state: State) -> None:
    """Raise if a promise is broken in this state."""
    builders = [call for call in state.calls if call.at in ("build", "publish", "record")]
    if len(builders) > (2 if state.unlinked else 1):
        raise Violation("too many builders")
    if sum(call.late for call in builders) > 1:
        raise Violation("two builders hold locks that were granted after the unlink")
    if state.published not in (None, WHOLE):
        raise Violation("an entry is not complete")


def explore(protocol: Protocol, calls: int, *, cleaner: bool) -> int:
    """Visit every state; returns how many there are.

    Raises:
        Violation: in some state a promise is broken, or who is alive there cannot all come to an end.
    """
    begin = State(calls=(Call(protocol.first),) * calls, stagings=(None,) * calls)
    came_from: dict[State, tuple[State, str] | None] = {begin: None}
    before: dict[State, list[State]] = {}
    queue = deque([begin])
    while queue:
        state = queue.popleft()
        try:
            ensure_promises(state)
            for name, after in moves(protocol, state, cleaner=cleaner):
                if not name.endswith(("dies", "unlinks")):
                    before.setdefault(after, []).append(state)
                if after not in came_from:
                    came_from[after] = (state, name)
                    queue.append(after)
        except Violation as violation:
            raise Violation(f"{violation}: {' | '.join(way(came_from, state))}") from None
    # Whoever is alive can go on: from every state, without further crashes, there is a way to where all have ended.
    ended = [state for state in came_from if all(call.at in ENDS for call in state.calls)]
    good = set(ended)
    queue = deque(ended)
    while queue:
        for state in before.get(queue.popleft(), []):
            if state not in good:
                good.add(state)
                queue.append(state)
    stuck = next((state for state in came_from if state not in good), None)
    if stuck is not None:
        raise Violation(f"nobody can go on: {' | '.join(way(came_from, stuck))}")
    return len(came_from)


def moves(protocol: Protocol, state: State, *, cleaner: bool) -> Iterator[tuple[str, State]]:
    for me in range(len(state.calls)):
        if me and not state.calls[me - 1].begun:
            break  # calls that have not begun are all alike: let them begin in order
        for name, after in protocol.steps(state, me):
            yield f"{me} {name}", after
    if cleaner and not state.unlinked:
        yield "cleaner unlinks", state._replace(path=None, unlinked=True)


def way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps = []
    while (step := came_from[state]) is not None:
        state, name = step
        steps.append(name)
    return steps[::-1]


class WithoutLimits(Protocol):
    """Fewer states."""

    limits = False


@pytest.mark.parametrize(
    ("protocol", "cleaner"), [(Protocol(), False), (WithoutLimits(), True)], ids=["with limits", "with a cleaner"]
)
def test_every_promise_holds_in_every_interleaving_with_crashes_anywhere(protocol, cleaner):
    states = explore(protocol, 3, cleaner=cleaner)
    assert states > 10_000


@pytest.mark.soak
def test_every_promise_holds_with_limits_and_a_cleaner_together():
    assert explore(Protocol(), 3, cleaner=True) > 100_000


@pytest.mark.soak
def test_every_promise_holds_with_four_calls():
    assert explore(Protocol(), 4, cleaner=False) > 100_000


def test_every_end_is_reached():
    """Else the explorer would have nothing to say."""
    begin = State(calls=(Call(),) * 2, stagings=(None,) * 2)
    known, queue, ends = {begin}, [begin], set()
    while queue:
        for _, after in moves(Protocol(), queue.pop(), cleaner=False):
            if after not in known:
                known.add(after)
                queue.append(after)
                ends.add(tuple(sorted(call.at for call in after.calls)))
    for pair in (("built", "hit"), ("failed", "was told"), ("built", "dead"), ("built", "failed"), ("dead", "dead")):
        assert pair in ends


class NoCheck(Protocol):
    def check(self, state, me):
        yield change(state, me, at="look again")


class SeenAfterLook(Protocol):
    first, after_look, after_seen = "look", "seen", "told"


class LetsGoBeforePublish(Protocol):
    after_build, after_forget = "erase", "built"

    def ring(self, state, me):
        yield change(state, me, at="failed" if state.calls[me].fails else "publish")


class NoLookAgain(Protocol):
    def look_again(self, state, me):
        yield change(state, me, at="told again")


class NoToldAgain(Protocol):
    def told_again(self, state, me):
        yield change(state, me, at="write owner")


class LetsGoBeforeRecord(Protocol):
    def build(self, state, me):
        for after in super().build(state, me):
            yield change(after, me, at="erase") if after.calls[me].fails else after

    def ring(self, state, me):
        call = state.calls[me]
        yield change(state, me, at="record" if call.fails else "built")

    def record(self, state, me):
        for after in super().record(state, me):
            yield change(after, me, at="failed")


class SweepsTheLiving(Protocol):
    def is_swept(self, state, other):
        return True


class TellsOldFailures(Protocol):
    def seen(self, state, me):
        yield change(state, me, at="look", seen=None)


class NeverTellsLimits(Protocol):
    def tell(self, state, me, onward):
        yield from [onward] if state.limits else super().tell(state, me, onward)


class NoErase(Protocol):
    def erase(self, state, me):
        yield change(state, me, at="let go")


class NoLetGo(Protocol):
    def let_go(self, state, me):
        yield change(state, me, at="ring")


class CopiesInsteadOfRenames(Protocol):
    def publish(self, state, me):
        parts = state.published or 0
        copied = state._replace(published=min(parts + 1, WHOLE))
        yield change(copied, me, at="index" if copied.published == WHOLE else "publish")


BROKEN = {
    NoCheck: "granted after the unlink",
    SeenAfterLook: "compiles what failed after it began",
    LetsGoBeforePublish: "too many builders",
    NoLookAgain: "compiles what is there",
    NoToldAgain: "compiles what failed after it began",
    LetsGoBeforeRecord: "too many builders",
    SweepsTheLiving: "an entry is not complete",
    TellsOldFailures: "recorded before it began",
    NeverTellsLimits: "compiles what failed after it began",
    NoErase: "a living call is said to be dead",
    NoLetGo: "nobody can go on",
    CopiesInsteadOfRenames: "an entry is not complete",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_protocol_with_one_thing_wrong_is_caught(broken):
    with pytest.raises(Violation, match=BROKEN[broken]):
        explore(broken(), 3, cleaner=broken in {NoCheck, SweepsTheLiving})


def test_the_model_the_code_and_the_text_name_the_same_steps():
    named = re.search(r"same names: \*(.*?)\*\.", lease.__doc__, re.DOTALL)[1]
    steps = re.split(r",\s+", named.replace("\n", " "))
    assert all(hasattr(Protocol, step.replace(" ", "_")) for step in steps)
    own = {name.replace("_", " ") for name, value in vars(Protocol).items() if callable(value)}
    assert own - {"steps", "tell", "is swept", "open"} == set(steps)
    text = (Path(__file__).parents[1] / "docs" / "lease.md").read_text()
    told = re.findall(r"^\| ([a-z ,]+) \|", text.partition("## The steps")[2].partition("\n## ")[0], re.MULTILINE)
    assert [step for row in told for step in row.split(", ") if step != "step"] == steps
