"""Row scalars that a contraction gathers from the tiles it stages anyway (`emmy.ir.views.gather` says which).

The threads that move or read a row's chunks add them up, and after the loop the threads of a row combine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from emmy.codegen.expr import TID, Code, both, call, elem, f32, lt, mod, select
from emmy.codegen.families.frame import Env, Frame
from emmy.codegen.families.rowscalars import RowScalars
from emmy.ir.kernel import Var, X
from emmy.ir.loop import Expr, Fold
from emmy.ir.views.gather import COMBINE


class Statistics:
    """Partial folds of one staged part: one register a round of copies and fold."""

    def __init__(self, frame: Frame, folds: Sequence[Fold], scalars: RowScalars) -> None:
        self.f, self.folds, self.scalars = frame, folds, scalars
        self.partial: dict[Fold, Var] = {}

    def declare(self, code: Code, rounds: int) -> None:
        for s in self.folds:
            self.partial[s] = code.declare("partial", "f32", f32(COMBINE[s.kind][1]), rounds)

    def take(self, code: Code, i: X, env: Env, known: Mapping[Expr, X], inside: X | None) -> None:
        """One element of the chunk of round i; `known` holds the part's loads there."""
        for s, partial in self.partial.items():
            word, unit = COMBINE[s.kind]
            value = self.f.value(code, s.body, env, known)
            value = value if inside is None else select(inside, value, f32(unit))
            code.assign(elem(partial, i), call(word, elem(partial, i), value, type="f32"))

    def finish(
        self, code: Code, rounds: int, per_line: int, line: Callable[[X], X], inside: Callable[[X], X | None]
    ) -> None:
        """Combine the partial folds of a row, held by `per_line` neighbours, and store them where the results look.

        Round i is row `line(i)` of the block; nothing is stored where `inside` does not hold for the row.
        """
        for s, partial in self.partial.items():
            word, _ = COMBINE[s.kind]
            with code.loop("i", rounds, unroll=0) as (c, i):
                total = c.declare("total", "f32", elem(partial, i))
                distance = per_line // 2
                while distance:
                    other = c.shuffle(total, "xor", distance)
                    c.assign(total, call(word, total, other, type="f32"))
                    distance //= 2
                mine = lt(mod(TID, per_line), 1) if per_line > 1 else None
                self.scalars.put(c, s, line(i), total, both(mine, inside(line(i))))


__all__ = ["Statistics"]
