"""Resampling: nearest, linear and cubic in any number of dimensions, one dimension after the other; grid sampling."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from emmy.frontend.translate.call import Call, Decline, Handler, at, static, stored, wide
from emmy.ir.build import iadd, idiv, imod, imul, scalar
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Terms, coordinates

ZERO: Final = const(0)
# Keys, Cubic convolution interpolation (1981); PyTorch's constant.
_CUBIC: Final = -0.75


def _factors(c: Call, rank: int, n: list[int]) -> list[float | None]:
    """The user's scale factors, None where the sizes alone decide."""
    if c.overload == "vec":
        given = c.args[-1] if isinstance(c.args[-1], tuple) and len(c.args) > 2 else c.kwargs.get("scale_factors")
        return list(given) if given is not None else [None] * rank
    given = [c.kwargs.get(k) for k in ("scales", "scales_d", "scales_h", "scales_w") if k in c.kwargs]
    position = 2 if "nearest" in c.base else 3
    given = given or list(c.args[position : position + rank])
    return [*given, *[None] * (rank - len(given))][:rank]


def _steps(c: Call, n: list[int], o: list[int]) -> list[Fraction]:
    """Input positions per output position, as PyTorch takes them: 1 / factor where one is given, else n / o."""
    factors = _factors(c, len(n), n)
    return [
        Fraction(a, b) if f is None or f <= 0 else Fraction(1 / f).limit_denominator(1 << 12)
        for a, b, f in zip(n, o, factors, strict=True)
    ]


def nearest(t: Terms, c: Call) -> int:
    """floor(i * step), and floor((i + 1/2) * step) for the exact form; held against PyTorch's f32 arithmetic."""
    rank = int(c.base[-2])
    x = c.get(0, "input")
    n = [static(e, "a resampled dimension") for e in t.shape(x)[-rank:]]
    o = [static(e, "a resampled dimension") for e in c.shape[-rank:]]
    index: list[Expr] = list(coordinates(c.shape))
    half = "exact" in c.base
    for k, (a, b, step) in enumerate(zip(n, o, _steps(c, n, o), strict=True)):
        dim = len(c.shape) - rank + k
        p, q = step.numerator, step.denominator
        place = idiv(iadd(imul(index[dim], 2 * p), p), 2 * q) if half else idiv(imul(index[dim], p), q)
        i = np.arange(b, dtype=np.float32)
        theirs = np.minimum(np.floor((i + np.float32(0.5 if half else 0)) * np.float32(step)), a - 1).astype(int)
        ours = [min(((2 * j + 1) * p) // (2 * q) if half else (j * p) // q, a - 1) for j in range(b)]
        if ours != theirs.tolist():
            raise Decline("a step that f32 rounds elsewhere")
        index[dim] = scalar("min", place, const(a - 1))
    return t.map(x, index, c.shape)


def _taps(step: Fraction, n: int, o: int, corners: bool, clip: bool, place: Expr) -> tuple[Expr, Expr, int]:
    """(floor of the source position, numerator and denominator of what is left) for an output coordinate."""
    if corners:
        p, q = (n - 1, o - 1) if o > 1 else (0, 1)
        whole = imul(place, p)
    else:
        p, q = step.numerator, 2 * step.denominator
        whole = iadd(imul(place, 2 * p), p - step.denominator)
        if clip:
            whole = scalar("max", whole, ZERO)
    return idiv(whole, q), imod(whole, q), q


def smooth(t: Terms, c: Call) -> int:
    """linear, bilinear, trilinear, bicubic: weights are exact fractions, sums in f32."""
    cubic = "bicubic" in c.base
    rank = 2 if cubic else int(c.base[-2])
    x = c.get(0, "input")
    if not is_float(c.dtype):
        raise Decline("smooth resampling of integers")
    n = [static(e, "a resampled dimension") for e in t.shape(x)[-rank:]]
    o = [static(e, "a resampled dimension") for e in c.shape[-rank:]]
    corners = bool(c.get(2, "align_corners", False))
    y = wide(t, x)
    for k, (a, b, step) in enumerate(zip(n, o, _steps(c, n, o), strict=True)):
        if a == b and step == 1:
            continue
        y = _resample(t, y, len(c.shape) - rank + k, a, b, step, corners, cubic)
    return stored(t, y, c.dtype)


def _resample(t: Terms, x: int, dim: int, n: int, o: int, step: Fraction, corners: bool, cubic: bool) -> int:
    old = t.shape(x)
    shape = (*old[:dim], const(o), *old[dim + 1 :])
    base, _, _ = _taps(step, n, o, corners, not cubic, coordinates(shape)[dim])
    own = (const(o), *(const(1) for _ in shape[dim + 1 :]))
    _, rest, q = _taps(step, n, o, corners, not cubic, coordinates(own)[0])
    part = t.bin("mul", t.iota(rest, own, "f32"), t.full(1 / q))
    weights = _cubic_weights(t, part) if cubic else [t.bin("sub", t.full(1.0), part), part]
    total: int | None = None
    for k, weight in enumerate(weights):
        place = scalar("min", scalar("max", iadd(base, k - (1 if cubic else 0)), ZERO), const(n - 1))
        term = t.bin("mul", t.map(x, at(shape, dim, place), shape), weight)
        total = term if total is None else t.bin("add", total, term)
    assert total is not None
    return total


def _cubic_weights(t: Terms, part: int) -> list[int]:
    """Weights of the four neighbours at distance 1 + s, s, 1 - s, 2 - s."""
    other = t.bin("sub", t.full(1.0), part)

    def poly(s: int, *coefficients: float) -> int:
        out = t.full(coefficients[0])
        for k in coefficients[1:]:
            out = t.bin("add", t.bin("mul", out, s), t.full(k))
        return out

    a = _CUBIC
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    first, last = (t.bin("add", s, t.full(1.0)) for s in (part, other))
    return [poly(first, *far), poly(part, *near), poly(other, *near), poly(last, *far)]


def grid_sample(t: Terms, c: Call) -> int:
    """Two-dimensional, bilinear or nearest, outside zero or the border: four reads whose place is data."""
    x, grid, mode, padding, corners = (c.get(i, "", 0) for i in range(5))
    if len(t.shape(x)) != 4 or mode not in (0, 1) or padding not in (0, 1):
        raise Decline("three dimensions, cubic, or reflected borders")
    plane = t.shape(x)[2:]
    rows, columns = (static(e, "the sampled plane") for e in plane)
    y, z = (_unnormalized(t, _component(t, wide(t, grid), k), m, bool(corners), padding == 1)
            for k, m in ((1, rows), (0, columns)))  # fmt: skip
    if mode == 1:
        return t.cast(_sampled(t, x, t.un("round", y), t.un("round", z), rows, columns, c), c.dtype)
    y0, z0 = t.un("floor", y), t.un("floor", z)
    total: int | None = None
    for dy in (0, 1):
        for dz in (0, 1):
            r, s = (t.bin("add", v, t.full(1.0)) if d else v for v, d in ((y0, dy), (z0, dz)))
            gap = [t.bin("sub", t.full(1.0), t.un("abs", t.bin("sub", v, w))) for v, w in ((y, r), (z, s))]
            lead = (t.shape(x)[0], const(1), *c.shape[2:])
            weight = t.reshape(t.bin("mul", *gap), lead)
            term = t.bin("mul", wide(t, _sampled(t, x, r, s, rows, columns, c)), weight)
            total = term if total is None else t.bin("add", total, term)
    assert total is not None
    return stored(t, total, c.dtype)


def _component(t: Terms, grid: int, k: int) -> int:
    shape = t.shape(grid)[:3]
    return t.map(grid, (*coordinates(shape), const(k)), shape)


def _unnormalized(t: Terms, g: int, n: int, corners: bool, border: bool) -> int:
    """-1 .. 1 to pixels."""
    if corners:
        place = t.bin("mul", t.bin("add", g, t.full(1.0)), t.full((n - 1) / 2))
    else:
        doubled = t.bin("mul", t.bin("add", g, t.full(1.0)), t.full(float(n)))
        place = t.bin("mul", t.bin("sub", doubled, t.full(1.0)), t.full(0.5))
    return t.bin("min", t.bin("max", place, t.full(0.0)), t.full(float(n - 1))) if border else place


def _sampled(t: Terms, x: int, r: int, s: int, rows: int, columns: int, c: Call) -> int:
    """x at rounded places, zero outside."""
    from emmy.frontend.translate.indexing import read

    inside: int | None = None
    places: list[int] = []
    for v, n in ((r, rows), (s, columns)):
        ok = t.bin("and", t.bin("le", t.full(0.0), v), t.bin("le", v, t.full(float(n - 1))))
        inside = ok if inside is None else t.bin("and", inside, ok)
        places.append(t.cast(t.where(ok, v, t.full(0.0)), "i64"))
    assert inside is not None
    b, ch, h, w = coordinates(c.shape)
    index: tuple[Expr, ...] = (b, ch, *(read(t, k + 1, p, (b, h, w)) for k, p in enumerate(places)))
    value = t.gather(x, index, places, c.shape)
    lead = (t.shape(x)[0], const(1), *c.shape[2:])
    return t.where(t.reshape(inside, lead), value, t.full(0.0))


INTERPOLATION: Final[dict[str, Handler]] = {
    **{f"{name}{r}d": nearest for name in ("upsample_nearest", "_upsample_nearest_exact") for r in (1, 2, 3)},
    "upsample_linear1d": smooth, "upsample_bilinear2d": smooth, "upsample_trilinear3d": smooth,
    "upsample_bicubic2d": smooth, "grid_sampler": grid_sample, "grid_sampler_2d": grid_sample,
}  # fmt: skip
