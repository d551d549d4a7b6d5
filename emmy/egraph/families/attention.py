"""Facts, rows and cost settings of the attention family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emmy.egraph.families.contraction import Facts, Rows, points, rings
from emmy.ir.config import KernelConfig
from emmy.ir.loop import Ax, Body
from emmy.ir.schedule import Row, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.access import async_copy, size_of
from emmy.ir.views.attention_view import QUERY_REGISTERS, AttentionView, attention_view
from emmy.ir.views.product import Part

MOST_HEAD = 256


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> Facts | str:
    view = attention_view(body)
    if isinstance(view, str):
        return view
    found: Facts = {"attention-body": [(body.hash, points(view.c, sizes))]}
    heads = fragments(view)
    if heads is None:
        return found
    key, value = Part(view.key.value, (view.t,)), Part(view.values[0].value, (view.t,))
    half = view.half
    assert half is not None
    copies = async_copy(key, body, view.d, (view.t,), half) or async_copy(value, body, view.c, (view.t,), half)
    found["attention-half"] = [(body.hash, half, points(view.m, sizes), points((view.t,), sizes))]
    found["attention-heads"] = [(body.hash, *heads, len(view.scalars))]
    found["attention-queries"] = [(body.hash, r, _query_registers(r, heads[0])) for r in (1, 2)]
    found["attention-copies"] = [(body.hash,)] if copies else []
    return found


def _query_registers(rows: int, d: int) -> int:
    held = rows * d // 4
    return held if held <= QUERY_REGISTERS else 4 * rows


def fragments(view: AttentionView) -> tuple[int, int] | None:
    """Score and value lengths rounded up to 16 where tensor cores take the body, else None.

    They need factors of one 16-bit type, one value tensor, head sizes that are numbers up to 256, and row scalars that
    do not depend on keys.
    """
    d, e = size_of(view.d), size_of(view.c)
    if view.half is None or len(view.values) != 1 or d is None or e is None or max(d, e) > MOST_HEAD:
        return None
    if any(view.t in s.free for s in view.scalars):
        return None
    return -(-d // 16) * 16, -(-e // 16) * 16


def rows(threads: Rows, tensor: Rows, options: Rows) -> Iterator[tuple[str, Row]]:
    for body, t, columns, _ in threads:
        yield body, Row(Work("t", (t,)), Tile(fragment=(columns,)))
    stages = rings(options)
    for body, type, warps, r, f, ring, _ in tensor:
        for stage in stages.get(ring, ()):
            yield body, Row(Work("w", (warps,)), Tile(f"mma_m16n8k16_{type}_f32", (r, f)), stage=stage)


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = attention_view(body)
    assert isinstance(view, AttentionView)
    m, batch, columns = points(view.m, sizes), points(view.batch, sizes), points(view.c, sizes)
    if not row.tile.instruction:
        each, threads = row.tile.fragment[0], row.work.threads
        count = batch * m * -(-columns // each)
        return KernelConfig(
            "attention", threads, -(-count // threads), tile_m=max(1, threads * each // columns), tile_n=1,
            tile_k=_head(view.d, sizes), registers=min(255, 40 + each), direct=False, hold_m=1, hold_n=each,
        )  # fmt: skip
    heads = fragments(view)
    assert heads is not None
    (r, f), warps = row.tile.fragment, row.work.dims[0]
    d, e = heads
    tile_m, tile_t = 16 * r * warps, 8 * f
    held = 36 + r * e // 2 + 4 * r * f + _query_registers(r, d) + 2 * f
    smem = row.stage.depth * 2 * tile_t * (d + e) + 2 * tile_m * d + 4 * len(view.scalars) * tile_m
    return KernelConfig(
        "attention", 32 * warps, batch * -(-m // tile_m), tile_m=tile_m, tile_n=tile_t, tile_k=d, vector=16,
        stages=row.stage.depth, smem=smem, registers=min(255, held), direct=row.stage.where == "smem-async",
        hold_m=16 * r, hold_n=tile_t,
    )  # fmt: skip


def _head(d: tuple[Ax, ...], sizes: Mapping[str, int]) -> int:
    return points(d, sizes)
