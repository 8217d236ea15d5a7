"""The interpreter: a Python program that fits this process, which ``sys.executable`` need not be.

In an application that embeds Python it is the application, in a frozen one the frozen program; it may be empty or a
stub. Starting it would run the application again. So only a file that is known to be a Python is ever started.
"""

from __future__ import annotations

import os
import re
import sys

from nodecache.errors import ToolchainError

_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)?)?[td]?")


def interpreter() -> str:
    """Path of a Python that may be started in this process's place.

    It is ``sys.executable`` if that is named as a Python is and lies where this process's Python has its programs,
    or belongs to a virtual environment. Otherwise it is the one of this version below ``sys.base_exec_prefix``,
    ``sys.exec_prefix`` or ``sys.base_prefix``.

    Raises:
        ToolchainError: there is none; the message names what was looked for.
    """
    tried = candidates()
    for path in tried:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise ToolchainError(
        f"No Python program fits this process: sys.executable is {sys.executable!r}, and there is none of "
        f"{', '.join(tried)}. Install the interpreter of Python {_version()}, or set sys.executable to its path."
    )


def candidates() -> list[str]:
    """Where such a Python may be, the best first; whether the files are there is not looked at."""
    named = f"python{_version()}{getattr(sys, 'abiflags', '')}"
    prefixes = dict.fromkeys((sys.exec_prefix, sys.base_exec_prefix, sys.base_prefix))
    found = [f"{prefix}/bin/{name}" for prefix in prefixes for name in dict.fromkeys((named, f"python{_version()}"))]
    given = (sys.executable, getattr(sys, "_base_executable", None))
    return [*dict.fromkeys([path for path in given if path and _is_a_python(path)] + found)]


def described() -> str:
    """The interpreter for messages: its path, or what ``sys.executable`` says where there is none."""
    try:
        return interpreter()
    except ToolchainError:
        return sys.executable or "python3"


def _is_a_python(path: str) -> bool:
    """Whether a path is one of this process's own Python: named like one, and in its programs' folder."""
    if not os.path.isabs(path) or _PYTHON.fullmatch(os.path.basename(path)) is None:
        return False
    folder = os.path.dirname(path)
    own = {f"{prefix}/bin" for prefix in (sys.exec_prefix, sys.prefix, sys.base_exec_prefix, sys.base_prefix)}
    # A link elsewhere, as /usr/local/bin/python3 is, leads to such a folder.
    return folder in own or os.path.dirname(os.path.realpath(path)) in {os.path.realpath(place) for place in own}


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
