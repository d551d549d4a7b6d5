"""Sums of f32 products in chunks, where the results keep what one long sum would lose.

The error of n additions one after another grows with n; that of n / CHUNK sums of CHUNK elements, which are added up,
with CHUNK + n / CHUNK (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
"""

from __future__ import annotations

from typing import Final

from emmy.ir.dtype import dtype
from emmy.ir.views.access import size_of
from emmy.ir.views.contraction_view import ContractionView

CHUNK: Final = 512  # elements


def precise(view: ContractionView) -> bool:
    """Whether a result is of a type that shows the error of an f32 sum."""
    return any(dtype(o.tensor.dtype).kind == "float" and dtype(o.tensor.dtype).bytes >= 4 for o in view.body.outs)


def sums_in_chunks(view: ContractionView, shares: int) -> bool:
    """Whether threads that take one of so many shares of a sum add it up in chunks; a sum of any length may be long."""
    length = size_of(view.k)
    return precise(view) and (length is None or length > CHUNK * shares)


__all__ = ["CHUNK", "precise", "sums_in_chunks"]
