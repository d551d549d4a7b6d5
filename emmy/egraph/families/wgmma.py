"""Facts, rows and cost settings of the `wgmma` family: contractions on Hopper's tensor cores, fed by TMA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from emmy.egraph.families.contraction import Facts, Rows, exchanged, points, sized
from emmy.errors import LoweringError
from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype, stored_as
from emmy.ir.kernel import WGMMA_K
from emmy.ir.loop import Body
from emmy.ir.schedule import Raster, Reduce, Row, Stage, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.access import size_of
from emmy.ir.views.box import Box
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.converted import FRAGMENT, Left, left_of, stored, stored_box
from emmy.ir.views.gather import passing
from emmy.ir.views.product import EIGHTS
from emmy.ir.views.results import by_boxes, by_lines
from emmy.ir.warpgroups import CLUSTER, Warpgroups, deposits_beyond

PRODUCERS = 4  # warps
IN_CLUSTER, ATOMIC, STREAM = 0, 1, 3  # how blocks share a sum, in the rules


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> Facts | str:
    """What the rules need of a contraction whose right factors TMA moves as they are, in one way or both."""
    view = contraction_view(body)
    if isinstance(view, str):
        return view
    if view.factor is None:
        if target.numerics != "tf32":
            return "factors that the original program does not hold in one type of 16 or 8 bits"
        view = view.in_tf32()
    ways = [_operands(view), _operands(view.swapped())]
    offered = [(way, w) for way, w in enumerate(ways) if isinstance(w, Operands)]
    if not offered:
        first, exchanged = (str(w) for w in ways)
        return first if first == exchanged else f"{first}; with sides exchanged, {exchanged}"
    boxes, outs = by_boxes(view), len(body.outs)
    lines = by_lines(view) and not boxes
    known: Facts = {"wgmma-outs": [(body.hash, outs if boxes else 0, outs if lines else 0)]}
    known["wgmma-fixed"] = [(body.hash,)] if size_of(view.k) is not None else []
    known["wgmma-sized"] = [(body.hash,)] if sized(view) else []
    # 8-bit floats have a rule of their own, since their sums are short, and so has what rounds factors of f32
    offers = "wgmma-named" if view.factor in EIGHTS else "wgmma-rounds" if view.narrowed else "wgmma-takes"
    known[offers] = [(body.hash, view.factor)]
    for way, operands in offered:
        v = view.swapped() if way else view
        h = body.hash, way
        left = operands.left
        extents = points(v.m, sizes), points(v.n, sizes), points(v.k, sizes), points(v.batch, sizes)
        known.setdefault("wgmma-body", []).append((*h, view.factor, *extents))
        known.setdefault("wgmma-operands", []).append((*h, len(v.parts_b), len(v.sums)))
        known.setdefault("wgmma-left", []).append(
            (*h, int(bool(left.computed)), left.bytes, left.fixed, left.beside, left.step)
        )
        known.setdefault("wgmma-lies", []).append((*h, *_overlaid(v, left)))
        known.setdefault("wgmma-runs", []).append((*h, operands.run))
        known.setdefault("wgmma-scalars", []).append((*h, len(v.scalars_m), len(v.scalars_n)))
        known.setdefault("wgmma-passing", []).append((*h, 0 if way else len(passing(v))))
    return known


def _overlaid(v: ContractionView, left: Left) -> tuple[int, int]:
    """Bytes of a row and of a column of tiles, an element of the sum: no more than each sum's deposit overlays."""
    assert v.factor is not None
    right = dtype(stored_as(v.factor)).bytes
    if len(v.sums) == 1:
        return max(dtype(n.dtype).bytes for n in left.tiles), right
    return 0, right if len(v.parts_b) >= len(v.sums) else 0


@dataclass(frozen=True, slots=True)
class Operands:
    """`run`: the side along which right factors lie in memory."""

    left: Left
    run: str


def _operands(v: ContractionView) -> Operands | str:
    """The factors of one way: right ones as they lie in memory, left ones so or computed by the consumers."""
    assert v.factor is not None
    nodes = [stored(p, v.factor) for p in v.parts_b]
    boxes = [stored_box(n, v, v.n) for n in nodes if n is not None]
    if len(boxes) < len(nodes):
        return "a right factor that is computed"
    for found in boxes:
        if isinstance(found, str):
            return found
    runs = {b.run for b in boxes if isinstance(b, Box)}
    if len(runs) > 1:
        return "factors of one side that lie in different orders"
    left = left_of(v)
    return left if isinstance(left, str) else Operands(left, *runs)


def rows(found: Rows, stages: Rows, orders: Rows) -> Iterator[tuple[str, Row]]:
    rings: dict[Any, list[Stage]] = {}
    for *_, depth, out, cls in stages:
        rings.setdefault(cls, []).append(Stage(depth, "smem-tma", out=out == 1))
    rasters: dict[Any, list[Raster]] = {}
    for *_, group, persist, cls in orders:
        rasters.setdefault(cls, []).append(Raster(group, persist == 1))
    for body, way, type, form, g, f, n, ks, parts, cluster, turns, finish, ring, raster, _ in found:
        warps, fragments = ((1, 4 * g), (1, f)) if way else ((4 * g, 1), (f, 1))
        tile = Tile(f"wgmma_m64n{n}k{WGMMA_K[type]}_{type}_f32", fragments, ks)
        work = Work("w", warps, PRODUCERS, turns == 1)
        reduce = Reduce(
            parts=parts if parts > 1 else 0, finish="a" if finish == ATOMIC else "", stream=finish == STREAM
        )
        if finish != ATOMIC and parts > 1 and (finish == IN_CLUSTER) != (parts <= CLUSTER):
            # a row does not say which: the number of blocks does
            where = "a cluster" if finish == IN_CLUSTER else "a workspace"
            raise LoweringError(
                f"wgmma.egg has {parts} blocks share a sum in {where}, which is not what REDUCE={reduce.text} says",
                f"up to {CLUSTER} blocks share it in a cluster (emmy.ir.warpgroups.CLUSTER), more in a workspace",
            )
        for stage in rings.get(ring, ()):
            stage = replace(stage, cluster=cluster if cluster > 1 else 0, registers=form == 1)
            for order in rasters.get(raster, ()):
                yield body, Row(work, tile, reduce, stage, order)


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    c = Warpgroups.of(row)
    view = view.in_tf32() if c.type == "tf32" else view
    v = view.swapped() if c.swapped else view
    long, columns, sums = c.long, c.n, len(v.sums)
    left = left_of(v)
    assert isinstance(left, Left)
    stage = c.block_k * (left.bytes * long + c.stored.bytes * len(v.parts_b) * columns)
    rows = -(-points(v.m, sizes) // (long * c.cluster)) * c.cluster
    tiles = points(v.batch, sizes) * rows * -(-points(v.n, sizes) // columns)
    beside = 2048 + 4 * (len(v.scalars_m) * long + len(v.scalars_n) * columns)
    beside += c.told(len(passing(v)))
    if c.out:
        beside += len(body.outs) * (2 * 64 * 2 * c.block * c.groups if by_boxes(v) else c.line_bytes)
    if c.swapped or c.parts > 1:
        tiles_of = [
            *(dtype(n.dtype).bytes * long for n in left.tiles),
            *(c.stored.bytes * columns for _ in v.parts_b),
        ]
        rings = [c.stages * c.block_k * each for each in tiles_of]
        beside += deposits_beyond(rings, [4 * (long + 8) * (columns + 8)] * sums)
    blocks, each = tiles * c.parts * c.shared, 4 * sums * long * columns
    exchange = exchanged(row.reduce, blocks, each) if c.shared > 1 else 0
    if c.stream:  # no block has more than one tile that the next block shares
        exchange = 2 * 2 * min(tiles, target.sms) * each
    at_once = c.at_once(sums, lambda steps: left.registers(c.fragments, c.steps, steps))
    resident = c.registers(sums, left.registers(c.fragments, c.steps, at_once))[2]
    return KernelConfig(
        "wgmma",
        c.threads,
        blocks,
        tile_m=columns if c.swapped else long,
        tile_n=long if c.swapped else columns,
        tile_k=c.block_k,
        vector=16,
        stages=c.stages,
        smem=c.stages * stage + beside,
        registers=min(255, 65536 // (resident * c.threads) // 8 * 8),
        group=c.group,
        hold_m=columns if c.swapped else 64,
        hold_n=64 if c.swapped else columns,
        splits=c.parts * c.shared,
        persist=c.persist,
        turns=c.pingpong,
        shares=c.cluster,
        staged=c.out,
        swapped=c.swapped,
        bits=c.stored.bits,
        exchange=exchange,
        stream=c.stream,
        held=c.computed,
        apart=not (c.out or c.swapped or c.parts > 1) and by_lines(v) and not by_boxes(v),
        flight=4 * FRAGMENT * c.fragments * at_once if c.computed else 0,
    )
