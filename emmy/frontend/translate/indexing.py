"""Reads whose place is data: embedding, gather, index_select, tensor indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, Value, axis, numel
from emmy.frontend.translate.layout import reshape
from emmy.ir.build import cast, iadd, idiv, imod, scalar
from emmy.ir.loop import Expr, const, load
from emmy.ir.tensor import Shape, Terms, coordinates

ZERO: Final = const(0)


def read(t: Terms, slot: int, indices: int, at: Sequence[Expr]) -> Expr:
    """An element of the index tensor in that slot, as i64."""
    return cast(load(slot, tuple(at), t.dtype(indices)), "i64")


def wrap(e: Expr, n: Expr) -> Expr:
    """Counted from the end where negative."""
    return scalar("where", scalar("lt", e, const(0)), iadd(e, n), e)


def embedding(t: Terms, c: Call) -> int:
    weight, indices = c.get(0, "weight"), c.get(1, "indices")
    *lead, column = coordinates(c.shape)
    return t.gather(weight, (read(t, 1, indices, lead), column), [indices], c.shape)


def index_select(t: Terms, c: Call) -> int:
    x, indices = c.get(0, "self"), c.get(2, "index")
    d: list[Expr] = list(coordinates(c.shape))
    if not t.shape(x):
        return int(x)
    k = axis(c.get(1, "dim"), len(d))
    d[k] = read(t, 1, indices, (d[k],) if t.shape(indices) else ())
    return t.gather(x, d, [indices], c.shape)


def gather(t: Terms, c: Call) -> int:
    x, indices = c.get(0, "self"), c.get(2, "index")
    if not t.shape(x):
        return t.expand(x, c.shape)
    d: list[Expr] = list(coordinates(c.shape))
    if not d:
        return t.gather(x, (read(t, 1, indices, ()),), [indices], c.shape)
    k = axis(c.get(1, "dim"), len(d))
    d[k] = read(t, 1, indices, tuple(d))
    return t.gather(x, d, [indices], c.shape)


def take(t: Terms, c: Call) -> int:
    x, indices = c.get(0, "self"), c.get(1, "index")
    n = numel(t.shape(x))
    place = wrap(read(t, 1, indices, coordinates(c.shape)), n)
    return t.gather(reshape(t, x, (n,)), (place,), [indices], c.shape)


def take_along_dim(t: Terms, c: Call) -> int:
    x, indices, dim = c.get(0, "self"), c.get(1, "indices"), c.get(2, "dim")
    if dim is None:
        x, indices, dim = reshape(t, x, (numel(t.shape(x)),)), reshape(t, indices, (numel(t.shape(indices)),)), 0
    k = axis(dim, len(c.shape))
    d = coordinates(c.shape)
    source: list[Expr] = [ZERO if e is const(1) and i != k else d[i] for i, e in enumerate(t.shape(x))]
    at = [ZERO if e is const(1) else d[i] for i, e in enumerate(t.shape(indices))]
    source[k] = wrap(read(t, 1, indices, at), t.shape(x)[k])
    return t.gather(x, source, [indices], c.shape)


def tensor_positions(t: Terms, indices: Sequence[Value | None], rank: int) -> dict[int, int]:
    """Dimension -> index tensor of an `x[i, :, j]`; Decline for masks and for more than three tensors."""
    found = {k: int(i) for k, i in enumerate(indices) if i is not None}
    for i in found.values():
        if t.dtype(i) in ("bool", "u8"):
            raise Decline("a mask, whose result's size is data")
    if not 1 <= len(found) <= 3:
        raise Decline(f"{len(found)} index tensors")
    return found


def first_dim(found: dict[int, int]) -> int:
    """Where the dimensions of the index tensors stand in the result: in place if adjacent, else in front."""
    places = sorted(found)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    return places[0] if adjacent else 0


def aligned(t: Terms, indices: int, at: Sequence[Expr]) -> list[Expr]:
    """Coordinates of an index tensor that is broadcast on the right over `at`."""
    shape = t.shape(indices)
    lead = len(at) - len(shape)
    return [ZERO if e is const(1) else at[lead + i] for i, e in enumerate(shape)]


def index(t: Terms, c: Call) -> int:
    """x[i, None, j]: index tensors broadcast together, negative values count from the end."""
    x = c.get(0, "self")
    found = tensor_positions(t, c.get(1, "indices"), len(t.shape(x)))
    shape = t.shape(x)
    width = max(len(t.shape(i)) for i in found.values())
    first = first_dim(found)
    d = coordinates(c.shape)
    at, rest = d[first : first + width], iter((*d[:first], *d[first + width :]))
    source: list[Expr] = []
    used = [k for k in sorted(found) if shape[k] is not const(1)]
    slots = {k: s + 1 for s, k in enumerate(used)}
    for k, e in enumerate(shape):
        if k in found and k not in slots:  # the only element there is
            source.append(ZERO)
        elif k in found:
            source.append(wrap(read(t, slots[k], found[k], aligned(t, found[k], at)), e))
        else:
            source.append(next(rest))
    return t.gather(x, source, [found[k] for k in used], c.shape) if used else t.map(x, source, c.shape)


def unflatten(position: Expr, shape: Shape) -> list[Expr]:
    """Coordinates of a row-major position."""
    out: list[Expr] = []
    for k in range(len(shape)):
        part = idiv(position, numel(shape[k + 1 :]))
        out.append(part if k == 0 else imod(part, shape[k]))
    return out


INDEXING: Final[dict[str, Handler]] = {
    "embedding": embedding, "index_select": index_select, "gather": gather, "take": take,
    "take_along_dim": take_along_dim, "index": index, "_unsafe_index": index,
}  # fmt: skip
