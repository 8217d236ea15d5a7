"""The command line: ``nodecache`` and ``python -m nodecache``.

``run``, ``status``, ``warm``, ``export`` and ``import`` work without extras, because jobs and images need them. The
other commands require click and rich (``pip install "nodecache[cli]"``).
"""

from __future__ import annotations

import io
import os
import sys

from nodecache.errors import NodecacheError


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        Exit status: 0 when all is well; 1 when something is wrong, as each command says; 2 for a wrong call or an
        error.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["run"] and words[1:2] not in ([], ["-h"], ["--help"]) and words[1:] != ["-m"]:
        # Before any parsing: what follows is the program's own command line.
        from nodecache.patch import run

        run(words[1:])
        return 0
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # names and paths of any language go to a terminal of any encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _command(words)
        sys.stdout.flush()
    except NodecacheError as error:
        print(f"nodecache: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read has had enough
        _discard_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_output()
        print(f"nodecache: The output cannot be written: {error.strerror}. Send it elsewhere.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _discard_output() -> None:
    """Python flushes at its end, which would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(words: list[str]) -> int:
    try:
        import rich  # noqa: F401  # tables on a terminal need it later

        from nodecache import cli
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        from nodecache.plain import main as plain

        return plain(words)
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
