"""The command line's full set of commands, on click. Each is thin: it asks a module of its own, and prints."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from nodecache import __version__, contents, tables
from nodecache.errors import NodecacheError, SpecError
from nodecache.printable import printable
from nodecache.root import VARIABLE

if TYPE_CHECKING:
    from nodecache.root import Root

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _say(text: str) -> None:
    click.echo(printable(text))


def _say_json(what: object) -> None:
    click.echo(json.dumps(what, indent=1))


def _root() -> Root:
    """The root; an error where there is none yet."""
    root = contents.find_root()
    if root is None:
        raise SpecError(
            f"There is no root at {contents.root_path()}: nothing has been built. Build something, or set {VARIABLE}."
        )
    return root


def _complete_key(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Keys and names that begin so, for the shell's completion."""
    try:
        held = contents.entries(_root())
    except NodecacheError:
        return []
    words = dict.fromkeys([each.name for each in held] + [each.key for each in held])
    return [word for word in words if word.startswith(begun)]


_KEY = click.argument("key", shell_complete=_complete_key)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 all is well; 1 something is wrong, as the command says; 2 a wrong call, or an error.",
)
@click.version_option(__version__, prog_name="nodecache", message="%(prog)s %(version)s")
def app() -> None:
    """Build native Python extensions once per node.

    A key may be shortened to its first digits, or be a name: then its most recently used entry is meant.

    \b
    A job seems to hang:       nodecache status
    A build failed:            nodecache log NAME
    It was built again, why?   nodecache explain NAME
    Will it work here?         nodecache doctor
    Build before the job:      nodecache warm csrc/fast.cpp
    """


@app.command(short_help="The builds going on now, and who waits.")
@_AS_JSON
@click.option("--watch", is_flag=True, help="Go on showing it, until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between two looks of --watch.",
)
def status(as_json: bool, watch: bool, interval: float) -> int:
    """Show the builds going on now: who, for how long, how far, who waits.

    Exit status: 0 when nothing is built, or all builders run; 1 when one is dead (its lease is free: nothing to
    delete); 3 when none is dead, but one is stopped, or cannot be seen from here.

    \b
    nodecache status --watch
    nodecache status --json | jq '.builds[].step'
    nodecache status --json --watch        # one document a line
    """
    from nodecache.status import builds, exit_status, record, text

    if not watch:
        return show_status(as_json=as_json)
    if math.isnan(interval):  # which no range keeps out
        raise click.BadParameter("nan is no time.", param_hint="'--interval'")
    # An exception in the midst of a look could be lost in whatever it looks with; a flag cannot.
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    code = 0
    try:
        with _screen() as show:
            while not interrupted.is_set():
                root = contents.find_root()
                found = builds(root) if root else []
                code = exit_status(found)
                if as_json:
                    click.echo(json.dumps(record(found, contents.root_path())))
                    sys.stdout.flush()
                else:
                    show(f"{time.strftime('%H:%M:%S')}  {text(found, contents.root_path(), tables.width())}")
                interrupted.wait(interval)
    finally:
        signal.signal(signal.SIGINT, before)
    return code


def show_status(*, as_json: bool) -> int:
    """``nodecache status``, which needs neither click nor rich."""
    from nodecache.plain import show_status

    return show_status(as_json=as_json)


class _screen:  # noqa: N801  # used as a function
    """Shows a changing text: on a terminal in place, in a pipe anew when more than the times in it have changed."""

    def __enter__(self) -> Any:
        self._last = ""
        if not sys.stdout.isatty():
            return self._print
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._live = Live(console=Console(highlight=False), auto_refresh=False)
        self._live.start()
        return lambda text: self._live.update(Text(printable(text)), refresh=True)

    def _print(self, text: str) -> None:
        import re

        same = re.sub(r"\d\d:\d\d:\d\d|\d+ s\b", "", text)
        if same != self._last:
            _say(text)
            sys.stdout.flush()
        self._last = same

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_live"):
            self._live.stop()


@app.command(name="list", short_help="The entries.")
@_AS_JSON
@click.option("--full", is_flag=True, help="Print whole keys.")
def list_(as_json: bool, full: bool) -> None:
    """List the entries, the most recently used first. Uses are noted once a day.

    \b
    nodecache list
    nodecache list --json | jq -r '.[].key'
    """
    root = contents.find_root()
    held = contents.entries(root) if root else []
    if as_json:
        _say_json([_entry_record(each) for each in held])
        return
    if not held:
        _say(f"There are no entries in {contents.root_path()}.")
        return
    tables.show(
        ["key", "name", "kind", "size>", "built", "used"],
        [
            [
                each.key if full else each.key[:12],
                each.name or "(damaged)",
                each.kind,
                tables.size(each.size),
                tables.when(each.built)[:16],
                tables.ago(each.used),
            ]
            for each in held
        ],
    )


def _entry_record(held: contents.Held) -> dict[str, Any]:
    return {name: value for name, value in held._asdict().items() if name != "manifest"}


@app.command(short_help="What is known of an entry.")
@_KEY
@_AS_JSON
def show(key: str, as_json: bool) -> None:
    """Show what is known of an entry: who built it, how long that took, its files.

    \b
    nodecache show fast
    """
    held = contents.find_entry(_root(), key)
    if as_json:
        _say_json({**_entry_record(held), "manifest": held.manifest})
        return
    said = held.manifest
    builder = said.get("builder", {})
    rank = "" if builder.get("rank") is None else f" (rank {builder['rank']})"
    lines = [
        ("name", held.name or "(its manifest is damaged; the next call that needs it builds it anew)"),
        ("key", held.key),
        ("recipe", held.recipe),
        ("kind", held.kind),
        ("built", f"{tables.when(held.built)}, in {said.get('seconds', 0.0):.2f} s"),
        ("builder", f"pid {builder.get('pid')}{rank} on {builder.get('host')}"),
        ("used", tables.ago(held.used)),
        ("folder", held.path),
        *(("file", f"{name}, {tables.size(about['size'])}") for name, about in said.get("files", {}).items()),
        *(
            ("step", f"{step['step']}, {(step['end_ms'] - step['start_ms']) / 1000:.2f} s")
            for step in said.get("steps", [])
        ),
    ]
    for name, value in lines:
        _say(f"{name:8} {value}")


@app.command(short_help="The log of a build.")
@_KEY
@click.option("--path", "path_only", is_flag=True, help="Print only where the log is.")
def log(key: str, path_only: bool) -> None:
    """Print the log of a build: a running one, else the last, whether it failed or not.

    KEY may also be the id of an attempt, as in a failure's message.

    \b
    nodecache log fast
    less "$(nodecache log fast --path)"
    """
    from nodecache.history import find_log

    path = find_log(_root(), key)
    if path_only:
        _say(path)
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        click.echo(printable(file.read()), nl=False)


@app.command(short_help="What went into a key; why it was built again.")
@click.argument("key", shell_complete=_complete_key)
@click.argument("other", required=False, shell_complete=_complete_key)
def explain(key: str, other: str | None) -> None:
    """Say what went into a key, and what differs from another: why was it built again?

    Without OTHER it is compared with the entry of the same name that differs least.

    \b
    nodecache explain fast
    nodecache explain 3f2a 9c01
    """
    import nodecache

    root = _root()
    mine = contents.find_entry(root, key).key
    _say(str(nodecache.explain(mine, contents.find_entry(root, other).key if other else None)))


@app.command(short_help="Sums of builds, waits and space.")
@_AS_JSON
def stats(as_json: bool) -> None:
    """Sum up builds, waits and space.

    Hits are only counted in processes that have NODECACHE_STATS set: without it a hit writes nothing.
    """
    from nodecache.history import events, sums

    root = contents.find_root()
    total = sums(events(root), contents.entries(root)) if root else sums([], [])
    if as_json:
        _say_json(total._asdict())
        return
    hits = "not recorded (set NODECACHE_STATS=1 in the job)" if total.hits is None else str(total.hits)
    for name, value in (
        ("builds", str(total.builds)),
        ("failures", str(total.failures)),
        ("time built", f"{total.seconds_built:.1f} s"),
        ("waits", str(total.waits)),
        ("time waited", f"{total.seconds_waited:.1f} s"),
        ("hits", hits),
        ("saved", f"{total.seconds_saved:.1f} s of building that others did not have to do"),
        ("entries", f"{total.entries}, {tables.size(total.bytes)}"),
    ):
        _say(f"{name:12} {value}")


@app.command(short_help="Builds and waits so far.")
@_AS_JSON
@click.option("--limit", default=20, show_default=True, help="Events to show, the newest; 0 for all.")
def history(as_json: bool, limit: int) -> None:
    """List builds and waits, the newest last."""
    from nodecache.history import events

    root = contents.find_root()
    found = events(root) if root else []
    found = found[-limit:] if limit > 0 else found
    if as_json:
        _say_json([event._asdict() for event in found])
        return
    if not found:
        _say(f"Nothing has been built in {contents.root_path()}.")
        return
    tables.show(
        ["began", "what", "name", "outcome", "seconds>", "who"],
        [
            [tables.when(event.started)[5:], event.event, event.name, event.outcome, f"{event.seconds:.2f}", event.who]
            for event in found
        ],
    )


@app.command(name="warm", short_help="Build before the job.")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--project", default="pyproject.toml", show_default=True, help="Where targets are declared.")
def warm_(targets: tuple[str, ...], project: str) -> int:
    """Build before the job: in an image, in a prolog, on a login node. No GPU is needed.

    A TARGET is a source file, or a function as package.module:function. Without any, what pyproject.toml declares
    under [tool.nodecache] is built. For CUDA without a GPU, set TORCH_CUDA_ARCH_LIST.

    Exit status: 0; 1 when a target failed (the others are built all the same).

    \b
    nodecache warm csrc/fast.cpp
    nodecache warm nodecache.megatron:compile_helper
    nodecache warm
    """
    from nodecache.warm import command

    return command(targets, project)


@app.command(name="doctor", short_help="Whether this node can build and load.")
@_AS_JSON
def doctor_(as_json: bool) -> int:
    """Look whether this node can build and load: tools, headers, root, locks. Nothing is built.

    Exit status: 0; 1 when something is wrong.
    """
    from nodecache.doctor import WRONG, exit_status, findings

    found = findings()
    if as_json:
        _say_json([finding._asdict() for finding in found])
        return exit_status(found)
    width = max(len(finding.check) for finding in found)
    for finding in found:
        colour = {"wrong": "red", "note": "yellow"}.get(finding.level, "green")
        said = tables.wrapped(finding.says, width + 9)
        _say(f"{click.style(f'{finding.level:5}', fg=colour)}  {finding.check:{width}}  {said}")
        if finding.remedy:
            _say(f"{'':7}{'':{width}}  -> {tables.wrapped(finding.remedy, width + 12)}")
    wrong = sum(finding.level == WRONG for finding in found)
    _say("All is well." if not wrong else f"{wrong} wrong.")
    return exit_status(found)


@app.command(name="prune", short_help="Remove entries, the longest unused first.")
@click.option("--max-size", metavar="SIZE", help="Remove the least recently used until no more than this stays (5GB).")
@click.option("--older-than", metavar="AGE", help="Remove what was last used longer ago (30d, 12h).")
@click.option("--all", "everything", is_flag=True, help="Remove all entries.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune_(max_size: str | None, older_than: str | None, everything: bool, dry_run: bool) -> int:
    """Remove entries, the least recently used first. Safe while jobs run.

    What is being built stays, and so does a folder that a living process got from get_or_build; what is loaded goes on
    working. NODECACHE_MAX_SIZE=5GB, set in a job, keeps to a
    limit after each build.

    Exit status: 0; 1 when entries stayed because they are being built or in use.

    \b
    nodecache prune --older-than 30d
    nodecache prune --max-size 5GB --dry-run
    """
    from nodecache.prune import parse_age, parse_size, prune

    if max_size is None and older_than is None and not everything:
        raise click.UsageError("Say what may go: --max-size, --older-than or --all.")
    size = None if max_size is None else parse_size(max_size, "--max-size")
    age = None if older_than is None else parse_age(older_than, "--older-than")
    root = contents.find_root()
    if root is None:
        _say(f"There is no root at {contents.root_path()}: nothing to prune.")
        return 0
    done = prune(root, max_size=size, older_than=age, everything=everything, dry_run=dry_run)
    for held in done.removed:
        _say(f"{'would remove' if dry_run else 'removed'} {held.key[:12]} {held.name} ({tables.size(held.size)})")
    for held, reason in done.busy:
        _say(f"kept {held.key[:12]} {held.name}: {reason}")
    gone = f"{tables.count(len(done.removed), 'entry')}, {tables.size(done.freed)}"
    _say(
        f"{gone} {'would go' if dry_run else 'removed'}; "
        f"{tables.size(done.kept)} {'would stay' if dry_run else 'stay'} in {root.path}"
    )
    return 1 if done.busy else 0


@app.command(short_help="Check every digest.")
@click.argument("keys", nargs=-1, metavar="[KEY]...", shell_complete=_complete_key)
def verify(keys: tuple[str, ...]) -> int:
    """Check every digest of entries; without a KEY, of all.

    Exit status: 0; 1 when one is damaged. The next call that needs it builds it anew.
    """
    from nodecache.entry import damage

    root = contents.find_root()
    held = [contents.find_entry(_root(), key) for key in keys] or (contents.entries(root) if root else [])
    wrong = 0
    for each in held:
        fault = damage(each.path, each.key)
        if fault is not None:
            wrong += 1
            _say(f"{each.key[:12]} {each.name}: {fault}. The next call that needs it builds it anew.")
    _say(f"{tables.count(len(held), 'entry')} checked, {wrong} damaged.")
    return 1 if wrong else 0


@app.command(name="export", short_help="Write entries into an archive.")
@click.argument("archive", type=click.Path(dir_okay=False))
@click.argument("keys", nargs=-1, metavar="[KEY]...", shell_complete=_complete_key)
def export_(archive: str, keys: tuple[str, ...]) -> int:
    """Write entries into an archive, for another node or an image; without a KEY, all.

    \b
    nodecache export kernels.tar fast
    """
    from nodecache.carry import export_command

    return export_command(archive, keys)


@app.command(name="import", short_help="Take the entries of an archive.")
@click.argument("archive", type=click.Path(dir_okay=False))
def import_(archive: str) -> int:
    """Publish the entries of an archive, as if they had been built here. Works in a bare install, too.

    Their code will run in your jobs: import only what comes from a place that you would run programs from.

    \b
    nodecache import kernels.tar
    """
    from nodecache.carry import import_command

    return import_command(archive)


@app.command(name="trace", short_help="A build as a trace for Perfetto.")
@_KEY
@click.option("--output", "-o", metavar="FILE", help="Where to write it; stdout without.")
def trace_(key: str, output: str | None) -> None:
    """Write a build, its steps and its waiters as a trace for ui.perfetto.dev or chrome://tracing.

    \b
    nodecache trace fast -o fast.json
    """
    from nodecache.history import events
    from nodecache.trace import trace

    root = _root()
    text = json.dumps(trace(contents.find_entry(root, key), events(root)), indent=1)
    _write(output, text + "\n")


@app.command(name="report", short_help="An HTML page with the timelines of builds.")
@click.option("--output", "-o", metavar="FILE", help="Where to write it; stdout without.")
@click.option("--since", metavar="AGE", help="Only what began since then (2h, 7d).")
def report_(output: str | None, since: str | None) -> None:
    """Write one self-contained HTML page with the timelines of builds and waits.

    \b
    nodecache report -o report.html
    """
    from nodecache.history import events
    from nodecache.launchers import node
    from nodecache.prune import parse_age
    from nodecache.report import page

    earliest = time.time() - parse_age(since, "--since") if since is not None else 0.0
    root = contents.find_root()
    found = [event for event in events(root) if event.started >= earliest] if root else []
    held = contents.entries(root) if root else []
    _write(output, page(found, held, root=contents.root_path(), host=node().hostname))


def _write(output: str | None, text: str) -> None:
    if output is None:
        click.echo(printable(text), nl=False)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(printable(text))
    except OSError as error:
        raise SpecError(f"{output} cannot be written: {error.strerror}. Choose another place.") from error
    click.echo(printable(f"wrote {output}"), err=True)


@app.command(
    name="run",
    short_help="Run a program with torch's builds in here.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("program", nargs=-1, metavar="PROGRAM [ARGUMENT]...")
def run_(module: str | None, program: tuple[str, ...]) -> None:
    """Run a program with torch's JIT builds going through nodecache.

    \b
    nodecache run train.py --epochs 3
    torchrun --no-python --nproc-per-node=8 nodecache run train.py
    """
    # With a program, __main__ runs it before click is imported.
    del module, program
    raise click.UsageError("Name a program, or -m and a module.")


@app.command(short_help="The script for a shell's completion.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, options and keys.

    \b
    eval "$(nodecache completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click knows no completion for {shell}.")
    _say(found(app, {}, "nodecache", "_NODECACHE_COMPLETE").source())


def main(arguments: list[str]) -> int:
    """Run a command; returns its exit status."""
    try:
        code = app.main(arguments, prog_name="nodecache", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0
