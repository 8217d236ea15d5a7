"""The commands that need neither click nor rich, for jobs and images."""

from __future__ import annotations

import argparse
import json
import sys

from nodecache import __version__
from nodecache.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = ("export", "import", "run", "status", "warm")


def main(words: Sequence[str]) -> int:
    """Run one of :data:`COMMANDS`; of another command say what it needs."""
    named = next((word for word in words if not word.startswith("-")), None)
    if named is not None and named not in COMMANDS:
        said = printable(named)
        sys.stderr.write(f"nodecache: {said} needs click and rich. Install them: pip install 'nodecache[cli]'\n")
        return 2
    parser = argparse.ArgumentParser(
        prog="nodecache",
        description="Build native Python extensions once per node.",
        epilog="More commands come with: pip install 'nodecache[cli]'",
    )
    parser.add_argument("--version", action="version", version=f"nodecache {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="builds going on now, and whether their builders live")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    warm = commands.add_parser("warm", help="build before the job")
    warm.add_argument("targets", nargs="*", metavar="TARGET", help="a source file, or package.module:function")
    warm.add_argument("--project", default="pyproject.toml", help="where targets are declared")
    export = commands.add_parser("export", help="write entries into an archive")
    export.add_argument("archive", metavar="ARCHIVE")
    export.add_argument("keys", nargs="*", metavar="KEY", help="keys or names; all without")
    imported = commands.add_parser("import", help="publish the entries of an archive")
    imported.add_argument("archive", metavar="ARCHIVE")
    run = commands.add_parser("run", help="run a program with torch's JIT builds going through nodecache")
    given = parser.parse_args(words)
    if given.command == "status":
        return show_status(as_json=given.json)
    if given.command == "warm":
        from nodecache.warm import command

        return command(given.targets, given.project)
    if given.command == "export":
        from nodecache.carry import export_command

        return export_command(given.archive, given.keys)
    if given.command == "import":
        from nodecache.carry import import_command

        return import_command(given.archive)
    run.print_usage(sys.stderr)
    sys.stderr.write("nodecache run: name a program, or -m and a module\n")
    return 2


def show_status(*, as_json: bool) -> int:
    """``nodecache status``; returns its exit status."""
    from nodecache.contents import find_root, root_path
    from nodecache.status import builds, exit_status, record, text
    from nodecache.tables import width

    root = find_root()
    path = root.path if root else root_path()
    found = builds(root) if root else []
    said = json.dumps(record(found, path), indent=1) if as_json else text(found, path, width())
    sys.stdout.write(f"{printable(said)}\n")
    return exit_status(found)
