"""For mkdocs: puts each command's ``--help`` into the page of the commands, as a user sees it."""

from __future__ import annotations

import click

from nodecache.cli import app

MARK = "<!-- the help of each command -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill the mark."""
    return markdown.replace(MARK, "\n".join(_help())) if MARK in markdown else markdown


def _help() -> list[str]:
    above = click.Context(app, info_name="nodecache", max_content_width=80, terminal_width=80)
    lines = []
    for name, command in sorted(app.commands.items()):
        context = click.Context(command, info_name=name, parent=above, max_content_width=80, terminal_width=80)
        lines += [f"## nodecache {name}", "", "```text", command.get_help(context), "```", ""]
    return lines
