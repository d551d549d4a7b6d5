"""How a fold runs: its registers, one element into them, two partial results into one, and the result.

    sum prod max min or and    one register
    m2                         (count, mean, sum of squared deviations): Welford's update, Chan's merge
    online                     (maximum, sum of exp(score - maximum) * value): rescaled when the maximum grows

The last two take a vector of elements at once (`joint`): the vector's own mean, or the maximum that it leads to, comes
first, so that one division or one rescaling serves all its elements.

Sources: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979); M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from emmy.codegen.expr import Code, call, compare, elem, f32, select
from emmy.ir.kernel import Assign, Bin, Lit, Target, Var, X
from emmy.ir.loop import Expr, Fold, Online, Scan

INF: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Register:
    stem: str
    type: str
    init: Lit


def identity(kind: str, type: str) -> Lit:
    """The value that a fold of no elements has."""
    if kind in ("or", "and"):
        return Lit(kind == "and", "bool")
    if kind in ("sum", "prod"):
        n = 0 if kind == "sum" else 1
        return Lit(float(n) if type in ("f32", "f64") else n, type)
    if type in ("f32", "f64"):
        return Lit(-INF if kind == "max" else INF, type)
    if type == "bool":
        return Lit(kind == "min", "bool")
    bits = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8}[type]
    low, high = (0, 255) if type == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Lit(low if kind == "max" else high, type)


def registers(e: Expr) -> tuple[Register, ...]:
    """The registers that hold a partial result of a fold, a scan or an online sum."""
    if isinstance(e, Online):
        return Register("top", "f32", f32(-INF)), Register("acc", "f32", f32(0.0))
    assert isinstance(e, Fold | Scan)
    if e.kind == "m2":
        return Register("count", "f32", f32(0.0)), Register("mean", "f32", f32(0.0)), Register("acc", "f32", f32(0.0))
    return (Register("acc", e.type, identity(e.kind, e.type)),)


def combined(kind: str, a: X, b: X) -> X:
    """One combine step of a fold with one register."""
    word = {"sum": "add", "prod": "mul"}.get(kind, kind)
    return call(word, a, b, type=a.type)


def step(code: Code, e: Expr, state: Sequence[Target], values: Sequence[X]) -> None:
    """Takes one element: its value, or (score, value) of an online sum."""
    if isinstance(e, Online):
        merge(code, e, state, (values[0], values[1]))
        return
    assert isinstance(e, Fold | Scan)
    if e.kind != "m2":
        code.emit(Assign(state[0], combined(e.kind, state[0], values[0])))
        return
    count, mean, acc = state
    code.emit(Assign(count, Bin("+", count, f32(1.0), "f32")))
    delta = code.let_numbered("delta", Bin("-", values[0], mean, "f32"))
    code.emit(Assign(mean, Bin("+", mean, Bin("/", delta, count, "f32"), "f32")))
    code.emit(Assign(acc, Bin("+", acc, Bin("*", delta, Bin("-", values[0], mean, "f32"), "f32"), "f32")))


def joint(e: Expr) -> bool:
    """True where a vector of elements is taken at less cost than its elements one by one."""
    return isinstance(e, Online) or (isinstance(e, Fold) and e.kind == "m2")


def step_vector(code: Code, e: Expr, state: Sequence[Target], values: Sequence[Var], width: int) -> None:
    """Takes a vector of `width` elements, which register arrays hold (scores and values of an online sum)."""
    if isinstance(e, Online):
        _step_vector_online(code, state, values, width)
        return
    (array,) = values
    mean = code.declare("mean_v", "f32", f32(0.0))
    with code.loop("u", width, unroll=0) as (inner, u):
        inner.emit(Assign(mean, Bin("+", mean, elem(array, u), "f32")))
    code.emit(Assign(mean, Bin("*", mean, f32(1.0 / width), "f32")))
    acc = code.declare("acc_v", "f32", f32(0.0))
    with code.loop("u", width, unroll=0) as (inner, u):
        delta = inner.let_numbered("delta", Bin("-", elem(array, u), mean, "f32"))
        inner.emit(Assign(acc, Bin("+", acc, Bin("*", delta, delta, "f32"), "f32")))
    merge(code, e, state, (f32(float(width)), mean, acc))


def _step_vector_online(code: Code, state: Sequence[Target], values: Sequence[Var], width: int) -> None:
    top, acc = state
    scores, weights = values
    high = code.declare("high_v", "f32", top)
    with code.loop("u", width, unroll=0) as (inner, u):
        inner.emit(Assign(high, call("max", high, elem(scores, u), type="f32")))
    # while every score is -infinity the sums stay 0: exp(-inf - 0)
    base = code.let_numbered("base", select(Bin("==", high, f32(-INF), "bool"), f32(0.0), high))
    scale = call("exp", Bin("-", top, base, "f32"), type="f32")
    code.emit(Assign(acc, Bin("*", acc, scale, "f32")), Assign(top, high))
    with code.loop("u", width, unroll=0) as (inner, u):
        weight = call("exp", Bin("-", elem(scores, u), base, "f32"), type="f32")
        term = Bin("*", weight, elem(weights, u), "f32")
        inner.emit(Assign(acc, Bin("+", acc, term, "f32")))


def merge(code: Code, e: Expr, state: Sequence[Target], other: Sequence[X]) -> None:
    """`state` becomes the combination of both partial results."""
    if isinstance(e, Online):
        _merge_online(code, state, other)
        return
    assert isinstance(e, Fold | Scan)
    if e.kind != "m2":
        code.emit(Assign(state[0], combined(e.kind, state[0], other[0])))
        return
    count, mean, acc = state
    total = code.let_numbered("total", Bin("+", count, other[0], "f32"))
    delta = code.let_numbered("delta", Bin("-", other[1], mean, "f32"))
    # an empty side takes no part: 0 / 0 would be NaN
    share = code.let_numbered(
        "share", select(compare("==", total, f32(0.0)), f32(0.0), Bin("/", other[0], total, "f32"))
    )
    cross = Bin("*", Bin("*", delta, delta, "f32"), Bin("*", count, share, "f32"), "f32")
    code.emit(Assign(acc, Bin("+", acc, Bin("+", other[2], cross, "f32"), "f32")))
    code.emit(Assign(mean, Bin("+", mean, Bin("*", delta, share, "f32"), "f32")))
    code.emit(Assign(count, total))


def _merge_online(code: Code, state: Sequence[Target], other: Sequence[X]) -> None:
    top, acc = state
    high = code.let_numbered("high", call("max", top, other[0], type="f32"))
    # while every score is -infinity the scale is exp(-inf - -inf): take 0, the sums are 0 too
    still = code.let_numbered("still", Bin("==", high, f32(-INF), "bool"))
    mine = select(still, f32(0.0), call("exp", Bin("-", top, high, "f32"), type="f32"))
    theirs = select(still, f32(0.0), call("exp", Bin("-", other[0], high, "f32"), type="f32"))
    scaled = Bin("+", Bin("*", acc, mine, "f32"), Bin("*", other[1], theirs, "f32"), "f32")
    code.emit(Assign(acc, scaled), Assign(top, high))


def result(e: Expr, state: Sequence[Target]) -> X:
    """The fold's value in the end.  With no score above -infinity an online sum is NaN, as exp(-inf - -inf) is."""
    if isinstance(e, Online):
        return select(Bin("==", state[0], f32(-INF), "bool"), f32(float("nan")), state[1])
    return state[-1]
