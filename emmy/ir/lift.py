"""The meaning of each Tensor IR primitive: the Loop IR body of a launch that computes it alone."""

from __future__ import annotations

from collections.abc import Sequence

from emmy.ir.build import cast, iadd, idiv, imod, imul, scalar
from emmy.ir.loop import Ax, Body, Expr, Fold, Load, Op, Out, Tensor, ax, const, fold, load, scan
from emmy.ir.normal import Substitution, normalize
from emmy.ir.parse import parse_expr, parse_index
from emmy.ir.tensor import Shape, coordinates, parse_axes


def lift(kind: str, args: Sequence[object], operands: Sequence[Tensor], result: Tensor) -> tuple[Body, tuple[int, ...]]:
    """The one-op body.  `args`: the non-tensor arguments in order; the second value maps slots to operand numbers."""
    d = coordinates(result.shape)
    value = _VALUE[kind](args, operands, result, d)
    return normalize([Out(d, d, value, result)], operands)


def _read(slot: int, operand: Tensor, d: Sequence[Expr], shape: Shape) -> Expr:
    """An operand at coordinates d of `shape`, broadcast on the right."""
    lead = len(shape) - len(operand.shape)
    index = tuple(const(0) if e is const(1) else d[lead + i] for i, e in enumerate(operand.shape))
    return load(slot, index, operand.dtype)


def literal(text: str, dtype: str) -> Expr:
    """A constant as Loop IR: booleans, integers of their own type, floats in f32."""
    if dtype == "bool":
        return const(text in ("True", "1", "1.0"), "bool")
    if dtype.startswith(("i", "u")):
        return const(int(float(text)) if "." in text or "e" in text else int(text), dtype)
    return const(float(text), "f32")


def _full(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    text, dtype = str(args[0]), result.dtype
    if args[1] == "weak" and ("." not in text and "e" not in text and "n" not in text):
        dtype = "f32"
    return literal(text, dtype)


def _iota(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    value = _over(parse_expr(str(args[0])), d)
    return value if value.type == result.dtype else cast(value, result.dtype)


def _over(e: Expr, d: Sequence[Expr]) -> Expr:
    """An expression over axes named d0, d1 … at the given coordinates; other axes stay."""
    env = {a: d[int(a.name[1:])] for a in e.free if a.name[0] == "d"}
    return Substitution(_Identity()).apply(e, env)


class _Identity(dict[int, int]):
    def __missing__(self, key: int) -> int:
        return key


def _un(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    return scalar(str(args[0]), _read(0, ops[0], d, result.shape))


def _bin(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    x, y = (_read(i, o, d, result.shape) for i, o in enumerate(ops))
    return scalar(str(args[0]), x, y)


def _where(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    return scalar("where", *(_read(i, o, d, result.shape) for i, o in enumerate(ops)))


def _cast(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    return cast(_read(0, ops[0], d, result.shape), str(args[0]))


def _as(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    x = _read(0, ops[0], d, result.shape)
    return cast(x, "f32") if x.type not in ("f32", "f64") else x


def _reduce(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    kind, _, operand = str(args[0]).partition(":")
    axes = parse_axes(str(args[1]))
    bound = {a: ax(f"z{a}", ops[0].shape[a]) for a in axes}
    value: Expr = load(0, tuple(bound.get(i, c) for i, c in enumerate(d)), ops[0].dtype)
    for a in reversed(axes):
        value = fold(kind, bound[a], value, operand)
    return value


def _scan(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    axis = int(str(args[1]))
    z = ax("z0", ops[0].shape[axis])
    return scan(str(args[0]), z, d[axis], load(0, tuple(z if i == axis else c for i, c in enumerate(d)), ops[0].dtype))


def _map(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    index = tuple(_over(e, d) for e in parse_index(str(args[0])))
    value: Expr = load(0, index, ops[0].dtype)
    if args[1] == "":
        return value
    inside: Expr = const(True, "bool")
    for e, extent in zip(index, ops[0].shape, strict=True):
        inside = scalar("and", inside, scalar("le", const(0), e))
        inside = scalar("and", inside, scalar("lt", e, extent))
    return scalar("where", inside, value, literal(str(args[1]), ops[0].dtype))


def _gather(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    return load(0, tuple(_over(e, d) for e in parse_index(str(args[0]))), ops[0].dtype)


def _scatter(args: Sequence[object], ops: Sequence[Tensor], result: Tensor, d: Sequence[Expr]) -> Expr:
    mode, extent = str(args[0]), parse_expr(str(args[1]))
    condition, source = _over(parse_expr(str(args[2])), d), tuple(_over(e, d) for e in parse_index(str(args[3])))
    j, last = ax("j", extent), len(ops) - 1
    base = _read(0, ops[0], d, result.shape)
    value: Expr = load(last, source, ops[last].dtype)
    if mode == "set":
        found = fold("max", j, scalar("where", condition, j, const(-1)))
        picked = Substitution(_Identity()).apply(value, {j: found})
        return scalar("where", scalar("le", const(0), found), picked, base)
    kind = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}[mode]
    neutral = {"sum": "0", "prod": "1", "amax": "-inf", "amin": "inf"}[mode]
    combine = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[mode]
    unit = _extreme(value.type, mode) if mode in ("amax", "amin") else literal(neutral, value.type)
    return scalar(combine, base, fold(kind, j, scalar("where", condition, value, unit)))


def update(args: Sequence[object], operands: Sequence[Tensor], result: Tensor) -> tuple[Body, tuple[int, ...]] | None:
    """A scatter that sets elements, as stores into its base: the body, and the operand number of each slot.

    None unless its condition says of some coordinates what they equal, one source element each, and the source does
    not depend on these coordinates: each element then has one place, and no two the same.
    """
    mode, extent = str(args[0]), parse_expr(str(args[1]))
    if mode != "set" or extent is not const(1):
        return None
    d = coordinates(result.shape)
    place: dict[Ax, Expr] = {}
    for e in _conjuncts(_over(parse_expr(str(args[2])), d)):
        found = _equation(e, d)
        if found is None or found[0] in place:
            return None
        place[found[0]] = found[1]
    source = tuple(_over(e, d) for e in parse_index(str(args[3])))
    if any(a in e.free for a in place for e in source):
        return None
    last, at = len(operands) - 1, Substitution(_Identity())
    first: dict[Ax, Expr] = {ax("j", extent): const(0)}
    index = tuple(at.apply(place.get(a, a), first) for a in d)
    value = at.apply(load(last, source, operands[last].dtype), first)
    axes = tuple(a for a in d if a not in place)
    return normalize([Out(axes, index, value, result, into=0)], operands)


def _conjuncts(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.name == "and":
        return [x for a in e.args for x in _conjuncts(a)]
    return [e]


def _equation(e: Expr, d: Sequence[Ax]) -> tuple[Ax, Expr] | None:
    """`coordinate == value`, the value free of coordinates."""
    if not isinstance(e, Op) or e.name != "eq":
        return None
    for a, b in (e.args, e.args[::-1]):
        if isinstance(a, Ax) and a in d and not b.free & set(d):
            return a, b
    return None


def _extreme(dtype: str, mode: str) -> Expr:
    """Neutral element of max (amax) or min (amin)."""
    if dtype == "f32":
        return const(float("-inf" if mode == "amax" else "inf"), "f32")
    bits = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}.get(dtype)
    if bits is None:
        return const(0 if mode == "amax" else 255, dtype)
    return const(-(2**bits) if mode == "amax" else 2**bits - 1, dtype)


_VALUE = {
    "Full": _full, "Iota": _iota, "Un": _un, "Bin": _bin, "Where": _where, "Cast": _cast, "As": _as,
    "Reduce": _reduce, "Scan": _scan, "Map": _map,
    "Gather1": _gather, "Gather2": _gather, "Gather3": _gather, "Scatter1": _scatter, "Scatter2": _scatter,
}  # fmt: skip

__all__ = ["Fold", "Load", "iadd", "idiv", "imod", "imul", "lift", "literal"]
