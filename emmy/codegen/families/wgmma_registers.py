"""Left factors of the `wgmma` family that consumers compute: raw tiles in shared memory -> fragments in registers.

A thread reads the elements of its own fragment (of 16-bit products 16-bit ones by ldmatrix, which also turns tiles that
lie along the rows), does the factor's arithmetic in f32, rounds to the product's type and packs.  There are two sets of
fragments: one is computed while products read the other.  A set has those of several steps where there are registers
for them: a step waits for its raw elements, so alone it would take most of its time waiting.

Register q of a fragment holds row 16 warp + lane / 4 + 8 (q % 2), of a step the elements 8 (q / 2) + 2 (lane % 4) + 0
and 1, or in tf32 the one element 4 (q / 2) + lane % 4 (PTX ISA manual, register fragments of wgmma).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emmy.codegen.expr import TID, Code, add, call, convert, div, elem, i32, lt, mod, mul, select
from emmy.codegen.families.blocks import Blocks
from emmy.codegen.families.boxes import Operand, tile_at
from emmy.codegen.families.fragments import load_a
from emmy.codegen.families.frame import Env, Frame, clamp, fits
from emmy.codegen.families.statistics import Statistics
from emmy.codegen.families.wgmma_gather import handed
from emmy.codegen.families.wgmma_results import Results
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import Lit, LoadVector, Var, X
from emmy.ir.kernel.fragments import PER_REGISTER
from emmy.ir.loop import Expr, Load
from emmy.ir.views.coarse import coarse_factor
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.converted import FRAGMENT, Converted, Left, together
from emmy.ir.views.product import HALVES
from emmy.ir.warpgroups import GROUP, Warpgroups

SETS: Final = 2
QUAD: Final = 4  # threads of a row


@dataclass
class Computed:
    """One factor's registers: `sets` of fragments, each [step, fragment, register]; values `held` of each row; raw
    elements `along` the sum, and those of the tile `after`."""

    how: Converted
    sets: list[Var]
    held: dict[Expr, Var]
    along: dict[Load, Var]
    after: dict[Load, Var]
    # functions without branches, which would make the compiler wait for products before it computes the next factors
    coarse: frozenset[Expr]


class Fragments:
    """The computed factors of one tile of results, by each consumer group; `row0` is its first row in the block.

    Those of `at_once` steps are computed together.
    """

    def __init__(
        self, frame: Frame, view: ContractionView, c: Warpgroups, left: Left, tiles: Mapping[Load, Operand],
        results: Results, b: Blocks, row0: X, at_once: int,
    ) -> None:  # fmt: skip
        self.f, self.v, self.c, self.tiles, self.b, self.row0 = frame, view, c, tiles, b, row0
        self.at_once = at_once
        self.scalars = results.scalars[0]
        # of the rows' scalars, those that the elements give which are read anyway
        self.statistics = Statistics(frame, results.passing if c.computed else [], self.scalars)
        self.parts = left.parts
        self.computed: dict[int, Computed] = {}
        self.lane = mod(TID, 32)
        self.each = PER_REGISTER[c.type]
        self.k_total, self.m_total = frame.total(view.k), b.m_total
        self.k_fits, self.m_fits = fits(self.k_total, c.block_k), fits(self.m_total, c.long * c.cluster)

    # -- before the loop over the sum

    def begin(self, code: Code) -> None:
        """Registers, and what does not change along the sum: computed once a row."""
        self.statistics.declare(code, 2 * self.c.fragments)
        for n, how in enumerate(self.parts):
            if how is not None:
                self.computed[n] = self._registers(code, how)
                self._hold(code, self.computed[n])

    def _registers(self, code: Code, how: Converted) -> Computed:
        f = self.c.fragments
        sets = [code.declare("factor", "u32", count=FRAGMENT * f * self.at_once) for _ in range(SETS)]
        held = {e: code.declare("held", e.type, count=2 * f) for e in how.held}
        count = 2 * self.each * self.c.steps
        along, after = ({n: code.declare(v, n.dtype, count=count) for n in how.along} for v in ("along", "after"))
        return Computed(how, sets, held, along, after, coarse_factor(how.part.value, self.c.type))

    def _row(self, i: X, h: X | int) -> X:
        """The thread's row of the block: the upper (h = 0) or the lower one of fragment i."""
        warp = mod(div(TID, 32), GROUP // 32)
        return add(self.row0, mul(i, 64), mul(warp, 16), div(self.lane, 4), mul(h, 8))

    def _own(self, i: X, h: int) -> Env:
        m = add(self.b.m0, self._row(i, h))
        return {**self.b.batch, **self.f.decode(m if self.m_fits else clamp(m, self.m_total), self.v.m)}

    def _hold(self, code: Code, one: Computed) -> None:
        if not one.held:
            return
        with code.loop("i", self.c.fragments, unroll=0) as (inner, i):
            for h in range(2):
                scope = self.f.scope(
                    inner, self._own(i, h), self.scalars.at(inner, self._row(i, h), one.how.part.scalars)
                )
                for e, array in one.held.items():
                    inner.assign(elem(array, add(mul(i, 2), h)), self.f.scalars.get(e, scope))

    # -- a tile of the sum

    def ahead(self, code: Code, k0: X) -> None:
        """Elements that no row changes, of the tile at `k0`: asked for while the one before is worked on."""
        for one in self.computed.values():
            for node, array in one.after.items():
                with code.loop("s", self.c.steps, unroll=0) as (inner, s):
                    for half in range(2):
                        k = add(k0, mul(s, self.c.step), QUAD * self.each * half, self._column)
                        self._along(inner, node, array, add(mul(s, 2 * self.each), self.each * half), k)

    def arrive(self, code: Code) -> None:
        """The tile is the next one: its elements have been asked for."""
        for one in self.computed.values():
            for node, array in one.along.items():
                with code.loop("e", 2 * self.each * self.c.steps, unroll=0) as (inner, e):
                    inner.assign(elem(array, e), elem(one.after[node], e))

    @property
    def _column(self) -> X:
        """The thread's first element of a step; those of registers 2 and 3 lie `QUAD * each` further."""
        return mul(mod(self.lane, QUAD), self.each)

    def _along(self, code: Code, node: Load, array: Var, at: X, k: X) -> None:
        """A register's neighbours from element `k` of the sum on; past its end, the last ones."""
        form = self.f.form(node)
        assert form is not None
        count = self.each if together(node, self.v.body, self.v.k, self.each) else 1
        for e in range(0, self.each, count):
            first = add(k, e)
            if not self.k_fits:
                last = add(self.k_total, -count)
                first = select(lt(first, self.k_total), first, last)
            env = {**self.b.batch, **self.f.decode(first, self.v.k)}
            place = self.f.at(node.slot, self.f.offset(form, env, node.slot))
            code.emit(LoadVector(array.name, add(at, e), count, place))

    def compute(self, code: Code, slot: X, first: int, k0: X) -> None:
        """Every computed factor's fragments of the tile that begins at `k0`, of the steps from `first` on."""
        for one in self.computed.values():
            some = [(s, i) for s in range(self.at_once) for i in range(self.c.fragments)]
            raws = [{n: self._raw(code, n, slot, i32(i), first + s) for n in one.how.tiles} for s, i in some]
            for (s, i), raw in zip(some, raws, strict=True):
                for q in range(FRAGMENT):
                    elements = [self._element(code, one, raw, i32(i), first + s, k0, q, e) for e in range(self.each)]
                    code.assign(elem(self._set(one, first), self._at(s, i) + q), self._register(elements))

    def _register(self, elements: Sequence[X]) -> X:
        if self.each > 1:
            return call(f"pack_{self.c.type}x2", *elements, type="u32")
        return call("bits_of_f32", call("round_tf32", *elements, type="f32"), type="u32")

    def _set(self, one: Computed, step: int) -> Var:
        return one.sets[step // self.at_once % SETS]

    def _at(self, s: int, i: int) -> int:
        """First register of a fragment, of step `s` of those that are computed at once."""
        return FRAGMENT * (s * self.c.fragments + i)

    def _raw(self, code: Code, node: Load, slot: X, i: X, step: int) -> Var:
        """The raw elements of a fragment: packed words of 16-bit ones, else neighbours in its registers' order."""
        tile = self.tiles[node]
        k = step * self.c.step
        if node.dtype in HALVES and self.each > 1:
            words = code.declare("raw", "u32", count=FRAGMENT)
            warp = mod(div(TID, 32), GROUP // 32)
            row = add(self.row0, mul(i, 64), mul(warp, 16))
            load_a(code, tile.buffer, tile.box.run == "k", self.lane, words, i32(0), slot, row, i32(k))
            return words
        raw = code.declare("raw", node.dtype, count=FRAGMENT * self.each)
        for q in range(FRAGMENT):
            column = add(self._column, k + QUAD * self.each * (q // 2))
            place = tile_at(tile.buffer, slot, self._row(i, q % 2), column)
            code.emit(LoadVector(raw.name, i32(self.each * q), self.each, place))
        return raw

    def _element(self, code: Code, one: Computed, raw: Mapping[Load, Var], i: X, step: int, k0: X, q: int, e: int) -> X:
        """The factor's value for element e of register q; 0 past the end of the sum, where its own may be no number."""
        h, half = q % 2, q // 2
        k = add(k0, step * self.c.step + QUAD * self.each * half + e, self._column)
        env = {**self._own(i, h), **self.f.decode(k if self.k_fits else clamp(k, self.k_total), self.v.k)}
        known: dict[Expr, X] = {x: elem(a, add(mul(i, 2), h)) for x, a in one.held.items()}
        for node, array in one.along.items():
            known[node] = _value(array, (2 * step + half) * self.each + e, node.dtype)
        for node, array in raw.items():
            packed = array.type == "u32"
            known[node] = _word(array, q, e, node.dtype) if packed else _value(array, self.each * q + e, node.dtype)
        inside = None if self.k_fits else lt(k, self.k_total)
        self.statistics.take(code, add(mul(i, 2), h), env, known, inside)
        with self.f.scalars.rounding(one.coarse):
            value = self.f.value(code, one.how.part.value, env, known)
        return value if inside is None else select(inside, value, Lit(0.0, value.type))

    # -- after the loop

    def end(self, code: Code) -> None:
        """The rows' scalars, where the results find them."""
        if not self.statistics.folds:
            return
        with handed(code, self.c):
            self.statistics.finish(
                code, 2 * self.c.fragments, QUAD, lambda i: self._row(div(i, 2), mod(i, 2)), lambda line: None
            )

    # -- the products

    def of(self, part: int, i: int, step: int) -> tuple[X, X, X, X] | None:
        """The registers of a part's fragment i for the step's product; None for a part that lies in shared memory."""
        if part not in self.computed:
            return None
        array, at = self._set(self.computed[part], step), self._at(step % self.at_once, i)
        a, b, c, d = (elem(array, at + q) for q in range(FRAGMENT))
        return a, b, c, d


def _word(words: Var, q: int, e: int, dtype: str) -> X:
    return call(f"unpack_{dtype}_{('low', 'high')[e]}", elem(words, q), type="f32")


def _value(array: Var, at: int, dtype: str) -> X:
    """An element as arithmetic takes it: a small integer stays narrow."""
    return convert(
        elem(array, at), "i32" if DTYPES[dtype].kind == "int" and DTYPES[dtype].bits < 32 else register(dtype)
    )


__all__ = ["SETS", "Fragments"]
