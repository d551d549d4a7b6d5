"""Reads back what `emmy.ir.show_tensor.show_tensor` prints: the rows, broadcasts as index maps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from emmy.ir.dtype import DTYPES
from emmy.ir.infix import (
    Scope,
    parse_number,
    read_expr,
    read_list,
    read_name,
    read_path,
    read_string,
    read_tensor,
    reader,
)
from emmy.ir.loop import FOLD_KINDS, Expr, Tensor, ax
from emmy.ir.parse import Reader, index_text
from emmy.ir.scalar import SCALAR
from emmy.ir.show_tensor import SOURCE_LETTER, SYMBOLS, TensorRow, letter, slot_names
from emmy.ir.tensor import PRIMITIVES, SIGNATURES, axes_text, coordinates

_NAMES: Final = {symbol: name for name, symbol in SYMBOLS.items()}
_FACTORS: Final = re.compile(r"// of (\w+) products")
Made = tuple[str, tuple[object, ...], tuple[str, ...]]  # kind, plain arguments, operands as they are spelt


def parse_rows(text: str, given: Mapping[str, Tensor]) -> list[TensorRow]:
    """The rows that print as `text`; `given` are the types of the names that it does not define (inputs …).

    ParseError says what was found and where.
    """
    r = reader(text, "Tensor IR", keep="of ")
    types = dict(given)
    rows: list[TensorRow] = []
    while r.peek:
        row = _Row(r, types).read()
        types[row.name] = row.tensor
        rows.append(row)
    return rows


class _Row:
    def __init__(self, r: Reader, types: Mapping[str, Tensor]) -> None:
        self.r, self.types = r, types

    def read(self) -> TensorRow:
        self.r.expect("let")
        name = read_name(self.r)
        self.r.expect(":")
        self.tensor = read_tensor(self.r)
        self.r.expect("=")
        kind, args, operands = self.value()
        self.r.expect(";")
        if kind == "Reduce" and (match := _FACTORS.fullmatch(self.r.peek)):
            self.r.next()
            args = (f"{args[0]}:{match[1]}", *args[1:])
        return TensorRow(name, self.tensor, kind, args, tuple(self.typed(o) for o in operands))

    def typed(self, spelt: str) -> tuple[str, Tensor]:
        number = parse_number(spelt)
        if number is not None:
            return number[0], Tensor(number[1], ())
        if spelt not in self.types:
            raise self.r.fail(f"nothing defines {spelt!r}")
        return spelt, self.types[spelt]

    def value(self) -> Made:
        head = read_path(self.r)
        if self.r.peek == "(":
            return self.applied(head)
        if self.r.peek == ";":
            return self.full(head)
        symbol = self.r.next()
        if symbol == "as":
            return "As", (self.dtype(),), (head,)
        if symbol not in _NAMES:
            self.r.at -= 1
            raise self.r.fail(f"expected an operation, found {symbol!r}")
        return "Bin", (_NAMES[symbol],), (head, read_path(self.r))

    def full(self, text: str) -> Made:
        number = parse_number(text)
        if number is None:
            raise self.r.fail(f"{text!r} is no number")
        return "Full", number, ()

    def dtype(self) -> str:
        name = self.r.next()
        if name not in DTYPES:
            raise self.r.fail(f"unknown type {name!r}")
        return name

    def applied(self, head: str) -> Made:
        space, _, name = head.rpartition("::")
        if space == "torch":
            return self.whole(name)
        if space == "emmy":
            return self.access(name)
        self.r.expect("(")
        made = self.simple(head)
        self.r.expect(")")
        return made

    def simple(self, head: str) -> Made:
        if head == "weak":
            return "Full", (self.r.next(), "weak"), ()
        first = read_path(self.r)
        if head == "cast":
            self.r.expect(",")
            return "Cast", (self.dtype(),), (first,)
        rest: list[str] = []
        while self.r.peek == ",":
            self.r.next()
            if self.r.peek == "axis":
                return self.folded(head, first)
            rest.append(read_path(self.r))
        if head == "where" and len(rest) == 2:
            return "Where", (), (first, *rest)
        if head not in SCALAR or SCALAR[head].arity != len(rest) + 1 or len(rest) > 1:
            raise self.r.fail(f"there is no operation {head!r} of {len(rest) + 1} operands")
        return ("Bin" if rest else "Un"), (head,), (first, *rest)

    def folded(self, head: str, operand: str) -> Made:
        self.r.next()
        self.r.expect("=")
        axes = read_list(self.r, "[", "]", self.whole_number) if self.r.peek == "[" else [self.whole_number()]
        kind = head.removeprefix("scan_")
        if kind not in FOLD_KINDS:
            raise self.r.fail(f"unknown fold {kind!r}")
        if kind != head:
            return "Scan", (kind, axes[0]), (operand,)
        return "Reduce", (kind, axes_text([a + len(self.tensor.shape) for a in axes])), (operand,)

    def whole_number(self) -> int:
        token = self.r.next()
        if not re.fullmatch(r"-?\d+", token):
            raise self.r.fail(f"expected a whole number, found {token!r}")
        return int(token)

    # ---- access

    def access(self, name: str) -> Made:
        self.r.expect("(")
        if name == "iota":
            self.parameters()
            made: Made = "Iota", (read_expr(self.r, Scope(self.axes())).text, self.tensor.dtype), ()
        elif name in ("index_map_simple", "gather"):
            made = self.mapped(name)
        elif name.startswith("scatter_"):
            made = self.scattered(name.removeprefix("scatter_"))
        else:
            raise self.r.fail(f"there is no emmy::{name}")
        self.r.expect(")")
        return made

    def axes(self) -> dict[str, Expr]:
        return {letter(i): a for i, a in enumerate(coordinates(self.tensor.shape))}

    def parameters(self) -> None:
        """The names of the coordinates, which follow from the rank; an unused one begins with `_`."""
        if self.r.peek == "||" and not self.tensor.shape:
            self.r.next()
            return
        self.r.expect("|")
        for i in range(len(self.tensor.shape)):
            if i:
                self.r.expect(",")
            self.r.expect(letter(i) if self.r.peek == letter(i) else f"_{letter(i)}")
        self.r.expect("|")

    def operands(self) -> list[str]:
        """Paths up to a closure or an axis, each with a comma behind it."""
        found: list[str] = []
        while self.r.peek not in ("|", "||", SOURCE_LETTER):
            found.append(read_path(self.r))
            self.r.expect(",")
        return found

    def slots(self, operands: list[str]) -> dict[str, tuple[int, Tensor]]:
        return {s: (int(k), self.typed(operands[int(k) - 1])[1]) for k, s in slot_names(operands).items()}

    def index(self, scope: Scope) -> str:
        return index_text(tuple(read_list(self.r, "[", "]", lambda: read_expr(self.r, scope))))

    def mapped(self, name: str) -> Made:
        operands = self.operands()
        self.parameters()
        index = self.index(Scope(self.axes(), self.slots(operands[1:])))
        if name == "gather":
            return f"Gather{len(operands) - 1}", (index,), tuple(operands)
        fill = ""
        if self.r.peek == ",":
            for word in (",", "fill", "="):
                self.r.expect(word)
            fill = self.r.next()
        return "Map", (index, fill), tuple(operands)

    def scattered(self, mode: str) -> Made:
        operands = self.operands()
        for word in (SOURCE_LETTER, "in"):
            self.r.expect(word)
        extent = read_expr(self.r, Scope())
        self.r.expect(",")
        self.parameters()
        scope = Scope({**self.axes(), SOURCE_LETTER: ax("j", extent)}, self.slots(operands[1:-1]))
        condition = read_expr(self.r, scope).text
        self.r.expect(",")
        args = (mode, extent.text, condition, self.index(scope))
        return f"Scatter{len(operands) - 2}", args, tuple(operands)

    # ---- operations that are still whole

    def whole(self, kind: str) -> Made:
        if kind not in SIGNATURES or kind in PRIMITIVES:
            raise self.r.fail(f"there is no torch::{kind}")
        args: list[object] = []
        operands: list[str] = []
        self.r.expect("(")
        for k, letters in enumerate(SIGNATURES[kind]):
            if k:
                self.r.expect(",")
            if letters == "t":
                operands.append(read_path(self.r))
            elif letters == "s":
                args.append(read_string(self.r))
            elif letters == "n":
                args.append(self.whole_number())
            else:
                args.append(tuple(read_list(self.r, "[", "]", lambda: read_expr(self.r, Scope()))))
        self.r.expect(")")
        return kind, tuple(args), tuple(operands)
