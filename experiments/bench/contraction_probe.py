"""Builds, checks and times the contraction and attention families on the local GPU beside PyTorch.

    python experiments/bench/contraction_probe.py --out results/ [--rows 24] [--case linear_4096] [--seed 0]
    python experiments/bench/contraction_probe.py --out results/ --focus [--case rms]

For every case: the legal rows of the local architecture, a share of them by prediction and the rest by a seed, each
built with NVRTC, its result compared with float64 (outputs poisoned before), then timed back to back in a CUDA graph
with L2 warm.  Prints one line a case and writes all rows to OUT/contraction_probe.json.  With --focus the rows of
`FOCUS` are taken, whether they are legal or not, and each has a line of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.errors import EmmyError
from emmy.extract.prior import predict_many
from emmy.extract.work import analyse
from emmy.ir.build import cast, idiv, scalar
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body, Expr, Out, Tensor, ax, const, fold, load, online
from emmy.ir.normal import normalize
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.target import Target, target
from emmy.runtime.driver import KernelGraph
from emmy.runtime.local import local_arch
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from emmy.runtime.single import invocation, loaded, work_tensors

TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


# ---- bodies --------------------------------------------------------------------------------------------------------


def tensor(dtype: str, *shape: int) -> Tensor:
    return Tensor(dtype, tuple(const(n) for n in shape))


def silu(x: Expr) -> Expr:
    return scalar("mul", x, scalar("sigmoid", x))


def linear(m: int, n: int, k: int, dtype: str, trans_a: bool = False, trans_b: bool = True, bias: bool = False) -> Any:
    i, j, r = ax("i", m), ax("j", n), ax("r", k)
    a = load(0, (r, i) if trans_a else (i, r), dtype)
    b = load(1, (j, r) if trans_b else (r, j), dtype)
    value: Expr = fold("sum", r, scalar("mul", a, b), dtype)
    slots = [tensor(dtype, *((k, m) if trans_a else (m, k))), tensor(dtype, *((n, k) if trans_b else (k, n)))]
    if bias:
        value = silu(scalar("add", value, load(2, (j,), dtype)))
        slots.append(tensor(dtype, n))
    return normalize([Out((i, j), (i, j), value, tensor(dtype, m, n))], slots)


def rms_linear(m: int, n: int, k: int, dtype: str) -> Any:
    i, j, r, q = ax("i", m), ax("j", n), ax("r", k), ax("q", k)
    x = load(0, (i, q), dtype)
    mean = scalar("div", fold("sum", q, scalar("mul", x, x)), cast(const(k), "f32"))
    scale = scalar("rsqrt", scalar("add", mean, const(1e-6, "f32")))
    product = scalar("mul", scalar("mul", load(0, (i, r), dtype), load(1, (r,), dtype)), load(2, (j, r), dtype))
    value = scalar("mul", fold("sum", r, product, dtype), scale)
    slots = [tensor(dtype, m, k), tensor(dtype, k), tensor(dtype, n, k)]
    return normalize([Out((i, j), (i, j), value, tensor(dtype, m, n))], slots)


def swiglu(m: int, n: int, k: int, dtype: str) -> Any:
    i, j, r = ax("i", m), ax("j", n), ax("r", k)
    gate, up = (fold("sum", r, scalar("mul", load(0, (i, r), dtype), load(s, (j, r), dtype)), dtype) for s in (1, 2))
    value = scalar("mul", silu(gate), up)
    slots = [tensor(dtype, m, k), tensor(dtype, n, k), tensor(dtype, n, k)]
    return normalize([Out((i, j), (i, j), value, tensor(dtype, m, n))], slots)


def attention(b: int, h: int, kv: int, s: int, t: int, d: int, dtype: str, causal: bool) -> Any:
    axes = (ax("b", b), ax("h", h), ax("i", s), ax("c", d))
    bb, hh, i, c = axes
    key, r, group = ax("t", t), ax("r", d), idiv(hh, h // kv)
    dot = fold("sum", r, scalar("mul", load(0, (bb, hh, i, r), dtype), load(1, (bb, group, key, r), dtype)), dtype)
    score = scalar("mul", dot, const(d**-0.5, "f32"))
    if causal:
        score = scalar("where", scalar("le", key, i), score, const(-math.inf, "f32"))
    top = online(key, score, load(2, (bb, group, key, c), dtype), dtype)
    value = scalar("div", top, online(key, score, const(1.0, "f32"), dtype))
    slots = [tensor(dtype, b, h, s, d), tensor(dtype, b, kv, t, d), tensor(dtype, b, kv, t, d)]
    return normalize([Out(axes, axes, value, tensor(dtype, b, h, s, d))], slots)


# ---- cases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """`made` is (body, original slot of each of its slots); `flops` of one call; `peer` takes the original operands."""

    name: str
    made: Any
    flops: float
    peer: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]


def _linear_case(name: str, m: int, n: int, k: int, dtype: str = "bf16", ta: bool = False, tb: bool = True) -> Case:
    def peer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.T if ta else a) @ (b.T if tb else b)

    return Case(name, linear(m, n, k, dtype, ta, tb), 2.0 * m * n * k, peer, peer)


def _bias_case(m: int, n: int, k: int) -> Case:
    def peer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(a, b, c))

    return Case(f"linear_bias_silu_{m}", linear(m, n, k, "bf16", bias=True), 2.0 * m * n * k, peer, peer)


def _rms_case(m: int, n: int, k: int) -> Case:
    def peer(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (k,), g, 1e-6), w)

    return Case(f"rms_linear_{m}", rms_linear(m, n, k, "bf16"), 2.0 * m * n * k, peer, peer)


def _swiglu_case(m: int, n: int, k: int) -> Case:
    def peer(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, g)) * F.linear(x, u)

    return Case(f"swiglu_{m}", swiglu(m, n, k, "bf16"), 4.0 * m * n * k, peer, peer)


def _attention_case(name: str, b: int, h: int, kv: int, s: int, d: int, causal: bool, dtype: str = "bf16") -> Case:
    def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != h)

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # one head at a time: float64 scores of every head would not fit
        out = torch.empty(b, h, s, d, dtype=torch.float64, device=q.device)
        for x in range(b):
            for y in range(h):
                scores = q[x, y] @ k[x, y * kv // h].T * d**-0.5
                if causal:
                    scores += torch.full((s, s), -math.inf, device=q.device, dtype=torch.float64).triu(1)
                out[x, y] = scores.softmax(-1) @ v[x, y * kv // h]
        return out

    flops = 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)
    return Case(name, attention(b, h, kv, s, s, d, dtype, causal), flops, peer, reference)


def cases() -> list[Case]:
    return [
        _linear_case("linear_4096", 4096, 4096, 4096),
        _linear_case("linear_4096_nn", 4096, 4096, 4096, tb=False),
        _linear_case("linear_4096_tn", 4096, 4096, 4096, ta=True, tb=False),
        _linear_case("linear_512x4096x4096", 512, 4096, 4096),
        _linear_case("linear_64x4096x4096", 64, 4096, 4096),
        _linear_case("linear_1x4096x4096", 1, 4096, 4096),
        _linear_case("linear_odd_777x1333x2049", 777, 1333, 2049),
        _linear_case("linear_odd_1000", 1000, 1000, 1000),
        _linear_case("linear_f32_512x3584x3584", 512, 3584, 3584, "f32"),
        _bias_case(4096, 4096, 4096),
        _rms_case(512, 1024, 4096),
        _swiglu_case(512, 14336, 4096),
        _attention_case("attention_2x32x2048x128", 2, 32, 32, 2048, 128, False),
        _attention_case("attention_causal_2x32x4096x128", 2, 32, 32, 4096, 128, True),
        _attention_case("attention_gqa_causal_16_8_2048", 1, 16, 8, 2048, 128, True),
        _attention_case("attention_causal_head64", 2, 32, 32, 2048, 64, True),
        _attention_case("attention_causal_head256", 1, 16, 16, 2048, 256, True),
        _attention_case("attention_f32_1x4x128x32", 1, 4, 4, 128, 32, False, "f32"),
    ]


_LARGE = ("w2x4/f4x8/k4/d3", "w2x4/f4x8/k4/d4", "w2x4/f4x8/k4/d3/gm8", "w2x4/f4x8/k2/d4", "w4x2/f4x8/k4/d3",
          "w2x2/f4x8/k4/d3", "w2x2/f4x8/k2/d4", "w2x4/f4x4/k4/d3", "w2x4/f4x4/k4/d4/gm8")  # fmt: skip
_LONG = ("w8/f1x16/d2", "w8/f1x16/d3", "w4/f2x4/d2", "w8/f2x4/d2", "w8/f2x4/d3", "w4/f2x6/d2", "w4/f2x8/d2",
         "w4/f2x8/d1", "w8/f2x8/d2", "w4/f1x8/d3")  # fmt: skip
# case -> rows, as WORK/fragments/[steps a stage/]depth[/raster]
FOCUS = {
    "linear_4096": _LARGE,
    "linear_4096_nn": _LARGE[:4],
    "linear_4096_tn": _LARGE[:4],
    "linear_512x4096x4096": ("w2x2/f4x8/k4/d3", "w2x2/f4x8/k4/d4", "w2x4/f4x4/k4/d3", "w2x4/f4x4/k4/d4",
                             "w2x4/f4x4/k4/d6", "w2x2/f4x4/k4/d4", "w2x2/f2x8/k4/d4", "w2x4/f4x8/k4/d3"),
    "linear_64x4096x4096": ("w2x2/f2x2/k8/d4", "w2x2/f2x2/k8/d6", "w2x2/f2x2/k4/d6", "w1x4/f4x1/k4/d6",
                            "w1x4/f4x1/k8/d4", "w2x4/f2x1/k8/d4", "w2x4/f2x1/k8/d6", "w2x2/f2x1/k8/d6"),
    "linear_1x4096x4096": ("w1x1/f1x2/k8/d4", "w1x1/f1x2/k8/d6", "w1x2/f1x1/k8/d4", "w1x2/f1x1/k8/d6"),
    "linear_bias_silu_4096": _LARGE[:3],
    "rms_linear_512": ("w1x4/f2x4/k4/d4", "w2x2/f2x4/k4/d4", "w1x4/f1x4/k4/d3", "w2x2/f2x4/k8/d3", "w2x2/f2x2/k8/d4",
                       "w2x4/f2x2/k8/d4", "w2x4/f2x4/k4/d4", "w2x2/f4x4/k4/d4"),
    "swiglu_512": ("w2x2/f4x4/k4/d3", "w2x4/f4x4/k4/d3", "w2x4/f4x4/k4/d4", "w2x4/f4x4/k2/d4", "w2x4/f4x4/k4/d3/gm8",
                   "w1x4/f4x4/k4/d3"),
    "attention_2x32x2048x128": _LONG,
    "attention_causal_2x32x4096x128": _LONG,
    "attention_causal_head64": ("w4/f1x8/d2", "w8/f1x16/d2", "w4/f2x8/d2", "w4/f2x16/d2", "w8/f2x8/d2", "w8/f2x8/d3"),
}  # fmt: skip


def focused(name: str) -> list[Row]:
    found = []
    for text in FOCUS.get(name, ()):
        work, *rest = text.split("/")
        raster = rest.pop() if rest[-1].startswith("gm") else ""
        depth = rest.pop()
        tile = f"mma_m16n8k16_bf16_f32/{'/'.join(rest)}"
        found.append(Row.parse(f"WORK={work},TILE={tile},REDUCE=,STAGE={depth}/smem-async,RASTER={raster}"))
    return found


# ---- measurement ---------------------------------------------------------------------------------------------------


@dataclass
class Result:
    row: str
    family: str
    predicted_us: float
    error: float = math.nan
    us: float = math.nan
    registers: int = 0
    spill_bytes: int = 0
    note: str = ""


@dataclass
class Report:
    name: str
    body: str
    legal_rows: int
    peer_us: float
    results: list[Result] = field(default_factory=list)


def timed(run: Callable[[], object], calls: int, repeats: int = 7) -> float:
    """Median microseconds a call; `run` makes `calls` of them."""
    for _ in range(2):
        run()
    samples = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(samples)


def peer_time(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    return timed(graph.replay, 10)


def chosen(all_rows: list[Scheduled], predicted: list[float], count: int, rng: random.Random) -> list[int]:
    """Half of the rows by prediction, half by chance."""
    order = sorted(range(len(all_rows)), key=lambda i: (predicted[i], all_rows[i].row.text))
    best, rest = order[: -(-count // 2)], order[-(-count // 2) :]
    return best + rng.sample(rest, min(len(rest), count - len(best)))


def probe(case: Case, card: Target, args: argparse.Namespace) -> Report:
    body: Body = case.made[0]
    order: tuple[int, ...] = case.made[1]
    torch.manual_seed(args.seed)
    originals: list[torch.Tensor] = [torch.empty(0)] * len(body.slots)
    for place, slot in zip(order, body.slots, strict=True):
        shape = tuple(integer(e) for e in slot.shape)
        originals[place] = torch.randn(shape, device="cuda").to(TORCH[slot.dtype])
    expected = case.reference(*(o.double() for o in originals))
    out = torch.empty(
        tuple(integer(e) for e in body.outs[0].tensor.shape), device="cuda", dtype=TORCH[body.outs[0].tensor.dtype]
    )
    report = Report(case.name, body.hash, 0, peer_time(lambda: case.peer(*originals)))
    if args.focus:
        family = "attention" if case.name.startswith("attention") else "mma"
        picked = [(family, row, math.nan) for row in focused(case.name)]
    else:
        found = schedule_rows([body], card, {}, Path(args.rulesets)).rows[body.hash]
        rows = [r for r in found if r.family not in ("plain", "map", "row")]
        predicted = [float(p) * 1e6 for p in predict_many(analyse(body, {}), [r.config for r in rows], card)]
        picks = chosen(rows, predicted, args.rows, random.Random(args.seed))
        picked = [(rows[i].family, rows[i].row, predicted[i]) for i in picks]
        report.legal_rows = len(rows)
    kernels = [lower(body, family, row, card, "k_probe") for family, row, _ in picked]
    jobs = [Job(source(k), k.name, card.arch) for k in kernels]
    built = compile_many(jobs)
    # the assembler's report can get lost between threads: what failed is built once more, alone
    built = [b if isinstance(b, Compiled) else compile_many([j])[0] for b, j in zip(built, jobs, strict=True)]
    for (family, row, guess), kernel, binary in zip(picked, kernels, built, strict=True):
        result = Result(row.text, family, guess)
        report.results.append(result)
        if not isinstance(binary, Compiled):
            result.note = str(binary)[:300]
            continue
        result.registers, result.spill_bytes = binary.registers, binary.spill_bytes
        try:
            _run(kernel, binary, [originals[p] for p in order], out, expected, result)
        except EmmyError as error:
            result.note = str(error)[:300]
    return report


def _run(
    kernel: Any, binary: Compiled, operands: list[torch.Tensor], out: torch.Tensor, expected: torch.Tensor,
    result: Result,
) -> None:  # fmt: skip
    own = work_tensors(kernel)
    call = invocation(kernel, loaded(kernel, binary), [t.data_ptr() for t in (*operands, out, *own)])
    stream = torch.cuda.current_stream().cuda_stream
    out.fill_(math.nan)
    call.launch(stream)
    torch.cuda.synchronize()
    wrong = (out.double() - expected).abs() / (1 + expected.abs())
    result.error = float(wrong.max()) if not bool(wrong.isnan().any()) else math.nan
    calls = 10
    graph = KernelGraph([call] * calls)
    result.us = timed(lambda: graph.launch(stream), calls)
    graph.close()


def table(case: Case, report: Report) -> str:
    """A line a row, fastest first."""
    lines = [f"{case.name}  peer {report.peer_us:.1f} us"]
    for r in sorted(report.results, key=lambda r: r.us if r.us == r.us else math.inf):
        lines.append(
            f"  {r.us:8.1f} us  {case.flops / r.us * 1e-6:6.0f} TF  x{r.us / report.peer_us:5.2f}  "
            f"{r.registers:3} regs {r.spill_bytes:4} B  error {r.error:.0e}  {short(r.row)}  {r.note[:90]}"
        )
    return "\n".join(lines)


def short(row: str) -> str:
    """The row without what all rows of the table have."""
    return row.replace("mma_m16n8k16_bf16_f32/", "").replace("REDUCE=,", "").replace("/smem-async", "").rstrip(",")


def line(case: Case, report: Report) -> str:
    good = [r for r in report.results if r.us == r.us and r.error == r.error]
    bad = [r for r in report.results if r not in good]
    if not good:
        return f"{case.name:36} nothing ran: {report.results[0].note if report.results else 'no rows'}"
    best, pick = min(good, key=lambda r: r.us), min(good, key=lambda r: (r.predicted_us, r.row))
    return (
        f"{case.name:36} peer {report.peer_us:9.1f} us {case.flops / report.peer_us * 1e-6:7.1f} TF  "
        f"best {best.us:9.1f} us {case.flops / best.us * 1e-6:7.1f} TF  ratio {best.us / report.peer_us:5.2f}  "
        f"pick {pick.us / best.us:5.2f}x  worst error {max(r.error for r in good):.1e}  bad {len(bad)}  {best.row}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=24, help="rows a case")
    parser.add_argument("--focus", action="store_true", help="the rows of FOCUS, a line each")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rulesets", default=str(Path(__file__).resolve().parents[2] / "rulesets"))
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    card = target(local_arch() or "sm_90a")
    args.out.mkdir(parents=True, exist_ok=True)
    reports = []
    for case in cases():
        if args.case not in case.name or (args.focus and case.name not in FOCUS):
            continue
        start = time.perf_counter()
        report = probe(case, card, args)
        reports.append({**asdict(report), "flops": case.flops, "arch": card.arch, "gpu": torch.cuda.get_device_name()})
        print((table if args.focus else line)(case, report), f"  [{time.perf_counter() - start:.0f} s]", flush=True)
        (args.out / "contraction_probe.json").write_text(json.dumps(reports, indent=1))


if __name__ == "__main__":
    main()
