"""Contraction and attention kernels compute what their bodies say: on the CPU here, on a GPU where there is one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emmy.codegen.families.attention import lower_attention
from emmy.codegen.families.mma import lower_mma
from emmy.codegen.families.tile import lower_tile
from emmy.codegen.scalar import Scalars
from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import scalar
from emmy.ir.kernel import For, Kernel
from emmy.ir.loop import Body, Load, Out, Tensor, ax, const, fold, load, size
from emmy.ir.normal import normalize
from emmy.ir.schedule import Row
from emmy.ir.target import target
from emmy.ir.views.attention_view import attention_view
from emmy.ir.views.chunks import CHUNK
from tests import bodies as B
from tests import host_cuda
from tests.codegen import check

RULESETS = Path(__file__).parents[2] / "rulesets"
S = size("s")
host = pytest.mark.skipif(not host_cuda.available(), reason="no C++ compiler to run kernels on the CPU")

CONTRACTIONS: dict[str, tuple[Body, Mapping[str, int]]] = {
    "whole tiles": (B.linear(64, 96, 64), {}),
    "odd": (B.linear(33, 77, 65), {}),
    "tiny": (B.linear(2, 3, 5), {}),
    "aligned tails": (B.linear(40, 104, 72), {}),
    "bias, activation, batch, k by n": (B.linear(40, 96, 72, bias=True, batch=3, trans_b=False, act=True), {}),
    "transposed left": (B.linear(64, 96, 72, trans_a=True), {}),
    "matrix times vector": (B.matvec(64, 128), {}),
    "scale in the epilogue": (B.rms_linear(70, 96, 128), {}),
    "scale on the operand": (B.rms_linear(70, 96, 128, factored=False), {}),
    "two results": (B.rms_linear(64, 96, 96, keep=True), {}),
    "two sums": (B.swiglu(65, 96, 128), {}),
    "head split": (B.head_split(40, 4, 16, 128), {}),
    "head merge": (B.head_merge(40, 4, 16, 128), {}),
    "patches": (B.patches(2, 3, 32, 8, 64), {}),
    "dequantized": (B.dequant(8, 16, 40), {}),
    "guarded halves": (B.rotated(40, 24, 64), {}),
    "symbolic rows": (B.linear(S, 96, 128), {"s": 37}),
    "symbolic sum": (B.linear(40, 96, S), {"s": 45}),
    "empty sum": (B.linear(8, 8, S), {"s": 0}),
    "f16": (B.linear(40, 24, 64, "f16"), {}),
}
MMA_ROWS = (
    "WORK=w2x2,TILE=mma_m16n8k16_{}_f32/f2x3/k2,REDUCE=,STAGE=d3/smem-async,RASTER=gm8",
    "WORK=w1x2,TILE=mma_m16n8k16_{}_f32/f1x2/k4,REDUCE=,STAGE=d2/smem,RASTER=",
)
TILE_ROWS = (
    "WORK=t8x8,TILE=f4x8/k16,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t4x16,TILE=f3x2/k8,REDUCE=,STAGE=d3/smem-async,RASTER=gm4",
    "WORK=t1x32,TILE=f1x1/k8,REDUCE=,STAGE=d2/smem-async,RASTER=",
    "WORK=t8x8,TILE=f4x7/k16,REDUCE=,STAGE=d3/smem-async/reg,RASTER=",
    "WORK=t8x4,TILE=f4x7/k32,REDUCE=coop/r4,STAGE=d2/smem,RASTER=",
    "WORK=t8x8,TILE=f4x7/k16,REDUCE=,STAGE=d3/smem-async/turn/reg,RASTER=",
    "WORK=t8x4,TILE=f3x4/k16,REDUCE=coop/r2,STAGE=d2/smem-async/turn,RASTER=",
)
ATTENTIONS: dict[str, tuple[Body, Mapping[str, int]]] = {
    "whole tiles": (B.attention(2, 2, 2, 32, 64, 16), {}),
    "causal, grouped heads": (B.attention(1, 4, 2, 40, 40, 24, causal=True), {}),
    "additive mask, token major": (B.attention(1, 2, 2, 33, 70, 32, mask="add", token_major=True), {}),
    "one query": (B.attention(1, 8, 2, 1, 50, 64), {}),
    "short values": (B.attention(1, 2, 1, 20, 30, 20, value_dim=8, causal=True), {}),
    "odd heads": (B.attention(1, 2, 1, 20, 30, 13, value_dim=9), {}),
    "symbolic": (B.attention(1, 2, 1, S, S, 16, causal=True), {"s": 77}),
    "causal, token major": (B.attention(1, 4, 2, 40, 90, 16, causal=True, token_major=True), {}),
}
ATTENTION_ROWS = (
    "WORK=w2,TILE=mma_m16n8k16_bf16_f32/f1x4,REDUCE=,STAGE=d2/smem-async,RASTER=",
    "WORK=w1,TILE=mma_m16n8k16_bf16_f32/f2x2,REDUCE=,STAGE=d1/smem-async,RASTER=",
    "WORK=w1,TILE=mma_m16n8k16_bf16_f32/f1x4,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t32,TILE=f1,REDUCE=,STAGE=,RASTER=",
    "WORK=t64,TILE=f4,REDUCE=,STAGE=,RASTER=",
)
# units of `check.distance`: half of one for the result's rounding, as much again for operands rounded to 16 bits
TOLERANCE = 2.0
MOST_ROWS = 60  # of one body that a card runs


def mma(body: Body, row: str) -> Kernel:
    dtype = body.outs[0].tensor.dtype
    return lower_mma(body, Row.parse(row.format(dtype)), Scalars(body), "k_mma", row)


def tile(body: Body, row: str) -> Kernel:
    return lower_tile(body, Row.parse(row), Scalars(body), "k_tile", row)


def attention(body: Body, row: str) -> Kernel:
    return lower_attention(body, Row.parse(row), Scalars(body), "k_attention", row)


LONG_ROWS = (
    "WORK=t8x8,TILE=f2x4/k16,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t8x8,TILE=f2x4/k16,REDUCE=,STAGE=d3/smem-async/turn/reg,RASTER=",
    "WORK=t8x4,TILE=f2x7/k32,REDUCE=coop/r4,STAGE=d2/smem-async/reg,RASTER=",
)


@host
@pytest.mark.parametrize("length", [4096, 4099, 515])
@pytest.mark.parametrize("row", LONG_ROWS)
def test_sums_of_f32_lose_no_more_than_a_chunk(row: str, length: int) -> None:
    """Beside 2^24 a sum in one register would lose every 1 that follows, a sum of chunks those of the first chunk."""
    body = B.linear(9, 11, length, "f32")
    given = [np.ones((int(t.shape[0].value), length), np.float32) for t in body.slots]
    given[0][:, 0] = 2.0**24
    lost = check.error(body, tile(body, row), {}, given) * 2.0**-20 * 2 * 2.0**24
    assert lost <= CHUNK


@host
@pytest.mark.parametrize("row", MMA_ROWS)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_on_tensor_cores(name: str, row: str) -> None:
    body, sizes = CONTRACTIONS[name]
    assert check.error(body, mma(body, row), sizes) < TOLERANCE


@host
@pytest.mark.parametrize("row", TILE_ROWS)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_on_threads(name: str, row: str) -> None:
    body, sizes = CONTRACTIONS[name]
    assert check.error(body, tile(body, row), sizes) < TOLERANCE


@host
def test_integer_valued_products_are_exact() -> None:
    body = B.linear(33, 40, 72)
    rng = np.random.default_rng(3)
    given = [check.operand(t, {}, rng).astype(np.float32) for t in body.slots]
    given = [np.clip(np.round(g), -2, 2).astype(host_cuda.NUMPY["bf16"]) for g in given]
    assert check.error(body, mma(body, MMA_ROWS[0]), {}, given) == 0.0


def normalized(m: int, n: int, k: int) -> Body:
    """A product whose left operand is staged as it is, scaled by the mean square of the operand's row."""
    i, j, r = ax("i", m), ax("j", n), ax("r", k)
    x = load(0, (i, r), "bf16")
    mean = scalar("div", fold("sum", r, scalar("mul", x, x)), const(float(k), "f32"))
    total = fold("sum", r, scalar("mul", x, load(1, (j, r), "bf16")), "bf16")
    slots = [Tensor("bf16", (const(a), const(k))) for a in (m, n)]
    value = scalar("mul", total, scalar("rsqrt", scalar("add", mean, const(1e-6, "f32"))))
    return normalize([Out((i, j), (i, j), value, Tensor("bf16", (const(m), const(n))))], slots)[0]


@host
@pytest.mark.parametrize("row", MMA_ROWS)
@pytest.mark.parametrize("body", [normalized(70, 40, 128), normalized(33, 24, 72), normalized(20, 24, 45),
                                  B.rms_linear(33, 40, 65), B.rms_linear(33, 40, 72)])  # fmt: skip
def test_statistics_come_from_the_staged_tiles(body: Body, row: str) -> None:
    kernel = mma(body, row)
    assert not any(isinstance(s, For) and s.var.name == "row" for s in kernel.body), "a pass over the rows is left"
    assert check.error(body, kernel) < TOLERANCE


@host
def test_f32_products_keep_f32_precision() -> None:
    body = B.linear(33, 40, 72, "f32")
    assert check.error(body, tile(body, TILE_ROWS[0])) < TOLERANCE  # units of 2^-20


@host
@pytest.mark.parametrize("row", ATTENTION_ROWS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str, row: str) -> None:
    body, sizes = ATTENTIONS[name]
    assert check.error(body, attention(body, row), sizes) < 1.0


@host
@pytest.mark.parametrize("row", ATTENTION_ROWS)
def test_masked_keys_do_not_poison_a_row_and_a_row_without_keys_is_nan(row: str) -> None:
    body = B.attention(1, 1, 1, 20, 40, 16, mask="add")
    given = check.operands(body, {})
    (at,) = (k for k, s in enumerate(body.slots) if len(s.shape) == 2 and s.shape[0].text == "20")
    mask = given[at].astype(np.float32)
    mask[:, :17] = -np.inf
    mask[3, :] = -np.inf
    given[at] = mask.astype(given[at].dtype)
    assert check.error(body, attention(body, row), {}, given) < 1.0


@host
@pytest.mark.parametrize("row", ATTENTION_ROWS)
def test_maxima_that_grow_little_or_much_from_tile_to_tile_keep_the_rows_right(row: str) -> None:
    body = B.attention(1, 1, 1, 40, 160, 16)
    given = check.operands(body, {})
    (at,) = (k for k, s in enumerate(body.slots) if s.shape[2].text == "160" and k != _values_slot(body))
    growth = 1.0 + np.arange(160, dtype=np.float32) * np.array([0.02, 0.4], np.float32).repeat(80)
    given[at] = (given[at].astype(np.float32) * growth.reshape(1, 1, 160, 1)).astype(given[at].dtype)
    assert check.error(body, attention(body, row), {}, given) < 1.0


def _values_slot(body: Body) -> int:
    view = attention_view(body)
    assert not isinstance(view, str)
    value = view.values[0].value
    assert isinstance(value, Load)
    return value.slot


@host
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_row_of_the_walkthrough_is_legal_and_right(dtype: str) -> None:
    body = B.attention(1, 1, 1, 16, 16, 16, dtype=dtype)
    rows = schedule_rows([body], target("sm_120a"), {}, RULESETS).rows[body.hash]
    (row,) = (r for r in rows if r.row.text == "WORK=t32,TILE=f1,REDUCE=,STAGE=,RASTER=")
    assert check.error(body, lower_attention(body, row.row, Scalars(body), "k", "")) < 1.0


# ---- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_legal_contraction_rows_on_the_gpu(name: str) -> None:
    body, sizes = CONTRACTIONS[name]
    _on_gpu(body, sizes, TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ATTENTIONS)
def test_legal_attention_rows_on_the_gpu(name: str) -> None:
    body, sizes = ATTENTIONS[name]
    _on_gpu(body, sizes, 2.0)


@pytest.mark.gpu
@pytest.mark.parametrize("body", [B.linear(257, 383, 520), B.linear(300, 256, 1030, trans_b=False),
                                  B.linear(264, 256, 1032, trans_b=False), B.scaled_linear(264, 256, 1032),
                                  B.rms_linear(130, 264, 512), B.attention(2, 4, 2, 200, 333, 128, causal=False),
                                  B.attention(1, 2, 2, 300, 300, 256, causal=True)])  # fmt: skip
def test_larger_shapes_around_tile_edges_on_the_gpu(body: Body) -> None:
    _on_gpu(body, {}, TOLERANCE)


def _on_gpu(body: Body, sizes: Mapping[str, int], tolerance: float) -> None:
    import torch

    from emmy.codegen.cuda import source
    from emmy.codegen.lower import lower
    from emmy.ir.evaluate import evaluate
    from emmy.runtime.local import local_arch
    from emmy.runtime.nvrtc import Compiled, Job, compile_many
    from emmy.runtime.single import invocation, loaded, work_tensors

    arch = local_arch()
    assert arch is not None
    torch.zeros(1, device="cuda")
    card = target(arch)
    legal = [r for r in schedule_rows([body], card, sizes, RULESETS).rows[body.hash] if r.family != "plain"]
    rows = random.Random(0).sample(legal, min(len(legal), MOST_ROWS))
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in rows]
    given = check.operands(body, sizes)
    expected = evaluate(body, given, sizes)
    held = [_device(a) for a in given]
    for r, k, built in zip(rows, kernels, compile_many([Job(source(k), k.name, arch) for k in kernels]), strict=True):
        assert isinstance(built, Compiled), r.row.text
        results = [np.full(e.shape, 0xFF, np.uint8) for e in expected]
        outs = [torch.full((a.size * check.DTYPES[o.tensor.dtype].bytes,), 0xFF, dtype=torch.uint8, device="cuda")
                for a, o in zip(results, body.outs, strict=True)]  # fmt: skip
        own = work_tensors(k, sizes)
        launch = invocation(k, loaded(k, built), [t.data_ptr() for t in (*held, *outs, *own)], sizes)
        launch.launch(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        found = [t.cpu().numpy().view(host_cuda.NUMPY[o.tensor.dtype]).reshape(e.shape)
                 for t, o, e in zip(outs, body.outs, expected, strict=True)]  # fmt: skip
        assert check.distance(body, found, expected) < tolerance, r.row.text


def _device(a: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(a).reshape(-1).view(np.uint8).copy()).cuda()
