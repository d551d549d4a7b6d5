"""Integer arithmetic of extents and indices for people: `s0*2 + 1`, `where(x[i] < 0, s0 + x[i], x[i])`, and back.

    expr = operand | operand op operand | expr "+" operand      op: + - * // % < <= == != && ||
    operand = number | size | coordinate | "(" expr ")" | tensor "[" [expr {, expr}] "]" | name "(" expr {, expr} ")"

A product may stand in a sum without brackets; every other operation inside another has them.  `parse_infix` gives the
very node that `infix` printed: types follow from operands, and a number whose type is not the one that its form says
(`3` i64, `0.5` f32, `True` bool) has it as a suffix, `3_i32`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from emmy.ir.build import result_dtype
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Const, Expr, Load, Op, Size, Tensor, const, load, op, size
from emmy.ir.parse import Reader
from emmy.ir.scalar import SCALAR

T = TypeVar("T")
INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
    "and": "&&", "or": "||",
}  # fmt: skip
_NAMES: Final = {symbol: name for name, symbol in INFIX.items()}
# comments stand at the start of a line or behind two spaces, so that they are told from a floor division
TOKEN: Final = re.compile(
    r"""(?:^[ ]*|[ ]{2})//[^\n]*               # a comment
    | "(?:[^"\\]|\\.)*"
    | \d+(?=\.\.)                             # the low end of a range
    | (?:-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)|True|False)(?:_(?:[fiu]\d|bf|bool)\w*)?(?!\w)
    | \#\d+
    | [A-Za-z_]\w*(?:::[A-Za-z_]\w*)*
    | \.\.=?|->|//|<=|==|!=|&&|\|\||\S""",
    re.VERBOSE | re.MULTILINE,
)
_NUMBER: Final = re.compile(r"(?P<value>-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)|True|False)(?:_(?P<dtype>\w+))?")


# ---- numbers


def default_dtype(text: str) -> str:
    """The type that the form of a number says."""
    return "bool" if text in ("True", "False") else "i64" if re.fullmatch(r"-?\d+", text) else "f32"


def number_text(text: str, dtype: str) -> str:
    """A number as Python spells it, with its type where that is not the one that its form says."""
    return text if dtype == default_dtype(text) else f"{text}_{dtype}"


def parse_number(text: str) -> tuple[str, str] | None:
    """(number as Python spells it, type), None for a text that is no number."""
    match = _NUMBER.fullmatch(text)
    if match is None or (match["dtype"] or "f32") not in DTYPES:
        return None
    return match["value"], match["dtype"] or default_dtype(match["value"])


def python_number(text: str) -> int | float | bool:
    kind = default_dtype(text)
    return text == "True" if kind == "bool" else int(text) if kind == "i64" else float(text)


# ---- print


def infix(e: Expr, names: Mapping[str, str]) -> str:
    """`names` spell axes by their names, and operands of loads by their slots ("0", "1" …)."""
    if isinstance(e, Const):
        return number_text(repr(e.value), e.dtype)
    if isinstance(e, Size):
        return e.name
    if isinstance(e, Load):
        return f"{names.get(str(e.slot), f'#{e.slot}')}[{', '.join(infix(i, names) for i in e.index)}]"
    if isinstance(e, Op) and e.name in INFIX:
        left, right = (_wrapped(a, e.name, k, names) for k, a in enumerate(e.args))
        return f"{left} {INFIX[e.name]} {right}"
    if isinstance(e, Op):
        name = e.dtype if e.name == "cast" else e.name
        return f"{name}({', '.join(infix(a, names) for a in e.args)})"
    return names.get(getattr(e, "name", ""), getattr(e, "name", e.text))


def _wrapped(e: Expr, parent: str, position: int, names: Mapping[str, str]) -> str:
    text = infix(e, names)
    within = ("mul", "add") if position == 0 else ("mul",)
    tight = not isinstance(e, Op) or e.name not in INFIX or (parent == "add" and e.name in within)
    return text if tight else f"({text})"


def size_text(e: Expr) -> str:
    """An extent or index as arithmetic: `2*s0 + 1`."""
    return infix(e, {})


def tensor_text(t: Tensor) -> str:
    return f"{t.dtype}[{','.join(size_text(e) for e in t.shape)}]"


# ---- parse


def comments(text: str) -> bool:
    return text.lstrip(" ").startswith("//") and text.strip() != "//"


class Scope:
    """What names stand for: coordinates, and the operands of loads (slot and type); other names are sizes."""

    def __init__(
        self, axes: Mapping[str, Expr] | None = None, slots: Mapping[str, tuple[int, Tensor]] | None = None
    ) -> None:
        self.axes, self.slots = axes or {}, slots or {}


def read_expr(r: Reader, scope: Scope) -> Expr:
    """The next expression."""
    left = _operand(r, scope)
    while r.peek in _NAMES:
        name = _NAMES[r.next()]
        right = _operand(r, scope)
        if name == "add" and r.peek == "*":
            r.next()
            right = _op("mul", right, _operand(r, scope))
        left = _op(name, left, right)
    return left


def _op(name: str, *args: Expr) -> Op:
    return op(name, *args, dtype=result_dtype(name, args))


def _operand(r: Reader, scope: Scope) -> Expr:
    if r.peek == "(":
        r.next()
        inner = read_expr(r, scope)
        r.expect(")")
        return inner
    path = read_path(r)
    if path in scope.slots and r.peek == "[":
        slot, tensor = scope.slots[path]
        return load(slot, tuple(read_list(r, "[", "]", lambda: read_expr(r, scope))), tensor.dtype)
    number = parse_number(path)
    if number is not None:
        return const(python_number(number[0]), number[1])
    if r.peek == "(":
        args = tuple(read_list(r, "(", ")", lambda: read_expr(r, scope)))
        return _applied(r, path, args)
    if path in scope.axes:
        return scope.axes[path]
    if not path.isidentifier():
        raise r.fail(f"{path!r} is no operand")
    return size(path)


def _applied(r: Reader, name: str, args: tuple[Expr, ...]) -> Expr:
    if name in DTYPES and len(args) == 1:
        return op("cast", *args, dtype=name)
    if name not in SCALAR or SCALAR[name].arity != len(args):
        raise r.fail(f"there is no operation {name!r} of {len(args)} operands")
    return _op(name, *args)


def read_path(r: Reader) -> str:
    """A word with what follows behind dots: `inputs.x`, `split.0`."""
    path = r.next()
    while r.peek == "." and path.replace(".", "").replace(":", "").isidentifier():
        r.next()
        path += f".{r.next()}"
    return path


def read_list(r: Reader, opening: str, closing: str, item: Callable[[], T]) -> list[T]:
    """Items between brackets, with commas between them (and one behind the last, if one likes)."""
    r.expect(opening)
    found: list[T] = []
    while r.peek != closing:
        found.append(item())
        if r.peek != closing:
            r.expect(",")
    r.expect(closing)
    return found


def read_tensor(r: Reader) -> Tensor:
    """A type: `bf16[1,s0,2048]`."""
    dtype = r.next()
    if dtype not in DTYPES:
        raise r.fail(f"unknown type {dtype!r}")
    return Tensor(dtype, tuple(read_list(r, "[", "]", lambda: read_expr(r, Scope()))))


def read_string(r: Reader) -> str:
    token = r.next()
    if not token.startswith('"'):
        raise r.fail(f"expected a string, found {token!r}")
    return str(json.loads(token))


def read_name(r: Reader) -> str:
    token = r.next()
    if not token.isidentifier():
        raise r.fail(f"expected a name, found {token!r}")
    return token


def reader(text: str, language: str, keep: str = "") -> Reader:
    """A reader without the comments, but for those that begin with `keep` (they say something)."""
    r = Reader(text, TOKEN, language)
    r.tokens = [(t.strip() if comments(t) else t, at) for t, at in r.tokens if not comments(t) or _kept(t, keep)]
    return r


def _kept(comment: str, keep: str) -> bool:
    return bool(keep) and comment.strip().startswith(f"// {keep}")


def parse_infix(text: str, scope: Scope | None = None) -> Expr:
    """The expression that `infix` printed."""
    r = reader(text, "an index")
    e = read_expr(r, scope or Scope())
    if r.peek:
        raise r.fail("text after the end")
    return e
