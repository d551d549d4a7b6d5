"""Reads back what Loop IR prints: `parse_expr(e.text) is e`, `parse_body(b.text) == b`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from emmy.errors import EmmyError
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import (
    FOLD_KINDS,
    Ax,
    Body,
    Const,
    Expr,
    Out,
    Tensor,
    ax,
    const,
    fold,
    load,
    online,
    op,
    scan,
    size,
)
from emmy.ir.scalar import SCALAR

_TOKEN = re.compile(r"[()\[\]]|[^\s()\[\]]+")


class ParseError(EmmyError):
    """Text that is not of the language: says what was found and where."""


class Reader:
    """The tokens of a text, one after another; `language` is what errors call it."""

    def __init__(self, text: str, token: re.Pattern[str] = _TOKEN, language: str = "Loop IR") -> None:
        self.text, self.language = text, language
        self.tokens = [(m.group(), m.start()) for m in token.finditer(text)]
        self.at = 0

    def fail(self, what: str) -> ParseError:
        where = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return ParseError(
            f"not {self.language}: {what} at character {where}", f"near {self.text[max(0, where - 20) : where + 20]!r}"
        )

    @property
    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise self.fail("the text ends too early")
        self.at += 1
        return self.tokens[self.at - 1][0]

    def expect(self, token: str) -> None:
        if self.peek != token:
            raise self.fail(f"expected {token!r}, found {self.peek!r}")
        self.at += 1

    def until(self, close: str) -> Iterator[None]:
        while self.peek != close:
            if not self.peek:
                raise self.fail(f"missing {close!r}")
            yield
        self.at += 1


def _expr(r: Reader) -> Expr:
    tok = r.next()
    if tok != "(":
        return _atom(r, tok)
    head = r.next()
    if head in DTYPES:
        word = r.next()
        r.expect(")")
        return const(_literal(r, word), head)
    if head == "load":
        slot, dtype = _int(r), _dtype(r)
        r.expect("[")
        index = tuple(_expr(r) for _ in r.until("]"))
        r.expect(")")
        return load(slot, index, dtype)
    if head == "fold":
        (kind, operand), axis, body = _kind(r), _axis(r), _expr(r)
        r.expect(")")
        return fold(kind, axis, body, operand)
    if head == "scan":
        (kind, _), axis, at, body = _kind(r), _axis(r), _expr(r), _expr(r)
        r.expect(")")
        return scan(kind, axis, at, body)
    if head.partition(":")[0] == "online":
        axis, score, value = _axis(r), _expr(r), _expr(r)
        r.expect(")")
        return online(axis, score, value, head.partition(":")[2])
    if head not in SCALAR:
        r.at -= 1
        raise r.fail(f"unknown operation {head!r}")
    dtype = _dtype(r)
    args = tuple(_expr(r) for _ in r.until(")"))
    if len(args) != SCALAR[head].arity:
        raise r.fail(f"{head} takes {SCALAR[head].arity} operands, found {len(args)}")
    return op(head, *args, dtype=dtype)


def _atom(r: Reader, tok: str) -> Expr:
    if tok.startswith("$"):
        return size(tok[1:])
    if ":" in tok:
        name, _, ext = tok.partition(":")
        if ext:
            return ax(name, _atom(r, ext))
        return ax(name, _expr(r))
    try:
        return const(int(tok))
    except ValueError:
        r.at -= 1
        raise r.fail(f"unexpected {tok!r}") from None


def _axis(r: Reader) -> Ax:
    e = _expr(r)
    if not isinstance(e, Ax):
        raise r.fail("expected an axis")
    return e


def _int(r: Reader) -> int:
    tok = r.next()
    if not re.fullmatch(r"-?\d+", tok):
        raise r.fail(f"expected a number, found {tok!r}")
    return int(tok)


def _dtype(r: Reader) -> str:
    tok = r.next()
    if tok not in DTYPES:
        raise r.fail(f"unknown type {tok!r}")
    return tok


def _kind(r: Reader) -> tuple[str, str]:
    tok = r.next()
    kind, _, operand = tok.partition(":")
    if kind not in FOLD_KINDS or (operand and operand not in DTYPES):
        raise r.fail(f"unknown fold {tok!r}")
    return kind, operand


def _literal(r: Reader, word: str) -> int | float | bool:
    if word in ("True", "False"):
        return word == "True"
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        raise r.fail(f"expected a number, found {word!r}") from None


def _tensor(r: Reader) -> Tensor:
    dtype = _dtype(r)
    r.expect("[")
    dims: list[Expr] = []
    # extents are separated by commas, which the tokenizer leaves inside words
    while r.peek != "]":
        tok = r.next()
        if tok == "(":
            r.at -= 1
            dims.append(_expr(r))
            continue
        dims += [_atom(r, w) for w in tok.split(",") if w]
    r.expect("]")
    return Tensor(dtype, tuple(dims))


def parse_expr(text: str) -> Expr:
    """The expression that prints as `text`."""
    r = Reader(text)
    e = _expr(r)
    if r.peek:
        raise r.fail("text after the end")
    return e


def parse_index(text: str) -> tuple[Expr, ...]:
    """A bracketed list of expressions, as index maps are spelled: `[d0:4 (add i64 d1:3 1)]`."""
    r = Reader(text)
    r.expect("[")
    index = tuple(_expr(r) for _ in r.until("]"))
    if r.peek:
        raise r.fail("text after the end")
    return index


def index_text(index: tuple[Expr, ...]) -> str:
    return "[" + " ".join(e.text for e in index) + "]"


def _into(r: Reader) -> int:
    """The head of a result: `out`, or `update` and the slot that it changes where it lies."""
    if r.peek == "update":
        r.expect("update")
        return int(r.next())
    r.expect("out")
    return -1


def parse_body(text: str) -> Body:
    """The body that prints as `text`."""
    r = Reader(text)
    r.expect("(")
    r.expect("body")
    r.expect("[")
    slots = tuple(_tensor(r) for _ in r.until("]"))
    outs: list[Out] = []
    for _ in r.until(")"):
        r.expect("(")
        into = _into(r)
        r.expect("[")
        axes = tuple(_axis(r) for _ in r.until("]"))
        r.expect("[")
        index = tuple(_expr(r) for _ in r.until("]"))
        tensor, value = _tensor(r), _expr(r)
        r.expect(")")
        outs.append(Out(axes, index, value, tensor, into))
    if r.peek:
        raise r.fail("text after the end")
    return Body(tuple(outs), slots)


__all__ = ["Const", "ParseError", "Reader", "index_text", "parse_body", "parse_expr", "parse_index"]


def parse_tensor(text: str) -> Tensor:
    """The tensor type that prints as `text`: `bf16[1,s0,2048]`."""
    r = Reader(text)
    tensor = _tensor(r)
    if r.peek:
        raise r.fail("text after the end")
    return tensor
