"""Printable text: what was read from a file, the environment or a tool, made safe for a terminal.

Whoever can write a compiler's output, a host's name or a manifest could otherwise move the cursor, change the title, or
hide text. Every exception, log record, table and command passes through here.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import TextIO

# Colours, erased line ends and links, as compilers write them: without these the text is the same.
_DECORATION = re.compile(r"\x1b\[[0-9;:]*[mK]|\x1b\]8;[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)")
# C0 and C1 controls but tab and line feed, separators of lines and paragraphs, what turns the direction of writing,
# invisible tags, and bytes that could not be decoded.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""The text without decoration, and with every other control character as an escape that can be read.

    Tabs and line feeds stay. A byte that could not be decoded becomes ``\xNN``, so the result can be encoded.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, _DECORATION.sub("", text).replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The same as one line, for a cell or a label."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:  # how Python keeps a byte that it could not decode
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def encodable(text: str, stream: TextIO) -> str:
    """The text with an escape for each character that the stream's encoding lacks: printing it cannot fail."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def logger() -> logging.Logger:
    """The logger ``nodecache``; whatever handles its records gets printable text."""
    import logging

    found = logging.getLogger("nodecache")
    if _clean not in found.filters:
        found.addFilter(_clean)
    return found


def _clean(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    clean = printable(said)
    if clean != said:
        record.msg, record.args = clean, None
    return True
