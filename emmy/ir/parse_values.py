"""Reads back the values and places of Kernel IR that `emmy.ir.show_values` prints.

::

    value   = operand | operand op operand | operand "?" operand ":" operand
    operand = number | name | name "[" value "]" | builtin | word "(" value {, value} ")" ["_" type]
            | type "(" value ")" | ("-" | "!" | "~") operand | "(" value ")" ["_" type]
    place   = name "[" value {, value} "]" ["of block" operand]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from emmy.ir.infix import read_list, read_name
from emmy.ir.kernel.memory import Buffer, Place
from emmy.ir.kernel.types import (
    OPERATORS,
    is_float,
    literal_only,
    literal_type,
    natural,
    operands,
    wants,
    with_operands,
)
from emmy.ir.kernel.values import BYTES, INTRINSICS, Bin, Builtin, Call, Convert, Elem, Lit, Select, Target, Un, Var, X
from emmy.ir.parse import ParseError, Reader
from emmy.ir.scalar import SCALAR
from emmy.ir.show_values import BUILTIN_WORDS

Space = Literal["global", "shared"]
TOKEN: Final = re.compile(
    r"""(?:block|thread)\.[xyz]\b | grid\.x\b | cluster\.rank\b
    | \d+(?=\.\.)                             # the low end of a range
    | \d+(?:\.\d+)?(?:e[+-]?\d+)?(?:_[a-z]\w*)?
    | \+\d+(?=\])                             # how many elements of an array
    | [^\W\d]\w*
    | \.\.|<<|>>|<=|>=|==|!=|&&|\|\||\+=|\*=|-=|\S""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"(?P<value>\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan|true|false)(?:_(?P<type>\w+))?")
_BUILTINS: Final = {word: name for name, word in BUILTIN_WORDS.items()}


class Line(Reader):
    """The tokens of one line; errors say its number and the column."""

    def __init__(self, text: str, number: int, token: re.Pattern[str] = TOKEN) -> None:
        super().__init__(text, token, "Kernel IR")
        self.number = number

    def fail(self, what: str) -> ParseError:
        column = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return ParseError(
            f"not Kernel IR: {what} in line {self.number}, column {column + 1}", f"in `{self.text.strip()}`"
        )

    def fail_before(self, what: str) -> ParseError:
        """The error of the token that was just taken."""
        self.at -= 1
        return self.fail(what)

    def expect(self, token: str) -> None:
        if self.peek != token:
            raise self.fail(f"expected {token!r}, found {self.found}")
        self.at += 1

    def next(self) -> str:
        if not self.peek:
            raise self.fail("the line ends too early")
        return super().next()

    @property
    def found(self) -> str:
        return repr(self.peek) if self.peek else "the end of the line"

    @property
    def ahead(self) -> str:
        """The token behind the next one."""
        return self.tokens[self.at + 1][0] if self.at + 1 < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Takes the words if they come next."""
        if tuple(t for t, _ in self.tokens[self.at : self.at + len(words)]) != words:
            return False
        self.at += len(words)
        return True

    def one_of(self, words: Sequence[str]) -> str:
        if self.peek not in words:
            raise self.fail(f"expected {' or '.join(repr(w) for w in words)}, found {self.found}")
        return self.next()

    def whole(self) -> int:
        if not self.peek.isdecimal():
            raise self.fail(f"expected a whole number, found {self.found}")
        return int(self.next())

    def type(self) -> str:
        if self.peek not in BYTES:
            raise self.fail(f"expected a type, found {self.found}")
        return self.next()

    def end(self) -> None:
        if self.peek in OPERATORS:
            raise self.fail(f"expected brackets around one of two operations, found {self.found}")
        if self.peek:
            raise self.fail(f"expected the end of the line, found {self.found}")


class Values:
    """Reads values; knows the names that were declared so far."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}  # of registers, register arrays and sizes
        self.arrays: set[str] = set()
        self.mutable: set[str] = set()
        self.places: dict[str, tuple[Space, str]] = {}  # operands, results, shared buffers -> space and type
        self.buffers: dict[str, Buffer] = {}
        self.maps: set[str] = set()
        self.rings: set[str] = set()
        self.cursors: set[str] = set()

    # ---- names

    def declare(self, r: Line, name: str, type: str) -> str:
        if name in self.types or name in self.places or name in self.maps or name in self.rings:
            raise r.fail(f"{name} is declared twice")
        self.types[name] = type
        return name

    def known(self, r: Line, names: set[str], kind: str) -> str:
        if r.peek not in names:
            raise r.fail(f"expected a {kind} of the kernel, found {r.found}")
        return r.next()

    # ---- values

    def value(self, r: Line, want: str | None = None) -> X:
        """The next value, whose place asks for the type `want`."""
        return settled(self.expr(r), want)

    def values(self, r: Line, opening: str, closing: str, want: str | None = None) -> tuple[X, ...]:
        return tuple(read_list(r, opening, closing, lambda: self.value(r, want)))

    def commas(self, r: Line, want: str | None = None) -> tuple[X, ...]:
        """Values with commas between them, without brackets around."""
        found = [self.value(r, want)]
        while r.accept(","):
            found.append(self.value(r, want))
        return tuple(found)

    def expr(self, r: Line) -> X:
        """A value whose types that follow from others are still empty."""
        left = self.operand(r)
        if r.accept("?"):
            yes = self.operand(r)
            r.expect(":")
            return Select(left, yes, self.operand(r), "")
        if r.peek not in OPERATORS:
            return left
        return Bin(r.next(), left, self.operand(r), "")

    def operand(self, r: Line) -> X:
        token = r.peek
        if token == "(":
            r.next()
            inner = self.expr(r)
            if r.peek in OPERATORS:
                r.end()
            r.expect(")")
            return self.typed(r, inner)
        if token in ("-", "!", "~"):
            r.next()
            number = self.number(r) if token == "-" else None
            return Lit(-number.value, number.type) if number is not None else Un(token, self.operand(r), "")
        number = self.number(r)
        if number is not None:
            return number
        if token in _BUILTINS or (token == "tid" and token not in self.types):
            r.next()
            return Builtin(_BUILTINS.get(token, "tid"))
        if not token.isidentifier():
            raise r.fail(f"expected a value, found {r.found}")
        return self.applied(r) if r.ahead == "(" else self.register(r)

    def typed(self, r: Line, v: X) -> X:
        """The value with the type that stands behind it, if one does."""
        if not r.peek.startswith("_") or r.peek[1:] not in BYTES:
            return v
        if not isinstance(v, Bin | Un | Select | Call):
            raise r.fail(f"expected no type behind what has one, found {r.found}")
        return replace(v, type=r.next()[1:])

    def number(self, r: Line) -> Lit | None:
        match = _NUMBER.fullmatch(r.peek)
        if match is None or r.peek in self.types:
            return None
        if (match["type"] or "i32") not in BYTES:
            raise r.fail(f"expected a type behind the number, found {match['type']!r}")
        r.next()
        text = match["value"]
        if text in ("true", "false"):
            return Lit(text == "true", match["type"] or "")
        return Lit(int(text) if text.isdecimal() else float(text), match["type"] or "")

    def applied(self, r: Line) -> X:
        name = r.next()
        if name in BYTES:
            r.expect("(")
            inner = self.expr(r)
            r.expect(")")
            return Convert(inner, name)
        if name not in SCALAR and name not in INTRINSICS:
            raise r.fail_before(f"there is no word {name!r}")
        args = tuple(read_list(r, "(", ")", lambda: self.expr(r)))
        if name in SCALAR and SCALAR[name].arity != len(args):
            raise r.fail_before(f"{name} takes {SCALAR[name].arity} operands, found {len(args)}")
        return self.typed(r, Call(name, args, ""))

    def register(self, r: Line) -> Target:
        name = r.next()
        if name in self.places:
            raise r.fail_before(f"{name} is memory, which only a load reads")
        if name not in self.types:
            raise r.fail_before(f"there is no register {name!r} here")
        if name not in self.arrays:
            return Var(name, self.types[name])
        r.expect("[")
        index = self.value(r, "i32")
        r.expect("]")
        return Elem(name, index, self.types[name])

    # ---- places

    def place(self, r: Line) -> Place:
        if r.peek not in self.places:
            raise r.fail(f"expected an operand, result or shared buffer, found {r.found}")
        name = r.next()
        space, type = self.places[name]
        index = self.values(r, "[", "]", "i32")
        rank = settled(self.operand(r), "i32") if r.accept("of", "block") else None
        return Place(space, name, index, type, rank)

    def guard(self, r: Line) -> X | None:
        return self.value(r, "bool") if r.accept("where") else None

    def vector(self, r: Line) -> tuple[str, X, int] | None:
        """Elements of a register array, `acc[at +count]`; None, with nothing taken, for anything else."""
        start = r.at
        if r.peek not in self.arrays:
            return None
        name = read_name(r)
        r.expect("[")
        at = self.value(r, "i32")
        if not re.fullmatch(r"\+\d+", r.peek):
            r.at = start
            return None
        count = int(r.next())
        r.expect("]")
        return name, at, count


def settled(v: X, want: str | None) -> X:
    """The value with the types that follow: those of literals last, which depend on what stands beside them."""
    if isinstance(v, Lit):
        type = v.type or literal_type(v.value, want)
        number = isinstance(v.value, int) and not isinstance(v.value, bool)
        return Lit(float(v.value) if number and is_float(type) else v.value, type)
    parts = operands(v)
    if not parts and not isinstance(v, Call):
        return v
    v = with_operands(v, [p if literal_only(p) else settled(p, None) for p in parts])
    asked = zip(operands(v), wants(v, want), strict=True)
    v = with_operands(v, [settled(p, w) if literal_only(p) else p for p, w in asked])
    return v if v.type or isinstance(v, Elem | Var | Builtin | Lit) else replace(v, type=natural(v))
