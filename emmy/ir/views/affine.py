"""How a load walks memory: the element offset of an operand as a sum of axis times stride.

`affine(load, tensor)` is the basis of every decision about vector copies: a load moves as 16-byte chunks along an axis
when that axis has stride 1, an extent that whole chunks divide, and every other stride is a multiple of the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emmy.ir.integer import Linear, from_terms, iadd, imul, terms_of
from emmy.ir.loop import Ax, Expr, Load, Tensor, const


@dataclass(frozen=True, slots=True)
class Affine:
    """`offset = base + sum of axis * stride` in elements; strides mention no axis.

    `data`: further terms, values that are read (an index tensor's, say) times strides; see `gathered_form`.
    """

    base: Expr
    strides: tuple[tuple[Ax, Expr], ...]
    data: tuple[tuple[Expr, Expr], ...] = ()

    def stride(self, axis: Ax) -> Expr:
        return dict(self.strides).get(axis, const(0))


def offset(index: tuple[Expr, ...], shape: tuple[Expr, ...]) -> Expr:
    """The row-major element offset of an index."""
    total: Expr = const(0)
    for i, n in zip(index, shape, strict=True):
        total = iadd(imul(total, n), i)
    return total


def affine(node: Load, tensor: Tensor) -> Affine | None:
    """The load's offset as an affine form of axes, None when an index is anything else (gather, division, where)."""
    return offset_form(node.index, tensor.shape)


def gathered_form(node: Load, tensor: Tensor, still: Iterable[Ax]) -> Affine | None:
    """The same where whole values in the index (data, say) may stand for axes, if they depend on none of `still`.

    Along `still` the operand then lies as it would without them.
    """
    form = offset_form(node.index, tensor.shape, data=True)
    moving = set(still)
    return None if form is None or any(v.free & moving for v, _ in form.data) else form


def offset_form(index: tuple[Expr, ...], shape: tuple[Expr, ...], data: bool = False) -> Affine | None:
    """The row-major offset of an index as an affine form of axes, None when it is anything else.

    With `data` a value that is no axis, size or number may be a factor as axes are.
    """
    strides: dict[Ax, Linear] = {}
    values: dict[Expr, Linear] = {}
    base: Linear = {}
    for monomial, c in terms_of(offset(index, shape)).items():
        axes = [f for f in monomial if isinstance(f, Ax)]
        read = [f for f in monomial if not isinstance(f, Ax) and (f.free or f.children)]
        rest = tuple(f for f in monomial if not isinstance(f, Ax) and f not in read)
        if len(axes) + len(read) > 1 or (read and not data):
            return None
        into = strides.setdefault(axes[0], {}) if axes else values.setdefault(read[0], {}) if read else base
        into[rest] = into.get(rest, 0) + c
    return Affine(
        from_terms(base), tuple((a, from_terms(t)) for a, t in strides.items()),
        tuple((v, from_terms(t)) for v, t in values.items()),
    )  # fmt: skip


def merged_stride(form: Affine, axes: Sequence[Ax]) -> Expr | None:
    """The stride of the linear index over `axes`, each continuing the one inside it; None where one does not."""
    if not axes:
        return const(0)
    inner = axes[-1]
    for a in reversed(axes[:-1]):
        if form.stride(a) is not imul(form.stride(inner), inner.extent):
            return None
        inner = a
    return form.stride(axes[-1])


def divides(chunk: int, e: Expr) -> bool:
    """True when the integer expression is certainly a multiple of `chunk`."""
    return all(c % chunk == 0 for c in terms_of(e).values())


def chunked(form: Affine, axis: Ax, chunk: int, others: Iterable[Ax]) -> bool:
    """True when runs of `chunk` elements along `axis`, starting at its multiples, are contiguous and aligned."""
    if form.stride(axis) is not const(1) or not divides(chunk, axis.extent) or not divides(chunk, form.base):
        return False
    return all(divides(chunk, s) for _, s in form.data) and all(
        divides(chunk, form.stride(a)) for a in others if a is not axis
    )
