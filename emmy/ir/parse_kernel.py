"""Reads back what `emmy.ir.show_kernel` prints: `parse_kernel(show_kernel(k)) == k`.  Grammar: docs/kernel-ir.md.

Blocks are indented by four columns.  The whole text may be indented further, as `emmy compile --ir kernel` prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, TypeVar, cast

from emmy.ir.infix import TOKEN as INFIX
from emmy.ir.infix import Scope, read_expr, read_list, read_name
from emmy.ir.kernel import Buffer, Comment, If, Kernel, Layout, Param, Ring, Role, Roles, S, TensorMap
from emmy.ir.loop import Expr
from emmy.ir.parse import ParseError
from emmy.ir.parse_statements import Statements, is_head
from emmy.ir.parse_values import Line

T = TypeVar("T")
_INDENT: Final = 4
WORK: Final = ("scratch", "zeroed")  # parameters that are memory of the launch's own
ROLES: Final = ("in", "out", "size", *WORK)
_OUTERMOST: Final = 3  # dimensions of a grid and a cluster


def parse_kernel(text: str) -> Kernel:
    """The kernel that prints as `text`.  ParseError says line and column and what was expected there."""
    return _Kernel(text).kernel()


class _Kernel(Statements):
    def __init__(self, text: str) -> None:
        super().__init__()
        numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not numbered:
            raise ParseError("not Kernel IR: there is no text", "it begins with `kernel NAME  grid=(..)  threads=N`")
        self.base = _margin(numbered[0][1])
        self.lines = [(self.depth(n, line), n, line) for n, line in numbered]
        self.at = 0
        self.threads = 0

    def depth(self, number: int, line: str) -> int:
        inside = _margin(line) - self.base
        if inside < 0 or inside % _INDENT:
            raise Line(line, number).fail(f"expected blocks indented by {_INDENT} columns, found {_margin(line)}")
        return inside // _INDENT

    # ---- lines

    @property
    def here(self) -> tuple[int, str]:
        """Depth and text of the next line; depth -1 at the end."""
        return (self.lines[self.at][0], self.lines[self.at][2].strip()) if self.at < len(self.lines) else (-1, "")

    def line(self) -> Line:
        return Line(self.lines[self.at][2], self.lines[self.at][1])

    def index_line(self) -> Line:
        """The line in the tokens of index arithmetic."""
        return Line(self.lines[self.at][2], self.lines[self.at][1], INFIX)

    def header(self, words: tuple[str, ...], read: Callable[[], T]) -> tuple[T, ...]:
        """Lines of the head that begin with one of the words."""
        found: list[T] = []
        while self.here[0] == 1 and any(is_head(self.line(), w) for w in words):
            found.append(read())
            self.at += 1
        return tuple(found)

    # ---- kernel

    def kernel(self) -> Kernel:
        k, smem = self.head(self.index_line())
        self.at += 1
        self.threads = k.threads
        comment = ""
        if self.here[0] == 1 and self.here[1].startswith("//"):
            comment = self.comment()
        k = replace(
            k,
            comment=comment,
            params=self.header(ROLES, lambda: self.param(self.index_line())),
            shared=self.header(("smem",), lambda: self.buffer(self.line())),
            rings=self.header(("ring",), lambda: self.ring(self.line())),
            maps=self.header(("map",), lambda: self.map(self.index_line())),
            body=self.block(1),
        )
        if self.at < len(self.lines):
            raise self.line().fail("expected the body of one kernel, found a line that belongs to none of its blocks")
        if smem is not None and smem != k.smem:
            self.at = 0
            raise self.line().fail(f"expected smem={k.smem}, which its buffers and rings take, found smem={smem}")
        return k

    def head(self, r: Line) -> tuple[Kernel, int | None]:
        r.expect("kernel")
        name = read_name(r)
        given: dict[str, int] = {}
        grid: tuple[Expr, ...] = ()
        cluster: tuple[int, ...] = (1, 1, 1)
        dependent = False
        while r.peek:
            word = r.one_of(("grid", "threads", "smem", "min_blocks", "cluster", "dependent"))
            if word == "dependent":
                dependent = True
                continue
            r.expect("=")
            if word == "grid":
                grid = self.indices(r, "(", ")")
            elif word == "cluster":
                cluster = self.wholes(r, "(", ")")
            else:
                given[word] = r.whole()
        if len(grid) != _OUTERMOST or len(cluster) != _OUTERMOST or "threads" not in given:
            raise r.fail("expected `threads=N` and a grid (and cluster) of three numbers, found other ones")
        k = Kernel(
            name, "", (), (), grid, given["threads"], (), given.get("min_blocks", 0), cluster=cluster,
            dependent=dependent,
        )  # fmt: skip
        return k, given.get("smem")

    def indices(self, r: Line, opening: str, closing: str) -> tuple[Expr, ...]:
        return tuple(read_list(r, opening, closing, lambda: read_expr(r, Scope())))

    def wholes(self, r: Line, opening: str, closing: str) -> tuple[int, ...]:
        return tuple(read_list(r, opening, closing, r.whole))

    def comment(self) -> str:
        text = self.lines[self.at][2].lstrip().removeprefix("//").removeprefix(" ")
        self.at += 1
        return text

    # ---- parameters and memory

    def param(self, r: Line) -> Param:
        role = cast(Literal["in", "out", "size", "scratch", "zeroed"], r.one_of(ROLES))
        type = "i64" if role == "size" and not r.ahead else r.type()
        name = self.declare(r, read_name(r), type)
        count = self.indices(r, "[", "]") if role in WORK else ()
        if len(count) != (role in WORK):
            raise r.fail("expected one number of elements, found more or none")
        r.end()
        if role != "size":
            del self.types[name]
            self.places[name] = "global", type
        return Param(name, type, role, *count)

    def buffer(self, r: Line) -> Buffer:
        r.expect("smem")
        type, name = r.type(), read_name(r)
        shape = self.wholes(r, "[", "]")
        pad = r.whole() if r.accept("pad") else 0
        swizzle, shift = 0, 0
        if r.accept("swizzle"):
            swizzle = r.whole()
            r.expect(">>")
            shift = r.whole()
        align = r.whole() if r.accept("align") else 128
        over = self.known(r, set(self.buffers), "buffer") if r.accept("over") else ""
        r.end()
        del self.types[self.declare(r, name, type)]
        self.places[name] = "shared", type
        self.buffers[name] = Buffer(name, type, shape, Layout(pad, swizzle, shift), over, align)
        return self.buffers[name]

    def ring(self, r: Line) -> Ring:
        r.expect("ring")
        name = read_name(r)
        r.expect("of")
        depth, sides = r.whole(), []
        for side in ("full", "empty"):
            r.expect(side)
            r.expect("=")
            sides.append(r.whole())
        r.end()
        del self.types[self.declare(r, name, "u64")]
        self.rings.add(name)
        return Ring(name, depth, *sides)

    def map(self, r: Line) -> TensorMap:
        r.expect("map")
        type = "tf32" if r.accept("tf32") else r.type()
        name = read_name(r)
        shape = self.indices(r, "[", "]")
        r.expect("of")
        param = self.known(r, {n for n, (space, _) in self.places.items() if space == "global"}, "parameter")
        offset = read_expr(r, Scope()) if r.accept("+") else None
        r.expect("strides")
        strides = self.indices(r, "(", ")")
        r.expect("box")
        box = self.wholes(r, "(", ")")
        swizzle = 0
        if r.accept("swizzle"):
            swizzle = r.whole()
            r.expect("bytes")
        r.end()
        del self.types[self.declare(r, name, "u64")]
        self.maps.add(name)
        return TensorMap(name, param, type, shape, strides, box, swizzle, offset)

    # ---- blocks

    def block(self, depth: int) -> tuple[S, ...]:
        found: list[S] = []
        while self.here[0] == depth:
            if self.here[1].startswith("//"):
                found.append(Comment(self.comment()))
                continue
            found.append(self.one(depth))
        if self.here[0] > depth:
            raise self.line().fail(f"expected at most {_INDENT * depth} columns of indentation, found more")
        return tuple(found)

    def one(self, depth: int) -> S:
        r = self.line()
        if is_head(r, "role"):
            return self.all_roles(depth)
        self.at += 1
        if is_head(r, "for"):
            return replace(self.loop(r), body=self.block(depth + 1))
        if not is_head(r, "if"):
            return self.statement(r)
        cond, then = self.branch(r).cond, self.block(depth + 1)
        if self.here != (depth, "else"):
            return If(cond, then)
        self.at += 1
        return If(cond, then, self.block(depth + 1))

    def all_roles(self, depth: int) -> Roles:
        """Roles up to the last of the block's warps: what follows belongs to the next statement."""
        found: list[Role] = []
        while self.here[0] == depth and is_head(self.line(), "role"):
            if 32 * sum(r.warps for r in found) >= self.threads:
                break
            head = self.role(self.line())
            self.at += 1
            found.append(replace(head, body=self.block(depth + 1)))
        return Roles(tuple(found))


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
