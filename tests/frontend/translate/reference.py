"""What a Tensor IR program means: primitives through their loop bodies, whole operations as their docstrings say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from emmy.frontend import interpret
from emmy.frontend.capture import capture
from emmy.frontend.program import Program as Captured
from emmy.frontend.translate import translate
from emmy.ir.arrays import numpy_dtype
from emmy.ir.dtype import is_float
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.lift import lift
from emmy.ir.loop import Tensor
from emmy.ir.tensor import PRIMITIVES, SIGNATURES, Program, Term, parse_axes

Array = Any


def run(program: Program, inputs: Sequence[Array], sizes: Mapping[str, int] | None = None) -> list[Array]:
    """Outputs of a program without opaque calls on numpy arrays; floats in float64."""
    assert not program.opaque, [c.reason for c in program.opaque]
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for term in program.terms:
            values.append(_term(term, program, values, inputs, dict(sizes or {})))
    return [values[o] for o in program.outputs]


def _term(term: Term, program: Program, values: list[Array], inputs: Sequence[Array], sizes: dict[str, int]) -> Array:
    if term.kind == "Input":
        return inputs[term.args[0]]  # type: ignore[call-overload]
    operands = [program.terms[x].tensor for x in term.operands]
    arrays = [values[x] for x in term.operands]
    if term.kind in PRIMITIVES:
        plain = [a for a, k in zip(term.args, SIGNATURES[term.kind], strict=True) if k != "t"]
        return primitive(term.kind, plain, operands, arrays, term.tensor, sizes)
    shape = tuple(integer(e, sizes) for e in term.tensor.shape)
    out = np.asarray(_WHOLE[term.kind](term, program, arrays, sizes))
    assert out.shape == shape, (term, out.shape)
    return out


def primitive(
    kind: str, plain: Sequence[object], operands: Sequence[Tensor], arrays: Sequence[Array], result: Tensor, sizes: Any
) -> Array:
    body, slots = lift(kind, plain, operands, result)
    return evaluate(body, [arrays[s] for s in slots], sizes)[0]


def _axes(term: Term) -> tuple[int, ...]:
    return parse_axes(str(term.args[0]))


def _rms_norm(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    return x[0] / np.sqrt(np.mean(x[0] ** 2, axis=_axes(term), keepdims=True) + float(str(term.args[1])))


def _layer_norm(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    axes = _axes(term)
    centred = x[0] - x[0].mean(axis=axes, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=axes, keepdims=True) + float(str(term.args[1])))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _softmax(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    axis = int(str(term.args[0]))
    if term.kind == "LogSoftmax":
        y = x[0] - x[0].max(axis=axis, keepdims=True)
        return y - np.log(np.exp(y).sum(axis=axis, keepdims=True))
    out = softmax(x[0], axis)
    if term.kind == "SafeSoftmax":
        out = np.where(np.all(x[0] == -np.inf, axis=axis, keepdims=True), 0.0, out)
    return out


def _gelu(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    if term.args[0] == "tanh":
        return 0.5 * x[0] * (1 + np.tanh(math.sqrt(2 / math.pi) * (x[0] + 0.044715 * x[0] ** 3)))
    return 0.5 * x[0] * (1 + np.vectorize(math.erf, otypes=[float])(x[0] / math.sqrt(2)))


def _silu(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    return x[0] / (1 + np.exp(-x[0]))


def _mean(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    return x[0].mean(axis=_axes(term), keepdims=True)


def _var(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    axes = _axes(term)
    count = math.prod(x[0].shape[a] for a in axes) - float(str(term.args[1]))
    return ((x[0] - x[0].mean(axis=axes, keepdims=True)) ** 2).sum(axis=axes, keepdims=True) / np.float64(count)


def _arg_reduce(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    axis = int(str(term.args[1]))
    pick = np.argmax if term.args[0] == "max" else np.argmin
    return np.expand_dims(pick(x[0], axis=axis), axis)


def _contract(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    _, x_map, x_fill, y_map, y_fill, axes, a, b, full, reduced, out_shape, out_map = term.args
    factors = []
    for m, fill, operand, v in ((x_map, x_fill, a, x[0]), (y_map, y_fill, b, x[1])):
        tensor = p.terms[operand].tensor  # type: ignore[index]
        factors.append(primitive("Map", (m, fill, full), [tensor], [v], Tensor(tensor.dtype, full), sizes))  # type: ignore[arg-type]
    total = (factors[0] * factors[1]).sum(axis=parse_axes(str(axes)), keepdims=True)
    kept = Tensor(term.tensor.dtype, reduced)  # type: ignore[arg-type]
    return primitive("Map", (out_map, "", out_shape), [kept], [total], term.tensor, sizes)


def _sdpa(term: Term, p: Program, x: list[Array], sizes: Any) -> Array:
    q, k, v = x[:3]
    spec = next(f for f in p.facts if f[0] == "sdpa" and f[1] == term.args[0])
    heads = q.shape[-3] if q.ndim > 2 else 1
    grouped = [np.repeat(a, heads // a.shape[-3], axis=-3) if a.ndim > 2 and a.shape[-3] > 1 else a for a in (k, v)]
    scores = np.matmul(q, np.swapaxes(grouped[0], -1, -2)) * float(str(term.args[1]))
    if len(x) == 4:
        scores = np.where(x[3], scores, -np.inf) if x[3].dtype == bool else scores + x[3]
    if "causal" in spec:
        scores = np.where(np.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = softmax(scores, -1)
    weights = np.where(np.all(scores == -np.inf, axis=-1, keepdims=True), 0.0, weights)
    return np.matmul(weights, grouped[1])


_WHOLE: Mapping[str, Callable[..., Array]] = {
    "Contract": _contract, "RmsNorm": _rms_norm, "LayerNorm": _layer_norm, "Softmax": _softmax,
    "LogSoftmax": _softmax, "SafeSoftmax": _softmax, "Gelu": _gelu, "Silu": _silu, "Mean": _mean, "Var": _var,
    "ArgReduce": _arg_reduce, "Sdpa": _sdpa, "SdpaMask": _sdpa,
}  # fmt: skip


def to_numpy(x: torch.Tensor) -> Array:
    """Floats in float64, the rest as they are."""
    return (x.double() if x.is_floating_point() else x).detach().numpy()


def operands(captured: Captured, args: Sequence[torch.Tensor]) -> list[Array]:
    """One array for each input of the graph."""
    given = iter(args)
    return [
        to_numpy(next(given) if i.kind == "user" else captured.weights[i.target]) for i in captured.graph.inputs
    ]  # fmt: skip


def check(
    fn: Callable[..., Any], *args: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6, **options: Any
) -> Program:
    """Translate without fallback and compare with eager in float64 (integers and bools exactly)."""
    captured = capture(fn, args, **options)
    program = translate(captured.graph, fallback=False)
    tensors = captured.example_tensors()
    found = run(program, operands(captured, tensors), {s.name: s.example for s in captured.graph.sizes})
    expected = interpret(captured.graph, captured.weights, tensors, torch.float64)
    assert len(found) == len(expected)
    for k, (f, e, id_) in enumerate(zip(found, expected, program.outputs, strict=True)):
        compare(f, to_numpy(e), program.terms[id_].tensor, f"output {k}", rtol, atol)
    return program


def compare(found: Array, expected: Array, tensor: Tensor, what: str, rtol: float, atol: float) -> None:
    assert found.shape == expected.shape, what
    if is_float(tensor.dtype):
        np.testing.assert_allclose(
            found.astype(float), expected.astype(float), rtol, atol, equal_nan=True, err_msg=what
        )
    else:
        assert found.dtype == numpy_dtype(tensor.dtype), what
        np.testing.assert_array_equal(found, expected, err_msg=what)


def check_all(
    fns: Mapping[str, Callable[..., Any]], *args: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """`check` of many functions of the same operands in one capture; every failure is reported by name."""
    counts: list[int] = []

    def every(*x: torch.Tensor) -> list[torch.Tensor]:
        results = [f(*x) for f in fns.values()]
        flat = [r if isinstance(r, tuple | list) else (r,) for r in results]
        counts[:] = [len(r) for r in flat]
        return [v for r in flat for v in r]

    captured = capture(every, args)
    program = translate(captured.graph, fallback=False)
    found = run(program, operands(captured, args))
    expected = interpret(captured.graph, captured.weights, list(args), torch.float64)
    names = [f"{name}[{k}]" for name, n in zip(fns, counts, strict=True) for k in range(n)]
    assert len(names) == len(found) == len(expected)
    failures: list[str] = []
    for name, f, e, term in zip(names, found, expected, program.outputs, strict=True):
        try:
            compare(f, to_numpy(e), program.terms[term].tensor, name, rtol, atol)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)
