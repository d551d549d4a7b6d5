"""What a cubin says of its kernels: registers, stack and static shared memory, read from the ELF file itself.

The assembler's verbose log is written by all threads of a process and may miss entries when several compile at once;
the machine code cannot.  Layout: ELF64 (System V ABI); `.text.<entry>` holds an entry's code, `.nv.shared.<entry>` its
static shared memory, `.nv.info` attributes of symbols as (format, attribute, size, payload), of which EIATTR_REGCOUNT
(0x2f) and EIATTR_FRAME_SIZE (0x11) carry a symbol's number and a value (as `cuobjdump -elf` prints them).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_SVAL: Final = 0x04
_REGISTERS: Final = 0x2F
_FRAME: Final = 0x11


@dataclass(frozen=True, slots=True)
class Entry:
    """`registers` a thread, `stack` bytes of local memory a thread, `shared` bytes of static shared memory a block."""

    registers: int
    stack: int
    shared: int


def entries(cubin: bytes) -> dict[str, Entry]:
    """The kernels of a cubin by name; empty for bytes that are no ELF64 file."""
    if len(cubin) < 64 or cubin[:5] != b"\x7fELF\x02":
        return {}
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    registers, stack = (_attribute(cubin, sections, symbols, a) for a in (_REGISTERS, _FRAME))
    shared = {n.removeprefix(".nv.shared."): size for n, _, size, _ in sections if n.startswith(".nv.shared.")}
    names = [n.removeprefix(".text.") for n, *_ in sections if n.startswith(".text.")]
    return {n: Entry(registers.get(n, 0), stack.get(n, 0), shared.get(n, 0)) for n in names}


Section = tuple[str, int, int, int]  # name, offset, size, size of an item


def _sections(cubin: bytes) -> list[Section]:
    at, size, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(count)]
    table = heads[names][4]
    return [(_name(cubin, table + h[0]), h[4], h[5], h[9]) for h in heads]


def _symbols(cubin: bytes, sections: list[Section]) -> list[str]:
    by_name = {s[0]: s for s in sections}
    if ".symtab" not in by_name or ".strtab" not in by_name:
        return []
    _, at, size, item = by_name[".symtab"]
    text = by_name[".strtab"][1]
    return [_name(cubin, text + struct.unpack_from("<I", cubin, at + k)[0]) for k in range(0, size, item or 24)]


def _attribute(cubin: bytes, sections: list[Section], symbols: list[str], wanted: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, at, size, _ in (s for s in sections if s[0] == ".nv.info"):
        end = at + size
        while at + 4 <= end:
            form, attribute, length = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form != _SVAL:
                continue
            if attribute == wanted and length >= 8:
                symbol, value = struct.unpack_from("<II", cubin, at)
                if symbol < len(symbols):
                    found[symbols[symbol]] = value
            at += length
    return found


def _name(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()
