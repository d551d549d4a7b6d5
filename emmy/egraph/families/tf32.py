"""Facts, rows and cost settings of the tf32 family: f32 factors on tensor cores, where the user allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from emmy.egraph.families import contraction
from emmy.egraph.families.contraction import Facts, Rows
from emmy.ir.config import KernelConfig
from emmy.ir.loop import Body
from emmy.ir.schedule import Row, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.access import async_copy
from emmy.ir.views.contraction_view import ContractionView, contraction_view

STORED = ("f32", "bf16", "f16")  # types of the operands that make a factor


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> Facts | str:
    view = contraction_view(body)
    if isinstance(view, str):
        return view
    if target.numerics != "tf32":
        return "products of f32 factors round to tf32 only where that is allowed"
    if view.half is not None:
        return "factors of 16 bits, which tensor cores take as they are"
    parts = contraction.parts_of(view)
    if any(n.dtype not in STORED for p, _ in parts for n in p.loads):
        return "factors of another type than f32"
    found = contraction.counted("tf32", view, sizes)
    found["tf32-body"] = [(body.hash, *contraction.extents(view, sizes))]
    copies = any(async_copy(p, body, own, view.k, "f32") for p, own in parts)
    found["tf32-copies"] = [(body.hash,)] if copies else []
    return found


def rows(found: Rows, options: Rows, bands: Rows) -> Iterator[tuple[str, Row]]:
    stages, orders = contraction.rings(options), contraction.rasters(bands)
    for body, wm, wn, fm, fn, ks, ring, raster, _ in found:
        tile = Tile("mma_m16n8k8_tf32_f32", (fm, fn), ks)
        for stage, order in product(stages.get(ring, ()), orders.get(raster, ())):
            yield body, Row(Work("w", (wm, wn)), tile, stage=stage, raster=order)


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    (wm, wn), (fm, fn), ks = row.work.dims, row.tile.fragment, row.tile.k
    pa, pb, sums = len(view.parts_a), len(view.parts_b), len(view.sums)
    registers = 40 + sums * 4 * fm * fn + 8 * pa * fm + 4 * pb * fn
    tile = 16 * wm * fm, 8 * wn * fn, 8 * ks
    made = contraction.config_of("mma", body, view, row, sizes, tile, "f32", registers, (16 * fm, 8 * fn))
    beside = 16 * (pa * tile[0] + pb * tile[1]) + 256 * ks * (pa + pb)
    return replace(made, smem=made.smem + row.stage.depth * beside, bits=32)
