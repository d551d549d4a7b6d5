"""The commands of the tutorial texts, with the facts that these show: shapes, folds, places, marks, rows, launches.

Spelling of names, the order of operands of commuting operations and the default row of a card are ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from tests.cli.conftest import Emmy

pytestmark = pytest.mark.nvrtc

NORM = "nn.RMSNorm(2048,eps=1e-6)(torch.randn(1,32,2048))"
NORM_2304 = "torch.nn.RMSNorm(2304,eps=1e-6)(torch.randn(1,512,2304))"
CHAIN = "torch.exp(torch.neg(torch.randn(8)))"
CUT = "a=torch.randn(16,64)\nb=torch.randn(64,64)\nc=torch.randn(64,16)\n(a@b)@c"
ATTENTION = (
    "q=torch.randn(1,1,16,16)\nk=torch.randn(1,1,16,16)\nv=torch.randn(1,1,16,16)\n"
    "torch.nn.functional.scaled_dot_product_attention(q,k,v)"
)
ATTENTION_ROW = {"EMMY_KNOBS": "WORK=t32,TILE=f1,REDUCE=,STAGE="}
MATMUL = "torch.matmul(\n    torch.randn(128,128,dtype=torch.float16),\n    torch.randn(128,128,dtype=torch.float16))"
TMA_ROWS = (
    "WORK=w1x2,TILE=mma_m16n8k16_f16_f32/f1x1/k8,REDUCE=,STAGE=d3/smem-tma,RASTER=",
    "WORK=w2x2,TILE=mma_m16n8k16_f16_f32/f2x2/k4,REDUCE=,STAGE=d2/smem-tma,RASTER=",
)


@dataclass(frozen=True)
class Seed:
    """A command, patterns that its output holds in this order, and texts that it must not hold."""

    arguments: tuple[str, ...]
    shows: tuple[str, ...]
    never: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def compile_(code: str, *options: str) -> tuple[str, ...]:
    return ("compile", "-c", code, *options)


SEEDS = {
    "torch-norm": Seed(
        compile_(NORM, "--ir", "torch"),
        (
            r"struct Dynamic \{\}",
            r"struct Inputs<dynamic: Dynamic> \{\n    x: f32\[1,32,2048\],\n\}",
            r"struct Outputs<dynamic: Dynamic> \{\n    rms_norm: f32\[1,32,2048\],\n\}",
            r"fn main\(dynamic: Dynamic, inputs: Inputs<dynamic>\) -> Outputs<dynamic> \{",
            r"  // constants",
            r'let p_weight: f32\[2048\] = load\("weight"\);',
            r"let rms_norm_c\d: f32\[1\] = 1e-06;",
            r"let rms_norm: f32\[1,32,2048\] = rms_norm\(inputs\.x, .*p_weight, .*1e-06\);",
            r"Outputs \{ rms_norm \}",
        ),
    ),
    "tensor-linear": Seed(
        compile_("nn.Linear(3, 2, bias=False)(torch.randn(4, 3))", "--ir", "tensor"),
        (
            r"f32\[4,3,2\] = emmy::index_map_simple\(inputs\.input, \|i, j, _k\| \[i, j\]\);",
            r"f32\[4,3,2\] = emmy::index_map_simple\(p_weight, \|_i, j, k\| \[k, j\]\);",
            r"f32\[4,3,2\] = \w+ \* \w+;",
            r"f32\[4,1,2\] = sum\(\w+, axis=-2\);",
        ),
    ),
    "tensor-matmul": Seed(
        compile_("x=torch.randn(4,3); w=torch.randn(3,2); x @ w", "--ir", "tensor"),
        (
            r"f32\[4,3,2\] = emmy::index_map_simple\(inputs\.x, \|i, j, _k\| \[i, j\]\);",
            r"f32\[4,3,2\] = emmy::index_map_simple\(inputs\.w, \|_i, j, k\| \[j, k\]\);",
            r"f32\[4,3,2\] = \w+ \* \w+;",
            r"f32\[4,1,2\] = sum\(\w+, axis=-2\);",
        ),
    ),
    "tensor-norm": Seed(
        compile_(NORM, "--ir", "tensor"),
        (
            r"f32\[1,32,2048\] = inputs\.x \* inputs\.x;",
            r"f32\[1,32,1\] = sum\(\w+, axis=-1\);",
            r"f32\[1,32,1\] = \w+ / \w+;",
            r"f32\[1,32,1\] = \w+ \+ 1e-06;",
            r"f32\[1,32,1\] = rsqrt\(\w+\);",
            r"f32\[1,32,2048\] = emmy::index_map_simple\(\w+, \|i, j, _k\| \[i, j, 0\]\);",
            r"f32\[1,32,2048\] = inputs\.x \* \w+;",
            r"f32\[1,32,2048\] = emmy::index_map_simple\(p_weight, \|_i, _j, k\| \[k\]\);",
            r"let rms_norm: f32\[1,32,2048\] = \w+ \* \w+;",
        ),
    ),
    "loop-one-launch-an-operation": Seed(
        compile_(CHAIN, "--passes", "dol", "--ir", "loop"),
        (
            r"=== 0: neg ===\n *for a0 in 0\.\.8\n *in0 = load x\[a0\]\n *v0 = -in0\n *neg\[a0\] = v0\n",
            r"=== 1: exp ===\n *for a0 in 0\.\.8\n *in0 = load neg\[a0\]\n *v0 = exp\(in0\)\n *exp\[a0\] = v0\n",
        ),
    ),
    "loop-merge": Seed(
        compile_(CHAIN, "-vv", "--ir", "loop"),
        (
            r">>> f:(\w+)\n@@ matched at neg @@\n@@ -1,10 \+1,6 @@\n-neg = LoopOp\(x\)\n\+exp = LoopOp\(x\)\n",
            r"-          neg\[a0\] = v0\n-exp = LoopOp\(neg\)",
            r"-          in0 = load neg\[a0\]",
            r"\+          v1 = exp\(v0\)",
            r"<<< f:",
        ),
    ),
    "loop-norm": Seed(
        compile_(NORM, "--ir", "loop"),
        (
            r"=== 0: k_rms_norm ===",
            r"for a0 in 0\.\.32\n",
            r"    for a1 in 0\.\.2048\n",
            r"load x\[0, a0, a1\]",
            r"acc0 \+= v0",
            r"= acc0 / 2048",
            r"= rsqrt\(v2\)",
            r"    for a2 in 0\.\.2048\n",
            r"load x\[0, a0, a2\]",
            r"load p_weight\[a2\]",
            r"rms_norm\[0, a0, a2\] = v5",
        ),
        ("=== 1:",),
    ),
    "tensor-duplicate": Seed(
        compile_("x=torch.randn(8); (x*x)+(x*x)", "--ir", "tensor"),
        (r"let mul: f32\[8\] = inputs\.x \* inputs\.x;", r"let add: f32\[8\] = mul \+ mul"),
    ),
    "loop-duplicate": Seed(
        compile_("x=torch.randn(8); (x*x)+(x*x)", "--ir", "loop"),
        (
            r"^=== 0: k_add_pointwise ===\n *for a0 in 0\.\.8\n *in0 = load x\[a0\]\n",
            r" *v0 = in0 \* in0\n *v1 = v0 \+ v0\n *add\[a0\] = v1\n$",
        ),
    ),
    "tile-norm": Seed(
        compile_(NORM, "--target", "sm_120", "--ir", "tile"),
        (
            r"=== 0: k_rms_norm ===",
            r"place  free=\(a0\)  grid=\(a0\)",
            r"work   t\d+",
            r"Fold  free\n",
            r"├─ operand\[v3\]: Fold  free   ‹computed›",
            r"│  ├─ operand\[acc0\]: Fold\[a1 in 0\.\.2048\] reduce .*⟨REDUCE=coop.*⟩   ‹computed›",
            r"load x\[0, a0, a1\]   ‹materialized›",
            r"init: \(0\)",
            r"lift: λ\(a1, in\d\) -> \(v0\)",
            r"combine: λ\(acc0, acc0__o\) -> \(acc0\)",
            r"acc0 \+= acc0__o",
            r"lift: λ\(acc0\) -> \(v3\)",
            r"v1 = acc0 / 2048",
            r"v3 = rsqrt\(v2\)",
            r"lift: λ\(v3, a0, a2\) -> \(v5\)",
            r"load p_weight\[a2\]",
            r"outputs\n",
            r"sweep\(a2\) rms_norm\[0, a0, a2\] = v5",
        ),
        ("unmapped", "=== 1:"),
    ),
    "tile-fused-products": Seed(
        compile_(CUT, "--target", "sm_120", "--passes", "dolfstp", "--ir", "tile"),
        (
            r"place  free=\(\w+,\w+\)  unmapped",
            r"Fold\[\w+ in 0\.\.64\] contraction",
            r"operand\[\w+\]: Fold\[\w+ in 0\.\.64\] contraction   ‹computed›",
            r"load b\[",
            r"load a\[",
            r"load c\[",
        ),
        ("=== 1:", "work "),
        {"EMMY_PLACE": "fuse"},
    ),
    "tile-cut-products": Seed(
        compile_(CUT, "--target", "sm_120", "--passes", "dolfstp", "--ir", "tile"),
        (
            r"=== 0:",
            r"place  free=\(\w+,\w+\)  unmapped",
            r"Fold\[\w+ in 0\.\.64\] contraction",
            r"load a\[",
            r"load b\[",
            r"outputs\n *└─ (\w+)\[",
            r"=== 1:",
            r"place  free=\(\w+,\w+\)  unmapped",
            r"operand\[\w+\]: load \w+\[.*\]   ‹materialized›",
            r"load c\[",
        ),
        ("‹computed›", "=== 2:", "work "),
        {"EMMY_PLACE": "cut"},
    ),
    "kernel-norm": Seed(
        compile_(NORM, "--ir", "kernel"),
        (
            r"=== 0: k_rms_norm ===",
            r"grid=\(\d+, 1, 1\)",
            r"for .*\n",
            r"acc0 \+= v0",
            r"shuffle .*acc0 xor",
            r"sync",
            r"rsqrt",
            r"rms_norm\[",
        ),
    ),
    "cuda-norm": Seed(
        compile_(NORM, "--ir", "cuda"),
        (
            r'extern "C" __global__ void .*\nk_rms_norm\(',
            r"__shared__",
            r"__shfl_xor_sync",
            r"__syncthreads\(\)",
            r"rsqrtf\(",
        ),
    ),
    "loop-attention": Seed(
        compile_(ATTENTION, "--target", "sm_120", "--ir", "loop"),
        (
            r"=== 0: k_sdpa ===",
            r"for a0 in 0\.\.16\n",
            r"acc1 \+= v0\n",
            r"= 0\.25 \* acc1",
            r"acc0 = max\(acc0, v1\)",
            r"= exp\(v4\)",
            r"acc2 \+= v5",
            r"load v\[0, 0, a6, a1\]",
            r"v\d+ = v\d+ / acc2",
            r"acc4 \+= v13",
            r"scaled_dot_product_attention\[0, 0, a0, a1\] = acc4",
        ),
        ("=== 1:", "online"),
        ATTENTION_ROW,
    ),
    "tile-attention": Seed(
        compile_(ATTENTION, "--target", "sm_120", "--ir", "tile"),
        (
            r"place  free=\(a0,a1\)  grid=\(a0,a1\)",
            r"work   t32\n",
            r"Fold\[\w+ in 0\.\.16\] contraction   <twist=softmax>",
            r"Fold\[\w+ in 0\.\.16\] contraction   ⟨TILE=f1⟩",
            r"load k\[",
            r"load q\[",
            r"load v\[",
            r"init: \(-infinity, 0\)",
        ),
        ("=== 1:",),
        ATTENTION_ROW,
    ),
    "cuda-attention": Seed(
        compile_(ATTENTION, "--target", "sm_120", "--ir", "cuda"),
        (
            r"attention WORK=t32,TILE=f1,REDUCE=,STAGE=",
            r"for \(int t = 0; t < 16; \+\+t\) \{\n",
            r"    for \(int \w+ = 0; \w+ < 16; ",
            r"0\.25f \*",
            r"max_f32\(",
            r"expf\(",
            r"expf\(",
            r"scaled_dot_product_attention\[",
        ),
        ("k_sdpa_reduce",),
        ATTENTION_ROW,
    ),
    "cuda-norm-one-sum": Seed(
        compile_(NORM_2304, "--target", "sm_120", "--ir", "cuda"),
        (r"WORK=t256,TILE=\w*,REDUCE=coop,", r"__launch_bounds__\(256\)", r"float acc0 = 0\.0f;\n", r"/ 2304\.0f"),
        ("float acc1",),
        {"EMMY_KNOBS": "WORK=t256,REDUCE=coop"},
    ),
    "cuda-norm-two-sums": Seed(
        compile_(NORM_2304, "--target", "sm_120", "--ir", "cuda"),
        (
            r"WORK=t256,TILE=\w*,REDUCE=coop/r2,",
            r"float acc0 = 0\.0f;\n *float acc1 = 0\.0f;",
            r"acc0 \+= v0;",
            r"acc1 \+= v1;",
            r"acc0 \+= acc1;",
        ),
        (),
        {"EMMY_KNOBS": "WORK=t256,REDUCE=coop/r2"},
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_command_shows_the_same_facts(emmy: Emmy, name: str) -> None:
    seed = SEEDS[name]
    done = emmy(*seed.arguments, **seed.environment)
    assert done.code == 0, done.err
    at = 0
    for pattern in seed.shows:
        found = re.compile(pattern).search(done.out, at)
        assert found, f"{pattern!r} is not in (or is too early in)\n{done.out}"
        at = found.end()
    assert [text for text in seed.never if text in done.out] == []


def test_equivalent_spellings_print_one_body(emmy: Emmy) -> None:
    codes = ("x=torch.randn(8); y=torch.randn(8); x+x+y", "x=torch.randn(8); y=torch.randn(8); y+(x+x)")
    one, other = (emmy("compile", "-c", code, "--ir", "loop").out for code in codes)
    assert one == other
    assert one.startswith("=== 0: k_add_1_pointwise ===") and one.count("load x[a0]") == one.count("load y[a0]") == 1


@pytest.mark.slow
def test_a_layer_of_the_example_model_dumps_every_stage(emmy: Emmy, tmp_path) -> None:
    dumped = tmp_path / "emmy-dump"
    layer = ("Qwen/Qwen3-Embedding-0.6B", "--layer", "0", "--seq-len", "64", "--target", "sm_89", "--no-check")
    done = emmy("compile", *layer, "--ir", "tile", "-vv", EMMY_DUMP_DIR=str(dumped))
    assert done.code == 0, done.err
    assert "random weights" in done.err
    assert len(sorted(dumped.glob("0*"))) == 10 and list((dumped / "kernels").glob("*.cu"))
    fused = re.findall(r"^>>> f:(.*)\n@@ matched at (\w+) @@$", done.out, re.M)
    assert {rule for rule, _ in fused} >= {"grow", "fuse"}
    assert "place  free=" in done.out


@pytest.mark.parametrize("row", TMA_ROWS, ids=["w1x2", "w2x2"])
def test_rows_that_stage_by_tma(emmy: Emmy, row: str) -> None:
    done = emmy("compile", "-c", MATMUL, "--target", "sm_120", "--ir", "tile", EMMY_KNOBS=row)
    assert done.code == 0 and "⟨STAGE=" in done.out


@pytest.mark.gpu
def test_tuning_before_a_run(emmy: Emmy, tmp_path) -> None:
    database = {"EMMY_TUNE_DB": str(tmp_path / "tune.db")}
    done = emmy("run", "--bench", "--tune", "12", "-c", NORM_2304, **database)
    assert done.code == 0, done.out + done.err
    found = re.search(
        r"k_rms_norm: found (\d+) legal rows and timed 12 of them\. The fastest took ([\d.]+) us", done.out
    )
    assert found and int(found[1]) > 12
    # what was measured decides what compile and a later run choose
    compiled = emmy("compile", "--ir", "tile", "-c", NORM_2304, **database)
    assert compiled.code == 0 and "work   t" in compiled.out
    strict = emmy("run", "--bench", "--strict-evidence", "-c", NORM_2304, **database)
    assert strict.code == 0, strict.out + strict.err


def test_tuning_before_a_run_needs_a_gpu(emmy: Emmy, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = emmy("run", "--bench", "--tune", "12", "-c", NORM_2304)
    assert done.code == 1 and "needs a GPU" in done.err


BENCH = ("--bench", "--bench-backends", "eager,tcompile,emmy", "-c")
GELU = "x=torch.randn({},18944);0.5*x*(1+torch.tanh(0.797*(x+0.044*x*x*x)))"
LINEAR = "nn.Linear(3584,3584,bias=False)(torch.randn({},3584))"
RUNS = {
    "norm": (*BENCH, NORM),
    "gelu-32": (*BENCH, GELU.format(32)),
    "gelu-512": (*BENCH, GELU.format(512)),
    "softmax": (*BENCH, "torch.nn.Softmax(dim=-1)(torch.randn(1,28,2048,2048))"),
    "linear-32": (*BENCH, LINEAR.format(32)),
    "linear-512": (*BENCH, LINEAR.format(512)),
    "attention": ("-c", ATTENTION),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNS)
def test_run_command_gives_right_values(emmy: Emmy, name: str) -> None:
    done = emmy("run", *RUNS[name], **(ATTENTION_ROW if name == "attention" else {}))
    assert done.code == 0, done.out + done.err
    assert ": ok: f32" in done.out
    if "--bench" in RUNS[name]:
        assert re.search(r"^emmy +\d+\.\d+ ", done.out, re.M) and re.search(r"^eager +\d+\.\d+ ", done.out, re.M)


@pytest.mark.parametrize("name", [n for n in RUNS if n != "softmax"])
def test_run_command_compiles_for_a_card_that_is_not_here(emmy: Emmy, name: str) -> None:
    done = emmy("compile", "-c", RUNS[name][-1], "--target", "sm_120", **(ATTENTION_ROW if name == "attention" else {}))
    assert done.code == 0 and "1 launch of 1 kernel" in done.out
