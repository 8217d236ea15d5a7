"""Just enough of ELF to say whether a shared object fits this machine and has its init function.

Source: System V ABI, chapter "Object Files" (header, section header, symbol table layouts); Linux
Standard Base, chapter "Symbol Versioning".
"""

from __future__ import annotations

import struct

_ET_DYN = 3
_SHT_DYNSYM = 11
_SHT_VERNEED = 0x6FFFFFFE


def fault(path: str, symbol: str | None) -> str | None:
    """What is wrong with a shared object, or None.

    Args:
        path: the file.
        symbol: a function that it must define and export, or None.
    """
    with open(path, "rb") as file:
        data = file.read()
    if not data:
        return "it is empty"
    if data[:4] != b"\x7fELF":
        return "it is no ELF file"
    here = _own_header()
    if here and (data[4:6] != here[4:6] or data[18:20] != here[18:20]):
        return "it is built for another machine than this"
    order = "<" if data[5] == 1 else ">"
    try:
        if struct.unpack_from(f"{order}H", data, 16)[0] != _ET_DYN:
            return "it is no shared object"
        exported = _exported(data, order) if symbol is not None else None
        if exported is not None and symbol is not None and symbol.encode() not in exported:
            return f"it does not export {symbol}"
    except (struct.error, IndexError, ValueError, OverflowError):
        return "it is cut short"
    return None


def _own_header() -> bytes:
    """The ELF header of the running interpreter; empty where ``/proc`` is not there."""
    try:
        with open("/proc/self/exe", "rb") as file:
            return file.read(64)
    except OSError:
        return b""


def library_of_version(path: str, version: str) -> str | None:
    """The library from which a shared object wants a symbol version, such as ``libstdc++.so.6``; None if not told."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        order = "<" if data[5:6] == b"\x01" else ">"
        headers = _sections(data, order)
        for header in headers:
            if header[1] != _SHT_VERNEED:
                continue
            strings = headers[header[6]][4]
            offset = header[4]
            for _ in range(header[7]):
                _, count, library, aux, following = struct.unpack_from(f"{order}HHIII", data, offset)
                at = offset + aux
                for _ in range(count):
                    _, _, _, name, step = struct.unpack_from(f"{order}IHHII", data, at)
                    if _string(data, strings + name) == version.encode():
                        return _string(data, strings + library).decode()
                    at += step
                offset += following
    except (OSError, struct.error, IndexError, ValueError, OverflowError):
        return None
    return None


def _string(data: bytes, start: int) -> bytes:
    return data[start : data.index(b"\0", start)]


def _sections(data: bytes, order: str) -> list[tuple[int, ...]]:
    """The section headers; none where a linker left them out."""
    if data[4] == 2:
        (table,) = struct.unpack_from(f"{order}Q", data, 40)
        size, count = struct.unpack_from(f"{order}HH", data, 58)
        section = f"{order}IIQQQQIIQQ"
    else:
        (table,) = struct.unpack_from(f"{order}I", data, 32)
        size, count = struct.unpack_from(f"{order}HH", data, 46)
        section = f"{order}10I"
    return [struct.unpack_from(section, data, table + number * size) for number in range(count)]


def _exported(data: bytes, order: str) -> set[bytes] | None:
    """Names of the symbols that are defined and dynamic; None where a linker left the section table out."""
    headers = _sections(data, order)
    if not headers:
        return None
    wide = data[4] == 2
    symbol = f"{order}IBBHQQ" if wide else f"{order}IIIBBH"
    names: set[bytes] = set()
    for header in headers:
        if header[1] != _SHT_DYNSYM:
            continue
        strings = headers[header[6]][4]
        step = struct.calcsize(symbol)
        if header[4] + header[5] > len(data):
            raise ValueError("symbol table beyond the end")
        for offset in range(header[4], header[4] + header[5], step):
            fields = struct.unpack_from(symbol, data, offset)
            home = fields[3] if wide else fields[5]
            if home != 0:
                names.add(_string(data, strings + fields[0]))
    return names
