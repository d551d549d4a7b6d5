"""The bodies that `experiments.gather` measures: the cases of the design's table and a layer of each bundled model.

    python -m experiments.bodies --out experiments/results/bodies.json [--only 'linear.*'] [--seconds 600]

Compiles every case (no GPU needed) and writes each distinct loop body of the chosen plans once, one body a line, with
the cases that it came from, in an order of which every beginning is a fair sample.  A case is called KIND@SHAPE: what
stands before the `@` (a model's name, or the kind of operation) is held out together where a prior is judged.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from emmy.errors import EmmyError, UsageError
from emmy.extract.golden import Case as Source
from emmy.ir.target import Target, target
from experiments.cases import attention, gelu_expression, program, rand

MODELS: Final = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-embedding": "Qwen/Qwen3-Embedding-0.6B",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "bert": "google-bert/bert-base-uncased",
    "gpt2": "openai-community/gpt2",
    "vit": "google/vit-base-patch16-224",
}
TOKENS: Final = (512, 1, 2048, 128, 16)
CACHE: Final = 1024  # tokens before the one that a decoder is given at a time
FIXED: Final = ("vit",)  # its number of tokens is that of its patches


@dataclass(frozen=True)
class Wanted:
    """A program; `places` are the placements under which its plans are taken."""

    name: str
    source: Source
    places: tuple[str, ...] = ("",)


@dataclass
class Found:
    """A body at concrete sizes, as gathered: its Loop IR, a kernel name, and the programs that have it."""

    body: str
    text: str
    name: str
    sizes: dict[str, int]
    programs: list[str]


def linear(m: int, n: int, k: int, dtype: str = "bf16", after: str = "{}", bias: bool = False) -> str:
    more = [rand("b", dtype, n)] if bias else []
    call = f"F.linear(x, w{', b' if bias else ''})"
    return program(rand("x", dtype, m, k), rand("w", dtype, n, k), *more, after.format(call))


def linear_cases() -> Iterator[tuple[str, str]]:
    for m in (1, 16, 64, 128, 256, 512, 2048, 4096):
        yield f"linear@{m}x4096x4096/bf16", linear(m, 4096, 4096)
    shapes = [
        *((m, 14336, 4096) for m in (1, 64, 512, 4096)), *((m, 4096, 14336) for m in (1, 16, 512, 2048)),
        *((m, 1024, 4096) for m in (1, 128, 512, 2048)), *((m, 2048, 1024) for m in (1, 16, 512, 4096)),
        (1, 128256, 4096), (16, 12288, 4096), (8192, 8192, 8192), (512, 3584, 3584), (512, 4096, 1024),
        (4096, 4096, 14336), (1536, 2560, 4096), (192, 6144, 2048),
    ]  # fmt: skip
    for m, n, k in shapes:
        yield f"linear@{m}x{n}x{k}/bf16", linear(m, n, k)
    for dtype, m, n, k in (
        ("f16", 512, 4096, 4096), ("f16", 64, 4096, 4096), ("f16", 2048, 3072, 768), ("f32", 1, 4096, 4096),
        ("f16", 4096, 4096, 4096), ("f16", 8192, 8192, 8192), ("f16", 4096, 14336, 4096), ("f16", 2048, 4096, 4096),
        ("f32", 32, 3584, 3584), ("f32", 512, 3584, 3584), ("f32", 2048, 1024, 1024),
        ("f32", 8, 2048, 8192), ("f32", 256, 768, 3072), ("f32", 4096, 2048, 2048),
    ):  # fmt: skip
        yield f"linear@{m}x{n}x{k}/{dtype}", linear(m, n, k, dtype)
    for n in (512, 4096):
        x, y = rand("x", "bf16", n, n), rand("y", "bf16", n, n)
        yield f"transposed@nn{n}", program(x, y, "x @ y")
        yield f"transposed@tn{n}", program(x, y, "x.t() @ y")
        yield f"transposed@tt{n}", program(x, y, "x.t() @ y.t()")
    x, y = rand("x", "f16", 4096, 4096), rand("y", "f16", 4096, 4096)
    for how, call in {"nn": "x @ y", "tn": "x.t() @ y", "tt": "x.t() @ y.t()"}.items():
        yield f"transposed@{how}4096/f16", program(x, y, call)
    yield (
        "batched@32x128x128x512/bf16",
        program(rand("x", "bf16", 32, 128, 512), rand("y", "bf16", 32, 512, 128), "x @ y"),
    )
    for b, m, n, k in ((64, 128, 128, 64), (12, 197, 197, 64), (8, 1, 1024, 128)):
        x, y = rand("x", "bf16", b, m, k), rand("y", "bf16", b, k, n)
        yield f"batched@{b}x{m}x{n}x{k}/bf16", program(x, y, "x @ y")
    for m, n, k in ((1000, 1000, 1000), (777, 1333, 2049), (4095, 4095, 4095), (16, 1001, 4095), (2000, 3000, 500)):
        yield f"odd@{m}x{n}x{k}/bf16", linear(m, n, k)


def narrow_cases() -> Iterator[tuple[str, str]]:
    """8-bit factors, and 8-bit weights that are scaled back before a product."""
    for m, n, k in ((4096, 4096, 4096), (512, 4096, 4096), (16, 4096, 4096)):
        drawn = [f"{v}=torch.randn({a}, {k}).to(torch.float8_e4m3fn)" for v, a in (("x", m), ("w", n))]
        scales = "a=torch.ones(())\nb=torch.ones(())"
        call = "torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)"
        yield f"scaled@{m}x{n}x{k}/f8e4m3", program(*drawn, scales, call)
    for m, n, k in ((1, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (512, 4096, 4096)):
        weights = f"w=torch.randint(-127, 128, ({n}, {k}), dtype=torch.int8)"
        scale = f"s=torch.rand({n}, 1, dtype=torch.bfloat16)"
        yield (
            f"int8_weights@{m}x{n}x{k}",
            program(rand("x", "bf16", m, k), weights, scale, "F.linear(x, w.to(x.dtype) * s)"),
        )


def fused_cases() -> Iterator[tuple[str, str]]:
    for m in (64, 512, 4096):
        yield f"epilogue@gelu{m}", linear(m, 4096, 4096, after="F.gelu({}, approximate='tanh')", bias=True)
    yield "epilogue@erf4096", linear(4096, 4096, 4096, after="F.gelu({})", bias=True)
    yield "epilogue@silu512", linear(512, 4096, 4096, after="F.silu({})", bias=True)
    yield "epilogue@bias1", linear(1, 4096, 4096, bias=True)
    yield (
        "epilogue@add2048",
        program(
            rand("x", "bf16", 2048, 2048),
            rand("w", "bf16", 2048, 2048),
            rand("r", "bf16", 2048, 2048),
            "F.linear(x, w) + r",
        ),
    )
    for m, n, k in ((1, 4096, 4096), (64, 1024, 4096), (512, 1024, 4096), (2048, 2048, 1024)):
        norm = f"F.linear(F.rms_norm(x, ({k},), g, 1e-6), w)"
        yield (
            f"rms_linear@{m}x{n}x{k}",
            program(rand("x", "bf16", m, k), rand("g", "bf16", k), rand("w", "bf16", n, k), norm),
        )
    for m, n, k in ((1, 14336, 4096), (64, 8192, 2048), (512, 14336, 4096), (4096, 14336, 4096)):
        lines = rand("x", "bf16", m, k), rand("g", "bf16", n, k), rand("u", "bf16", n, k)
        yield f"swiglu@{m}x{n}x{k}", program(*lines, "F.silu(F.linear(x, g)) * F.linear(x, u)")


def row_cases() -> Iterator[tuple[str, str]]:
    for m, n, dtype in (
        (1, 4096, "bf16"),
        (32, 2048, "f32"),
        (512, 2304, "f32"),
        (8192, 4096, "bf16"),
        (4096, 16384, "bf16"),
    ):
        yield (
            f"rms_norm@{m}x{n}/{dtype}",
            program(rand("x", dtype, m, n), rand("w", dtype, n), f"F.rms_norm(x, ({n},), w, 1e-6)"),
        )
    for m, n, dtype in ((512, 768, "bf16"), (2048, 1024, "f32"), (8192, 4096, "bf16")):
        lines = rand("x", dtype, m, n), rand("w", dtype, n), rand("b", dtype, n)
        yield f"layer_norm@{m}x{n}/{dtype}", program(*lines, f"F.layer_norm(x, ({n},), w, b)")
    for m, n, dtype in ((128, 1024, "f16"), (57344, 2048, "f32"), (8192, 8192, "bf16"), (512, 131072, "bf16")):
        yield f"softmax@{m}x{n}/{dtype}", program(rand("x", dtype, m, n), "F.softmax(x, dim=-1)")
    for m, n in ((4096, 4096), (64, 2048)):
        lines = rand("x", "bf16", m, n), rand("y", "bf16", m, n), rand("w", "bf16", n)
        yield f"add_rms@{m}x{n}", program(*lines, "z = x + y", f"F.rms_norm(z, ({n},), w, 1e-6), z")
    yield "sum@4096x16384/f32", program(rand("x", "f32", 4096, 16384), "x.sum(-1)")
    yield "sum@columns16384x4096/f32", program(rand("x", "f32", 16384, 4096), "x.sum(0)")
    yield "mean@1x4194304/f32", program(rand("x", "f32", 1, 1 << 22), "x.mean(-1)")
    yield "group_norm@16x512x64x64", program(rand("x", "bf16", 16, 512, 64, 64), "F.group_norm(x, 32)")
    yield "cumsum@4096x16384/f32", program(rand("x", "f32", 4096, 16384), "x.cumsum(-1)")
    yield "cumsum@512x4096/bf16", program(rand("x", "bf16", 512, 4096), "x.cumsum(-1)")


def map_cases() -> Iterator[tuple[str, str]]:
    for m, n in ((64, 8192), (4096, 14336)):
        yield f"silu_mul@{m}x{n}/bf16", program(rand("g", "bf16", m, n), rand("u", "bf16", m, n), "F.silu(g) * u")
    for m in (32, 512):
        yield f"gelu_tanh@{m}x18944/f32", program(rand("x", "f32", m, 18944), gelu_expression())
    yield "add@8192x8192/bf16", program(rand("x", "bf16", 8192, 8192), rand("y", "bf16", 8192, 8192), "x + y")
    yield "add_transposed@4096/bf16", program(rand("x", "bf16", 4096, 4096), rand("y", "bf16", 4096, 4096), "x + y.t()")
    yield "add_transposed@777x1024/f32", program(rand("x", "f32", 777, 1024), rand("y", "f32", 1024, 777), "x + y.t()")


def attention_cases() -> Iterator[tuple[str, str]]:
    def one(b: int, h: int, kv: int, s: int, t: int, d: int, causal: bool, dtype: str = "bf16") -> str:
        text = attention(dtype, h, kv, s, t, d, causal)
        return text.replace("torch.randn(2, ", f"torch.randn({b}, ")

    yield "attention@4x32x4096x128", one(4, 32, 32, 4096, 4096, 128, False)
    yield "attention@causal2x32x2048x128", one(2, 32, 32, 2048, 2048, 128, True)
    yield "attention@causal1x16g8x2048x128", one(1, 16, 8, 2048, 2048, 128, True)
    yield "attention@causal2x32x2048x64", one(2, 32, 32, 2048, 2048, 64, True)
    yield "attention@causal1x16x2048x256", one(1, 16, 16, 2048, 2048, 256, True)
    yield "attention@decode8x32g8x4096x128", one(8, 32, 8, 1, 4096, 128, False)
    yield "attention@decode1x32g8x32768x128", one(1, 32, 8, 1, 32768, 128, False)
    yield "attention@8x12x197x64/f16", one(8, 12, 12, 197, 197, 64, False, "f16")


def design_cases() -> list[Wanted]:
    fused = [Wanted(name, {"code": code}, ("", "fuse")) for name, code in (*fused_cases(), *attention_cases())]
    cases = (*linear_cases(), *narrow_cases(), *row_cases(), *map_cases())
    plain = [Wanted(name, {"code": code}) for name, code in cases]
    return [*fused, *plain]


def model_cases() -> list[Wanted]:
    cases = []
    for tokens in TOKENS:
        for name, model in MODELS.items():
            if name in FIXED and tokens != TOKENS[0]:
                continue
            decoder = name not in ("bert", "vit", "gpt2", "qwen3-embedding")
            length: dict[str, int] = {"cache_len": CACHE} if tokens == 1 and decoder else {"seq_len": tokens}
            source = {"model": model, "layer": 0, **({} if name in FIXED else length)}
            cases.append(Wanted(f"{name}@{tokens}", source))
    return cases


def bodies_of(wanted: Wanted, card: Target) -> list[Found]:
    """The bodies that run at each call of the chosen plans.  EmmyError where the program does not compile."""
    from emmy.frontend.source import load
    from emmy.saturation import Options, saturate_program

    given: dict[str, Any] = dict(wanted.source)
    loaded = load(given.pop("model", None), given.pop("code", None), **given)
    found: dict[str, Found] = {}
    for place in wanted.places:
        options = Options(card, place=place, check=False, golden="", database=Path("/nonexistent/none.duckdb"))
        s = saturate_program(loaded, options)
        for c in s.launches:
            b = c.priced.body
            if not c.at_build and not indirect(b):
                sizes = {n: s.selection.sizes[n] for n in b.sizes}
                found.setdefault(b.hash, Found(b.hash, b.text, c.name, sizes, [wanted.name]))
    return list(found.values())


def attempt(card: Target, wanted: Wanted) -> tuple[str, list[Found], str]:
    """The case's name, its bodies, and why there are none where it does not compile."""
    try:
        return wanted.name, bodies_of(wanted, card), ""
    except EmmyError as e:
        return wanted.name, [], e.what


def indirect(body: Any) -> bool:
    """A body that reads where integers of an operand say: its time depends on their values."""
    from emmy.ir.loop import Load

    loads = [n for n in body.nodes if isinstance(n, Load)]
    return any(isinstance(i, Load) for n in loads for e in n.index for i in (e, *e.children))


def ordered(design: Sequence[Found], models: Sequence[Found]) -> list[Found]:
    """Bodies of both in turns, those of the table in a drawn order, so that a part of the list is a fair sample."""
    drawn = list(design)
    random.Random(0).shuffle(drawn)
    merged: list[Found] = []
    for k in range(max(len(drawn), len(models))):
        merged += [*drawn[k : k + 1], *models[k : k + 1]]
    by_body: dict[tuple[str, str], Found] = {}
    for f in merged:
        key = f.body, json.dumps(f.sizes, sort_keys=True)
        if key in by_body:
            by_body[key] = replace(by_body[key], programs=sorted({*by_body[key].programs, *f.programs}))
        else:
            by_body[key] = f
    return list(by_body.values())


def write(path: Path, bodies: Sequence[Found]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text("[\n" + ",\n".join(json.dumps(asdict(b)) for b in bodies) + "\n]\n")
    part.replace(path)


def read(path: Path) -> list[Found]:
    """UsageError where the file is no list of bodies."""
    try:
        return [Found(**f) for f in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is no list of bodies: {error}", "write it with experiments.bodies") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="only cases whose name this regular expression finds")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=1, help="cases compiled at a time")
    parser.add_argument("--target", default="sm_90a")
    o = parser.parse_args()
    card, began = target(o.target), time.monotonic()
    models = [c for c in model_cases() if re.search(o.only, c.name)]
    cases = [*(c for c in design_cases() if re.search(o.only, c.name)), *models]
    found: dict[str, list[Found]] = {}
    # processes that are replaced after a few cases: what a compile leaves in memory ends with them
    with get_context("spawn").Pool(o.jobs, maxtasksperchild=6) as pool:
        for name, bodies, refused in pool.imap_unordered(partial(attempt, card), cases):
            seconds = time.monotonic() - began
            print(f"{seconds:6.0f} s  {name}: {refused or f'{len(bodies)} bodies'}", file=sys.stderr, flush=True)
            if not refused:
                found[name] = bodies
            if seconds > o.seconds:
                break
    of = [[b for c in some for b in found.get(c.name, ())] for some in (cases[: -len(models) or None], models)]
    write(o.out, ordered(*of))
    print(f"{len(ordered(*of))} bodies of {len(found)} cases in {o.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
