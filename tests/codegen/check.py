"""Runs one kernel of one body on the CPU and compares it with the evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Tensor
from tests import host_cuda

Array = np.ndarray[Any, Any]


def operand(t: Tensor, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(integer(e, sizes) for e in t.shape)
    if DTYPES[t.dtype].kind == "float":
        return rng.standard_normal(shape).astype(np.float32).astype(host_cuda.NUMPY[t.dtype])
    return rng.integers(-7, 8, shape).astype(host_cuda.NUMPY[t.dtype])


def operands(body: Body, sizes: Mapping[str, int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [operand(t, sizes, rng) for t in body.slots]


def error(
    body: Body, kernel: Kernel, sizes: Mapping[str, int] | None = None, given: list[Array] | None = None
) -> float:
    """Largest error over all results, in the units of `distance`."""
    sizes = sizes or {}
    arrays = operands(body, sizes) if given is None else given
    expected = evaluate(body, arrays, sizes)
    shapes = [tuple(integer(e, sizes) for e in o.tensor.shape) for o in body.outs]
    found = host_cuda.run(kernel, arrays, sizes, shapes)
    return distance(body, found, expected)


def distance(body: Body, found: list[Array], expected: list[Array]) -> float:
    """Largest difference in units of `epsilon * (scale + |reference|)`; NaN must stand where the reference has it.

    `epsilon` is that of the result's type (at least 2^-20); `scale` is the root mean square of the reference along its
    last axis, at least 1.  A small element may be what is left of a sum of large terms, each of which was rounded (to
    the operand type of a contraction, or to f32 as the sum went on), so its own magnitude says nothing about its error:
    the magnitude of its neighbours does.
    """
    worst = 0.0
    for e, f, o in zip(expected, found, body.outs, strict=True):
        f, e = np.atleast_1d(f.astype(np.float64)), np.atleast_1d(e.astype(np.float64))
        assert np.array_equal(np.isnan(e), np.isnan(f)), f"NaN where there should be none, or none: {np.isnan(f).sum()}"
        mean_square = np.mean(np.where(np.isfinite(e), e, 0.0) ** 2, axis=-1, keepdims=True) if e.size else 0.0
        scale = max(DTYPES[o.tensor.dtype].epsilon, 2.0**-20) * (np.maximum(1.0, np.sqrt(mean_square)) + np.abs(e))
        worst = max(worst, float(np.nanmax(np.abs(f - e) / scale, initial=0.0)))
    return worst
