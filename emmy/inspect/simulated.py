"""The kernels of a compiled program in the simulator: findings, values against float64, counters.

The program runs on the CPU, a launch after the other, each on what the evaluator says of those before it (rounded to
its storage type), so that every kernel is judged by itself and on values that the program has.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from emmy.codegen.lower import lower
from emmy.codegen.simulate import Counters, Finding, simulate
from emmy.errors import LoweringError
from emmy.ir.arrays import numpy_dtype
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Fold, Online, Op, Scan
from emmy.ir.schedule import Scheduled
from emmy.planning import Chosen, ChosenOpaque

if TYPE_CHECKING:
    import torch

    from emmy.runtime.numerics import Comparison
    from emmy.saturation import Saturation

Array = npt.NDArray[Any]
FLOATS16: Final = ("f16", "bf16", "f8e4m3", "f8e5m2")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One kernel's launch.  `compared`: each result against float64; `chosen`: the row that the compiler chose."""

    kernel: str
    family: str
    row: str
    chosen: bool
    compared: tuple[Comparison, ...]
    findings: tuple[Finding, ...]
    counters: Counters
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.findings and all(c.ok for c in self.compared)

    @property
    def share(self) -> float:
        """Largest error over what is allowed (of integers, which must be equal: infinity where one differs)."""
        return max((_share(c) for c in self.compared), default=0.0)

    def document(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "kernel": self.kernel, "family": self.family, "row": self.row, "chosen": self.chosen, "ok": self.ok,
            "results": [asdict(c) for c in self.compared], "error_share": self.share,
            "findings": [asdict(f) for f in self.findings],
            "counters": {**asdict(self.counters), "efficiency": self.counters.efficiency}, "seconds": self.seconds,
        }  # fmt: skip


def simulate_program(
    s: Saturation, inputs: Sequence[torch.Tensor], rows: int = 0, seed: int = 0
) -> Iterator[Simulated]:
    """Every distinct kernel of the plan once, as it becomes ready.

    Args:
        inputs: the user's tensors in graph order, on the CPU.
        rows: run so many legal rows of each body, drawn by `seed`, in place of the chosen one (all where there are
            fewer).  Pins hold: where a body has rows that honour one, they are drawn from.
        seed: also of the order in which the simulator runs what is not ordered.
    """
    values = _Values(s, inputs)
    seen: set[str] = set()
    for c in s.chosen:
        if isinstance(c, ChosenOpaque):
            values.opaque(c)
            continue
        given = values.operands(c)
        exact = evaluate(c.priced.body, given, values.sizes)
        if c.name not in seen:
            seen.add(c.name)
            for kernel, scheduled, chosen in kernels_of(s, c, rows, seed):
                yield _simulated(s, c, kernel, scheduled, chosen, given, exact, values.sizes, seed)
        values.store(c, exact)


def kernels_of(s: Saturation, c: Chosen, rows: int, seed: int) -> Iterator[tuple[Kernel, Scheduled, bool]]:
    """The launch's own kernel, or kernels of sampled rows of its body."""
    own = c.priced.scheduled
    if not rows:
        yield c.kernel, own, True
        return
    legal = s.selection.wanted(c.priced.body)
    limits = {v.name: v.high for v in s.program.graph.sizes if v.high is not None}
    for r in random.Random(f"{seed}:{c.priced.body.hash}").sample(legal, min(rows, len(legal))):
        try:
            kernel = lower(
                c.priced.body, r.family, r.row, s.options.target, c.name, c.operands, c.results, limits
            )  # fmt: skip
        except LoweringError as e:
            raise LoweringError(f"{c.name}, {r.family} {r.row.text}: {e.what}", e.do) from e
        yield kernel, r, r == own


def _simulated(
    s: Saturation, c: Chosen, kernel: Kernel, scheduled: Scheduled, chosen: bool, given: Sequence[Array],
    exact: Sequence[Array], sizes: Mapping[str, int], seed: int,
) -> Simulated:  # fmt: skip
    body = c.priced.body
    ins = [p.name for p in kernel.params if p.role == "in"]
    outs = [p.name for p in kernel.params if p.role == "out"]
    results: dict[str, Array | int] = {}
    for name, out, want in zip(outs, body.outs, exact, strict=True):
        results[name] = given[out.into].reshape(-1).copy() if out.into >= 0 else int(want.size)
    began = time.perf_counter()
    done = simulate(kernel, s.options.target, dict(zip(ins, given, strict=True)), sizes, results, seed=seed)
    seconds = time.perf_counter() - began
    compared = tuple(
        _compare(done.outputs[name], out.tensor.dtype, want, body, sizes, s.options.target.numerics)
        for name, out, want in zip(outs, body.outs, exact, strict=True)
    )
    return Simulated(
        kernel.name, scheduled.family, scheduled.row.text, chosen, compared, done.findings, done.counters, seconds
    )


def _compare(found: Array, dtype: str, exact: Array, body: Body, sizes: Mapping[str, int], numerics: str) -> Comparison:
    from emmy.runtime.numerics import compare

    made = _tensor(np.asarray(found).view(numpy_dtype(dtype)).reshape(exact.shape), dtype)
    between = rounded(body)
    return compare(
        made, _tensor(exact, ""), terms=terms(body, sizes), stores=len(between), numerics=numerics, between=between
    )


def terms(body: Body, sizes: Mapping[str, int]) -> int:
    """The longest sum that an element goes through."""
    axes = {n.axis for n in body.nodes if isinstance(n, Fold | Online | Scan)}
    return max((integer(a.extent, sizes) for a in axes), default=1)


def rounded(body: Body) -> list[str]:
    """Half types to which values on the way to a result may be rounded, a value each: casts, factors of products."""
    casts = [n.dtype for n in body.nodes if isinstance(n, Op) and n.name == "cast" and n.dtype in FLOATS16]
    return casts + [n.operand for n in body.nodes if isinstance(n, Fold | Online) and n.operand in FLOATS16]


def _share(c: Comparison) -> float:
    if c.nonfinite or (c.tolerance == 0.0 and c.error):
        return float("inf")
    return c.error / c.tolerance if c.tolerance else 0.0


def _tensor(a: Array, dtype: str) -> torch.Tensor:
    """The array as a tensor of a storage type (of its own type where that is empty)."""
    import torch

    from emmy.ir.torch_types import TORCH

    a = np.array(a, order="C")
    if dtype not in FLOATS16:
        return torch.from_numpy(a)
    raw = torch.from_numpy(a.reshape(-1).view(np.uint8))
    return raw.view(TORCH[dtype]).reshape(a.shape)


class _Values:
    """What every buffer of the plan holds, in its storage type."""

    def __init__(self, s: Saturation, inputs: Sequence[torch.Tensor]) -> None:
        from emmy.frontend.symbolic import bind_sizes

        user = [i for i in s.program.graph.inputs if i.kind == "user"]
        self.sizes = bind_sizes([(i.name, i.tensor) for i in user], list(inputs), s.program.graph.sizes)
        self.program = s.program
        self.targets = {i.name: i.target for i in s.program.graph.inputs if i.kind != "user"}
        self.arrays = {i.name: _array(t) for i, t in zip(user, inputs, strict=True)}

    def __getitem__(self, name: str) -> Array:
        if name not in self.arrays:  # weights get their values when they are first read
            self.arrays[name] = _array(self.program.weights[self.targets[name]])
        return self.arrays[name]

    def operands(self, c: Chosen) -> list[Array]:
        return [self[n] for n in c.operands]

    def store(self, c: Chosen, exact: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            for name, out, want in zip(c.results, c.priced.body.outs, exact, strict=True):
                self.arrays[name] = want.astype(numpy_dtype(out.tensor.dtype))

    def opaque(self, c: ChosenOpaque) -> None:
        from emmy.frontend.opaque import run_node

        made = run_node(c.node, [_tensor(self[n], _name(self[n])) for n in c.operands], self.sizes, "cpu")
        self.arrays.update(zip(c.results, map(_array, made), strict=True))


def _name(a: Array) -> str:
    return next(n for n in DTYPES if numpy_dtype(n) == a.dtype)


def _array(t: torch.Tensor) -> Array:
    """The tensor's elements in the numpy type of their storage type."""
    import torch

    from emmy.ir.torch_types import NAMES

    t = t.detach().cpu().contiguous()
    if NAMES[t.dtype] not in FLOATS16:
        return np.array(t.numpy())
    return np.array(t.reshape(-1).view(torch.uint8).numpy().view(numpy_dtype(NAMES[t.dtype])).reshape(t.shape))
