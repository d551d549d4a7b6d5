"""One small program for each operation of `op_names.csv`, and the operands to try it on.

An operand is spelled by its values and shape: `f[2,3]` floats around zero, `p[2,3]` floats between 1/4 and 3/4,
`i4[2,3]` integers below 4, `b[2,3]` bools.  The first list of a sample is its usual case, the others are edge shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Sample:
    """`floats`: the program takes operands of any floating type (f32, bf16, f16)."""

    fn: Callable[..., Any]
    cases: tuple[str, ...]
    floats: bool = True


_SPEC: Final = re.compile(r"([fpb]|i(\d+))\[([\d,]*)\]")


def operands(case: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """The tensors that a case spells, floats in `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def make(kind: str, bound: str, shape: list[int]) -> torch.Tensor:
        if kind == "b":
            return torch.rand(shape, generator=generator) > 0.5
        if bound:
            return torch.randint(0, int(bound), shape, generator=generator)
        if kind == "p":
            return (torch.rand(shape, generator=generator) / 2 + 0.25).to(dtype)
        return torch.randn(shape, generator=generator).to(dtype)

    return tuple(make(k, n, [int(e) for e in s.split(",") if e]) for k, n, s in _SPEC.findall(case))


def _put(x: torch.Tensor, value: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    y = x.clone()
    value(y)
    return y


def _mha(x: torch.Tensor, w: torch.Tensor, o: torch.Tensor) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, w, None, None, None, False, 0.0, o, None, training=False, need_weights=False
    )[0]  # fmt: skip


def _native_mha(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor) -> Any:
    return torch._native_multi_head_attention(x, x, x, 4, 2, w, b, o, c, need_weights=False)[0]


_ANY: Final = ("f[2,3,4]", "f[]", "f[1,1]", "f[0,3]", "f[5]")
_TWO: Final = ("f[2,3] f[2,3]", "f[4,1,3] f[2,1]", "f[] f[3]", "f[0,2] f[2]", "f[1] f[1]")
_MORE: Final = ("f[2,3,4]", "f[1,5]", "f[7,1]")
# PyTorch 2.11 exports a norm over one element with a shape that eager does not have.
_WIDE: Final = ("f[2,3,4]", "f[1,5]", "f[7,2]")
_POSITIVE: Final = ("p[2,3]", "p[]", "p[0,2]", "p[1]")
_IMAGE: Final = ("f[2,4,6,8]", "f[1,4,4,4]", "f[3,8,2,4]")

SAMPLES: Final[dict[str, Sample]] = {
    # arithmetic
    "add": Sample(lambda x, y: x + y, _TWO),
    "sub": Sample(lambda x, y: x - y, _TWO),
    "mul": Sample(lambda x, y: x * y, _TWO),
    "div": Sample(lambda x, y: x / y, ("f[2,3] p[2,3]", "f[4,1] p[3]", "f[] p[2]", "f[0] p[1]")),
    "floordiv": Sample(lambda x: x // 3, ("i9[2,3]", "i9[]", "i9[0]")),
    "mod": Sample(lambda x: x % 3, ("i9[2,3]", "i9[]", "i9[0]")),
    "pow": Sample(lambda x: x**3, _ANY),
    "neg": Sample(torch.neg, _ANY),
    "abs": Sample(torch.abs, _ANY),
    "sign": Sample(torch.sign, _ANY),
    "ceil": Sample(torch.ceil, _ANY),
    "floor": Sample(torch.floor, _ANY),
    "square": Sample(torch.square, _ANY),
    "addcmul": Sample(lambda x, y: torch.addcmul(x, x, y, value=2), _TWO[:2]),
    "clamp": Sample(lambda x: x.clamp(-0.5, 1), _ANY),
    "where": Sample(lambda c, x: torch.where(c, x, 0.0), ("b[2,3] f[2,3]", "b[2,1] f[3]", "b[0] f[1]")),
    "masked_fill": Sample(lambda c, x: x.masked_fill(c, -1.0), ("b[2,3] f[2,3]", "b[3] f[2,3]", "b[] f[0]")),
    # functions
    "exp": Sample(torch.exp, _ANY),
    "log": Sample(torch.log, _POSITIVE),
    "sqrt": Sample(torch.sqrt, _POSITIVE),
    "rsqrt": Sample(torch.rsqrt, _POSITIVE),
    "sin": Sample(torch.sin, _ANY),
    "cos": Sample(torch.cos, _ANY),
    "tanh": Sample(torch.tanh, _ANY),
    "sigmoid": Sample(torch.sigmoid, _ANY),
    "erf": Sample(torch.erf, _ANY),
    "special_logit": Sample(torch.special.logit, _POSITIVE),
    # activations
    "gelu": Sample(lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), _ANY),
    "relu": Sample(F.relu, _ANY),
    "silu": Sample(F.silu, _ANY),
    "hardsigmoid": Sample(F.hardsigmoid, _ANY),
    "hardswish": Sample(F.hardswish, _ANY),
    "hardtanh": Sample(F.hardtanh, _ANY),
    "leaky_relu": Sample(F.leaky_relu, _ANY),
    "elu": Sample(F.elu, _ANY),
    "softplus": Sample(F.softplus, _ANY),
    "prelu": Sample(F.prelu, ("f[2,3,4] f[3]", "f[2,3] f[1]", "f[5] f[1]")),
    "glu": Sample(F.glu, ("f[2,6]", "f[1,2]", "f[3,0,4]")),
    "dropout": Sample(lambda x: F.dropout(x, 0.5, False), _ANY),
    "dropout2d": Sample(lambda x: F.dropout2d(x, 0.5, False), _IMAGE),
    # comparisons, logic, types
    "gt": Sample(lambda x, y: x > y, _TWO),
    "lt": Sample(lambda x, y: x < y, _TWO),
    "ge": Sample(lambda x, y: x >= y, _TWO),
    "le": Sample(lambda x, y: x <= y, _TWO),
    "eq": Sample(lambda x: x == 0, _ANY),
    "ne": Sample(lambda x: x != 0, _ANY),
    "logical_and": Sample(torch.logical_and, _TWO),
    "bitwise_and": Sample(lambda x, y: x & y, ("b[2,3] b[3]", "i9[2] i9[]")),
    "bitwise_or": Sample(lambda x, y: x | y, ("b[2,3] b[3]", "i9[2] i9[]")),
    "bitwise_not": Sample(lambda x: ~x, ("b[2,3]", "i9[2]", "b[0]")),
    "to": Sample(lambda x: x.to(torch.float32), _ANY),
    "type": Sample(lambda x: x.type(torch.int64), _ANY),
    "type_as": Sample(lambda x, y: x.type_as(y), ("i4[2] f[1]", "b[] f[2]")),
    "float": Sample(lambda x: x.float(), ("i4[2,3]", "b[]", "f[0]")),
    "long": Sample(lambda x: x.long(), _ANY),
    "int": Sample(lambda x: x.int(), _ANY),
    "bool": Sample(lambda x: x.bool(), _ANY),
    "clone": Sample(torch.clone, _ANY),
    "detach": Sample(torch.detach, _ANY),
    "contiguous": Sample(lambda x: x.mT.contiguous(), _MORE),
    # layout
    "transpose": Sample(lambda x: x.transpose(0, -1), _MORE),
    "permute": Sample(lambda x: x.permute(2, 0, 1), ("f[2,3,4]", "f[1,1,5]", "f[0,2,3]")),
    "t": Sample(torch.t, ("f[2,3]", "f[1,4]", "f[3]")),
    "attr.T": Sample(lambda x: x.T, ("f[2,3]", "f[1,1]", "f[0,3]")),
    "view": Sample(lambda x: x.view(-1, 2), ("f[2,3,4]", "f[1,2]", "f[3,2,1]")),
    "reshape": Sample(lambda x: x.mT.reshape(-1), _MORE),
    "flatten": Sample(lambda x: x.flatten(1), ("f[2,3,4]", "f[1,1,1]", "f[0,2,3]")),
    "view_as": Sample(lambda x, y: x.view_as(y), ("f[6] f[2,3]", "f[1] f[1,1]")),
    "reshape_as": Sample(lambda x, y: x.reshape_as(y), ("f[6] f[2,3]", "f[1] f[]")),
    "expand": Sample(lambda x: x.expand(5, -1, 4), ("f[2,1]", "f[1,3,1]", "f[1,1,1]")),
    "expand_as": Sample(lambda x, y: x.expand_as(y), ("f[1,3] f[2,3]", "f[] f[2]")),
    "broadcast_to": Sample(lambda x: x.broadcast_to(2, 3), ("f[3]", "f[2,1]", "f[]")),
    "unsqueeze": Sample(lambda x: x.unsqueeze(-1), _ANY),
    "squeeze": Sample(torch.squeeze, ("f[2,1,3]", "f[1,1]", "f[2]")),
    "repeat": Sample(lambda x: x.repeat(2, 1, 3), ("f[2,3]", "f[1]", "f[1,1,1]")),
    "tile": Sample(lambda x: x.tile(2, 2), ("f[2,3]", "f[3]", "f[1,1,1]")),
    "repeat_interleave": Sample(lambda x: x.repeat_interleave(2, 0), ("f[2,3]", "f[1]", "f[3,1]")),
    "roll": Sample(lambda x: x.roll(2, 0), ("f[5,2]", "f[1]", "f[3]")),
    "getitem[slice]": Sample(lambda x: x[1:, ::2], ("f[4,5]", "f[1,1]", "f[2,0]")),
    "getitem[int]": Sample(lambda x: x[-1], ("f[4,5]", "f[1]", "f[2,0]")),
    "split": Sample(lambda x: x.split(2), ("f[5,2]", "f[1]", "f[2,3]")),
    "split_with_sizes": Sample(lambda x: torch.ops.aten.split_with_sizes(x, [1, 2]), ("f[3,2]", "f[3]", "f[3,0]")),
    "chunk": Sample(lambda x: x.chunk(2, -1), ("f[2,5]", "f[1]", "f[4]")),
    "tensor_split": Sample(lambda x: x.tensor_split(3), ("f[7,2]", "f[1]", "f[3]")),
    "unbind": Sample(torch.unbind, ("f[3,2]", "f[1]", "f[2,1]")),
    "cat": Sample(lambda x, y: torch.cat([x, y, x]), ("f[2,3] f[1,3]", "f[1] f[4]", "f[0,2] f[1,2]")),
    "stack": Sample(lambda x: torch.stack([x, -x], -1), _ANY),
    "meshgrid": Sample(lambda x, y: torch.meshgrid(x, y, indexing="ij"), ("f[2] f[3]", "f[1] f[1]", "f[0] f[2]")),
    "triu": Sample(torch.triu, ("f[3,4]", "f[1,1]", "f[2,4,3]")),
    "diag": Sample(torch.diag, ("f[3]", "f[3,4]", "f[1]")),
    "pad": Sample(lambda x: F.pad(x, (1, 2), value=3.0), ("f[2,3]", "f[1]", "f[2,0]")),
    "unfold": Sample(lambda x: F.unfold(x, 2), _IMAGE),
    "fold": Sample(lambda x: F.fold(x, (4, 4), 2), ("f[1,4,9]", "f[2,8,9]")),
    "pixel_shuffle": Sample(lambda x: F.pixel_shuffle(x, 2), _IMAGE),
    # creation
    "arange": Sample(lambda x: torch.arange(7) + x.shape[0], ("f[2]", "f[1]")),
    "tensor": Sample(lambda x: x + torch.tensor([1.0, 2.0]), ("f[2]", "f[3,1]")),
    "as_tensor": Sample(lambda x: x + torch.as_tensor(3.0), ("f[2]", "f[]")),
    "full": Sample(lambda x: torch.full((2, 3), 1.5) + x, ("f[3]", "f[]")),
    "full_like": Sample(lambda x: torch.full_like(x, 2), _ANY),
    "zeros": Sample(lambda x: torch.zeros(2) + x, ("f[2]", "f[]")),
    "zeros_like": Sample(torch.zeros_like, _ANY),
    "ones": Sample(lambda x: torch.ones(2) + x, ("f[2]", "f[]")),
    "ones_like": Sample(torch.ones_like, _ANY),
    "new_ones": Sample(lambda x: x.new_ones(3), _ANY),
    "new_zeros": Sample(lambda x: x.new_zeros(3, 2), _ANY),
    "empty": Sample(lambda x: torch.empty(2, 3).fill_(1.0) + x, ("f[3]", "f[]")),
    "linspace": Sample(lambda x: torch.linspace(-1, 2, 7) + x, ("f[1]", "f[]")),
    "eye": Sample(lambda x: torch.eye(3) + x, ("f[3]", "f[]")),
    "one_hot": Sample(lambda x: F.one_hot(x, 5), ("i5[2,3]", "i5[]", "i5[1]")),
    "fill": Sample(lambda x: _put(x, lambda y: y.fill_(2)), _ANY),
    "zero": Sample(lambda x: _put(x, lambda y: y.zero_()), _ANY),
    "copy": Sample(lambda x, y: _put(x, lambda z: z.copy_(y)), ("f[2,3] f[3]", "f[1] f[1]")),
    # reductions
    "sum": Sample(lambda x: (x.sum(), x.sum(-1)), _MORE),
    "mean": Sample(lambda x: (x.mean(), x.mean(-1, keepdim=True)), _MORE),
    "prod": Sample(lambda x: x.prod(-1), _MORE),
    "min": Sample(lambda x: (x.min(), *x.min(-1)), _MORE),
    "max": Sample(lambda x: (x.max(), *x.max(0)), _MORE),
    "amax": Sample(lambda x: x.amax(-1), _MORE),
    "argmax": Sample(lambda x: (x.argmax(), x.argmax(-1)), _MORE),
    "all": Sample(lambda x: ((x > 0).all(), (x > 0).all(0)), _MORE),
    "var": Sample(lambda x: (x.var(), x.var(0, correction=0)), _MORE),
    "norm": Sample(lambda x: (x.norm(), x.norm(dim=-1)), _WIDE),
    "linalg_norm": Sample(lambda x: torch.linalg.norm(x, dim=-1), _WIDE),
    "linalg_vector_norm": Sample(lambda x: torch.linalg.vector_norm(x, 1, dim=0), _MORE),
    "normalize": Sample(lambda x: F.normalize(x, dim=-1), _MORE),
    "cumsum": Sample(lambda x: x.cumsum(-1), _ANY),
    "softmax": Sample(lambda x: x.softmax(-1), _ANY),
    # products
    "linear": Sample(F.linear, ("f[2,3,4] f[5,4] f[5]", "f[4] f[1,4] f[1]", "f[1,1] f[2,1] f[2]")),
    "matmul": Sample(torch.matmul, ("f[2,3,4] f[4,5]", "f[3] f[3]", "f[1,2] f[3,2,1]")),
    "bmm": Sample(torch.bmm, ("f[2,3,4] f[2,4,5]", "f[1,1,1] f[1,1,1]")),
    "addmm": Sample(lambda b, x, y: torch.addmm(b, x, y), ("f[5] f[2,3] f[3,5]", "f[1] f[1,1] f[1,1]")),
    "baddbmm": Sample(
        lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5), ("f[2,3,5] f[2,3,4] f[2,4,5]", "f[1,1,1] f[1,2,1] f[1,1,3]")
    ),
    "outer": Sample(torch.outer, ("f[3] f[4]", "f[1] f[1]", "f[0] f[2]")),
    "einsum": Sample(lambda x, y: torch.einsum("bij,bjk->bik", x, y), ("f[2,3,4] f[2,4,5]", "f[1,1,1] f[1,1,1]")),
    "conv1d": Sample(lambda x, w: F.conv1d(x, w, padding=1), ("f[2,4,7] f[6,4,3]", "f[1,1,1] f[1,1,1]")),
    "conv2d": Sample(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), ("f[2,4,6,7] f[6,4,3,3]", "f[1,1,1,1] f[1,1,1,1]")
    ),
    "conv3d": Sample(F.conv3d, ("f[1,2,4,5,3] f[3,2,2,2,2]", "f[1,1,1,1,1] f[1,1,1,1,1]")),
    "conv_transpose1d": Sample(
        lambda x, w: F.conv_transpose1d(x, w, stride=2), ("f[2,3,5] f[3,4,3]", "f[1,1,1] f[1,1,1]")
    ),
    "conv_transpose2d": Sample(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), ("f[2,3,4,5] f[3,4,3,3]", "f[1,1,3,3] f[1,1,3,3]")
    ),
    # normalization, attention
    "layer_norm": Sample(
        lambda x, w: F.layer_norm(x, w.shape, w, w), ("f[2,3,4] f[4]", "f[3,2] f[3,2]", "f[2,1] f[1]")
    ),
    "rms_norm": Sample(lambda x, w: F.rms_norm(x, w.shape, w), ("f[2,3,4] f[4]", "f[1,5] f[1,5]", "f[2,1] f[1]")),
    "batch_norm": Sample(
        lambda x, m, v: F.batch_norm(x, m, v, m, v), ("f[2,3,4] f[3] p[3]", "f[1,1] f[1] p[1]", "f[2,3,2,2] f[3] p[3]")
    ),
    "group_norm": Sample(lambda x: F.group_norm(x, 2), _IMAGE),
    "_weight_norm": Sample(lambda v, g: torch._weight_norm(v, g, 0), ("f[4,3] f[4,1]", "f[1,2,2] f[1,1,1]")),
    "scaled_dot_product_attention": Sample(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        ("f[2,2,5,4] f[2,2,3,4] f[2,2,3,6]", "f[1,1,1,1] f[1,1,1,1] f[1,1,1,1]"),
    ),
    "multi_head_attention_forward": Sample(_mha, ("f[5,2,4] f[12,4] f[4,4]", "f[1,1,4] f[12,4] f[4,4]")),
    "_native_multi_head_attention": Sample(_native_mha, ("f[2,5,4] f[12,4] f[12] f[4,4] f[4]",)),
    # reads and writes by index
    "embedding": Sample(F.embedding, ("i5[2,3] f[5,4]", "i1[] f[1,1]", "i5[0] f[5,2]")),
    "getitem[tensor]": Sample(lambda x, i: x[i], ("f[5,2] i5[2,3]", "f[1] i1[1]", "f[3] i3[0]")),
    "index": Sample(lambda x, i: torch.ops.aten.index(x, [None, i]), ("f[2,5] i5[3]", "f[1,1] i1[1]")),
    "gather": Sample(lambda x, i: x.gather(1, i), ("f[2,5] i5[2,3]", "f[3,1] i1[1,1]")),
    "index_select": Sample(lambda x, i: x.index_select(0, i), ("f[5,2] i5[3]", "f[1] i1[1]")),
    "scatter_add": Sample(lambda x, i, y: x.scatter_add(0, i, y), ("f[4,3] i4[5,3] f[5,3]", "f[1] i1[2] f[2]")),
    "scatter_reduce": Sample(
        lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), ("f[4,3] i4[5,3] f[5,3]", "f[1] i1[2] f[2]")
    ),
    # pooling, resampling
    "max_pool1d": Sample(lambda x: F.max_pool1d(x, 2), ("f[2,3,7]", "f[1,1,2]")),
    "max_pool2d": Sample(lambda x: F.max_pool2d(x, 2, padding=1), _IMAGE),
    "avg_pool1d": Sample(lambda x: F.avg_pool1d(x, 2), ("f[2,3,7]", "f[1,1,2]")),
    "avg_pool2d": Sample(lambda x: F.avg_pool2d(x, 2), _IMAGE),
    "adaptive_avg_pool1d": Sample(lambda x: F.adaptive_avg_pool1d(x, 3), ("f[2,3,7]", "f[1,1,3]")),
    "adaptive_avg_pool2d": Sample(lambda x: F.adaptive_avg_pool2d(x, (1, 3)), _IMAGE),
    "adaptive_avg_pool3d": Sample(lambda x: F.adaptive_avg_pool3d(x, 2), ("f[1,2,4,5,6]",)),
    "adaptive_max_pool2d": Sample(lambda x: F.adaptive_max_pool2d(x, 2), _IMAGE),
    "interpolate": Sample(
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(5, 7), mode="bilinear")), _IMAGE
    ),
    "grid_sample": Sample(lambda x, g: F.grid_sample(x, g * 2 - 1, align_corners=False), ("f[2,3,5,6] p[2,4,3,2]",)),
    # what no rule expresses
    "topk": Sample(lambda x: x.topk(2), ("f[2,5]",)),
    "sort": Sample(torch.sort, ("f[2,5]",)),
    "rand": Sample(lambda x: x + torch.rand(3), ("f[3]",)),
    "randn": Sample(lambda x: x + torch.randn(3), ("f[3]",)),
    "fft_fftn": Sample(lambda x: torch.fft.fftn(x).abs(), ("f[4]",)),
    "fft_rfft": Sample(lambda x: torch.fft.rfft(x).abs(), ("f[4]",)),
    "fft_irfft": Sample(lambda x: torch.fft.irfft(torch.complex(x, x)), ("f[4]",)),
    "attr.real": Sample(lambda x: torch.fft.fftn(x).real, ("f[4]",)),
}
# Operations whose result is no tensor: the capture turns them into numbers, or refuses where data decides the number.
NOT_TENSORS: Final[dict[str, str]] = {
    "size": "an extent, part of the captured shapes",
    "attr.device": "where a tensor lies, decided by the compiler",
    "item": "a number read from a tensor",
    "_local_scalar_dense": "a number read from a tensor",
}
