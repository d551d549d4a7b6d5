"""Products that are summed: linear, matmul and its kin, einsum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    axis,
    constant,
    convert,
    number,
    numel,
    stored,
    wide,
)
from emmy.frontend.translate.layout import reshape
from emmy.frontend.translate.promotion import promote
from emmy.ir.build import idiv, imod
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Shape, Terms, broadcast, coordinates

ONE: Final = const(1)
ZERO: Final = const(0)


def product(
    t: Terms, name: str, x: int, x_index: Sequence[Expr], y: int, y_index: Sequence[Expr],
    full: Shape, summed: Sequence[int], shape: Shape, out_index: Sequence[Expr],
) -> int:  # fmt: skip
    """`Terms.contract` on floats; integers and empty sums in primitives."""
    if any(number(full[a]) == 0 for a in summed):
        return constant(t, 0, t.dtype(x), shape, weak=False)
    if is_float(t.dtype(x)):
        return t.contract(name, x, x_index, y, y_index, full, summed, shape, out_index)
    factors = [t.map(a, index, full, 0) for a, index in ((x, x_index), (y, y_index))]
    return t.map(t.reduce("sum", t.bin("mul", *factors), summed, keepdim=True), out_index, shape)


Product = Callable[..., int]  # as `product` takes its arguments


def labelled(t: Terms, name: str, x: int, xs: str, y: int, ys: str, out: str, of: Product = product) -> int:
    """A product by index letters.  Letters of `out` that only y has stay last, after the summed ones."""
    sizes: dict[str, Expr] = {}
    for letters, shape in ((xs, t.shape(x)), (ys, t.shape(y))):
        for letter, e in zip(letters, shape, strict=True):
            if sizes.get(letter, ONE) is ONE:
                sizes[letter] = e
    summed = "".join(dict.fromkeys(k for k in xs + ys if k not in out))
    tail = 0
    while tail < len(out) and out[len(out) - 1 - tail] not in xs:
        tail += 1
    order = out[: len(out) - tail] + summed + out[len(out) - tail :]
    full = tuple(sizes[k] for k in order)
    d = dict(zip(order, coordinates(full), strict=True))
    x_index, y_index = (_index(letters, t.shape(a), sizes, d) for a, letters in ((x, xs), (y, ys)))
    shape = tuple(sizes[k] for k in out)
    if not summed:
        return t.bin("mul", t.map(x, x_index, full), t.map(y, y_index, full))
    o = dict(zip(out, coordinates(shape), strict=True))
    out_index = [o.get(k, ZERO) for k in order]
    axes = [order.index(k) for k in summed]
    return of(t, name, x, x_index, y, y_index, full, axes, shape, out_index)


def _index(letters: str, shape: Shape, sizes: Mapping[str, Expr], d: Mapping[str, Expr]) -> list[Expr]:
    return [
        ZERO if e is ONE and sizes[k] is not ONE else d[k] for k, e in zip(letters, shape, strict=True)
    ]  # fmt: skip


def matmul_of(t: Terms, name: str, x: int, y: int) -> int:
    """numpy's matmul: vectors on either side, batch dimensions broadcast."""
    xs, ys = t.shape(x), t.shape(y)
    lead = "abcdefgh"[: max(len(xs), len(ys), 2) - 2]
    left = lead[len(lead) - max(len(xs) - 2, 0) :] + ("mk" if len(xs) > 1 else "k")
    right = lead[len(lead) - max(len(ys) - 2, 0) :] + ("kn" if len(ys) > 1 else "k")
    out = lead + ("m" if len(xs) > 1 else "") + ("n" if len(ys) > 1 else "")
    return labelled(t, name, x, left, y, right, out)


def linear(t: Terms, c: Call) -> int:
    """x[…, k] * weight[n, k] + bias[n]."""
    x, weight, bias = c.get(0, "input"), c.get(1, "weight"), c.get(2, "bias")
    lead = "abcdefgh"[: len(t.shape(x)) - 1]
    flat_weight = len(t.shape(weight)) == 1
    y = labelled(t, "linear", x, lead + "k", weight, "k" if flat_weight else "nk", lead + ("" if flat_weight else "n"))
    return y if bias is None else t.bin("add", y, bias)


def matmul(t: Terms, c: Call) -> int:
    """matmul, mm, bmm, mv, dot, vdot."""
    return matmul_of(t, c.base, c.get(0, "self"), c.get(1, "other"))


def inner(t: Terms, c: Call) -> int:
    x, y = c.get(0, "self"), c.get(1, "other")
    if not t.shape(x) or not t.shape(y):
        return t.bin("mul", x, y)
    xs, ys = "abcdefgh"[: len(t.shape(x)) - 1], "ijlmnopq"[: len(t.shape(y)) - 1]
    return labelled(t, "inner", x, xs + "k", y, ys + "k", xs + ys)


def outer(t: Terms, c: Call) -> int:
    x, y = (convert(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "vec2")))
    return labelled(t, "outer", x, "m", y, "n", "mn")


def _blend(t: Terms, c: Call, y: int, x: Any) -> int:
    """beta * x + alpha * y; beta = 0 does not look at x."""
    beta, alpha = c.kwargs.get("beta", 1), c.kwargs.get("alpha", 1)
    if alpha != 1:
        y = t.bin("mul", y, constant(t, alpha, c.dtype))
    if beta == 0:
        return y
    return t.bin("add", y, x if beta == 1 else t.bin("mul", x, constant(t, beta, c.dtype)))


def wide_product(
    t: Terms, name: str, x: int, x_index: Sequence[Expr], y: int, y_index: Sequence[Expr],
    full: Shape, summed: Sequence[int], shape: Shape, out_index: Sequence[Expr],
) -> int:  # fmt: skip
    """A product of 8-bit floats, summed in f32 and left so; tensor cores may take its factors as they are."""
    factors = [t.map(t.cast(a, "f32"), index, full) for a, index in ((x, x_index), (y, y_index))]
    total = t.reduce(f"sum:{t.dtype(x)}", t.bin("mul", *factors), summed, keepdim=True)
    return t.map(total, out_index, shape)


def scaled_mm(t: Terms, c: Call) -> int:
    """(x * y summed in f32) * scale_a * scale_b + bias, rounded once.

    Scales are of whole tensors, or of rows of x and of columns of y.
    """
    x, y = c.get(0, "self"), c.get(1, "mat2")
    if t.dtype(x) != t.dtype(y) or c.get(5, "scale_result") is not None or c.dtype not in ("bf16", "f16", "f32"):
        raise Decline("factors of two types, or a result that is scaled")
    out = labelled(t, "scaled_mm", x, "mk", y, "kn", "mn", wide_product)
    (m, n), scales = t.shape(out), (c.get(2, "scale_a"), c.get(3, "scale_b"))
    for scale, rows in zip(scales, ((m, ONE), (ONE, n)), strict=True):
        if numel(t.shape(scale)) is not ONE and t.shape(scale) != rows:
            raise Decline("scales of blocks")
        flat_scale = reshape(t, scale, ()) if numel(t.shape(scale)) is ONE else scale
        out = t.bin("mul", out, flat_scale)
    bias = c.get(4, "bias")
    return stored(t, out if bias is None else t.bin("add", out, convert(t, bias, "f32")), c.dtype)


def added(names: tuple[str, str]) -> Handler:
    """addmm, addmv, baddbmm: a product added to the first operand."""

    def handler(t: Terms, c: Call) -> int:
        if t.dtype(c.get(1, names[0])) != c.dtype:
            raise Decline("a product in another type than its factors")
        out = _blend(t, c, matmul_of(t, c.base, c.get(1, names[0]), c.get(2, names[1])), c.get(0, "self"))
        return t.expand(out, c.shape)

    return handler


def addbmm(t: Terms, c: Call) -> int:
    product_of = labelled(t, "addbmm", c.get(1, "batch1"), "bmk", c.get(2, "batch2"), "bkn", "mn")
    return _blend(t, c, product_of, c.get(0, "self"))


def addr(t: Terms, c: Call) -> int:
    x, y = c.get(1, "vec1"), c.get(2, "vec2")
    return _blend(t, c, labelled(t, "outer", x, "m", y, "n", "mn"), c.get(0, "self"))


def chain(t: Terms, c: Call) -> int:
    matrices = c.get(0, "matrices", c.kwargs.get("tensors"))
    out: int = matrices[0]
    for m in matrices[1:]:
        out = matmul_of(t, "matmul", out, m)
    return reshape(t, out, c.shape)


def einsum(t: Terms, c: Call) -> int:
    """Operands are combined from the left; a letter is summed once nothing later needs it."""
    equation, operands = str(c.get(0, "equation")).replace(" ", ""), list(c.get(1, "tensors"))
    inputs, out = _letters(equation, [len(t.shape(x)) for x in operands])
    dtype = c.dtype
    for x in operands:
        dtype = promote(dtype, t.dtype(x))
    if dtype != c.dtype:
        raise Decline("operands of several types")
    x, xs = convert(t, operands[0], c.dtype), inputs[0]
    if len(operands) == 1:
        return _alone(t, x, xs, out)
    for i in range(1, len(operands)):
        later = "".join(inputs[i + 1 :]) + out
        last = i == len(operands) - 1
        kept = out if last else "".join(dict.fromkeys(k for k in xs + inputs[i] if k in later))
        x, xs = labelled(t, "einsum", x, xs, convert(t, operands[i], c.dtype), inputs[i], kept), kept
    return x


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Index letters of each operand and of the result, `…` spelled out in letters that the equation does not use."""
    left, arrow, out = equation.partition("->")
    inputs = left.split(",")
    free = [chr(k) for k in range(ord("A"), ord("Z") + 1) if chr(k) not in equation]
    most = max((r - len(s) + 3 for s, r in zip(inputs, ranks, strict=True) if "..." in s), default=0)
    if most > len(free):
        raise Decline("too many dimensions")
    dots = "".join(free[:most])
    hidden = [r - len(s) + 3 for s, r in zip(inputs, ranks, strict=True)]
    inputs = [s.replace("...", dots[most - h :]) if "..." in s else s for s, h in zip(inputs, hidden, strict=True)]
    if arrow:
        return inputs, out.replace("...", dots)
    letters = "".join(inputs)
    return inputs, dots + "".join(sorted(k for k in set(letters) if letters.count(k) == 1 and k not in dots))


def _alone(t: Terms, x: int, xs: str, out: str) -> int:
    """Diagonals, sums and a transposition of one operand."""
    sizes = dict(zip(xs, t.shape(x), strict=True))
    order = out + "".join(dict.fromkeys(k for k in xs if k not in out))
    full = tuple(sizes[k] for k in order)
    d = dict(zip(order, coordinates(full), strict=True))
    y = t.map(x, [d[k] for k in xs], full)
    return t.reduce("sum", y, range(len(out), len(order)))


def tensordot(t: Terms, c: Call) -> int:
    x, y = c.get(0, "self"), c.get(1, "other")
    a = [axis(i, len(t.shape(x))) for i in c.get(2, "dims_self")]
    b = [axis(i, len(t.shape(y))) for i in c.get(3, "dims_other")]
    xs, ys = list("abcdefgh"[: len(t.shape(x))]), list("mnopqrst"[: len(t.shape(y))])
    for i, j in zip(a, b, strict=True):
        ys[j] = xs[i]
    out = "".join(k for i, k in enumerate(xs) if i not in a) + "".join(k for j, k in enumerate(ys) if j not in b)
    return labelled(t, "tensordot", x, "".join(xs), y, "".join(ys), out)


def kron(t: Terms, c: Call) -> int:
    x, y = (convert(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "other")))
    d = coordinates(c.shape)

    def part(a: int, coarse: bool) -> int:
        shape, other = t.shape(a), t.shape(y)
        lead = len(d) - len(shape)
        skip = len(d) - len(other)
        own: list[Expr] = []
        for i in range(len(shape)):
            k = lead + i
            inner = other[k - skip] if k >= skip else ONE
            own.append(idiv(d[k], inner) if coarse else imod(d[k], inner))
        return t.map(a, own, c.shape)

    return t.bin("mul", part(x, True), part(y, False))


def bilinear(t: Terms, c: Call) -> int:
    """x1[…, i] * weight[n, i, j] * x2[…, j] + bias."""
    x, y, weight, bias = (c.get(i, n) for i, n in enumerate(("input1", "input2", "weight", "bias")))
    lead = "abcdefgh"[: len(t.shape(x)) - 1]
    half = labelled(t, "bilinear", x, lead + "i", weight, "nij", lead + "nj")
    out = labelled(t, "bilinear", half, lead + "nj", y, lead + "j", lead + "n")
    return out if bias is None else t.bin("add", out, bias)


def cdist(t: Terms, c: Call) -> int:
    """Distances between rows, from the differences themselves."""
    from emmy.frontend.translate.reduction import norm_over

    x, y = wide(t, c.get(0, "x1")), wide(t, c.get(1, "x2"))
    (*xb, m, k), (*yb, n, _) = t.shape(x), t.shape(y)
    lead = broadcast(tuple(xb), tuple(yb))
    a, b = reshape(t, x, (*xb, m, ONE, k)), reshape(t, y, (*yb, ONE, n, k))
    gap = norm_over(t, t.bin("sub", a, b), float(c.get(2, "p", 2.0)), (len(lead) + 2,))
    return stored(t, reshape(t, gap, c.shape), c.dtype)


def trace(t: Terms, c: Call) -> int:
    x = convert(t, c.get(0, "self"), c.dtype)
    rows, columns = t.shape(x)
    n = number(rows), number(columns)
    if n[0] is None or n[1] is None:
        raise Decline("a symbolic matrix")
    d = coordinates((const(min(n[0], n[1])),))[0]
    return t.reduce("sum", t.map(x, (d, d), (d.extent,)), (0,))


CONTRACTION: Final[dict[str, Handler]] = {
    "linear": linear, "_scaled_mm": scaled_mm, **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "vdot"), matmul),
    "inner": inner, "outer": outer, "ger": outer, "addmm": added(("mat1", "mat2")), "addmv": added(("mat", "vec")),
    "baddbmm": added(("batch1", "batch2")), "addbmm": addbmm, "addr": addr, "chain_matmul": chain,
    "linalg_multi_dot": chain, "einsum": einsum, "tensordot": tensordot, "kron": kron, "bilinear": bilinear,
    "cdist": cdist, "trace": trace,
}  # fmt: skip
