"""Facts, rows and cost settings of the two contraction families: `tile` on plain threads, `mma` on tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, Final

from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Ax, Body
from emmy.ir.schedule import Raster, Reduce, Row, Stage, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.access import along_sum, async_copy, gathered_load, run_side, size_of, whole_chunks
from emmy.ir.views.box import Box, part_box
from emmy.ir.views.chunks import precise, sums_in_chunks
from emmy.ir.views.contraction_view import ContractionView, contraction_view

WAYS: Final = ("smem", "smem-async", "smem-tma")  # through registers, by asynchronous copies, by boxes of TMA
ENDLESS: Final = 1 << 40  # elements of a sum whose length inputs say
RING: Final = 16  # bytes of a slot's two barriers
Facts = dict[str, list[tuple[object, ...]]]
Rows = Iterable[tuple[Any, ...]]


def points(axes: Sequence[Ax], sizes: Mapping[str, int]) -> int:
    """The number of points of some axes, at least 1."""
    n = 1
    for a in axes:
        n *= integer(a.extent, sizes)
    return max(1, n)


def tile_facts(body: Body, target: Target, sizes: Mapping[str, int]) -> Facts | str:
    view = contraction_view(body)
    if isinstance(view, str):
        return view
    facts = counted("tile", view, sizes)
    sides = ((view.parts_a, view.m), (view.parts_b, view.n))
    lying = [along_sum(parts, body, own, view.k) for parts, own in sides]
    # beside a part that does not run along the sum, one that does is turned by hand
    copies = any(
        async_copy(p, body, own, view.k, "f32") and (along or run_side(p, body, own, view.k) == "own")
        for (parts, own), along in zip(sides, lying, strict=True) for p in parts
    )  # fmt: skip
    facts["tile-body"] = [(body.hash, *extents(view, sizes))]
    facts["tile-step"] = [(body.hash, _step(body))]
    longest = size_of(view.k)
    facts["tile-precise"] = [(body.hash, (ENDLESS if longest is None else longest) if precise(view) else 0)]
    facts["tile-fixed"] = _fixed(view, sizes)
    facts["tile-copies"] = [(body.hash,)] if copies else []
    turns = any(
        async_copy(p, body, own, view.k, "f32") and run_side(p, body, own, view.k) == "k"
        for parts, own in sides for p in parts
    )  # fmt: skip
    facts["tile-turns"] = [(body.hash,)] if turns else []
    return facts


def mma_facts(body: Body, target: Target, sizes: Mapping[str, int]) -> Facts | str:
    view = contraction_view(body)
    if isinstance(view, str):
        return view
    half = view.half
    if half is None:
        return "factors that the original program does not hold in one 16-bit type"
    facts = counted("mma", view, sizes)
    facts["mma-body"] = [(body.hash, half, *extents(view, sizes))]
    facts["mma-fixed"] = _fixed(view, sizes)
    copies = any(async_copy(p, body, own, view.k, half) for p, own in parts_of(view))
    facts["mma-copies"] = [(body.hash,)] if copies else []
    boxes = [part_box(p, body, view.batch, own, view.k) for p, own in parts_of(view)]
    boxed = all(isinstance(b, Box) and b.dtype == half for b in boxes)
    facts["mma-boxes"] = [(body.hash,)] if boxed else []
    return facts


def parts_of(view: ContractionView) -> list[tuple[Any, tuple[Ax, ...]]]:
    """Every part with the axes of its own."""
    return [*((p, view.m) for p in view.parts_a), *((p, view.n) for p in view.parts_b)]


def extents(view: ContractionView, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Results along m and n, and the length of the sum."""
    return points(view.m, sizes), points(view.n, sizes), points(view.k, sizes)


def _fixed(view: ContractionView, sizes: Mapping[str, int]) -> list[tuple[object, ...]]:
    """(body, batches) where no input changes an extent of the product."""
    return [(view.body.hash, points(view.batch, sizes))] if sized(view) else []


def sized(view: ContractionView) -> bool:
    """Whether every extent of the product is a number, so that memory for its tiles is bounded by its rules."""
    return size_of((*view.batch, *view.m, *view.n, *view.k)) is not None


def _reduce(parts: int, atomic: int) -> Reduce:
    return Reduce(parts=parts if parts > 1 else 0, finish="a" if atomic else "")


def counted(stem: str, view: ContractionView, sizes: Mapping[str, int]) -> Facts:
    """How many operands and row scalars a block stages: facts of a family whose relations begin with `stem`."""
    h = view.body.hash
    return {
        f"{stem}-operands": [(h, len(view.parts_a), len(view.parts_b), len(view.sums))],
        f"{stem}-scalars": [(h, len(view.scalars_m), len(view.scalars_n))],
    }


def rings(found: Rows) -> dict[Any, list[Stage]]:
    """Stage options of each class of rings."""
    stages: dict[Any, list[Stage]] = {}
    for *_, depth, way, cls in found:
        stages.setdefault(cls, []).append(Stage(depth, WAYS[way]))
    return stages


def rasters(found: Rows) -> dict[Any, list[Raster]]:
    """Block orders of each class of them."""
    orders: dict[Any, list[Raster]] = {}
    for _, group, cls in found:
        orders.setdefault(cls, []).append(Raster(group))
    return orders


def tile_rows(found: Rows, options: Rows, bands: Rows) -> Iterator[tuple[str, Row]]:
    stages: dict[Any, list[Stage]] = {}
    for *_, depth, way, ahead, cls in options:
        stages.setdefault(cls, []).append(tile_stage(depth, way, ahead))
    orders = rasters(bands)
    for body, tm, tn, fm, fn, bk, groups, parts, atomic, ring, raster, _ in found:
        reduce = Reduce(True, groups) if groups > 1 else _reduce(parts, atomic)
        for stage, order in product(stages.get(ring, ()), orders.get(raster, ())):
            yield body, Row(Work("t", (tm, tn)), Tile(fragment=(fm, fn), k=bk), reduce, stage, order)


def tile_stage(depth: int, way: int, ahead: int) -> Stage:
    """How operands reach shared memory: of the tile family's ways the third one turns what it copies."""
    return Stage(depth, WAYS[min(way, 1)], registers=bool(ahead), turn=way == 2)


def mma_rows(found: Rows, options: Rows, bands: Rows) -> Iterator[tuple[str, Row]]:
    stages, orders = rings(options), rasters(bands)
    for body, type, wm, wn, fm, fn, ks, parts, atomic, ring, raster, _ in found:
        tile = Tile(f"mma_m16n8k16_{type}_f32", (fm, fn), ks)
        for stage, order in product(stages.get(ring, ()), orders.get(raster, ())):
            yield body, Row(Work("w", (wm, wn)), tile, _reduce(parts, atomic), stage, order)


def tile_config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    (tm, tn), (fm, fn) = row.work.dims, row.tile.fragment
    pa, pb, sums = len(view.parts_a), len(view.parts_b), len(view.sums)
    sets = pa * fm + pb * fn
    if row.stage.registers:
        sets *= 2 * (1 if row.stage.turn else _step(body))
    registers = 40 + sums * fm * fn + sets
    tile = tm * fm, tn * fn, row.tile.k
    config = config_of("tile", body, view, row, sizes, tile, "f32", registers, (fm, fn), 4)
    if row.stage.turn:
        # each copy brings one element, and goes past the registers all the same
        config = replace(config, vector=4, direct=True)
    parts = row.reduce.accumulators if row.reduce.coop else 1
    totals = parts if sums_in_chunks(view, parts * max(1, row.reduce.parts)) else parts - 1
    config = replace(config, smem=config.smem + 4 * totals * sums * tile[0] * tile[1])
    if parts == 1:
        return config
    return replace(config, block_threads=parts * config.block_threads, reduce_threads=parts)


def mma_config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    (wm, wn), (fm, fn) = row.work.dims, row.tile.fragment
    pa, pb, sums = len(view.parts_a), len(view.parts_b), len(view.sums)
    registers = 40 + sums * 4 * fm * fn + 8 * pa * fm + 4 * pb * fn
    assert view.half is not None
    tile = 16 * wm * fm, 8 * wn * fn, 16 * row.tile.k
    return config_of("mma", body, view, row, sizes, tile, view.half, registers, (16 * fm, 8 * fn))


def config_of(
    family: Any, body: Body, view: ContractionView, row: Row, sizes: Mapping[str, int], tile: tuple[int, int, int],
    type: str, registers: int, hold: tuple[int, int], pad: int = 0,
) -> KernelConfig:  # fmt: skip
    """A row's meaning for cost: its tile along m, n and k, the staged type, and what a worker holds."""
    m, n, _ = extents(view, sizes)
    (tile_m, tile_n, tile_k), bytes = tile, dtype(type).bytes
    stage = bytes * tile_k * (len(view.parts_a) * (tile_m + pad) + len(view.parts_b) * (tile_n + pad))
    boxed = row.stage.where == "smem-tma"
    vector = 16 if boxed else _copied(body, type)
    stage += RING if boxed else 0
    beside = 4 * (len(view.scalars_m) * tile_m + len(view.scalars_n) * tile_n)
    parts = max(1, row.reduce.parts)
    blocks = parts * points(view.batch, sizes) * -(-m // tile_m) * -(-n // tile_n)
    return KernelConfig(
        family,
        row.work.threads,
        blocks,
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        vector=vector,
        stages=row.stage.depth,
        smem=row.stage.depth * stage + beside,
        registers=min(255, registers),
        held=row.stage.registers,
        direct=row.stage.where != "smem" and vector == 16,
        group=row.raster.group,
        hold_m=hold[0],
        hold_n=hold[1],
        splits=parts,
        exchange=exchanged(row.reduce, blocks, 4 * len(view.sums) * tile_m * tile_n),
    )


def exchanged(reduce: Reduce, blocks: int, sums: int) -> int:
    """Bytes of partial sums that blocks, each with `sums` bytes of them, write and read through a workspace."""
    if reduce.parts < 2:
        return 0
    # an atomic addition moves a sum both ways; the total is read and cleared once
    return 2 * blocks * sums + (2 * blocks * sums // reduce.parts if reduce.finish == "a" else 0)


@lru_cache(maxsize=512)
def _step(body: Body) -> int:
    """Elements of the sum that a thread of the tile family reads at a time: four where a side runs along it."""
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    sides = ((view.parts_a, view.m), (view.parts_b, view.n))
    return 4 if any(along_sum(parts, body, own, view.k) for parts, own in sides) else 1


@lru_cache(maxsize=512)
def _copied(body: Body, type: str) -> int:
    """Bytes of the narrowest access that brings a factor to shared memory: 16 where all move in whole chunks."""
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    narrowest, chunk = 16, 16 // dtype(type).bytes
    for part, own in parts_of(view):
        run = view.k if run_side(part, body, own, view.k) == "k" else own
        for node in part.loads:
            moves = whole_chunks(run, chunk) and gathered_load(node, body, run, chunk) is not None
            if run[-1] in node.free and not moves:
                narrowest = min(narrowest, dtype(node.dtype).bytes)
    return narrowest
