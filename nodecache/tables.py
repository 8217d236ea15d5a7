"""Tables: columns for people. On a terminal drawn by rich; in a pipe plain, aligned, and nothing cut."""

from __future__ import annotations

import os
import sys
import time

from nodecache.printable import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def show(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout. A header that ends in ``>`` is of a column that is aligned to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    right = [header.endswith(">") for header in headers]
    names = [header.removesuffix(">") for header in headers]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for number, name in enumerate(names):
            table.add_column(
                name,
                justify="right" if right[number] else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=min(max(len(row[number]) for row in [names, *rows]), 12),
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    for line in [names, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def count(number: int, what: str) -> str:
    """``1 entry``, ``2 entries``."""
    many = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number} {what if number == 1 else many}"


def size(number: int) -> str:
    """Bytes for people: ``17.3 KiB``."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def when(moment: float) -> str:
    """A time in this place's clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def width() -> int | None:
    """Columns of the terminal that stdout is, or None where it is none: then nothing is cut."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def wrapped(text: str, indent: int) -> str:
    """Text that goes on below itself where it is longer than the terminal; no word is broken."""
    import textwrap

    columns = width()
    if columns is None or columns < indent + 20:
        return text
    lines = textwrap.wrap(text, columns - indent, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def ago(moment: float) -> str:
    """How long ago, roughly: ``3 h ago``; uses are noted to the day."""
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"
