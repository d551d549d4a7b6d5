"""Whether a result is right, given a float64 reference of the same stored inputs.

The allowed error of an element is relative to the largest finite magnitude of the reference, since a sum of large
terms may be a small element:

    tolerance = 2 (u + stores v)  +  8 sqrt(terms) 2^-24

- `u = epsilon / 2` is the unit roundoff of the result's type: a correctly rounded store errs by at most u.  A value
  that was rounded in between, `stores` times, errs by as much each time, or by v where that was to a less precise type;
  the factor 2 allows for what the operations after it amplify.
- the second part is the accumulation in f32 registers of `terms` products: rounding errors of a sum behave as a random
  walk (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019), so they grow with the square
  root.  The factor 8 allows for several confidence widths, for the truncation that tensor cores use in place of
  rounding, and for elementary functions that are within a few units in the last place (CUDA C++ Programming Guide,
  mathematical functions).
- where factors may be taken in tf32, each product errs by at most two units roundoff of that type where they are
  rounded, by four where a tensor core cuts off the low bits of both (PTX ISA manual, wgmma with tf32); a sum of many
  errs by about as much relative to its own magnitude.  4 (1 + stores) 2^-11 are added.
- f64 results are held to 2^-53 in place of 2^-24.

Integers and booleans must be equal.  NaN and infinities must stand where the reference, rounded to the result's type,
has them; next to the type's largest finite value either is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from emmy.errors import UsageError
from emmy.ir.dtype import DTYPES
from emmy.ir.torch_types import NAMES

TF32: Final = 2.0**-11  # unit roundoff


@dataclass(frozen=True, slots=True)
class Comparison:
    """`error` is the largest absolute error over `scale`, the reference's largest finite magnitude; `rms` likewise.

    `worst` is the index of the largest error, with what was `found` and `expected` there.  `nonfinite` counts elements
    whose NaN or infinity is missing, or where one is too many; then `worst` is the first of these.
    """

    dtype: str
    count: int
    error: float
    rms: float
    tolerance: float
    scale: float
    nonfinite: int
    worst: tuple[int, ...]
    found: float
    expected: float

    @property
    def ok(self) -> bool:
        return self.nonfinite == 0 and self.error <= self.tolerance

    def __str__(self) -> str:
        state = "ok" if self.ok else "WRONG"
        text = f"{state}: {self.dtype} x {self.count}, error {self.error:.2e} of {self.scale:.3g}"
        text += f" (allowed {self.tolerance:.2e}, rms {self.rms:.2e})"
        if self.nonfinite:
            text += f", {self.nonfinite} wrong NaN or infinities"
        return text if self.ok else f"{text}, at {list(self.worst)}: {self.found:.9g}, expected {self.expected:.9g}"


def tolerance(dtype: str, terms: int = 1, stores: int = 0, numerics: str = "", between: Collection[str] = ()) -> float:
    """Allowed error relative to the largest magnitude; 0 for integers and booleans."""
    d = DTYPES[dtype]
    if d.kind != "float":
        return 0.0
    unit = 2.0**-53 if dtype == "f64" else 2.0**-24
    factors = 4 * (1 + stores) * TF32 if numerics == "tf32" else 0.0
    coarsest = max([d.epsilon, *(DTYPES[t].epsilon for t in between)])
    return factors + d.epsilon + stores * coarsest + 8 * math.sqrt(max(1, terms)) * unit


def compare(
    actual: Tensor, reference: Tensor, *, terms: int = 1, stores: int = 0, numerics: str = "",
    between: Collection[str] = (),
) -> Comparison:  # fmt: skip
    """Compare a result with its reference: f64 of the same shape for floats, any integer type for integers.

    `terms` is the longest sum that an element goes through, `stores` the number of values on its way that were rounded
    to the result's type, or to types `between`.  Raises UsageError when the shapes differ.
    """
    if actual.shape != reference.shape:
        raise UsageError(f"shapes differ: {list(actual.shape)} and {list(reference.shape)}")
    name = NAMES[actual.dtype]
    reference = reference.to(actual.device)
    allowed = tolerance(name, terms, stores, numerics, between)
    if DTYPES[name].kind != "float":
        return _exact(name, actual, reference)
    found, expected = actual.to(torch.float64), reference.to(torch.float64)
    rounded = reference.to(actual.dtype).to(torch.float64)
    finite = expected[expected.isfinite() & rounded.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    largest = torch.finfo(actual.dtype).max
    border = (expected.abs() - largest).abs() <= largest * max(allowed, DTYPES[name].epsilon)
    same = (found.isnan() == rounded.isnan()) & (found.isinf() == rounded.isinf())
    same &= ~rounded.isinf() | (found == rounded)
    bad = ~same & ~border
    both = found.isfinite() & expected.isfinite() & rounded.isfinite()
    error = torch.where(both, (found - expected).abs(), torch.zeros_like(found))
    return _report(name, error, bad, scale, allowed, found, expected)


def _exact(name: str, actual: Tensor, reference: Tensor) -> Comparison:
    found, expected = actual.to(torch.int64), reference.to(torch.int64)
    error = (found != expected).to(torch.float64)  # not the difference, which may overflow
    return _report(name, error, torch.zeros_like(error, dtype=torch.bool), 1.0, 0.0, found, expected)


def _report(
    name: str, error: Tensor, bad: Tensor, scale: float, allowed: float, found: Tensor, expected: Tensor
) -> Comparison:
    count, wrong = error.numel(), int(bad.sum())
    if count == 0:
        return Comparison(name, 0, 0.0, 0.0, allowed, scale, 0, (), 0.0, 0.0)
    flat = int((bad.to(torch.float64) if wrong else error).reshape(-1).argmax())
    relative, rms = float(error.max()), float(error.square().mean().sqrt())
    if scale > 0:
        relative, rms = relative / scale, rms / scale
    at = tuple(int(k) for k in torch.unravel_index(torch.tensor(flat), error.shape))
    return Comparison(
        name, count, relative, rms, allowed, scale, wrong, at, float(found.reshape(-1)[flat]),
        float(expected.reshape(-1)[flat]),
    )  # fmt: skip
