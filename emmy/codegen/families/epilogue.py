"""From accumulators to results: the body's expression at each point of a tile, two neighbours along n at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emmy.codegen.expr import Code, add, both, call, convert, div, elem, i32, lt, mod, mul
from emmy.codegen.families.frame import Env, Frame, Known, clamp
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import Elem, LoadVector, Place, StoreVector, X
from emmy.ir.loop import Ax, Const, Expr, Load, Op, Out
from emmy.ir.views.access import vector_load, whole_chunks
from emmy.ir.views.affine import affine, chunked, offset, offset_form
from emmy.ir.views.product import outside_folds

# values of the accumulators: node -> the value of element e (0 … width-1) of the group
Held = Mapping[Expr, Sequence[X]]


@dataclass(frozen=True)
class Side:
    """One side of the output tile: its axes, how many points there are, and whether tiles never pass the end."""

    axes: tuple[Ax, ...]
    total: X
    fits: bool


class Epilogue:
    """Stores groups of `width` neighbours along n: one vector access where the result allows it."""

    def __init__(self, frame: Frame, outs: Sequence[Out], m: Side, n: Side, batch: Env, width: int) -> None:
        self.f, self.outs, self.m, self.n, self.batch, self.width = frame, outs, m, n, batch, width
        self.whole = whole_chunks(n.axes, width)
        self.vectors = [self._vector(o) for o in outs]
        nodes = dict.fromkeys(x for o in outs for x in outside_folds(o.value))
        self.reads = any(isinstance(x, Load) for x in nodes)
        self.loads = [
            x for x in nodes
            if isinstance(x, Load) and self.whole and vector_load(x, frame.body, n.axes, width)
            and 4 <= width * DTYPES[x.dtype].bytes <= 16 and any(frame.readable(x, o.value) for o in outs)
        ]  # fmt: skip

    def _vector(self, out: Out) -> bool:
        form = offset_form(out.index, out.tensor.shape)
        bytes = self.width * DTYPES[out.tensor.dtype].bytes
        if form is None or not self.whole or not 4 <= bytes <= 16 or self.width == 1:
            return False
        return chunked(form, self.n.axes[-1], self.width, [a for a, _ in form.strides])

    def store(self, code: Code, m: X, n: X, held: Held, scalars: Callable[[Code, int], Known]) -> None:
        """Evaluate and store the group that begins at linear point (m, n); `scalars(code, e)` are element e's."""
        if self.whole or self.n.fits or self.width == 1:
            with code.when(self._inside(m, n)) as c:
                self._group(c, m, n, held, scalars)
            return
        with code.when(None if self.m.fits else lt(m, self.m.total)) as c:
            for e in range(self.width):
                with c.when(lt(add(n, e), self.n.total)) as one:
                    self._element(one, m, add(n, e), e, held, scalars)

    def pack(
        self, code: Code, m: X, n: X, held: Held, scalars: Callable[[Code, int], Known], words: Sequence[Elem],
        loose: bool = False,
    ) -> None:  # fmt: skip
        """Evaluate the pair at (m, n) into words[k] of each result, all of 16 bits; outside of them words stay.

        Of a pair half inside, the other half has the last element's value or no meaning.  `loose`: where the values
        need nothing of memory, words outside need no condition, and have no meaning.
        """
        with code.when(None if loose and not self.reads else self._inside(m, n)) as c:
            low, high = self._values(c, m, n, held, scalars)
            for k, (out, word) in enumerate(zip(self.outs, words, strict=True)):
                pair = convert(low[k], "f32"), convert(high[k], "f32")
                c.assign(word, call(f"pack_{out.tensor.dtype}x2", *pair, type="u32"))

    def place(self, k: int, m: X, n: X) -> Place:
        """Where result k lies at linear point (m, n)."""
        return self._place(k, self._env(m, n))

    def _inside(self, m: X, n: X) -> X | None:
        return both(None if self.m.fits else lt(m, self.m.total), None if self.n.fits else lt(n, self.n.total))

    def _env(self, m: X, n: X) -> dict[Ax, X]:
        return {**self.batch, **self.f.decode(m, self.m.axes), **self.f.decode(n, self.n.axes)}

    def _group(self, c: Code, m: X, n: X, held: Held, scalars: Callable[[Code, int], Known]) -> None:
        values = self._values(c, m, n, held, scalars)
        for k, (out, vector) in enumerate(zip(self.outs, self.vectors, strict=True)):
            if not vector:
                for e, v in enumerate(values):
                    c.store(self._place(k, self._point(m, n, e)), v[k])
                continue
            array = c.declare("packed", out.tensor.dtype, count=self.width)
            for e, v in enumerate(values):
                c.assign(elem(array, e), convert(v[k], out.tensor.dtype))
            c.emit(StoreVector(self._place(k, self._env(m, n)), array.name, i32(0), self.width))

    def _values(self, c: Code, m: X, n: X, held: Held, scalars: Callable[[Code, int], Known]) -> list[list[X]]:
        """Every result at every element of the group that begins at (m, n)."""
        first = self._env(m, n)
        raw = {}
        for node in self.loads:
            form = affine(node, self.f.body.slots[node.slot])
            assert form is not None
            raw[node] = c.declare("raw", node.dtype, count=self.width)
            place = self.f.at(node.slot, self.f.offset(form, first, node.slot))
            c.emit(LoadVector(raw[node].name, i32(0), self.width, place))
        values = []
        for e in range(self.width):
            loads: dict[Expr, X] = {x: convert(elem(a, e), register(x.dtype)) for x, a in raw.items()}
            known = {**scalars(c, e), **{x: v[e] for x, v in held.items()}, **loads}
            point = self.f.scope(c, self._point(m, n, e), known)
            values.append([self.f.scalars.get(out.value, point) for out in self.outs])
        return values

    def _point(self, m: X, n: X, e: int) -> dict[Ax, X]:
        """The axes at element e of the group."""
        if not (self.whole and self.n.axes):
            beyond = e > 0 and not (self.whole or self.n.fits)
            return self._env(m, clamp(add(n, e), self.n.total) if beyond else add(n, e))
        env = self._env(m, n)
        env[self.n.axes[-1]] = add(env[self.n.axes[-1]], e)
        return env

    def _element(self, c: Code, m: X, n: X, e: int, held: Held, scalars: Callable[[Code, int], Known]) -> None:
        env = self._env(m, n)
        known = {**scalars(c, e), **{x: v[e] for x, v in held.items()}}
        point = self.f.scope(c, env, known)
        for k, out in enumerate(self.outs):
            c.store(self._place(k, env), self.f.scalars.get(out.value, point))

    def _place(self, k: int, env: Env) -> Place:
        """Where the result's element lies; store indices are arithmetic on axes only."""
        out = self.outs[k]
        n = 1
        for x in out.tensor.shape:
            n = n * int(x.value) if isinstance(x, Const) and n else 0
        type = "i64" if n == 0 or n >= 2**31 else "i32"
        at = self._integer(offset(out.index, out.tensor.shape), env, type)
        return Place("global", self.f.scalars.result(k), (at,), out.tensor.dtype)

    def _integer(self, e: Expr, env: Env, type: str) -> X:
        if isinstance(e, Ax):
            return convert(env[e], type)
        if isinstance(e, Op) and e.name in ("add", "mul", "floordiv", "mod"):
            word = {"add": add, "mul": mul, "floordiv": div, "mod": mod}[e.name]
            return word(self._integer(e.args[0], env, type), self._integer(e.args[1], env, type))
        return convert(self.f.count(e), type)


__all__ = ["Epilogue", "Held", "Side"]
