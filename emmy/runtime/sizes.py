"""Symbolic sizes: what an integer expression is for concrete sizes, and which sizes a call's shapes imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from emmy.errors import InputError, PlanError
from emmy.ir.graph import SizeVar
from emmy.ir.loop import Const, Expr, Op, Size, Tensor

Sizes = Mapping[str, int]


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


_OPS: Final[dict[str, Callable[..., int]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "truncdiv": _truncated,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
    "neg": lambda a: -a,
    "abs": abs,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "not": lambda a: int(not a),
}


def evaluate(e: Expr, sizes: Sizes) -> int:
    """The value of an integer expression over symbolic sizes.

    Raises PlanError for a size without a value, and for an expression that depends on more than sizes.
    """
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Size):
        if e.name not in sizes:
            raise PlanError(f"size {e.name!r} has no value (known: {', '.join(sizes) or 'none'})")
        return sizes[e.name]
    if isinstance(e, Op) and e.name == "where":
        return evaluate(e.args[1] if evaluate(e.args[0], sizes) else e.args[2], sizes)
    if not isinstance(e, Op) or e.name not in _OPS:
        raise PlanError(f"{e.text} is not an integer expression over sizes")
    args = [evaluate(a, sizes) for a in e.args]
    if e.name in ("floordiv", "truncdiv", "mod") and args[1] == 0:
        raise PlanError(f"{e.text} divides by zero for {dict(sizes)}")
    return _OPS[e.name](*args)


def shape(tensor: Tensor, sizes: Sizes) -> tuple[int, ...]:
    return tuple(evaluate(e, sizes) for e in tensor.shape)


def count(extents: Sequence[int]) -> int:
    """How many elements an array of these extents holds."""
    total = 1
    for n in extents:
        total *= n
    return total


@dataclass(frozen=True, slots=True)
class Argument:
    """An input (or whatever `kind` says) as the plan expects it, and the shape that it was given with."""

    name: str
    tensor: Tensor
    found: tuple[int, ...]
    kind: str = "input"


def bind_sizes(arguments: Sequence[Argument], declared: Sequence[SizeVar]) -> dict[str, int]:
    """The size of every declared name, in declared order, from the shapes of a call.

    A dimension that is a size binds it; one that is `a*size + b` binds it where no plain dimension does.  Every
    dimension of every input is then checked.  Raises InputError that names the input, the dimension, what was expected
    and what was found.
    """
    for a in arguments:
        if len(a.found) != len(a.tensor.shape):
            raise InputError(
                f"{a.kind} {a.name!r} has {len(a.found)} dimensions {list(a.found)}, expected {len(a.tensor.shape)}: "
                f"{a.tensor.text}"
            )
    sizes: dict[str, int] = {}
    dims = [(e, n) for a in arguments for e, n in zip(a.tensor.shape, a.found, strict=True)]
    for e, n in dims:
        if isinstance(e, Size):
            sizes.setdefault(e.name, n)
    for e, n in dims:
        _solve(e, n, sizes)
    ordered = {v.name: _declared(v, sizes) for v in declared}
    for a in arguments:
        _check(a, {**sizes, **ordered})
    return ordered


def _solve(e: Expr, found: int, sizes: dict[str, int]) -> None:
    """Bind the one unbound size of a linear expression, if it has one and the equation has a whole solution."""
    unbound = e.sizes - sizes.keys()
    if len(unbound) != 1:
        return
    (name,) = unbound
    at = [evaluate(e, {**sizes, name: k}) for k in (1, 2, 3)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
        return
    value, rest = divmod(found - at[0] + slope, slope)
    if rest == 0 and evaluate(e, {**sizes, name: value}) == found:
        sizes[name] = value


def _declared(v: SizeVar, sizes: Sizes) -> int:
    if v.name not in sizes:
        raise InputError(f"no input's shape determines size {v.name!r}", f"it was {v.example} in the example")
    value, high = sizes[v.name], "" if v.high is None else f" .. {v.high}"
    if value < v.low or (v.high is not None and value > v.high):
        raise InputError(
            f"size {v.name!r} is {value}, the program was exported for {v.low}{high or ' and more'}",
            "export it again with wider bounds",
        )
    return value


def _check(a: Argument, sizes: Sizes) -> None:
    for k, (e, found) in enumerate(zip(a.tensor.shape, a.found, strict=True)):
        expected = evaluate(e, sizes)
        if found != expected:
            spelled = f"{expected}" if isinstance(e, Const) else f"{e.text} = {expected}"
            raise InputError(f"{a.kind} {a.name!r}, dimension {k}: expected {spelled}, found {found}")
