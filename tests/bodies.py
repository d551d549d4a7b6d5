"""Loop bodies that many tests share, built as the front end builds them: primitives, composed by substitution."""

from __future__ import annotations

from collections.abc import Sequence

from emmy.ir.build import cast, iadd, idiv, imod, imul, scalar
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Body, Expr, Out, Size, Tensor, ax, const, fold, load, online
from emmy.ir.normal import normalize

Extent = int | Size


def extent(n: Extent) -> Expr:
    return const(n) if isinstance(n, int) else n


def tensor(dtype: str, *shape: Extent) -> Tensor:
    return Tensor(dtype, tuple(extent(n) for n in shape))


def f32(value: float) -> Expr:
    return const(value, "f32")


def axes(*sizes: Extent, name: str = "i") -> tuple[Ax, ...]:
    return tuple(ax(f"{name}{k}", extent(n)) for k, n in enumerate(sizes))


def silu(x: Expr) -> Expr:
    return scalar("mul", x, scalar("sigmoid", x))


def rms_scale(x: Expr, k: Ax, eps: float = 1e-6) -> Expr:
    """1 / root mean square of `x` over `k`."""
    mean = scalar("div", fold("sum", k, scalar("mul", x, x)), cast(k.extent, "f32"))
    return scalar("rsqrt", scalar("add", mean, f32(eps)))


def body(outs: Sequence[Out], slots: Sequence[Tensor]) -> Body:
    return normalize(outs, slots)[0]


def linear(m: Extent, n: Extent, k: Extent, dtype: str = "bf16", bias: bool = False, trans_b: bool = True,
           trans_a: bool = False, batch: Extent | None = None, act: bool = False) -> Body:  # fmt: skip
    """out[b, m, n] = A[b, m, k] * B[b, n, k] (+ bias, GELU-free activation); `trans_b` stores B as [n, k]."""
    lead = () if batch is None else axes(batch, name="b")
    i, j = axes(m, n)
    r = ax("r", extent(k))
    head = tuple(a.extent for a in lead)
    a_index, a_shape = ((r, i), (r.extent, i.extent)) if trans_a else ((i, r), (i.extent, r.extent))
    b_index, b_shape = ((j, r), (j.extent, r.extent)) if trans_b else ((r, j), (r.extent, j.extent))
    a, b = load(0, (*lead, *a_index), dtype), load(1, (*lead, *b_index), dtype)
    value: Expr = fold("sum", r, scalar("mul", a, b), dtype)
    slots = [Tensor(dtype, (*head, *a_shape)), Tensor(dtype, (*head, *b_shape))]
    if bias:
        slots.append(Tensor(dtype, (j.extent,)))
        value = scalar("add", value, load(2, (j,), dtype))
    if act:
        value = silu(value)
    out = Tensor(dtype, (*head, i.extent, j.extent))
    return body([Out((*lead, i, j), (*lead, i, j), value, out)], slots)


def aligned(n: int, dtype: str = "bf16") -> int:
    """The least pitch whose lines begin at multiples of 16 bytes."""
    chunk = 16 // DTYPES[dtype].bytes
    return -(-n // chunk) * chunk


def padded_linear(m: int, n: int, k: int, dtype: str = "bf16", trans_a: bool = False, trans_b: bool = True,
                  batch: int | None = None, act: bool = False, whole: bool = False,
                  out: bool = False) -> Body:  # fmt: skip
    """`linear` of copies with aligned lines, read at their own extents or (`whole`) over all of a line.

    `out`: the result has aligned lines too, with zeros behind each.
    """
    lead = () if batch is None else axes(batch, name="b")
    head = tuple(a.extent for a in lead)
    columns = aligned(n, dtype) if out else n
    i, j = axes(m, columns)
    r = ax("r", const(aligned(k, dtype) if whole else k))

    def side(slot: int, own: Ax, extent: int, along: bool) -> tuple[Expr, Tensor]:
        index, shape = ((own, r), (extent, aligned(k, dtype))) if along else ((r, own), (k, aligned(extent, dtype)))
        return load(slot, (*lead, *index), dtype), Tensor(dtype, (*head, *(const(e) for e in shape)))

    (a, x), (b, y) = side(0, i, m, not trans_a), side(1, j, n, trans_b)
    value: Expr = fold("sum", r, scalar("mul", a, b), dtype)
    value = silu(value) if act else value
    if out:
        value = scalar("where", scalar("lt", j, const(n)), value, f32(0.0))
    return body([Out((*lead, i, j), (*lead, i, j), value, Tensor(dtype, (*head, i.extent, j.extent)))], [x, y])


def picked_linear(batch: Extent, m: Extent, n: Extent, k: Extent, dtype: str = "bf16", trans_b: bool = True,
                  many: int = 12, wrap: bool = False) -> Body:  # fmt: skip
    """out[b, m, n] = A[b, m, k] * B[e[b], n, k]: the weight of a batch is data; `wrap` counts negative ones from the
    end.  `trans_b` stores B as [n, k]."""
    (b,) = axes(batch, name="b")
    i, j = axes(m, n)
    r = ax("r", extent(k))
    picked = load(2, (b,), "i64")
    if wrap:
        picked = scalar("where", scalar("lt", picked, const(0)), iadd(picked, const(many)), picked)
    index, shape = ((j, r), (j.extent, r.extent)) if trans_b else ((r, j), (r.extent, j.extent))
    value = fold("sum", r, scalar("mul", load(0, (b, i, r), dtype), load(1, (picked, *index), dtype)), dtype)
    slots = [
        Tensor(dtype, (b.extent, i.extent, r.extent)), Tensor(dtype, (const(many), *shape)),
        Tensor("i64", (b.extent,)),
    ]  # fmt: skip
    return body([Out((b, i, j), (b, i, j), value, Tensor(dtype, (b.extent, i.extent, j.extent)))], slots)


def picked_rows(m: Extent, n: Extent, k: Extent, dtype: str = "bf16", many: int = 12) -> Body:
    """out[m, n] = A[e[m], k] * B[n, k]: which rows are multiplied is data."""
    i, j = axes(m, n)
    r = ax("r", extent(k))
    left = load(0, (load(2, (i,), "i64"), r), dtype)
    value = fold("sum", r, scalar("mul", left, load(1, (j, r), dtype)), dtype)
    slots = [Tensor(dtype, (const(many), r.extent)), Tensor(dtype, (j.extent, r.extent)), Tensor("i64", (i.extent,))]
    return body([Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))], slots)


def matvec(n: Extent, k: Extent, dtype: str = "bf16") -> Body:
    return linear(1, n, k, dtype)


def scaled_linear(m: Extent, n: Extent, k: Extent, dtype: str = "bf16", by: str = "rms",
                  trans_a: bool = False) -> Body:  # fmt: skip
    """x * W.T times 1 / root mean square of x's rows: a normalization whose weight is part of W.

    `by` max or min: plus the greatest or least element of x's row instead.  `trans_a` stores x as [k, m].
    """
    i, j = axes(m, n)
    r, q = ax("r", extent(k)), ax("q", extent(k))
    at = (lambda k: (k, i)) if trans_a else (lambda k: (i, k))
    total = fold("sum", r, scalar("mul", load(0, at(r), dtype), load(1, (j, r), dtype)), dtype)
    element = load(0, at(q), dtype)
    value = scalar("mul", total, rms_scale(element, q)) if by == "rms" else scalar("add", total, fold(by, q, element))
    x_shape = (r.extent, i.extent) if trans_a else (i.extent, r.extent)
    slots = [Tensor(dtype, x_shape), Tensor(dtype, (j.extent, r.extent))]
    return body([Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))], slots)


def rms_linear(m: Extent, n: Extent, k: Extent, dtype: str = "bf16", factored: bool = True, keep: bool = False) -> Body:
    """RMSNorm(x) * W.T with the row scale in the epilogue (`factored`) or on the operand.

    `keep` also stores the scaled x.
    """
    i, j = axes(m, n)
    r, q = ax("r", extent(k)), ax("q", extent(k))
    x, w, g = load(0, (i, r), dtype), load(2, (j, r), dtype), load(1, (r,), dtype)
    s = rms_scale(load(0, (i, q), dtype), q)
    scaled = x if factored else scalar("mul", x, s)
    value = fold("sum", r, scalar("mul", scalar("mul", scaled, g), w), dtype)
    if factored:
        value = scalar("mul", value, s)
    outs = [Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))]
    if keep:
        c = ax("c", extent(k))
        outs.append(Out((i, c), (i, c), scalar("mul", load(0, (i, c), dtype), s), Tensor(dtype, (i.extent, c.extent))))
    return body(
        outs, [Tensor(dtype, (i.extent, r.extent)), Tensor(dtype, (r.extent,)), Tensor(dtype, (j.extent, r.extent))]
    )


def layer_linear(m: Extent, n: Extent, k: int, dtype: str = "bf16", trans_a: bool = False) -> Body:
    """LayerNorm(x) * W.T without a weight: mean and deviation of each row on the operand.

    `trans_a` stores x as [k, m].
    """
    i, j = axes(m, n)
    r, q = ax("r", extent(k)), ax("q", extent(k))
    at = (lambda k: (k, i)) if trans_a else (lambda k: (i, k))
    element, count = load(0, at(q), dtype), f32(float(k))
    mean = scalar("div", fold("sum", q, element), count)
    scale = scalar("rsqrt", scalar("add", scalar("div", fold("m2", q, element), count), f32(1e-5)))
    normed = scalar("mul", scalar("sub", load(0, at(r), dtype), mean), scale)
    value = fold("sum", r, scalar("mul", normed, load(1, (j, r), dtype)), dtype)
    x_shape = (r.extent, i.extent) if trans_a else (i.extent, r.extent)
    slots = [Tensor(dtype, x_shape), Tensor(dtype, (j.extent, r.extent))]
    return body([Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))], slots)


def swiglu(m: Extent, n: Extent, k: Extent, dtype: str = "bf16") -> Body:
    """silu(x * Wg.T) * (x * Wu.T)."""
    i, j = axes(m, n)
    r, q = ax("r", extent(k)), ax("q", extent(k))
    gate = fold("sum", r, scalar("mul", load(0, (i, r), dtype), load(1, (j, r), dtype)), dtype)
    up = fold("sum", q, scalar("mul", load(0, (i, q), dtype), load(2, (j, q), dtype)), dtype)
    weight = Tensor(dtype, (j.extent, r.extent))
    return body(
        [Out((i, j), (i, j), scalar("mul", silu(gate), up), Tensor(dtype, (i.extent, j.extent)))],
        [Tensor(dtype, (i.extent, r.extent)), weight, weight],
    )


def head_split(seq: Extent, heads: int, dim: int, k: Extent, dtype: str = "bf16") -> Body:
    """Linear, then view [seq, heads, dim] and transpose to [heads, seq, dim]: the result is stored head by head."""
    h, i, d = axes(heads, seq, dim)
    r = ax("r", extent(k))
    column = iadd(imul(h, dim), d)
    value = fold("sum", r, scalar("mul", load(0, (i, r), dtype), load(1, (column, r), dtype)), dtype)
    return body(
        [Out((h, i, d), (h, i, d), value, Tensor(dtype, (h.extent, i.extent, d.extent)))],
        [Tensor(dtype, (i.extent, r.extent)), tensor(dtype, heads * dim, k)],
    )


def head_merge(seq: Extent, heads: int, dim: int, n: Extent, dtype: str = "bf16") -> Body:
    """Attention output [heads, seq, dim] read as [seq, heads * dim], times W[n, heads * dim]."""
    i, j = axes(seq, n)
    r = ax("r", heads * dim)
    value = fold(
        "sum", r, scalar("mul", load(0, (idiv(r, dim), i, imod(r, dim)), dtype), load(1, (j, r), dtype)), dtype
    )
    return body(
        [Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))],
        [tensor(dtype, heads, seq, dim), tensor(dtype, n, heads * dim)],
    )


def patches(batch: int, channels: int, size: int, patch: int, n: int, dtype: str = "bf16") -> Body:
    """A convolution whose stride is its kernel, the result as [batch, patches, n]."""
    g = size // patch
    b, t, o = axes(batch, g * g, n)
    c, y, x = axes(channels, patch, patch, name="r")
    image = load(0, (b, c, iadd(imul(idiv(t, g), patch), y), iadd(imul(imod(t, g), patch), x)), dtype)
    weight = load(1, (o, c, y, x), dtype)
    value = fold("sum", c, fold("sum", y, fold("sum", x, scalar("mul", image, weight), dtype), dtype), dtype)
    value = scalar("add", value, load(2, (o,), dtype))
    return body(
        [Out((b, t, o), (b, t, o), value, tensor(dtype, batch, g * g, n))],
        [tensor(dtype, batch, channels, size, size), tensor(dtype, n, channels, patch, patch), tensor(dtype, n)],
    )


def dequant(m: Extent, n: Extent, k: Extent, dtype: str = "bf16", stored: str = "i8") -> Body:
    """x * (int8 weight * scale of its row).T, the scale applied on load; `stored`: the weight's type."""
    i, j = axes(m, n)
    r = ax("r", extent(k))
    w = scalar("mul", cast(load(1, (j, r), stored), "f32"), load(2, (j,), dtype))
    value = fold("sum", r, scalar("mul", load(0, (i, r), dtype), w), dtype)
    return body(
        [Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))],
        [Tensor(dtype, (i.extent, r.extent)), Tensor(stored, (j.extent, r.extent)), Tensor(dtype, (j.extent,))],
    )


def prologue(
    m: Extent, n: Extent, k: Extent, kind: str, dtype: str = "bf16", trans_a: bool = False, trans_b: bool = True,
    batch: Extent | None = None,
) -> Body:  # fmt: skip
    """A linear layer whose left factor is computed on load.

    `kind`: `silu` of x; `gate` silu(g) * u; `norm` x * weight * 1 / root mean square; `row` x times a scale of its row;
    `cast` x stored as f32; `f8e4m3` or `i8` x stored so, times a scale of its row; `both` silu(x) and x itself, each
    with a weight of its own, added.  `trans_a` stores x as [k, m], `trans_b` W as [n, k].
    """
    lead = () if batch is None else axes(batch, name="b")
    i, j = axes(m, n)
    r, q = ax("r", extent(k)), ax("q", extent(k))
    stored = {"cast": "f32", "f8e4m3": "f8e4m3", "i8": "i8"}.get(kind, dtype)
    head = tuple(a.extent for a in lead)
    shape = (r.extent, i.extent) if trans_a else (i.extent, r.extent)
    slots = [Tensor(stored, (*head, *shape)), Tensor(dtype, (j.extent, r.extent) if trans_b else (r.extent, j.extent))]

    def at(slot: int, along: Ax) -> Expr:
        return load(slot, (*lead, *((along, i) if trans_a else (i, along))), stored)

    x: Expr = at(0, r)
    value = x
    if kind in ("silu", "both"):
        value = silu(x)
    elif kind == "gate":
        slots.append(slots[0])
        value = scalar("mul", silu(x), at(2, r))
    elif kind == "norm":
        slots.append(Tensor(dtype, (r.extent,)))
        value = scalar("mul", scalar("mul", x, rms_scale(at(0, q), q)), load(2, (r,), dtype))
    else:
        slots.append(Tensor("f32", (i.extent,)))
        value = scalar("mul", cast(x, "f32"), load(2, (i,), "f32"))
    w = load(1, (j, r) if trans_b else (r, j), dtype)
    total = fold("sum", r, scalar("mul", value, w), dtype)
    if kind == "both":
        slots.append(slots[1])
        other = load(2, (j, q) if trans_b else (q, j), dtype)
        total = scalar("add", total, fold("sum", q, scalar("mul", at(0, q), other), dtype))
    out = Tensor(dtype, (*head, i.extent, j.extent))
    return body([Out((*lead, i, j), (*lead, i, j), total, out)], slots)


def f8_linear(
    m: Extent, n: Extent, k: Extent, dtype: str = "f8e4m3", out: str = "bf16", operand: str = "", scaled: str = "",
    bias: bool = False, trans_b: bool = True, batch: Extent | None = None,
) -> Body:  # fmt: skip
    """x * W.T of 8-bit floats, summed in f32.  `operand`: the product's type in the program (default: theirs).

    `scaled`: `tensor` a scale of each factor, `row` scales of x's rows and of W's.  `trans_b` stores W as [n, k].
    """
    lead = () if batch is None else axes(batch, name="b")
    i, j = axes(m, n)
    r = ax("r", extent(k))
    head = tuple(a.extent for a in lead)
    x, w = load(0, (*lead, i, r), dtype), load(1, (j, r) if trans_b else (r, j), dtype)
    value: Expr = fold("sum", r, scalar("mul", cast(x, "f32"), cast(w, "f32")), operand or dtype)
    slots = [Tensor(dtype, (*head, i.extent, r.extent)),
             Tensor(dtype, (j.extent, r.extent) if trans_b else (r.extent, j.extent))]  # fmt: skip
    if scaled:
        row = scaled == "row"
        for a, index in ((i, (i, const(0))), (j, (const(0), j))):
            slots.append(Tensor("f32", tuple(a.extent if x is a else const(1) for x in index) if row else ()))
            value = scalar("mul", value, load(len(slots) - 1, index if row else (), "f32"))
    if bias:
        slots.append(Tensor(out, (j.extent,)))
        value = scalar("add", value, load(len(slots) - 1, (j,), out))
    return body([Out((*lead, i, j), (*lead, i, j), value, Tensor(out, (*head, i.extent, j.extent)))], slots)


def rotated(m: Extent, n: Extent, k: int, dtype: str = "bf16") -> Body:
    """A linear layer on x with its halves exchanged and one of them negated: loads that conditions guard."""
    i, j = axes(m, n)
    r, half = ax("r", k), k // 2
    high = scalar("neg", load(0, (i, iadd(r, half)), dtype))
    low = load(0, (i, iadd(r, -half)), dtype)
    x = scalar("where", scalar("lt", r, const(half)), high, low)
    value = fold("sum", r, scalar("mul", x, load(1, (j, r), dtype)), dtype)
    return body(
        [Out((i, j), (i, j), value, Tensor(dtype, (i.extent, j.extent)))],
        [Tensor(dtype, (i.extent, r.extent)), Tensor(dtype, (j.extent, r.extent))],
    )


def attention(
    batch: Extent, heads: int, kv_heads: int, queries: Extent, keys: Extent, dim: int, value_dim: int | None = None,
    dtype: str = "bf16", causal: bool = False, mask: str = "", token_major: bool = False,
) -> Body:  # fmt: skip
    """softmax(q * k.T / sqrt(dim) + mask) * v as two online sums.  `mask`: `add` an additive [queries, keys] tensor.
    `token_major` stores [batch, queries, heads, value_dim]."""
    dv = value_dim or dim
    b, h, i, c = axes(batch, heads, queries, dv)
    t, d = ax("t", extent(keys)), ax("d", dim)
    kv = idiv(h, heads // kv_heads)
    q, k = load(0, (b, h, i, d), dtype), load(1, (b, kv, t, d), dtype)
    score = scalar("mul", fold("sum", d, scalar("mul", q, k), dtype), f32(dim**-0.5))
    slots = [tensor(dtype, batch, heads, queries, dim), tensor(dtype, batch, kv_heads, keys, dim),
             tensor(dtype, batch, kv_heads, keys, dv)]  # fmt: skip
    if causal:
        score = scalar("where", scalar("le", t, i), score, f32(float("-inf")))
    if mask == "add":
        slots.append(tensor(dtype, queries, keys))
        score = scalar("add", score, load(3, (i, t), dtype))
    value = scalar("div", online(t, score, load(2, (b, kv, t, c), dtype), dtype), online(t, score, f32(1.0), dtype))
    if token_major:
        order, shape = (b, i, h, c), (batch, queries, heads, dv)
    else:
        order, shape = (b, h, i, c), (batch, heads, queries, dv)
    return body([Out(order, order, value, tensor(dtype, *shape))], slots)
