"""A left factor that Hopper's consumer warps compute themselves, from tiles that TMA brings as they lie in memory.

The instruction takes such a factor from registers.  Each thread reads its own elements of the raw tiles, does the
factor's arithmetic and rounds the result to the product's type: nothing computed goes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from emmy.ir.dtype import DTYPES, stored_as
from emmy.ir.kernel.fragments import PER_REGISTER
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Scan
from emmy.ir.views.access import vector_load, whole_chunks
from emmy.ir.views.box import Box, part_box
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.memo import VIEWS
from emmy.ir.views.product import EIGHTS, HALVES, Part, has_load, outside_folds, unconditional

RAW: Final = (*HALVES, "f32", "i8", "u8", "f8e4m3", "f8e5m2")  # storage types whose elements threads read from a tile
FRAGMENT: Final = 4  # registers of a thread for 64 rows of one step


@dataclass(frozen=True, slots=True)
class Converted:
    """`tiles`: the loads that change along both sides, brought by TMA; `along`: those that no own axis changes.

    `held`: maximal values that no summed axis changes; a thread computes them once a row.  `neighbours` along the sum
    lie in one register of a fragment: two of 16 bits, one of tf32.
    """

    part: Part
    tiles: tuple[Load, ...]
    along: tuple[Load, ...]
    held: tuple[Expr, ...]
    neighbours: int

    @property
    def fixed(self) -> int:
        """Registers of a thread for each fragment of 64 rows: two sets of factors, and what it holds of two rows."""
        return 2 * FRAGMENT + 2 * len(self.held)

    @property
    def raw(self) -> int:
        """Registers for the raw elements of a fragment."""
        return FRAGMENT * len(self.tiles)

    @property
    def step(self) -> int:
        """Registers for each step of the sum, and of the next tile's: two of a fragment's of every load along it."""
        return 2 * sum(max(1, 2 * self.neighbours * DTYPES[n.dtype].bytes // 4) for n in self.along)


def converted(
    part: Part, body: Body, batch: Sequence[Ax], own: Sequence[Ax], k: Sequence[Ax], type: str
) -> Converted | str:
    """How consumers compute the factor and round it to `type`, or why they cannot."""
    always = unconditional(part.value)
    tiles, along = [], []
    for node in part.loads:
        if not node.free & set(k):
            continue
        if node not in always:
            return "a factor whose loads conditions guard"
        if has_load(node.index):
            return "a factor that is gathered"
        if not node.free & set(own):
            along.append(node)
            continue
        why = _unmoved(node, body, batch, own, k, type)
        if why:
            return why
        tiles.append(node)
    if not tiles:
        return "a computed factor without a tile of its own"
    return Converted(part, tuple(tiles), tuple(along), tuple(_held(part, set(k), always)), PER_REGISTER[type])


def together(node: Load, body: Body, k: Sequence[Ax], count: int) -> bool:
    """True when `count` neighbours along the sum are one aligned read."""
    return count == 1 or (whole_chunks(k, count) and vector_load(node, body, k, count))


def _unmoved(node: Load, body: Body, batch: Sequence[Ax], own: Sequence[Ax], k: Sequence[Ax], type: str) -> str:
    """Why TMA and the consumers' reads cannot bring a tile of the load; empty where they can."""
    box = part_box(Part(node, tuple(k)), body, batch, own, k)
    if isinstance(box, str):
        return box
    if box.dtype not in RAW:
        return f"a computed factor of {box.dtype} elements"
    if box.run == "own" and not (box.dtype in HALVES and type in HALVES):
        # ldmatrix turns 16-bit elements only, two of them a register
        return f"a computed factor whose {box.dtype} elements do not run along the sum"
    return ""


def _held(part: Part, k: set[Ax], always: set[Expr]) -> list[Expr]:
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack: list[Expr] = [part.value]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        fold = isinstance(node, Fold | Scan | Online)
        still = not node.free & k and node.type == "f32" and not isinstance(node, Const)
        if fold or (
            still and node in always and any(isinstance(n, Load | Fold | Scan | Online) for n in outside_folds(node))
        ):
            found.setdefault(node, None)
        elif isinstance(node, Op):
            stack += reversed(node.args)
    return list(found)


@dataclass(frozen=True, slots=True)
class Left:
    """The left factors of a contraction where some are computed: `parts` has None for one that moves as it is.

    `tiles` are the loads that TMA brings, each once, those of plain factors included.
    """

    parts: tuple[Converted | None, ...]
    tiles: tuple[Load, ...]

    @property
    def computed(self) -> tuple[Converted, ...]:
        return tuple(p for p in self.parts if p is not None)

    @property
    def bytes(self) -> int:
        """Of the tiles, for each row and element of the sum."""
        return sum(DTYPES[n.dtype].bytes for n in self.tiles)

    @property
    def fixed(self) -> int:
        return sum(p.fixed for p in self.computed)

    @property
    def beside(self) -> int:
        """Registers for arithmetic and one fragment's raw elements on the way."""
        return max((8 + p.raw for p in self.computed), default=0)

    @property
    def step(self) -> int:
        return sum(p.step for p in self.computed)

    def registers(self, fragments: int, steps: int, at_once: int = 1) -> int:
        """Of a consumer's thread, beside its sums and those of a product whose factors all lie in shared memory.

        `fragments` of 64 rows, tiles of `steps` steps, `at_once` of which are computed while as many are multiplied.
        """
        more = sum(2 * FRAGMENT + p.raw for p in self.computed) * fragments * (at_once - 1)
        return fragments * self.fixed + self.beside + steps * self.step + more


def stored(part: Part, type: str) -> Load | None:
    """The load whose elements are the factor in `type`, as they lie in memory; None where the factor is computed."""
    node = part.eighth if type in EIGHTS else part.plain
    return node if node is not None and node.dtype == stored_as(type) else None


def stored_box(node: Load, view: ContractionView, own: Sequence[Ax]) -> Box | str:
    """What TMA moves of a factor that is taken as it is stored, or why it cannot.

    The instruction turns factors of 16 bits only: the others lie along the sum.
    """
    box = part_box(Part(node, view.k), view.body, view.batch, own, view.k)
    if isinstance(box, Box) and box.run != "k" and view.factor not in HALVES:
        return f"{DTYPES[box.dtype].bits}-bit factors that do not lie along the sum"
    return box


@lru_cache(maxsize=VIEWS)
def left_of(view: ContractionView) -> Left | str:
    """How the left factors reach the instruction, or why one of them cannot.  The view has a `factor` type."""
    assert view.factor is not None
    found: list[Converted | None] = []
    tiles: dict[Load, None] = {}
    for part in view.parts_a:
        node = stored(part, view.factor)
        box = "a factor that is computed" if node is None else stored_box(node, view, view.m)
        if node is not None and isinstance(box, Box):
            found.append(None)
            tiles[node] = None
            continue
        if view.factor in EIGHTS:
            return str(box)
        one = converted(part, view.body, view.batch, view.m, view.k, view.factor)
        if isinstance(one, str):
            return one
        found.append(one)
        tiles.update(dict.fromkeys(one.tiles))
    return Left(tuple(found), tuple(tiles))


__all__ = ["FRAGMENT", "Converted", "Left", "converted", "left_of", "stored", "stored_box", "together"]
