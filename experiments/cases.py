"""What is validated: models, the published validation cases, odd shapes, and bodies whose rows are sampled.

A case is data: a line of code or a bundled model's name.  `terms` is the longest sum that an element of the result goes
through and `stores` how many values on its way are rounded to the result's type, as `emmy.runtime.numerics` takes them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

DTYPES: Final = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
ROWS: Final = (1, 7, 33)
COLUMNS: Final = (1, 5, 77, 2304, 4097)


@dataclass(frozen=True, slots=True)
class Case:
    """`code` or `model` (with `options` of the Hugging Face front end).  `sample`: so many random rows a family."""

    name: str
    code: str = ""
    model: str = ""
    options: tuple[tuple[str, int], ...] = ()
    terms: int = 1
    stores: int = 0
    place: str = ""
    sample: int = 0

    @property
    def group(self) -> str:
        return self.name.split("/")[0]

    @property
    def whole(self) -> bool:
        """A model with all its layers: minutes of work, where other cases take seconds."""
        return bool(self.model) and "layer" not in dict(self.options)


def rand(name: str, dtype: str, *shape: int) -> str:
    """A statement that makes a random tensor."""
    return f"{name}=torch.randn({', '.join(map(str, shape))}, dtype={DTYPES[dtype]})"


def program(*lines: str) -> str:
    return "\n".join(lines)


def model_cases() -> list[Case]:
    decoders = {
        "qwen3-0.6b": "Qwen/Qwen3-0.6B",
        "qwen3-embedding": "Qwen/Qwen3-Embedding-0.6B",
        "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    }
    others = {
        "bert": "google-bert/bert-base-uncased",
        "gpt2": "openai-community/gpt2",
        "vit": "google/vit-base-patch16-224",
    }
    terms, first = 16384, (("layer", 0),)
    cases = [Case("models/tinyllama/whole", model=decoders["tinyllama"], terms=terms, stores=2)]
    for name, model in {**decoders, **others}.items():
        cases.append(Case(f"models/{name}/layer", model=model, options=first, terms=terms, stores=2))
    for (name, model), cache in itertools.product(decoders.items(), (64, 1024)):
        if name == "qwen3-embedding" and cache == 64:
            continue
        options = (*first, ("cache_len", cache))
        cases.append(Case(f"models/{name}/decode{cache}", model=model, options=options, terms=terms, stores=2))
    return cases


def gelu_expression() -> str:
    return "0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))"


def blog_cases() -> list[Case]:
    """The six validation cases published with the first Emmy."""
    cases = [
        Case(
            "blog/rms_norm_32x2048",
            program(rand("x", "f32", 1, 32, 2048), rand("w", "f32", 2048), "F.rms_norm(x, (2048,), w, 1e-6)"),
            terms=2048,
        ),
        Case(
            "blog/softmax_28x2048x2048",
            program(rand("x", "f32", 1, 28, 2048, 2048), "F.softmax(x, dim=-1)"),
            terms=2048,
        ),
    ]
    for rows in (32, 512):
        cases.append(Case(f"blog/gelu_{rows}x18944", program(rand("x", "f32", rows, 18944), gelu_expression())))
        linear = program(rand("x", "f32", rows, 3584), rand("w", "f32", 3584, 3584), "F.linear(x, w)")
        cases.append(Case(f"blog/linear_{rows}x3584x3584", linear, terms=3584))
    return cases


def shape_cases() -> list[Case]:
    """Every operation over odd rows and columns in three types."""
    cases: list[Case] = []
    for dtype, m, n in itertools.product(DTYPES, ROWS, COLUMNS):
        x, w, b = rand("x", dtype, m, n), rand("w", dtype, n), rand("b", dtype, n)
        y, many = rand("y", dtype, m, n), rand("w", dtype, 33, n)
        code = {
            "rms_norm": (n, program(x, w, f"F.rms_norm(x, ({n},), w, 1e-6)")),
            "layer_norm": (n, program(x, w, b, f"F.layer_norm(x, ({n},), w, b)")),
            "softmax": (n, program(x, "F.softmax(x, dim=-1)")),
            "linear": (n, program(x, many, rand("b", dtype, 33), "F.linear(x, w, b)")),
            "gelu": (1, program(x, "F.gelu(x)")),
            "gelu_tanh": (1, program(x, "F.gelu(x, approximate='tanh')")),
            "swiglu": (1, program(x, y, "F.silu(x) * y")),
            "sum": (n, program(x, "x.sum(-1)")),
            "sum_rows": (m, program(x, "x.sum(0)")),
            "mean": (n, program(x, "x.mean(-1)")),
            "max": (1, program(x, "x.amax(-1)")),
            "argmax": (1, program(x, "x.argmax(-1)")),
            "cumsum": (n, program(x, "x.cumsum(-1)")),
            "transpose": (1, program(x, rand("y", dtype, n, m), "x.t() + y")),
            "cat": (1, program(x, y, "torch.cat([x, y], -1)")),
            "embedding": (
                1,
                program(f"i=torch.randint({n}, (2, 5))", rand("w", dtype, n, 33 * m), "F.embedding(i, w)"),
            ),
        }
        # swiglu rounds the gate to the type before it multiplies; a kernel that keeps it errs less
        for op, (terms, text) in code.items():
            cases.append(Case(f"shapes/{op}/{m}x{n}/{dtype}", text, terms=terms, stores=int(op == "swiglu")))
    return cases


def attention(dtype: str, heads: int, kv: int, queries: int, keys: int, head: int, causal: bool) -> str:
    q = rand("q", dtype, 2, heads, queries, head)
    k, v = (rand(x, dtype, 2, kv, keys, head) for x in "kv")
    more = (", is_causal=True" if causal else "") + (", enable_gqa=True" if kv != heads else "")
    return program(q, k, v, f"F.scaled_dot_product_attention(q, k, v{more})")


def attention_cases() -> list[Case]:
    cases: list[Case] = []
    for dtype, head, causal, kv in itertools.product(DTYPES, (64, 128), (False, True), (4, 2)):
        for queries, keys in ((33, 33), (128, 128), (512, 512)) if causal else ((1, 77), (33, 130), (128, 512)):
            kind = f"{'causal' if causal else 'full'}_h4g{kv}_{queries}x{keys}x{head}"
            code = attention(dtype, 4, kv, queries, keys, head, causal)
            cases.append(Case(f"attention/{kind}/{dtype}", code, terms=max(keys, head), stores=1))
    return cases


def row_cases(sample: int) -> list[Case]:
    """Bodies whose legal rows are sampled, so that every family is met by several of them."""

    def one(name: str, *lines: str, terms: int = 1, stores: int = 0, place: str = "") -> Case:
        return Case(f"bodies/{name}", program(*lines), terms=terms, stores=stores, place=place, sample=sample)

    return [
        one("swiglu_bf16", rand("x", "bf16", 64, 1024), rand("y", "bf16", 64, 1024), "F.silu(x) * y", stores=1),
        one("gelu_f32", rand("x", "f32", 33, 4097), gelu_expression()),
        one("add_transposed_f16", rand("x", "f16", 77, 136), rand("y", "f16", 136, 77), "x.t() + y"),
        one("softmax_f32", rand("x", "f32", 33, 2304), "F.softmax(x, dim=-1)", terms=2304),
        one(
            "rms_norm_bf16",
            rand("x", "bf16", 33, 4096),
            rand("w", "bf16", 4096),
            "F.rms_norm(x, (4096,), w, 1e-6)",
            terms=4096,
        ),
        one(
            "layer_norm_f16",
            rand("x", "f16", 7, 4097),
            rand("w", "f16", 4097),
            rand("b", "f16", 4097),
            "F.layer_norm(x, (4097,), w, b)",
            terms=4097,
        ),
        one("linear_f32", rand("x", "f32", 96, 256), rand("w", "f32", 192, 256), "F.linear(x, w)", terms=256),
        one(
            "linear_odd_f32",
            rand("x", "f32", 33, 77),
            rand("w", "f32", 130, 77),
            rand("b", "f32", 130),
            "F.linear(x, w, b)",
            terms=77,
        ),
        one("matmul_f32", rand("x", "f32", 3, 64, 128), rand("y", "f32", 3, 128, 96), "x @ y", terms=128),
        one("linear_bf16", rand("x", "bf16", 128, 512), rand("w", "bf16", 256, 512), "F.linear(x, w)", terms=512),
        one(
            "linear_odd_f16",
            rand("x", "f16", 77, 264),
            rand("w", "f16", 136, 264),
            rand("b", "f16", 136),
            "F.linear(x, w, b)",
            terms=264,
        ),
        one(
            "linear_gelu_bf16",
            rand("x", "bf16", 64, 256),
            rand("w", "bf16", 512, 256),
            "F.gelu(F.linear(x, w), approximate='tanh')",
            terms=256,
            stores=1,
            place="fuse",
        ),
        one(
            "rms_linear_bf16",
            rand("x", "bf16", 64, 256),
            rand("g", "bf16", 256),
            rand("w", "bf16", 128, 256),
            "F.linear(F.rms_norm(x, (256,), g, 1e-6), w)",
            terms=256,
            stores=2,
            place="fuse",
        ),
        one("attention_f32", attention("f32", 4, 4, 64, 128, 64, False), terms=128, stores=1, place="fuse"),
        one("attention_bf16", attention("bf16", 4, 2, 128, 128, 64, True), terms=128, stores=2, place="fuse"),
        one("attention_f16", attention("f16", 4, 4, 96, 160, 128, False), terms=160, stores=2, place="fuse"),
        one("cumsum_f32", rand("x", "f32", 33, 2304), "x.cumsum(-1)", terms=2304),
        one("cumsum_bf16", rand("x", "bf16", 7, 4097), "x.cumsum(-1)", terms=4097),
        one("embedding_bf16", "i=torch.randint(1000, (4, 33))", rand("w", "bf16", 1000, 136), "F.embedding(i, w)"),
        one("sum_rows_f32", rand("x", "f32", 2304, 77), "x.sum(0)", terms=2304),
    ]


def all_cases(sample: int = 10) -> list[Case]:
    """Long ones first, so that none is left to the end."""
    return [*model_cases(), *blog_cases(), *row_cases(sample), *attention_cases(), *shape_cases()]
