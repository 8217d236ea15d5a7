"""A build's process tree, seen from its builder: the other end of :mod:`nodecache.supervise`."""

from __future__ import annotations

import os
import select
import subprocess

from nodecache import errand, lock
from nodecache.errors import of_the_kernel
from nodecache.interpreter import interpreter
from nodecache.staging import MARK, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from nodecache.root import Root
    from nodecache.staging import Staging


class Supervised:
    """A command under a supervisor: it and all that it started end when this process does, or leaves the context."""

    def __init__(
        self, root: Root, staging: Staging, command: list[str], log: str, variables: dict[str, str] | None = None
    ) -> None:
        self._root = root
        self._staging = staging
        self._variables = variables or {}
        self._command = command
        self._log = log

    def __enter__(self) -> Self:
        control_read, self._control = lock.pipe()
        try:
            self._status, status_write = lock.pipe()
        except OSError as error:
            lock.close(control_read)
            lock.close(self._control)
            raise self._root.failed(error, "starting the build") from error
        builder = _pidfd()
        given = [control_read, status_write, *([] if builder is None else [builder])]
        program = os.path.join(os.path.dirname(__file__), "supervise.py")
        try:
            with open(self._log, "ab") as log:
                self._process = lock.spawn(
                    [
                        *(interpreter(), "-I", "-S", program),
                        *(
                            str(-1 if builder is None else builder),
                            str(control_read),
                            str(status_write),
                            self._staging.path,
                        ),
                        *self._command,
                    ],
                    cwd=self._staging.path,
                    env=build_environment(self._staging, self._variables),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=given,
                    start_new_session=True,
                )
        except BaseException as error:
            self._close()
            if isinstance(error, OSError) and of_the_kernel(error):
                raise self._root.failed(error, "starting the build") from error
            raise
        finally:
            for fd in given:
                lock.close(fd)
        return self

    def wait(self) -> tuple[str, int]:
        """Wait for the command: ``("exit", status)``, ``("signal", number)`` or ``("gone", 0)``."""
        said = b""
        while errand.wait([self._status], select.POLLIN, None) and (more := os.read(self._status, 64)):
            said += more
            if said.endswith(b"\n"):
                word, _, number = said.decode().strip().partition(" ")
                return word, int(number)
        return "gone", 0

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._process.wait() != 0:  # it was killed itself: what it watched over is nobody's now
            reap([self._staging.mark])

    def _close(self) -> None:
        try:
            os.write(self._control, b".")  # a child forked behind Python's back may keep the pipe itself open
        except OSError:
            pass
        lock.close(self._control)
        lock.close(self._status)


def _pidfd() -> lock.Descriptor | None:
    """A descriptor that becomes readable when this process is dead, or None where the kernel has none."""
    try:
        return lock.note(os.pidfd_open, os.getpid())
    except OSError:
        return None


def build_environment(staging: Staging, variables: dict[str, str]) -> dict[str, str]:
    """The environment of a build's processes; ``variables`` with folders that are relative in the caller's."""
    left_out = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "NINJAFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    # Messages are read by programs, here and in continuous integration: English, and the same for everybody.
    return (
        environment
        | variables
        | {
            "LC_ALL": "C",
            "TMPDIR": staging.tmp,
            MARK: staging.mark,
            "NINJA_STATUS": "[%f/%t] ",
            "PWD": staging.path,
        }
    )
