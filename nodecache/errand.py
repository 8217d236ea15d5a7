"""The errand: the lease's protocol runs in a thread of its own, which no asynchronous exception can reach.

Between a system call and the line that remembers it, Python may raise anything: a signal handler's exception in the
main thread, or one that another thread sends with ``PyThreadState_SetAsyncExc``. A lock or a descriptor that was just
granted would then belong to nobody. Signal handlers only run in the main thread, and nobody knows the thread that is
started here, so the steps between asking for a lease and letting go of it run undisturbed. The caller's thread waits,
and runs what belongs to it: the caller's build function, and the import of the module.

When an exception reaches the caller, the errand is *abandoned*: the thread is woken from whatever wait it is in, undoes
what it has done with ordinary ``finally`` clauses, and only then does the exception leave the call.

Masking signals instead would not do: the signal is then delivered to another thread, and the handler still runs here.
"""

from __future__ import annotations

import os
import select
import threading
import time
from _queue import Empty, SimpleQueue
from _thread import start_new_thread

from nodecache import lock
from nodecache.errors import BuildInterrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Answer = TypeVar("Answer")

ATTEND = 0.5
"""Seconds between two looks of the waiting caller: an exception sent by another thread arrives at one of them."""

LEAVE = 10.0
"""Seconds that an interrupted caller waits for its errand to clean up; a dead file server may hold it up for longer."""

BLIND = 0.1
"""Seconds between two looks for an interrupt where nothing can wake the errand."""

_here = threading.local()


class Abandoned(BaseException):
    """The caller has left. It is raised in the errand's thread only, and ends there."""


class _Job:
    """Something that the caller's thread is asked to do."""

    __slots__ = ("_arguments", "_function", "error", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001  # raised again in the errand's thread, which undoes its work
            self.error = error


class Errand:
    """One task in a thread of its own, seen from both sides."""

    def __init__(self, task: Callable[[], Any]) -> None:
        self._task = task
        self._pid = os.getpid()
        self.caller = threading.current_thread().name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._answers: SimpleQueue[_Job | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._wake: lock.Descriptor | None = None
        self._ended = threading.Event()
        self._threads: list[int] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self.abandoned = False

    # The caller's side. It owns no descriptor, so an exception between any two instructions loses none.

    def begin(self) -> bool:
        """Start the thread; false where this process may have no more of them."""
        try:
            # All in C: no instruction lies between the start and its being known.
            self._threads.extend(map(start_new_thread, (self._work,), ((),)))
        except RuntimeError:
            return False
        return True

    def attend(self) -> Any:
        """Do what the errand asks for until it ends; return or raise what it ended with."""
        while True:
            try:
                job = self._jobs.get(timeout=ATTEND)
            except Empty:
                continue
            if job is None:
                break
            job.do()
            if os.getpid() != self._pid:
                raise BuildInterrupted(
                    "A build came back in another process than it began in. "
                    "Do not return from a forked child in a build function."
                )
            self._answers.put(job)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return self._result

    def abandon(self) -> None:
        """Make the errand undo its work, and wait for that; nothing once it has ended, or in a forked child."""
        if not self._threads or self._ended.is_set() or os.getpid() != self._pid:
            return
        self.abandoned = True
        self._answers.put(None)
        with self._mutex:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)
        self._ended.wait(LEAVE)

    # The errand's side.

    def _work(self) -> None:
        _here.errand = self
        try:
            try:
                self._wake = lock.note(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except OSError:  # no more descriptors: it looks for itself then
                self._wake = None
            self.check()
            self._result = self._task()
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            self._error = error
        finally:
            with self._mutex:
                wake, self._wake = self._wake, None
            if wake is not None:
                lock.close(wake)
            del self._task
            self._ended.set()
            self._jobs.put(None)

    def check(self) -> None:
        """Raise if the caller has left."""
        if self.abandoned:
            raise Abandoned

    def ask(self, job: _Job) -> Any:
        """Have the caller's thread do something."""
        self.check()
        self._jobs.put(job)
        if self._answers.get() is None:
            raise Abandoned
        if job.error is not None:
            raise job.error
        return job.result

    def poll(self, fds: list[int], events: int, seconds: float | None) -> bool:
        """Wait for an event of a descriptor; false when the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        for fd in fds:
            poll.register(fd, events)
        wake = self._wake
        if wake is not None:
            poll.register(wake, select.POLLIN)
        while True:
            self.check()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            look = left if wake is not None else BLIND if left is None else min(left, BLIND)
            found = poll.poll(None if look is None else look * 1000)
            self.check()
            if found:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False


def run(task: Callable[[], Answer]) -> Answer:
    """Do ``task`` in a thread of its own, and return or raise what it ends with.

    Concurrency: an exception that reaches the calling thread meanwhile leaves when the task has undone its work. Where
    no thread can be started, the task runs in the calling thread.
    """
    errand = Errand(task)
    answer: Answer
    try:
        try:
            answer = errand.attend() if errand.begin() else task()
        except BaseException:
            errand.abandon()
            raise
    finally:  # once more: a second exception may have come before the first call did anything
        errand.abandon()
    return answer


def in_caller(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call ``function`` in the thread that runs the errand; outside an errand, here."""
    errand = _current()
    if errand is None:
        return function(*arguments)
    answer: Answer = errand.ask(_Job(function, arguments))
    return answer


def wait(fds: list[int], events: int, seconds: float | None) -> bool:
    """Wait for an event of a descriptor; false when the time is over. It ends at once when the caller leaves."""
    errand = _current()
    if errand is not None:
        return errand.poll(fds, events, seconds)
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def pause(seconds: float) -> None:
    """Sleep, unless the caller leaves."""
    wait([], 0, seconds)


def caller() -> str:
    """Name of the thread that the errand is run for; outside an errand, of this one."""
    errand = _current()
    return threading.current_thread().name if errand is None else errand.caller


def _current() -> Errand | None:
    errand: Errand | None = getattr(_here, "errand", None)
    return errand if errand is not None and errand._pid == os.getpid() else None  # noqa: SLF001  # of this module
