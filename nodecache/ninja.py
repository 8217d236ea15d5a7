"""Ninja, as the steps' engine: its file, its program, and what its log says of their times."""

from __future__ import annotations

import os
import shlex

from nodecache.compiler import which
from nodecache.digest import read_bytes
from nodecache.errors import ToolchainError
from nodecache.interpreter import described
from nodecache.plan import STATUSES, WATCH, WATCH_TEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nodecache.plan import Step
    from nodecache.root import Root
    from nodecache.staging import Staging

_LONG = 100_000  # bytes; Linux takes no argument of 128 KiB, and ninja gives the shell the whole command as one


def write_ninja(root: Root, staging: Staging, steps: list[Step], log: str) -> None:
    """One rule a step, and a script a step, which says in the log that it begins: ninja tells of it when it has ended.

    The scripts keep the shell's part out of what ninja repeats when a step fails.
    """
    lines = ["rule step", "  command = . $script", "  description = $what", ""]
    to_log = f">> {shlex.quote(log)}"
    try:
        os.mkdir(f"{staging.path}/step")
        with open(f"{staging.path}/{WATCH}", "x", encoding="ascii") as file:
            file.write(WATCH_TEXT)
        for number, step in enumerate(steps, 1):
            words = shlex.join(_shortened(staging, number, step.command))
            said = shlex.quote(f"> step {number} of {len(steps)}: {step.what}\n> {words}\n")
            # Not every ninja tells the status, and that of a killed compiler says most.
            end = f'{{ s=$?; echo "> exit status $s" {to_log}; echo $s >> {STATUSES}; exit $s; }}'
            with open(f"{staging.path}/step/{number}.sh", "xb") as file:
                file.write(os.fsencode(f"printf %s {said} {to_log}\n{words} || {end}\n"))
            lines.append(f"build {step.output}: step {' '.join(step.inputs)}")
            lines += [f"  script = ./step/{number}.sh", f"  what = {step.what.replace('$', '$$')}"]
        with open(f"{staging.path}/build.ninja", "xb") as file:
            file.write(os.fsencode("\n".join(lines) + "\n"))
    except OSError as error:
        raise root.failed(error, "writing build.ninja") from error


def _shortened(staging: Staging, number: int, command: list[str]) -> list[str]:
    """A command that is too long for one argument, with its flags in a response file."""
    if sum(len(os.fsencode(word)) + 3 for word in command) < _LONG:
        return command
    first = next((at for at, word in enumerate(command) if word.startswith("-")), len(command))
    quoted = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in command[first:]]
    with open(f"{staging.path}/obj/{number}.rsp", "xb") as file:
        file.write(os.fsencode("\n".join(quoted) + "\n"))
    nvcc = os.path.basename(command[0]) == "nvcc"
    return [*command[:first], *(["--options-file"] if nvcc else []), f"{'' if nvcc else '@'}obj/{number}.rsp"]


def ninja_path() -> str:
    """Path of ninja: the one that pip brought, else the one on PATH."""
    try:
        import ninja

        path = os.path.join(ninja.BIN_DIR, "ninja")
        if os.access(path, os.X_OK):
            return path
    except ImportError:
        pass
    found = which("ninja")
    if found is None:
        raise ToolchainError(f"ninja is not installed. Install it: {described()} -m pip install ninja")
    return found


def step_times(staging: Staging, steps: list[Step]) -> list[dict[str, Any]]:
    """When each step ran, from ninja's log: tab-separated start, end (ms), mtime, output, hash."""
    names = {step.output: step.what for step in steps}
    found = []
    for line in read_bytes(f"{staging.path}/.ninja_log").decode("utf-8", "replace").splitlines():
        fields = line.split("\t")
        if len(fields) >= 5 and fields[3] in names:
            found.append({"step": names[fields[3]], "start_ms": int(fields[0]), "end_ms": int(fields[1])})
    return sorted(found, key=lambda step: (step["start_ms"], step["end_ms"]))
