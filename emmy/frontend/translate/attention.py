"""Scaled dot-product attention in every call form that keeps one result."""

from __future__ import annotations

import math
from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, constant, convert, number
from emmy.ir.loop import const
from emmy.ir.tensor import Shape, Terms, broadcast


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


def _with_batch(t: Terms, q: int, others: list[int], grouped: bool) -> int:
    """The query over every leading dimension that the keys and values have, grouped heads apart."""
    lead: Shape = t.shape(q)[:-2]
    for x in others:
        own = t.shape(x)[:-2]
        if grouped and own and len(lead) >= len(own):
            own = (*own[:-1], const(1))
        lead = broadcast(lead, own)
    return t.expand(q, (*lead, *t.shape(q)[-2:]))


ATTENTION: Final[dict[str, Handler]] = {"scaled_dot_product_attention": attention}
