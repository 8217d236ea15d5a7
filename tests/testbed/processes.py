"""Real processes with a deadline, ended by id together with all of their process group."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# Nothing that we start outlives the test run, however that ends.
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


class Running:
    """A started command in a session of its own; its output goes to a file, which no orphan can block.

    Use as a context manager: leaving it kills whatever is left of the command's process group.
    """

    def __init__(self, command, *, env=None, cwd="/"):
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*DIES_WITH_US, *command],
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.kill()
        self._output.close()

    def output(self):
        """What it wrote so far, both streams."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def wait(self, timeout):
        """Exit status; a command that takes longer is killed and fails the test with what it wrote."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout} s: {self.process.args}\n{self.output()}") from None

    def kill(self):
        """SIGKILL for the process group, then reap. The group's number is ours until its leader is reaped."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run(command, *, timeout, env=None, cwd="/", status=0):
    """Run to the end within ``timeout`` seconds; returns the output of both streams.

    The exit status must be ``status`` (None: any).
    """
    with Running(command, env=env, cwd=cwd) as running:
        code = running.wait(timeout)
        assert status is None or code == status, f"exit status {code}: {command}\n{running.output()}"
        return running.output()


def until(condition, timeout, what):
    """Poll until ``condition()`` is true and return its value; after ``timeout`` seconds fail, naming ``what``."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what() if callable(what) else what}"
        time.sleep(0.02)
    return value


def stop(processes, grace=5):
    """End daemons that we started: SIGTERM, ``grace`` seconds, SIGKILL; last started first."""
    for process in reversed(processes):
        process.terminate()
    deadline = time.monotonic() + grace
    for process in reversed(processes):
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def state(pid):
    """The letter that /proc gives for a process, None if there is none; ``Z`` is dead already."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def parent(pid):
    """The id of a process's parent, 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def commands():
    """Ids and command lines (bytes, NUL between words) of this machine's living processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()  # empty for zombies
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command:
            yield int(folder.name), command
