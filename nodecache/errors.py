"""What can go wrong, one class a cause.

Every message begins with the cause and ends with the remedy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NodecacheError(Exception):
    """Base of everything that nodecache raises on purpose. Its text can be shown on a terminal, whoever wrote it."""

    def __init__(self, *said: object, **more: Any) -> None:
        from nodecache.printable import printable  # a hit raises nothing, so it does not pay for this

        super().__init__(*(printable(part) if isinstance(part, str) else part for part in said), **more)


class SpecError(NodecacheError, ValueError):
    """What was asked for cannot be built: a bad name, a missing source, a flag that makes no sense."""


class ToolchainError(NodecacheError, RuntimeError):
    """A compiler, header or package that the build needs is not there."""


class BuildError(NodecacheError, RuntimeError):
    """A tool failed, or what it made is not usable. Told once to everybody who waited for that build.

    Attributes:
        attempt: id of the failed attempt, the same in the builder and in all its waiters.
        first_error: the compiler's first error with its file and line, or the first line it said.
        log: path of the full log; it stays until the next attempt at the same recipe has ended.
    """

    def __init__(self, message: str, *, attempt: str = "", first_error: str = "", log: str = "") -> None:
        super().__init__(message)
        self.attempt = attempt
        from nodecache.printable import printable

        self.first_error = printable(first_error)
        self.log = log


class InputsChanged(BuildError):
    """A file that the build reads changed during each of several builds, so nobody can say what was built."""


def of_the_kernel(error: OSError) -> bool:
    """Whether a system call failed. Else the program itself raised it, as signal handlers do with TimeoutError."""
    return error.errno is not None


class BuildInterrupted(NodecacheError, RuntimeError):
    """The build ended without a verdict: its processes were killed, or this machine refused it something.

    It is not recorded as a failure: whoever waited goes on and builds.
    """


class StagingCleaned(BuildInterrupted):
    """Somebody removed files of the build's staging folder. The first time in a call, the build starts over."""


class LeaseTimeout(NodecacheError, TimeoutError):
    """The caller's ``timeout`` passed while somebody else was building."""


class LeaseLost(NodecacheError, RuntimeError):
    """Where the file system has no locks: another process took the lease over during the build."""


class NestedLease(NodecacheError, RuntimeError):
    """A build function asked for another build while its own lease was held."""


class RootError(NodecacheError, RuntimeError):
    """The root cannot be used: not writable, no space, mounted ``noexec``, not a folder.

    Attributes:
        number: errno of the system call that this machine refused; None where it was none.
        place: the folder that it was refused in; empty where that is not known, or does not matter.
        remedy: the end of the message, where it is known on its own.
    """

    number: int | None = None
    place: str = ""
    remedy: str = ""


class UnsafeRoot(RootError):
    """Somebody else could have put code into the root."""


class ArchiveError(NodecacheError, RuntimeError):
    """An archive is damaged, cut short, or not what it says; or what should go into one is."""


class NotBuilt(NodecacheError, RuntimeError):
    """NODECACHE_NO_BUILD is set, and there is no entry."""


class LoadError(NodecacheError, ImportError):
    """The finished extension was built, and then could not be imported."""
