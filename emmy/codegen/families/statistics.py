"""Row scalars that a contraction gathers from the tiles it stages anyway.

A fold over the summed axis that only the results use, of loads that one staged part reads at the same points, needs no
pass of its own: the threads that move a row's chunks add them up, and after the loop the threads of a row combine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from emmy.codegen.expr import TID, Code, add, both, call, div, elem, f32, lt, mod, mul, select, shared_at
from emmy.codegen.families.frame import Env, Frame
from emmy.codegen.families.rowscalars import COMBINE, RowScalars
from emmy.ir.kernel import Var, X
from emmy.ir.loop import Ax, Expr, Fold, Load
from emmy.ir.views.product import Part, outside_folds, top_folds


def gathered(scalars: RowScalars, part: Part, own: Sequence[Ax], k: Sequence[Ax], early: Iterable[Expr]) -> list[Fold]:
    """The folds among the scalars that `part`'s tiles give.  `early` are scalars that are needed before the loop."""
    if len(k) != 1:
        return []
    needed = set(early) | {f for s in scalars.scalars if isinstance(s, Fold) for f in top_folds(s.body)}
    found = []
    for s in scalars.scalars:
        if not isinstance(s, Fold) or s in needed or s.kind not in COMBINE or s.axis is not k[0]:
            continue
        nodes = outside_folds(s.body)
        loads = [n for n in nodes if isinstance(n, Load)]
        whole = bool(loads) and all(n in part.loads for n in loads) and not top_folds(s.body)
        if whole and s.free & set(own):
            found.append(s)
    return found


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

    def finish(self, code: Code, rounds: int, threads: int, per_line: int, lines: int) -> None:
        """Combine the partial folds of a row and store them where the results look for them."""
        for s, partial in self.partial.items():
            word, _ = COMBINE[s.kind]
            with code.loop("i", rounds, unroll=0) as (c, i):
                total = c.declare("total", "f32", elem(partial, i))
                distance = per_line // 2
                while distance:
                    other = c.shuffle(total, "xor", distance)
                    c.assign(total, call(word, total, other, type="f32"))
                    distance //= 2
                line = add(div(TID, per_line), mul(i, threads // per_line))
                mine = lt(mod(TID, per_line), 1) if per_line > 1 else None
                inside = None if rounds * threads == per_line * lines else lt(line, lines)
                c.store(shared_at(self.scalars.buffers[s], line), total, both(mine, inside))


__all__ = ["Statistics", "gathered"]
