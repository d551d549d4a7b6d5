"""Facts of the update rules: which scatters may write into their base, an input that the program changes."""

from __future__ import annotations

from collections.abc import Iterable

from emmy.egraph.egg import Egg
from emmy.egraph.numbering import Numbering, Prim
from emmy.ir.lift import update


def load_updates(egg: Egg, n: Numbering, mutated: Iterable[tuple[int, int]], outputs: frozenset[int]) -> None:
    """`mutated` pairs the number of an input with that of its new contents; `outputs` are numbers that are returned.

    The old contents must be read by nothing but the scatters that make the new ones.  These read them only where they
    write nothing, so a launch that reads the base has the same value before and after the write.
    """
    readers: dict[int, set[int]] = {}
    for p in n.prims:
        for x in p.operands:
            readers.setdefault(x, set()).add(p.result)
    pairs = sorted({(x, t) for x, t in mutated if readers.get(x) == {t} and x not in outputs})
    bases = {x for x, _ in pairs}
    egg.facts("updates", pairs)
    scatters = [p for p in n.prims if p.kind.startswith("Scatter") and p.operands[0] in bases]
    egg.facts("own-place", [(p.id,) for p in scatters if _has_places(p, n)])


def _has_places(p: Prim, n: Numbering) -> bool:
    return update(p.args, [n.tensors[x] for x in p.operands], n.tensors[p.result]) is not None
