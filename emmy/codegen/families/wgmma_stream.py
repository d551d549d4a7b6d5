"""Stream-K: blocks that stay take equal shares of the stages of all tiles, so that no wave is left unfilled.

Whole tiles go to blocks in turn while at least two waves of them are left, the rest is shared stage by stage: then
every block's share is one tile's stages or more, and no tile belongs to more than two blocks (Osama et al., "Stream-K:
Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", 2023; the two-tile schedule).
A tile of two blocks is finished by whoever is last (`parts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emmy.codegen.expr import BID, Code, add, compare, div, i32, lt, mod, mul, select, sub
from emmy.codegen.families.frame import Frame
from emmy.ir.kernel import Builtin, X
from emmy.ir.loop import Expr

GRID = Builtin("grid_x")


@dataclass(frozen=True, slots=True)
class Piece:
    """Stages `first` to `last` of a tile, `count` of them.  Where that is not all, the block's are part 0 or 1 of the
    tile's sum, and the two blocks meet at `slot`, the number of the first of them."""

    tile: X
    first: X
    last: X
    count: X
    part: X
    slot: X


class Stream:
    """`tiles` of `stages` each; there are at least as many tiles as blocks."""

    def __init__(self, frame: Frame, tiles: Expr, stages: X) -> None:
        self.tiles, self.stages = frame.count(tiles), stages

    def begin(self, code: Code) -> None:
        """The block's share: `whole` tiles in turn, then `units` of the stages of the others."""
        self.whole = code.let("whole", sub(div(self.tiles, GRID), 1))
        self.start = code.let("shared_from", mul(self.whole, GRID))
        units = code.let("units", mul(sub(self.tiles, self.start), self.stages))
        each, more = code.let("each", div(units, GRID)), code.let("more", mod(units, GRID))
        self.low = code.let("low", add(mul(BID, each), select(lt(BID, more), BID, more)))
        self.high = code.let("high", add(self.low, each, select(lt(BID, more), i32(1), i32(0))))
        self.tile = code.let("shared_tile", div(self.low, self.stages))
        pieces = add(sub(div(sub(self.high, 1), self.stages), self.tile), 1)
        self.count = code.let("pieces", add(self.whole, pieces))

    @contextmanager
    def pieces(self, code: Code) -> Iterator[tuple[Code, Piece]]:
        """One after the other, those of whole tiles first."""
        with code.loop("piece", self.count) as (inner, q):
            own = inner.let("own", lt(q, self.whole))
            shared = inner.let("at", add(self.tile, sub(q, self.whole)))
            begin = inner.let("begin", mul(shared, self.stages))
            tile = inner.let("tile", select(own, add(BID, mul(q, GRID)), add(self.start, shared)))
            inside = select(compare("<", begin, self.low), sub(self.low, begin), i32(0))
            first = inner.let("k_first", select(own, i32(0), inside))
            rest = sub(self.high, begin)
            ends = select(lt(rest, self.stages), rest, self.stages)
            last = inner.let("k_last", select(own, self.stages, ends))
            part = inner.let("part", select(lt(0, first), i32(1), i32(0)))
            yield inner, Piece(tile, first, last, sub(last, first), part, sub(BID, part))


__all__ = ["Piece", "Stream"]
