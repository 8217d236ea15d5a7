"""The command line: ``nodecache`` and ``python -m nodecache``."""

from __future__ import annotations

import argparse
import json
import sys

from nodecache import __version__
from nodecache.errors import NodecacheError


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
        Exit status: 0 when all is well; 1 when ``status`` found a dead holder; 2 for a wrong call or an error.
    """
    given_words = sys.argv[1:] if arguments is None else arguments
    if given_words[:1] == ["run"] and given_words[1:2] not in ([], ["-h"], ["--help"]):
        # Before any parsing: what follows is the program's own command line.
        from nodecache.patch import run

        run(given_words[1:])
        return 0
    parser = argparse.ArgumentParser(prog="nodecache", description="Build native Python extensions once per node.")
    parser.add_argument("--version", action="version", version=f"nodecache {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="builds going on now, and whether their builders live")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    status.set_defaults(run=_status)
    started = commands.add_parser(
        "run",
        help="run a program with torch's JIT builds going through nodecache",
        usage="nodecache run [-m] PROGRAM ...",
    )
    started.set_defaults(run=lambda _: started.error("name a program, or -m and a module"))
    given = parser.parse_args(given_words)
    try:
        code: int = given.run(given)
    except NodecacheError as error:
        print(f"nodecache: {error}", file=sys.stderr)
        return 2
    return code


def _status(given: argparse.Namespace) -> int:
    from nodecache.root import open_root
    from nodecache.status import builds

    root = open_root()
    found = builds(root)
    if given.json:
        print(json.dumps({"root": root.path, "builds": [build.record() for build in found]}, indent=1))
    elif not found:
        print(f"Nothing is being built in {root.path}.")
    for build in [] if given.json else found:
        step = f", {build.step}" if build.step else ""
        print(f"{build.owner.name}: {build.owner.label}, {build.state}, for {build.seconds:.0f} s{step}")
        print(f"  log {build.owner.log}")
    return 1 if any(build.state == "dead" for build in found) else 0


if __name__ == "__main__":
    sys.exit(main())
