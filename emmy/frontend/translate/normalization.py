"""Layer, RMS, group, batch, instance and weight normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, axis, number, stored, wide
from emmy.frontend.translate.layout import reshape
from emmy.frontend.translate.reduction import norm_over
from emmy.ir.build import idiv
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import const
from emmy.ir.tensor import Shape, Terms


def last(t: Terms, x: int, count: int) -> tuple[int, ...]:
    rank = len(t.shape(x))
    return tuple(range(rank - count, rank))


def scaled(t: Terms, y: int, weight: int | None, bias: int | None, dtype: str) -> int:
    """y * weight + bias in the type of `dtype`; either may be absent."""
    if weight is not None:
        y = t.bin("mul", y, weight)
    if bias is not None:
        y = t.bin("add", y, bias)
    return stored(t, y, dtype)


def moments(t: Terms, x: int, folded: tuple[int, ...], eps: float, dtypes: Sequence[str]) -> tuple[int, int]:
    """Mean and 1 / sqrt(variance + eps) over the axes, kept with extent 1."""
    y = t.cast(x, "f32")
    spread = t.un("rsqrt", t.bin("add", t.var(y, folded, 0.0, True), t.full(eps)))
    return stored(t, t.mean(y, folded, True), dtypes[0]), stored(t, spread, dtypes[1])


def layer_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    x, weight, bias, eps = c.get(0, "input"), c.get(2, "weight"), c.get(3, "bias"), float(c.get(4, "eps", 1e-5))
    folded = last(t, x, len(c.get(1, "normalized_shape")))
    y = scaled(t, t.layer_norm(x, folded, eps), weight, bias, c.dtype)
    if len(c.node.results) == 1:
        return y
    return y, *moments(t, x, folded, eps, [r.dtype for r in c.node.results[1:]])


def rms_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    """Without `eps`: the spacing of the type in which PyTorch computes, f32 for half precision too."""
    x, weight, eps = c.get(0, "input"), c.get(2, "weight"), c.get(3, "eps")
    eps = DTYPES["f32"].epsilon if eps is None else float(eps)
    folded = last(t, x, len(c.get(1, "normalized_shape")))
    y = scaled(t, t.rms_norm(x, folded, eps), weight, None, c.dtype)
    if len(c.node.results) == 1:
        return y
    z = t.cast(x, "f32")
    spread = t.un("rsqrt", t.bin("add", t.mean(t.bin("mul", z, z), folded, True), t.full(eps)))
    return y, stored(t, spread, c.node.results[1].dtype)


def per_channel(t: Terms, x: int, rank: int) -> int:
    """A vector over dimension 1 of a tensor of that rank."""
    return reshape(t, x, (t.shape(x)[0], *(const(1) for _ in range(rank - 2))))


def _channel(t: Terms, x: int | None, rank: int) -> int | None:
    return None if x is None else per_channel(t, x, rank)


def group_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    x = c.get(0, "input")
    native = c.base == "native_group_norm"
    groups, eps = (c.get(6, "group"), c.get(7, "eps")) if native else (c.get(1, "num_groups"), c.get(4, "eps", 1e-5))
    weight, bias = (c.get(1, "weight"), c.get(2, "bias")) if native else (c.get(2, "weight"), c.get(3, "bias"))
    n, channels, *rest = t.shape(x)
    split: Shape = (n, const(groups), idiv(channels, groups), *rest)
    y, folded = reshape(t, x, split), tuple(range(2, len(split)))
    whole = reshape(t, t.layer_norm(y, folded, float(eps)), c.shape)
    rank = len(c.shape)
    out = scaled(t, whole, _channel(t, weight, rank), _channel(t, bias, rank), c.dtype)
    if not native:
        return out
    results = c.node.results[1:]
    stats = moments(t, y, folded, float(eps), [r.dtype for r in results])
    return out, *(reshape(t, s, r.shape) for s, r in zip(stats, results, strict=True))


def _batch_args(c: Call) -> tuple[bool, float]:
    """Whether the batch's own statistics are used, and eps, from the signatures of the batch-norm family."""
    if c.base in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"):
        return False, float(c.get(6, "eps"))
    if c.base == "_batch_norm_with_update":
        return True, 0.0
    if c.base == "cudnn_batch_norm":
        return bool(c.get(5, "training")), float(c.get(7, "epsilon"))
    return bool(c.get(5, "training", c.kwargs.get("use_input_stats"))), float(c.get(7, "eps"))


def batch_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    """(x - mean) * (rsqrt(var + eps) * weight) + bias; the vector of factors depends on parameters only."""
    training, eps = _batch_args(c)
    x, mean, variance = c.get(0, "input"), c.get(3, "running_mean"), c.get(4, "running_var")
    if training or mean is None or variance is None:
        raise Decline("statistics of the batch, which update the module")
    if any(number(r.shape[0]) != 0 for r in c.node.results[1:] if r.shape):
        raise Decline("saved statistics")
    rank = len(t.shape(x))
    factor = t.un("rsqrt", t.bin("add", wide(t, variance), t.full(eps)))
    if c.get(1, "weight") is not None:
        factor = t.bin("mul", factor, wide(t, c.get(1, "weight")))
    centred = t.bin("sub", wide(t, x), per_channel(t, wide(t, mean), rank))
    y = scaled(t, centred, per_channel(t, factor, rank), _channel(t, c.get(2, "bias"), rank), c.dtype)
    extra = tuple(t.full(0 if r.dtype == "u8" else 0.0, r.shape, r.dtype) for r in c.node.results[1:])
    return (y, *extra) if extra else y


def instance_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    if not c.get(5, "use_input_stats"):
        return batch_norm(t, c)
    if c.get(3, "running_mean") is not None:
        raise Decline("statistics of the batch, which update the module")
    x = c.get(0, "input")
    rank = len(t.shape(x))
    y = t.layer_norm(x, tuple(range(2, rank)), float(c.get(7, "eps")))
    return scaled(t, y, _channel(t, c.get(1, "weight"), rank), _channel(t, c.get(2, "bias"), rank), c.dtype)


def weight_norm(t: Terms, c: Call) -> int | tuple[int, ...]:
    """v * (g / norm of v over all dimensions but one)."""
    v, g, dim = c.get(0, "v"), c.get(1, "g"), c.get(2, "dim", 0)
    rank = len(t.shape(v))
    kept = () if dim == -1 and c.base == "_weight_norm" else (axis(dim, rank),)
    size = norm_over(t, wide(t, v), 2, tuple(i for i in range(rank) if i not in kept))
    y = stored(t, t.bin("mul", wide(t, v), t.bin("div", wide(t, g), size)), c.dtype)
    if len(c.node.results) == 1:
        return y
    return y, stored(t, size, c.node.results[1].dtype)


def cosine_similarity(t: Terms, c: Call) -> int:
    x, y = (wide(t, c.get(i, f"x{i + 1}")) for i in range(2))
    x, y = (t.expand(a, t.shape(t.bin("mul", x, y))) for a in (x, y))
    rank, eps = len(t.shape(x)), float(c.get(3, "eps", 1e-8))
    folded = (axis(c.get(2, "dim", 1), rank),)
    unit = [t.bin("div", a, t.bin("max", norm_over(t, a, 2, folded), t.full(eps))) for a in (x, y)]
    return stored(t, reshape(t, t.reduce("sum", t.bin("mul", *unit), folded, keepdim=True), c.shape), c.dtype)


NORMALIZATION: Final[dict[str, Handler]] = {
    "layer_norm": layer_norm, "native_layer_norm": layer_norm, "rms_norm": rms_norm, "_fused_rms_norm": rms_norm,
    "group_norm": group_norm, "native_group_norm": group_norm, "batch_norm": batch_norm,
    "native_batch_norm": batch_norm, "_native_batch_norm_legit": batch_norm,
    "_native_batch_norm_legit_no_training": batch_norm, "_batch_norm_no_update": batch_norm,
    "_native_batch_norm_legit_functional": batch_norm, "cudnn_batch_norm": batch_norm,
    "instance_norm": instance_norm, "_weight_norm": weight_norm,
    "_weight_norm_interface": weight_norm, "cosine_similarity": cosine_similarity,
}  # fmt: skip
