"""Scaled dot-product attention in every call form."""

from __future__ import annotations

import math
from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, constant, convert, is_empty, number, static, stored
from emmy.frontend.translate.contraction import labelled, matmul_of
from emmy.frontend.translate.layout import reshape, select_at
from emmy.ir.build import scalar
from emmy.ir.dtype import is_float
from emmy.ir.loop import Tensor, const
from emmy.ir.tensor import Shape, Terms, broadcast, coordinates


def attention(t: Terms, c: Call) -> int:
    """q[…, S, D], k[…, T, D], v[…, T, C]; fewer heads in k and v only with `enable_gqa`."""
    q, k, v, mask = (c.get(i, n) for i, n in enumerate(("query", "key", "value", "attn_mask")))
    if c.get(4, "dropout_p", 0.0):
        raise Decline("dropout, which needs random numbers")
    causal = bool(c.get(5, "is_causal", False))
    size, keys = t.shape(q)[-1], t.shape(k)[-2]
    scale = c.kwargs.get("scale")
    if scale is None:
        if number(size) is None:
            raise Decline("a symbolic head size")
        scale = 1 / math.sqrt(max(number(size) or 1, 1))
    if number(keys) == 0 or number(size) == 0:
        return constant(t, 0, c.dtype, c.shape, weak=False)
    q = _with_batch(t, q, [k, v], bool(c.kwargs.get("enable_gqa", False)))
    if mask is not None and t.dtype(mask) != "bool":
        mask = convert(t, mask, c.dtype)
    return t.sdpa(q, k, v, mask, causal, float(scale))


def with_statistics(names: tuple[str, ...]) -> Handler:
    """The internal forms: attention, the logarithm of each row's sum, and random state that nothing uses.

    `names` are the arguments after query, key and value, in order.
    """

    def handler(t: Terms, c: Call) -> tuple[int, ...]:
        given = {**dict(zip(names, c.args[3:], strict=False)), **c.kwargs}
        mask = given.get("attn_mask", given.get("attn_bias"))
        args = (*c.args[:3], mask, given.get("dropout_p", 0.0), given.get("is_causal", False))
        plain = Call(c.node, args, {"scale": given.get("scale"), "enable_gqa": True})
        out = attention(t, plain)
        rest = [t.full(0.0 if is_float(r.dtype) else 0, r.shape, r.dtype) for r in c.node.results[2:]]
        return out, _row_sums(t, plain, c.node.results[1]), *rest

    return handler


def _row_sums(t: Terms, c: Call, result: Tensor) -> int:
    """log of the sum of exp of the scores over the keys."""
    q, k, _, mask = c.args[:4]
    if result.shape != t.shape(q)[:-1]:
        if is_empty(result):
            return t.full(0.0, result.shape, result.dtype)
        raise Decline("padded statistics")
    scale = c.kwargs["scale"]
    scale = 1 / math.sqrt(static(t.shape(q)[-1], "the head size")) if scale is None else scale
    kept = t.shape(k)[:-2] == t.shape(q)[:-2]
    if not kept:
        raise Decline("statistics of grouped heads")
    turned = t.permute(k, [*range(len(t.shape(k)) - 2), len(t.shape(k)) - 1, len(t.shape(k)) - 2])
    scores = t.bin("mul", t.cast(matmul_of(t, "scores", q, turned), "f32"), t.full(float(scale)))
    low = t.full(-math.inf)
    if mask is not None:
        scores = t.where(mask, scores, low) if t.dtype(mask) == "bool" else t.bin("add", scores, t.cast(mask, "f32"))
    if c.args[5]:
        row, column = coordinates(t.shape(scores)[-2:])
        scores = t.where(t.iota(scalar("le", column, row), t.shape(scores)[-2:], "bool"), scores, low)
    axis = len(t.shape(scores)) - 1
    top = t.reduce("max", scores, (axis,), keepdim=True)
    top = t.where(t.un("isinf", top), t.full(0.0), top)
    total = t.un("log", t.reduce("sum", t.un("exp", t.bin("sub", scores, top)), (axis,), keepdim=True))
    return stored(t, t.squeeze(t.bin("add", total, top), (axis,)), result.dtype)


def native_heads(t: Terms, c: Call) -> tuple[int, ...]:
    """_native_multi_head_attention of one tensor with itself: projection, heads, attention, projection."""
    x, same = c.args[0], c.args[0] == c.args[1] == c.args[2]
    size, heads, weight, bias, out_weight, out_bias = c.args[3:9]
    if not same or c.get(9, "mask") is not None or c.get(10, "need_weights", True):
        raise Decline("several operands, a mask or averaged weights")
    n, length, _ = t.shape(x)
    one = const(size // heads)
    whole = t.bin("add", labelled(t, "linear", x, "abk", weight, "nk", "abn"), bias)
    parts = reshape(t, whole, (n, length, const(3), const(heads), one))
    q, k, v = (select_at(t, t.permute(parts, (2, 0, 3, 1, 4)), 0, const(i)) for i in range(3))
    y = t.permute(t.sdpa(q, k, v, None, False, 1 / math.sqrt(size // heads)), (0, 2, 1, 3))
    y = labelled(t, "linear", reshape(t, y, (n, length, const(size))), "abk", out_weight, "nk", "abn")
    return t.bin("add", y, out_bias), *(t.full(0.0, r.shape, r.dtype) for r in c.node.results[1:])


def _with_batch(t: Terms, q: int, others: list[int], grouped: bool) -> int:
    """The query over every leading dimension that the keys and values have, grouped heads apart."""
    lead: Shape = t.shape(q)[:-2]
    for x in others:
        own = t.shape(x)[:-2]
        if grouped and own and len(lead) >= len(own):
            own = (*own[:-1], const(1))
        lead = broadcast(lead, own)
    return t.expand(q, (*lead, *t.shape(q)[-2:]))


ATTENTION: Final[dict[str, Handler]] = {
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": with_statistics(("dropout_p", "is_causal")),
    "_scaled_dot_product_flash_attention": with_statistics(("dropout_p", "is_causal")),
    "_scaled_dot_product_efficient_attention": with_statistics(("attn_bias", "", "dropout_p", "is_causal")),
    "_scaled_dot_product_cudnn_attention": with_statistics(("attn_bias", "", "dropout_p", "is_causal")),
    "_native_multi_head_attention": native_heads,
}
