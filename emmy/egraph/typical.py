"""What a body would cost, before its schedules are asked for: each family that takes it at a few typical rows.

The rows are those that good kernels of the family have; whether they are legal for the body is not asked, since only
their cost matters here.  A body that no view takes runs as a plain row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from emmy.egraph.families import attention, contraction, plain, row, scan, wgmma
from emmy.egraph.families import map as maps
from emmy.egraph.families import turn as turns
from emmy.ir.config import KernelConfig
from emmy.ir.kernel import WGMMA_K
from emmy.ir.loop import Body
from emmy.ir.schedule import Row
from emmy.ir.target import Target
from emmy.ir.views.attention_view import attention_view
from emmy.ir.views.contraction_view import contraction_view
from emmy.ir.views.map_view import map_view
from emmy.ir.views.row_view import row_view
from emmy.ir.views.scan_view import scan_view
from emmy.ir.views.turn_view import Turned, turn_view, turned

Config = Callable[[Body, Row, Target, Mapping[str, int]], KernelConfig]
HOPPER: Final = 90  # the capability that has wgmma
_MMA: Final = "TILE=mma_m16n8k16_bf16_f32"


def _rows(*texts: str) -> tuple[Row, ...]:
    return tuple(Row.parse(t) for t in texts)


_MAP: Final = (
    "WORK=t128,TILE=f4,REDUCE=,STAGE=,RASTER=",
    "WORK=t128,TILE=f2x4,REDUCE=,STAGE=,RASTER=",
    "WORK=t128,TILE=f2x8,REDUCE=,STAGE=,RASTER=",
)
_TURN: Final = ("WORK=t32x8,TILE=f32x32,REDUCE=,STAGE=d1/smem,RASTER=",)
_ATTENTION: Final = (
    f"WORK=w1,{_MMA}/f1x16,REDUCE=,STAGE=d2/smem-async,RASTER=",
    f"WORK=w4,{_MMA}/f1x8,REDUCE=,STAGE=d2/smem-async,RASTER=",
    f"WORK=w4,{_MMA}/f2x8,REDUCE=,STAGE=d2/smem-async,RASTER=",
)
_THREADS: Final = ("WORK=t32,TILE=f1,REDUCE=,STAGE=,RASTER=", "WORK=t64,TILE=f4,REDUCE=,STAGE=,RASTER=")
_TENSOR: Final = (
    f"WORK=w1x1,{_MMA}/f1x2/k8,REDUCE=,STAGE=d6/smem-async,RASTER=",
    f"WORK=w2x2,{_MMA}/f2x2/k8,REDUCE=,STAGE=d4/smem-async,RASTER=",
    f"WORK=w2x2,{_MMA}/f2x4/k8,REDUCE=,STAGE=d3/smem-async,RASTER=",
    f"WORK=w2x4,{_MMA}/f4x4/k4,REDUCE=,STAGE=d4/smem-async,RASTER=",
    f"WORK=w2x4,{_MMA}/f4x8/k4,REDUCE=,STAGE=d3/smem-async,RASTER=",
)
# by way: the instruction's rows along m, or along n
_WARPGROUPS: Final = (
    ("WORK=w4x1+p4,TILE=wgmma_m64n64{type}/f1x1/k4,REDUCE=,STAGE=d6/smem-tma{form},RASTER=",
     "WORK=w8x1+p4,TILE=wgmma_m64n128{type}/f1x1/k4,REDUCE=,STAGE=d5/smem-tma{form},RASTER="),
    ("WORK=w1x4+p4,TILE=wgmma_m64n8{type}/f1x1/k4,REDUCE=,STAGE=d8/smem-tma{form},RASTER=",
     "WORK=w1x4+p4,TILE=wgmma_m64n32{type}/f1x1/k4,REDUCE=,STAGE=d8/smem-tma{form},RASTER="),
)  # fmt: skip
_TILE: Final = (
    "WORK=t16x16,TILE=f4x4/k16,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t16x16,TILE=f8x8/k8,REDUCE=,STAGE=d2/smem,RASTER=",
)
_ROW: Final = (
    "WORK=t32x8,TILE=,REDUCE=coop,STAGE=,RASTER=",
    "WORK=t128,TILE=,REDUCE=coop,STAGE=reg,RASTER=",
    "WORK=t128,TILE=f8,REDUCE=coop,STAGE=,RASTER=",
    "WORK=t256,TILE=f4,REDUCE=coop,STAGE=,RASTER=",
)


def typical_configs(body: Body, target: Target, sizes: Mapping[str, int]) -> list[KernelConfig]:
    """Configs at typical rows of every family that takes the body (`plain` where none does)."""
    found: list[tuple[Config, tuple[str, ...]]] = []
    if not isinstance(map_view(body), str):
        found.append((maps.config, _MAP))
    turn = turn_view(body)
    if not isinstance(turn, str) and isinstance(turned(turn, 32, 1), Turned):
        found.append((turns.config, _TURN))
    view = attention_view(body)
    if not isinstance(view, str):
        found.append((attention.config, _ATTENTION if attention.fragments(view) is not None else _THREADS))
    product = contraction_view(body)
    if not isinstance(product, str):
        found.append((contraction.tile_config, _TILE))
        if product.half is not None:
            found.append((contraction.mma_config, _TENSOR))
        if target.capability == HOPPER:
            found.append((wgmma.config, _warpgroups(body, target, sizes)))
    if not isinstance(row_view(body), str):
        found.append((row.config, _ROW))
    if not isinstance(scan_view(body), str):
        found.append((scan.config, ("WORK=t128,TILE=f4,REDUCE=coop,STAGE=,RASTER=",)))
    configs = [config(body, r, target, sizes) for config, texts in found for r in _rows(*texts)]
    return configs or [plain.config(body, Row.parse("WORK=t128,TILE=,REDUCE=,STAGE=,RASTER="), target, sizes)]


def _warpgroups(body: Body, target: Target, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Rows of each way in which the family takes the body."""
    facts = wgmma.facts(body, target, sizes)
    if isinstance(facts, str):
        return ()
    type = str(facts["wgmma-body"][0][2])
    texts = []
    for _, way, computed, *_ in facts["wgmma-left"]:
        form, instruction = "/reg" if computed else "", f"k{WGMMA_K[type]}_{type}_f32"
        texts += [t.format(type=instruction, form=form) for t in _WARPGROUPS[1 if way else 0]]
    return tuple(texts)
