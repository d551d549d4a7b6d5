"""One scheduled body -> one kernel, by family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from emmy.codegen.cleanup import without_dead_registers
from emmy.codegen.early import EARLY_SINCE, starting_early
from emmy.codegen.families.attention import lower_attention
from emmy.codegen.families.map import lower_map
from emmy.codegen.families.mma import lower_mma
from emmy.codegen.families.mma_tf32 import lower_tf32
from emmy.codegen.families.plain import lower_plain
from emmy.codegen.families.row import lower_row
from emmy.codegen.families.scan import lower_scan
from emmy.codegen.families.tile import lower_tile
from emmy.codegen.families.turn import lower_turn
from emmy.codegen.families.wgmma import lower_wgmma
from emmy.codegen.scalar import Scalars
from emmy.ir.build import scalar
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Const, const
from emmy.ir.schedule import Row
from emmy.ir.target import Target
from emmy.ir.verify.kernel import verify

Lower = Callable[[Body, Row, Scalars, str, str], Kernel]
FAMILIES: Final[dict[str, Lower]] = {
    "map": lower_map,
    "turn": lower_turn,
    "row": lower_row,
    "scan": lower_scan,
    "attention": lower_attention,
    "mma": lower_mma,
    "wgmma": lower_wgmma,
    "tf32": lower_tf32,
    "tile": lower_tile,
    "plain": lower_plain,
}


def lower(
    body: Body,
    family: str,
    row: Row,
    target: Target,
    name: str,
    operands: Sequence[str] = (),
    results: Sequence[str] = (),
    limits: Mapping[str, int] | None = None,
) -> Kernel:
    """The kernel `name` of a body under one schedule row, verified for `target`.

    `operands` and `results` name the parameters; `limits` gives the greatest value of symbolic sizes, where known,
    which lets indices be 32 bits wide.  Raises LoweringError where the row is not one of the family's for this body.
    """
    scalars = Scalars(body, operands, results, limits)
    comment = f"{family} {row.text} of body {body.hash}"
    kernel = without_dead_registers(FAMILIES[family](body, row, scalars, name, comment))
    if row.raster.persist:
        # a block stays on its SM: no more of them than there are SMs, in whole clusters
        most = target.sms // kernel.cluster[0] * kernel.cluster[0]
        kernel = _staying(kernel, most)
    if target.capability >= EARLY_SINCE:
        kernel = starting_early(kernel)
    verify(kernel, target)
    return kernel


def _staying(kernel: Kernel, most: int) -> Kernel:
    """At most so many blocks; memory of the launch's own is for as many."""
    grid = scalar("min", kernel.grid[0], const(most))
    params = kernel.params
    if isinstance(before := kernel.grid[0], Const):
        blocks = int(before.value)
        each = {p: int(p.count.value) // blocks for p in params if isinstance(p.count, Const)}
        params = tuple(replace(p, count=const(each[p] * min(blocks, most))) if p in each else p for p in params)
    return replace(kernel, grid=(grid, *kernel.grid[1:]), params=params)
