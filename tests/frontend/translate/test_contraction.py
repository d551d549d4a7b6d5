"""Products, convolutions, attention and normalization."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from emmy.errors import UnsupportedError
from emmy.frontend import opaque
from emmy.frontend.capture import capture
from emmy.frontend.opaque import operation
from emmy.frontend.reference import interpret
from emmy.frontend.translate import translate
from emmy.ir.tensor import Term
from tests.frontend.translate.reference import check, check_all, operands, run


@pytest.mark.parametrize("scales", ["tensor", "one", "rows"])
@pytest.mark.parametrize("bias", [False, True])
def test_scaled_products_of_8_bit_floats(scales: str, bias: bool) -> None:
    x, w = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (16, 48))
    shapes = {"tensor": ((), ()), "one": ((1,), (1, 1)), "rows": ((16, 1), (1, 48))}[scales]
    a, b = (torch.rand(s) + 0.5 for s in shapes)
    given = (x, w, a, b, torch.randn(48).bfloat16()) if bias else (x, w, a, b)

    def product(x, w, a, b, bias=None):
        return torch._scaled_mm(x, w.t(), a, b, bias=bias, out_dtype=torch.bfloat16)

    captured = capture(product, given)
    program = translate(captured.graph, fallback=False)
    kinds = [str(t.args[0]) for t in program.terms if t.kind == "Reduce"]
    assert kinds == ["sum:f8e4m3"], "tensor cores may take the factors as they are"
    (found,) = run(program, operands(captured, given))
    expected = x.double() @ w.double().t() * a * b + (given[4].double() if bias else 0.0)
    np.testing.assert_allclose(found, expected.numpy(), 1e-6)
    # PyTorch rounds once, too
    np.testing.assert_allclose(found, product(*given).double().numpy(), 2.0**-8, 1e-5)


@pytest.mark.parametrize("shapes", [((), ()), ((16, 1), (1, 48))])
def test_scaled_products_have_a_float64_value(shapes) -> None:
    x, w = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (16, 48))
    given = (x, w, *(torch.rand(s) + 0.5 for s in shapes), torch.randn(48).bfloat16())

    def product(x, w, a, b, bias):
        return torch._scaled_mm(x, w.t(), a, b, bias=bias, out_dtype=torch.bfloat16)

    (found,) = interpret(capture(product, given).graph, {}, list(given), torch.float64)
    a, b, bias = (t.double() for t in given[2:])
    assert torch.equal(found, x.double() @ w.double().t() * a * b + bias)


def test_scaled_products_with_scales_of_blocks_have_none() -> None:
    x, w = torch.randn(16, 256), torch.randn(256, 48)
    with pytest.raises(UnsupportedError, match="scales of blocks"):
        opaque.scaled_product(x, w, torch.rand(16, 2), torch.rand(2, 1))


def test_scaled_products_that_pytorch_runs_take_their_second_matrix_by_columns(monkeypatch) -> None:
    """Operands of an operation that we do not compile come row by row; on a card this one refuses them."""
    x, w = torch.randn(16, 32).to(torch.float8_e5m2), torch.randn(16, 32).to(torch.float8_e4m3fn)
    given = (x, w, torch.tensor(2.0), torch.tensor(0.5))
    captured = capture(lambda x, w, a, b: torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16), given)
    node = next(n for n in captured.graph.nodes if n.op == "aten._scaled_mm.default")
    seen = []
    monkeypatch.setattr(opaque, "operation", lambda op: _Recorded(operation(op), seen))
    opaque.run_node(node, [x, w.t().contiguous(), *given[2:]], {})
    assert seen == [(1, 32)]


class _Recorded:
    """An operation that notes how its second operand lies in memory."""

    def __init__(self, op, seen: list) -> None:
        self._schema, self.op, self.seen = op._schema, op, seen

    def __call__(self, *args, **kwargs):
        self.seen.append(args[1].stride())
        return self.op(*args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrix_products(dtype: torch.dtype) -> None:
    b, z, v = torch.randn(2, 4, 6).to(dtype), torch.randn(6, 5).to(dtype), torch.randn(5).to(dtype)
    check_all(
        {
            "linear": lambda b, z, v: F.linear(b, z.T),
            "bias": lambda b, z, v: F.linear(b, z.T, v),
            "vector": lambda b, z, v: F.linear(b[0, 0], z.T, v),
            "mm": lambda b, z, v: b[0] @ z,
            "mv": lambda b, z, v: z @ v,
            "vm": lambda b, z, v: b[0, 0] @ z,
            "dot": lambda b, z, v: v @ v,
            "batched": lambda b, z, v: b @ z,
            "bmv": lambda b, z, v: b @ z[:, 0],
            "vbm": lambda b, z, v: z[:4, 0] @ b,
            "bmm": lambda b, z, v: torch.bmm(b, b.mT),
            "broadcast": lambda b, z, v: b[:, None] @ b.mT,
            "b1": lambda b, z, v: b[:1] @ b.mT,
            "addmm": lambda b, z, v: torch.addmm(v, b[0], z, beta=0.5, alpha=2),
            "beta0": lambda b, z, v: torch.addmm(v * float("nan"), b[0], z, beta=0),
            "addmv": lambda b, z, v: torch.addmv(z[:, 0], z, v),
            "baddbmm": lambda b, z, v: torch.baddbmm(v, b, z.expand(2, 6, 5)),
            "addbmm": lambda b, z, v: torch.addbmm(v, b, z.expand(2, 6, 5)),
            "outer": lambda b, z, v: torch.outer(v, z[0]),
            "inner": lambda b, z, v: torch.inner(b, b[0]),
            "einsum": lambda b, z, v: torch.einsum("bij,jk->bik", b, z),
            "transposed": lambda b, z, v: torch.einsum("bij,jk->kib", b, z),
            "implicit": lambda b, z, v: torch.einsum("bij,jk", b, z),
            "three": lambda b, z, v: torch.einsum("bij,jk,k->bi", b, z, v),
            "dots": lambda b, z, v: torch.einsum("...j,jk->...k", b, z),
            "trace": lambda b, z, v: torch.einsum("ii->i", z[:5]),
            "sum": lambda b, z, v: torch.einsum("bij->j", b),
            "hadamard": lambda b, z, v: torch.einsum("bij,bij->bij", b, b),
            "reduced": lambda b, z, v: torch.einsum("bij,kl->bk", b, z),
            "tensordot": lambda b, z, v: torch.tensordot(b, z, 1),
            "tensordot2": lambda b, z, v: torch.tensordot(b, b, dims=([1, 2], [1, 2])),
            "chain": lambda b, z, v: torch.linalg.multi_dot([b[0], z, z.T]),
            "kron": lambda b, z, v: torch.kron(b[0], z),
            "cdist": lambda b, z, v: torch.cdist(b, b[:, :3]) if b.dtype == torch.float32 else b,
            "nothing": lambda b, z, v: b[:, :, :0] @ z[:0],
        },
        b,
        z,
        v,
        rtol=1e-4,
        atol=1e-5,
    )


def test_integer_products_are_exact() -> None:
    x, y = torch.arange(6).reshape(2, 3) * 10**9, torch.arange(12).reshape(3, 4) * 10**9
    check_all({"mm": torch.matmul, "mv": lambda x, y: x @ y[:, 0]}, x, y)


def test_a_linear_layer_sums_over_the_axis_before_the_last() -> None:
    program = check(nn.Linear(3, 2, bias=False), torch.randn(4, 3))
    (term,) = [t for t in program.terms if t.kind == "Contract"]
    full, reduced = term.args[8], term.args[9]
    assert [e.text for e in full] == ["4", "3", "2"]  # type: ignore[attr-defined]
    assert [e.text for e in reduced] == ["4", "1", "2"]  # type: ignore[attr-defined]
    assert term.args[1] == "[d0:4 d1:3]" and term.args[3] == "[d2:2 d1:3]"


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (3, 0, 1, 4), ((2, 1), (0, 1), 1, 1)],
)
def test_convolution_in_two_dimensions(stride: object, padding: object, dilation: int, groups: int) -> None:
    x, w, b = torch.randn(2, 4, 7, 8), torch.randn(8, 4 // groups, 3, 2), torch.randn(8)
    check(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, groups), x, w, b, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "dilation"),
    [(1, 0, 0, 1, 1), (2, 1, 1, 1, 1), (3, 2, 0, 2, 2), (2, 0, 0, 4, 1)],
)
def test_transposed_convolution(stride: int, padding: int, extra: int, groups: int, dilation: int) -> None:
    x, w, b = (
        torch.randn(2, 4, 5, 6),
        torch.randn(4, 6 // groups if groups != 4 else 2, 3, 2),
        torch.randn(6 if groups != 4 else 8),
    )
    check(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride, padding, extra, groups, dilation),
        x,
        w,
        b,
        rtol=1e-4,
        atol=1e-5,
    )


def test_convolution_in_other_dimensions_and_forms() -> None:
    x, w, z = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(1, 2, 4, 5, 6)
    check_all(
        {
            "same": lambda x, w, z: F.conv2d(x, w, padding="same"),
            "same_dilated": lambda x, w, z: F.conv2d(x, w[:, :, :2], padding="same", dilation=2),
            "unbatched": lambda x, w, z: F.conv2d(x[0], w),
            "1d": lambda x, w, z: F.conv1d(x[:, :, 0], w[:, :, 0], padding=1, stride=2),
            "3d": lambda x, w, z: F.conv3d(z, w[:, :2, :2, :2, None], stride=(1, 2, 1)),
            "t1": lambda x, w, z: F.conv_transpose1d(x[:, :, 0], w[:3, :, 0], stride=2),
            "patch": lambda x, w, z: F.conv2d(x, w[:, :, :2, :2], stride=2).flatten(2).transpose(1, 2),
        },
        x,
        w,
        z,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_every_call_form(dtype: torch.dtype) -> None:
    q, k = torch.randn(2, 4, 5, 8).to(dtype), torch.randn(2, 2, 7, 8).to(dtype)
    some = torch.rand(5, 7) > 0.4
    some[2] = False
    bias = torch.randn(2, 1, 5, 7).to(dtype)
    sdpa = F.scaled_dot_product_attention
    check_all(
        {
            "plain": lambda q, k, m, b: sdpa(q, q, q),
            "causal": lambda q, k, m, b: sdpa(q, q, q, is_causal=True),
            "long": lambda q, k, m, b: sdpa(q[:, :2], k, k, is_causal=True),
            "scale": lambda q, k, m, b: sdpa(q, q, q, scale=0.3),
            "gqa": lambda q, k, m, b: sdpa(q, k, k, enable_gqa=True),
            "mask": lambda q, k, m, b: sdpa(q[:, :2], k, k, attn_mask=m),
            "bias": lambda q, k, m, b: sdpa(q[:, :2], k, k, attn_mask=b),
            "rank3": lambda q, k, m, b: sdpa(q[0], q[0], q[0]),
            "rank2": lambda q, k, m, b: sdpa(q[0, 0], q[0, 0], q[0, 0]),
            "value": lambda q, k, m, b: sdpa(q, q, q[..., :3]),
            "one": lambda q, k, m, b: sdpa(q[:, :, :1], q, q),
            "gqa_mask": lambda q, k, m, b: sdpa(q, k, k, m, enable_gqa=True),
            "batch": lambda q, k, m, b: sdpa(q[:1], q[:1], q[:1]),
            "dropout": lambda q, k, m, b: sdpa(q, q, q, dropout_p=0.0),
        },
        q,
        k,
        some,
        bias,
        rtol=1e-4,
        atol=1e-5,
    )


def test_attention_layers_are_ours() -> None:
    x = torch.randn(2, 5, 8)
    mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    check(lambda x: mha(x, x, x, need_weights=False)[0], x, rtol=1e-4, atol=1e-5)
    check(lambda x: mha(x, x, x)[1], x, rtol=1e-4, atol=1e-5)
    check(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval(), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalizations(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(2, 6, 4, 5).to(dtype), torch.randn(5).to(dtype), torch.randn(6).to(dtype)
    mean, var = torch.randn(6), torch.rand(6) + 0.5
    check_all(
        {
            "layer": lambda x, w, b, m, v: F.layer_norm(x, (5,)),
            "affine": lambda x, w, b, m, v: F.layer_norm(x, (5,), w, w, 1e-3),
            "two": lambda x, w, b, m, v: F.layer_norm(x, (4, 5), x[0, 0], x[1, 1]),
            "rms": lambda x, w, b, m, v: F.rms_norm(x, (5,)),
            "rms_w": lambda x, w, b, m, v: F.rms_norm(x, (5,), w, 1e-6),
            "rms2": lambda x, w, b, m, v: F.rms_norm(x, (4, 5), None, 1e-2),
            "group": lambda x, w, b, m, v: F.group_norm(x, 3),
            "group_w": lambda x, w, b, m, v: F.group_norm(x, 2, b, b),
            "instance": lambda x, w, b, m, v: F.instance_norm(x, weight=b),
            "batch": lambda x, w, b, m, v: F.batch_norm(x, m.to(x.dtype), v.to(x.dtype)),
            "batch_w": lambda x, w, b, m, v: F.batch_norm(x, m.to(x.dtype), v.to(x.dtype), b, b, eps=1e-3),
            "weight": lambda x, w, b, m, v: torch._weight_norm(x[0, 0], x[0, 0, :, :1], 0),
            "native": lambda x, w, b, m, v: torch.native_layer_norm(x, (5,), w, w, 1e-5),
            "small": lambda x, w, b, m, v: F.rms_norm(x * 1e-4, (5,)),
        },
        x,
        w,
        b,
        mean,
        var,
        rtol=1e-4,
        atol=1e-5,
    )


class Composites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.norm = nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.RMSNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.bn1(x[:, :, 0]), self.bn2(x), self.norm(x), self.bn1(x[:, :, 0, 0])


def test_modules_in_evaluation_mode() -> None:
    check(Composites().eval(), torch.randn(2, 3, 5, 4), rtol=1e-4, atol=1e-5)


def test_whole_operations_stay_whole() -> None:
    def kinds(fn: object, *args: torch.Tensor) -> list[str]:
        terms: tuple[Term, ...] = translate(capture(fn, args).graph).terms  # type: ignore[arg-type]
        return [t.kind for t in terms if t.kind not in ("Input", "Map")]

    x = torch.randn(2, 3, 4)
    assert kinds(lambda x: x.softmax(-1), x) == ["Softmax"]
    assert kinds(lambda x: F.layer_norm(x, (4,)), x) == ["LayerNorm"]
    assert kinds(lambda x: F.rms_norm(x, (4,), x[0, 0]), x) == ["RmsNorm", "Bin"]
    assert kinds(lambda x: F.gelu(F.silu(x)), x) == ["Silu", "Gelu"]
    assert kinds(lambda x: F.scaled_dot_product_attention(x, x, x), x) == ["Sdpa"]
    assert kinds(lambda x: x.mean(1), x) == ["Mean"]
