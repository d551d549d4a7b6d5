"""From a body and its schedule rows to a group that the runner measures: buffers, check, tolerance, launches."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.errors import EmmyError, LoweringError
from emmy.extract.work import Work
from emmy.ir.arrays import numpy_dtype
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Expr, Fold, Load, Online, Op, Scan, Tensor
from emmy.ir.plan import tensor_maps, workspaces
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.target import Target

Json = dict[str, Any]
# a check kernel may take so long: it runs once a group
CHECK_SECONDS: Final = 0.2
# families from the simplest on: the first one whose prediction is short enough is what others are compared with
SIMPLE: Final = ("plain", "map", "row", "scan", "turn", "tile", "attention", "mma", "tf32", "wgmma")
# bodies of so few points are evaluated here, and the packet carries the values
EVALUATED_POINTS: Final = 1 << 14
# what a data sheet promises over what copies and products reach (see emmy.ir.target)
DATA_SHEET: Final = 1.25
# a share of the work that masks may spare a kernel
MASKED: Final = 0.4


@dataclass(frozen=True, slots=True)
class Source:
    """One translation unit; `id` is what launches call it."""

    id: str
    entry: str
    text: str


@dataclass
class Group:
    """A body at concrete sizes.  `sources` grows as candidates are added."""

    body: Body
    sizes: Mapping[str, int]
    target: Target
    name: str
    json: Json
    limits: Mapping[str, int] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.json["id"])

    def add(self, scheduled: Scheduled, predicted: float) -> str:
        """Add a row as a candidate; its id.  LoweringError where it does not become a kernel."""
        made, launch = lowered(
            self.body, scheduled.family, scheduled.row, self.target, self.name, self.sizes, self.limits
        )
        self.sources[made.id] = made
        return self.take(scheduled, predicted, launch)

    def take(self, scheduled: Scheduled, predicted: float, launch: Json) -> str:
        """Add a row that was lowered elsewhere; its id."""
        id = candidate_id(scheduled)
        if not any(c["id"] == id for c in self.json["candidates"]):
            self.json["candidates"].append(
                {"id": id, "family": scheduled.family, "row": scheduled.row.text, "predicted": predicted,
                 "launches": [launch]}
            )  # fmt: skip
        return id


def lowered(
    body: Body, family: str, row: Row, target: Target, name: str, sizes: Mapping[str, int], limits: Mapping[str, int]
) -> tuple[Source, Json]:
    """A row's source and its launch on the group's buffers.  LoweringError where it does not become a kernel."""
    operands = [f"in{k}" for k in range(len(body.slots))]
    made = [f"out{k}" for k in range(len(body.outs))]
    kernel = lower(body, family, row, target, name, operands, made, limits)
    results = [f"out{k}" if o.into < 0 else f"in{o.into}" for k, o in enumerate(body.outs)]
    text = source_of(kernel)
    return text, launch_json(kernel, text.id, [*operands, *results], sizes)


def candidate_id(scheduled: Scheduled) -> str:
    return "r" + hashlib.sha256(f"{scheduled.family} {scheduled.row.text}".encode()).hexdigest()[:16]


def source_of(kernel: Kernel) -> Source:
    text = source(kernel)
    return Source(hashlib.sha256(text.encode()).hexdigest()[:16], kernel.name, text)


def launch_json(kernel: Kernel, source_id: str, buffers: Sequence[str], sizes: Mapping[str, int]) -> Json:
    """A launch as the runner takes it: everything that the kernel says of its launch, at concrete sizes."""
    maps = [
        {
            "arg": m.argument, "dtype": m.type, "offset": integer(m.offset, sizes),
            "shape": [integer(e, sizes) for e in m.shape], "strides": [integer(e, sizes) for e in m.strides],
            "box": list(m.box), "swizzle": m.swizzle,
        }
        for m in tensor_maps(kernel)
    ]  # fmt: skip
    launch: Json = {
        "kernel": source_id, "args": list(buffers), "sizes": [sizes[p.name] for p in kernel.params if p.role == "size"],
        "grid": [integer(e, sizes) for e in kernel.grid], "block": kernel.threads, "smem": kernel.dynamic_smem,
    }  # fmt: skip
    if maps:
        launch["maps"] = maps
    work = [{"dtype": w.type, "count": integer(w.count, sizes), "zeroed": w.zeroed} for w in workspaces(kernel)]
    if work:
        launch["work"] = work
    if kernel.cluster != (1, 1, 1):
        launch["cluster"] = list(kernel.cluster)
    if kernel.dependent:
        launch["dependent"] = True
    return launch


def make_group(
    body: Body,
    sizes: Mapping[str, int],
    target: Target,
    work: Work,
    name: str,
    known: Mapping[int, np.ndarray[Any, Any]] | None = None,
    limits: Mapping[str, int] | None = None,
) -> Group:
    """A group without candidates.  `known` holds the values of integer operands, by slot (indices of gathers …).

    Small bodies carry expected values, computed here in float64; others need `add_check`.
    """
    bound = {n: sizes[n] for n in body.sizes}
    fills = fills_of(body, bound, known or {})
    updated = {o.into for o in body.outs if o.into >= 0}
    buffers = [
        _buffer(f"in{k}", t, bound, "update" if k in updated else "in", fills[k]) for k, t in enumerate(body.slots)
    ]
    buffers += [
        _buffer(f"out{k}", o.tensor, bound, "out", {"kind": "zeros"}) for k, o in enumerate(body.outs) if o.into < 0
    ]
    names = [f"out{k}" if o.into < 0 else f"in{o.into}" for k, o in enumerate(body.outs)]
    allowed = tolerance(body, work, target.numerics)
    json: Json = {
        "id": group_id(body, bound), "body": body.hash, "text": body.text, "sizes": bound, "name": name,
        "buffers": buffers,
        "least_seconds": least_seconds(body, work, target), "check": "", "anchor": "", "expected": {},
        "tolerance": {n: allowed[k] for k, n in enumerate(names)}, "candidates": [],
    }  # fmt: skip
    group = Group(body, bound, target, name, json, limits or {})
    if small(body, work, bound):
        json["expected"] = expected(body, bound, buffers, names)
    return group


def group_id(body: Body, sizes: Mapping[str, int]) -> str:
    return body.hash + "".join(f".{n}.{sizes[n]}" for n in sorted(sizes))


def add_check(group: Group, rows: Sequence[Scheduled], predicted: Sequence[float]) -> str:
    """Make the simplest row that is fast enough the one that others are compared with; empty with expected values."""
    if group.json["expected"]:
        return ""
    order = sorted(
        range(len(rows)),
        key=lambda k: (predicted[k] > CHECK_SECONDS, SIMPLE.index(rows[k].family), predicted[k], rows[k].row.text),
    )
    for k in order:
        try:
            group.json["check"] = group.add(rows[k], predicted[k])
        except EmmyError:  # another row will do
            continue
        return str(group.json["check"])
    raise LoweringError(f"no schedule row of {group.name} becomes a kernel that others can be compared with")


def least_seconds(body: Body, work: Work, target: Target) -> float:
    """Less than this no kernel can take with a cold cache on a card as good as its data sheet."""
    rate = max(target.flops_mma16, target.flops_wgmma16)
    gathers = any(isinstance(i, Load) for n in body.nodes if isinstance(n, Load) for e in n.index for i in _inside(e))
    spared = MASKED if gathers or any(n.chooses for n in body.nodes) else 1.0
    scalar = work.scalar_flops / target.flops_products
    seconds = max(sum(work.footprint) / target.bandwidth, work.tensor_time / rate, scalar)
    return spared * seconds / DATA_SHEET


def tolerance(body: Body, work: Work, numerics: str = "") -> list[float]:
    """Allowed error of each result relative to its largest magnitude, of two kernels that may both round.

    As `emmy.runtime.numerics.tolerance`, where the unit is that of the least precise type on the way: the result's, a
    cast's, or the type to which a contraction may round its factors.
    """
    rounded = {n.dtype for n in body.nodes if isinstance(n, Op) and n.name == "cast" and n.dtype in DTYPES}
    rounded |= {n.operand for n in body.nodes if isinstance(n, Fold | Online) and n.operand}
    casts = sum(isinstance(n, Op) and n.name == "cast" for n in body.nodes)
    narrow = [2.0**-10] if numerics == "tf32" else []
    found = []
    for out in body.outs:
        d = DTYPES[out.tensor.dtype]
        if d.kind != "float":
            found.append(0.0)
            continue
        unit = max([d.epsilon, *(DTYPES[t].epsilon for t in rounded), *narrow]) / 2
        least = 2.0**-53 if d.name == "f64" else 2.0**-24
        found.append(min(1.0, 2 * (2 + min(casts, 4)) * unit + 16 * math.sqrt(max(1, work.fold_length)) * least))
    return found


# ---- operands --------------------------------------------------------------------------------------------------------


def fills_of(body: Body, sizes: Mapping[str, int], known: Mapping[int, np.ndarray[Any, Any]]) -> list[Json]:
    """How each operand is filled: known values of integers; zeros for unknown indices; normal numbers otherwise,
    positive where a root or logarithm is taken of the operand itself."""
    loads = [n for n in body.nodes if isinstance(n, Load)]
    indices = {i.slot for n in loads for e in n.index for i in _inside(e) if isinstance(i, Load)}
    stores = {i.slot for o in body.outs for e in o.index for i in _inside(e) if isinstance(i, Load)}
    roots = {
        l.slot
        for n in body.nodes
        if isinstance(n, Op) and n.name in ("rsqrt", "sqrt", "log", "log2", "log1p", "pow", "recip")
        for l in _inside(n)
        if isinstance(l, Load)
    }
    fills: list[Json] = []
    for k, t in enumerate(body.slots):
        d = DTYPES[t.dtype]
        if k in known and d.kind != "float":
            data = np.ascontiguousarray(known[k])
            fills.append({"kind": "data", "base64": base64.b64encode(data.tobytes()).decode()})
        elif d.kind == "bool":
            fills.append({"kind": "integers", "low": 0, "high": 1})
        elif d.kind == "int" and k in stores:  # no two points may store to one element
            count = math.prod(integer(e, sizes) for e in t.shape)
            data = np.arange(count).astype(numpy_dtype(t.dtype))
            fills.append({"kind": "data", "base64": base64.b64encode(data.tobytes()).decode()})
        elif d.kind == "int":
            fills.append({"kind": "integers", "low": 0, "high": 7} if k not in indices else {"kind": "zeros"})
        else:
            fills.append({"kind": "normal", "mean": 0.0, "std": 1.0, "positive": k in roots})
    return fills


def _inside(e: Expr) -> Iterable[Expr]:
    """The nodes of a value that are computed point by point: nothing behind a fold."""
    stack, seen = [e], set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if not isinstance(node, Fold | Online | Scan):
            stack.extend(node.children)


def _buffer(name: str, t: Tensor, sizes: Mapping[str, int], role: str, fill: Json) -> Json:
    count = math.prod(integer(e, sizes) for e in t.shape)
    return {"name": name, "dtype": t.dtype, "count": count, "role": role, "fill": fill}


def small(body: Body, work: Work, sizes: Mapping[str, int]) -> bool:
    """Few enough points, each of few enough steps, to be evaluated here."""
    return work.points * max(1.0, work.depth) <= EVALUATED_POINTS and work.tensor_flops + work.scalar_flops < 1e8


def expected(body: Body, sizes: Mapping[str, int], buffers: Sequence[Json], names: Sequence[str]) -> dict[str, str]:
    """Values of all results in float64 (floats) or their own type, base64, on the operands that the runner makes."""
    from emmy.tune.runner.operands import fill

    arrays = []
    for k, t in enumerate(body.slots):
        shape = tuple(integer(e, sizes) for e in t.shape)
        arrays.append(fill(buffers[k], 1 + k).view(numpy_dtype(t.dtype)).reshape(shape))
    values = evaluate(body, arrays, sizes)
    found = {}
    for name, o, v in zip(names, body.outs, values, strict=True):
        real = DTYPES[o.tensor.dtype].kind == "float"
        stored = np.asarray(v, np.float64 if real else numpy_dtype(o.tensor.dtype))
        found[name] = base64.b64encode(np.ascontiguousarray(stored).tobytes()).decode()
    return found
