"""Bodies of the map, row, scan and plain families that tests share, small enough to run on the CPU."""

from __future__ import annotations

from emmy.ir.build import cast, iadd, imul, isub, scalar
from emmy.ir.loop import Body, Expr, Out, Tensor, ax, const, fold, load, online, scan
from tests.bodies import Extent, axes, body, extent, f32, rms_scale, tensor


def rms_norm(r: Extent, n: int, dtype: str = "f32") -> Body:
    i, j = axes(r, n)
    k = ax("k", const(n))
    value = scalar(
        "mul", scalar("mul", load(0, (i, j), dtype), rms_scale(load(0, (i, k), dtype), k)), load(1, (j,), dtype)
    )
    return body([Out((i, j), (i, j), value, tensor(dtype, r, n))], [tensor(dtype, r, n), tensor(dtype, n)])


def add_rms_norm(r: Extent, n: int, dtype: str = "bf16") -> Body:
    """A residual sum and its normalized rows, both stored."""
    i, j = axes(r, n)
    k = ax("k", const(n))

    def total(c: Expr) -> Expr:
        return cast(scalar("add", load(0, (i, c), dtype), load(1, (i, c), dtype)), dtype)

    value = scalar("mul", scalar("mul", total(j), rms_scale(total(k), k)), load(2, (j,), dtype))
    outs = [Out((i, j), (i, j), v, tensor(dtype, r, n)) for v in (value, total(j))]
    return body(outs, [tensor(dtype, r, n), tensor(dtype, r, n), tensor(dtype, n)])


def softmax(r: Extent, n: Extent, dtype: str = "f32", twisted: bool = False) -> Body:
    i, j = axes(r, n)
    k = ax("k", extent(n))
    top = fold("max", k, load(0, (i, k), dtype))
    whole = fold("sum", k, scalar("exp", scalar("sub", load(0, (i, k), dtype), top)))
    if twisted:
        whole = online(k, load(0, (i, k), dtype), f32(1.0))
    value = scalar("div", scalar("exp", scalar("sub", load(0, (i, j), dtype), top)), whole)
    return body([Out((i, j), (i, j), value, tensor(dtype, r, n))], [tensor(dtype, r, n)])


def masked_softmax(r: int, n: int) -> Body:
    """Scores after position i are -infinity; row 0 is masked altogether."""
    i, j = axes(r, n)
    k = ax("k", const(n))

    def score(c: Expr) -> Expr:
        return scalar("where", scalar("lt", c, i), load(0, (i, c), "f32"), f32(float("-inf")))

    top = fold("max", k, score(k))
    whole = fold("sum", k, scalar("exp", scalar("sub", score(k), top)))
    value = scalar("div", scalar("exp", scalar("sub", score(j), top)), whole)
    return body([Out((i, j), (i, j), value, tensor("f32", r, n))], [tensor("f32", r, n)])


def layer_norm(r: int, n: int, dtype: str = "f32") -> Body:
    """Normalized rows, and the mean and reciprocal deviation of each row as results of their own."""
    i, j = axes(r, n)
    k = ax("k", const(n))
    x, count = load(0, (i, k), dtype), f32(float(n))
    mean = scalar("div", fold("sum", k, x), count)
    scale = scalar("rsqrt", scalar("add", scalar("div", fold("m2", k, x), count), f32(1e-5)))
    value = scalar("mul", scalar("sub", load(0, (i, j), dtype), mean), scale)
    outs = [
        Out((i, j), (i, j), value, tensor(dtype, r, n)),
        Out((i,), (i,), mean, tensor("f32", r)),
        Out((i,), (i,), scale, tensor("f32", r)),
    ]
    return body(outs, [tensor(dtype, r, n)])


def column_sum(n: int, c: int, dtype: str = "f32") -> Body:
    (i,) = axes(c)
    k = ax("k", const(n))
    x = load(0, (k, i), dtype)
    outs = [
        Out((i,), (i,), fold("sum", k, x), tensor("f32", c)),
        Out((i,), (i,), fold("max", k, x), tensor("f32", c)),
    ]
    return body(outs, [tensor(dtype, n, c)])


def channel_statistics(n: int, c: int, h: int) -> Body:
    """Sums over the first and last of three axes, as batch normalization takes them, and the normalized input."""
    b, i, j = axes(n, c, h)
    k, l = ax("k", const(n)), ax("l", const(h))
    mean = scalar("div", fold("sum", k, fold("sum", l, load(0, (k, i, l), "f32"))), f32(float(n * h)))
    value = scalar("sub", load(0, (b, i, j), "f32"), mean)
    return body([Out((b, i, j), (b, i, j), value, tensor("f32", n, c, h))], [tensor("f32", n, c, h)])


def whole_sum(n: int, dtype: str = "f32") -> Body:
    k = ax("k", const(n))
    return body([Out((), (), fold("sum", k, load(0, (k,), dtype)), tensor("f32"))], [tensor(dtype, n)])


def integer_folds(r: int, n: int) -> Body:
    """Minimum, product of signs and sum of integers; any and all of comparisons."""
    (i,) = axes(r)
    k = ax("k", const(n))
    x = load(0, (i, k), "i64")
    positive = scalar("lt", const(0), x)
    values = [
        (fold("min", k, x), "i64"), (fold("sum", k, x), "i64"), (fold("or", k, positive), "bool"),
        (fold("and", k, positive), "bool"), (fold("max", k, load(1, (i, k), "u8")), "u8"),
    ]  # fmt: skip
    return body([Out((i,), (i,), v, tensor(t, r)) for v, t in values], [tensor("i64", r, n), tensor("u8", r, n)])


def cumulative(r: int, n: int, kind: str = "sum", first: bool = False, dtype: str = "f32") -> Body:
    """Running fold along the last axis (or the first), and twice its value."""
    i, j = axes(r, n)
    k = ax("k", const(r if first else n))
    value = scan(kind, k, i if first else j, load(0, (k, j) if first else (i, k), dtype))
    outs = [
        Out((i, j), (i, j), value, tensor(dtype, r, n)),
        Out((i, j), (i, j), scalar("mul", value, f32(2.0)), tensor("f32", r, n)),
    ]
    return body(outs, [tensor(dtype, r, n)])


def bias_gelu(r: Extent, n: int, dtype: str = "bf16") -> Body:
    i, j = axes(r, n)
    x = scalar("add", load(0, (i, j), dtype), load(1, (j,), "f32"))
    value = scalar("mul", x, scalar("add", f32(1.0), scalar("erf", scalar("mul", x, f32(0.7071067811865476)))))
    return body([Out((i, j), (i, j), value, tensor(dtype, r, n))], [tensor(dtype, r, n), tensor("f32", n)])


def rotary(t: Extent, heads: int, d: int, dtype: str = "bf16") -> Body:
    """x * cos + rotate_half(x) * sin on [tokens, heads, d]; reads of the wrong half are out of range."""
    i, h, j = axes(t, heads, d)
    low = scalar("neg", load(0, (i, h, iadd(j, d // 2)), dtype))
    turned = scalar("where", scalar("lt", j, const(d // 2)), low, load(0, (i, h, iadd(j, -(d // 2))), dtype))
    value = scalar(
        "add",
        scalar("mul", load(0, (i, h, j), dtype), load(1, (i, j), "f32")),
        scalar("mul", turned, load(2, (i, j), "f32")),
    )
    slots = [tensor(dtype, t, heads, d), tensor("f32", t, d), tensor("f32", t, d)]
    return body([Out((i, h, j), (i, h, j), value, tensor(dtype, t, heads, d))], slots)


def padded_copy(rows: Extent, columns: int, width: int, dtype: str = "bf16", skip: int = 0) -> Body:
    """out[i, j] = x[i, skip + j], `width` columns, with zeros behind the `columns` of x."""
    i, j = axes(rows, width)
    inside = scalar("lt", j, const(columns - skip))
    value = scalar("where", inside, load(0, (i, iadd(j, skip)), dtype), f32(0.0))
    return body([Out((i, j), (i, j), value, tensor(dtype, rows, width))], [tensor(dtype, rows, columns)])


def upside_down(rows: int, columns: int, width: int, dtype: str = "bf16") -> Body:
    """out[i, j] = x[rows - 1 - i, 1 + j], `width` columns of `columns`."""
    i, j = axes(rows, width)
    value = load(0, (isub(const(rows - 1), i), iadd(j, 1)), dtype)
    return body([Out((i, j), (i, j), value, tensor(dtype, rows, width))], [tensor(dtype, rows, columns)])


def concatenated(r: int, a: int, b: int, dtype: str = "f32") -> Body:
    i, j = axes(r, a + b)
    value = scalar(
        "where", scalar("lt", j, const(a)), load(0, (i, j), dtype), scalar("exp", load(1, (i, iadd(j, -a)), dtype))
    )
    return body([Out((i, j), (i, j), value, tensor(dtype, r, a + b))], [tensor(dtype, r, a), tensor(dtype, r, b)])


def embedding(t: int, vocabulary: int, d: int, dtype: str = "bf16") -> Body:
    """Rows of a table by index, negative indices from the end."""
    i, j = axes(t, d)
    index = load(0, (i,), "i64")
    row = scalar("where", scalar("lt", index, const(0)), iadd(index, vocabulary), index)
    return body([Out((i, j), (i, j), load(1, (row, j), dtype), tensor(dtype, t, d))],
                [tensor("i64", t), tensor(dtype, vocabulary, d)])  # fmt: skip


def added_transpose(r: Extent, n: int, dtype: str = "f32") -> Body:
    i, j = axes(r, n)
    value = scalar("add", load(0, (i, j), dtype), load(1, (j, i), dtype))
    return body([Out((i, j), (i, j), value, tensor(dtype, r, n))], [tensor(dtype, r, n), tensor(dtype, n, r)])


def permuted_store(a: int, b: int, c: int) -> Body:
    """[a, b, c] -> [b, a, c] written in the order of the input."""
    i, j, k = axes(a, b, c)
    return body(
        [Out((i, j, k), (j, i, k), load(0, (i, j, k), "f16"), tensor("f16", b, a, c))], [tensor("f16", a, b, c)]
    )


def positions(r: int, n: int) -> Body:
    """Values made of indices alone: a causal mask, a large product that needs 64 bits, a cast index."""
    i, j = axes(r, n)
    wide = imul(iadd(imul(i, n), j), 10_000_000_000)
    outs = [
        Out((i, j), (i, j), scalar("le", j, i), tensor("bool", r, n)),
        Out((i, j), (i, j), wide, tensor("i64", r, n)),
        Out((i, j), (i, j), cast(iadd(j, i), "f32"), tensor("f32", r, n)),
    ]
    return body(outs, [])


def two_spaces(r: int, n: int) -> Body:
    """Two results over different axes, neither folded."""
    i, j = axes(r, n)
    (k,) = axes(r + n, name="m")
    outs = [
        Out((i, j), (i, j), scalar("neg", load(0, (i, j), "f32")), tensor("f32", r, n)),
        Out((k,), (k,), scalar("abs", load(1, (k,), "f32")), tensor("f32", r + n)),
    ]
    return body(outs, [tensor("f32", r, n), tensor("f32", r + n)])


def converted(n: int, old: str, new: str) -> Body:
    (i,) = axes(n)
    return body([Out((i,), (i,), cast(load(0, (i,), old), new), Tensor(new, (i.extent,)))], [tensor(old, n)])
