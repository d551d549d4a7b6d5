"""Loop, Tile and Kernel IR print as the tutorial shows them."""

from __future__ import annotations

from emmy.codegen.lower import lower
from emmy.ir.config import KernelConfig
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.show_kernel import show_kernel
from emmy.ir.show_loop import show_loop
from emmy.ir.target import target
from emmy.ir.tile import show_tile
from tests import bodies as B
from tests.codegen import small as K

NAMES = (("x", "p_weight"), ("rms_norm",))
ROW = Row.parse("WORK=t256,TILE=,REDUCE=coop,STAGE=,RASTER=")
SCHEDULED = Scheduled("row", ROW, KernelConfig("row", 256, 32))


def test_rms_norm_as_loops() -> None:
    assert (
        show_loop(K.rms_norm(32, 2048), *NAMES)
        == """\
for a0 in 0..32
    for a1 in 0..2048
        in0 = load x[a0, a1]
        v0 = in0 * in0
        acc0 += v0
    v1 = acc0 / 2048
    v2 = 1e-06 + v1
    v3 = rsqrt(v2)
    for a2 in 0..2048
        in1 = load x[a0, a2]
        v4 = in1 * v3
        in2 = load p_weight[a2]
        v5 = v4 * in2
        rms_norm[a0, a2] = v5"""
    )


def test_rms_norm_as_a_fold_tree() -> None:
    assert (
        show_tile(K.rms_norm(32, 2048), SCHEDULED, *NAMES)
        == """\
place  free=(a0)  grid=(a0)
work   t256
Fold  free
├─ operand[v3]: Fold  free   ‹computed›
│  ├─ operand[acc0]: Fold[a1 in 0..2048] reduce   ⟨REDUCE=coop⟩   ‹computed›
│  │  ├─ operand[in0]: load x[a0, a1]   ‹materialized›
│  │  ├─ init: (0)
│  │  ├─ lift: λ(a1, in0) -> (v0)
│  │  │    v0 = in0 * in0
│  │  └─ combine: λ(acc0, acc0__o) -> (acc0)
│  │       acc0 += acc0__o
│  └─ lift: λ(acc0) -> (v3)
│       v1 = acc0 / 2048
│       v2 = 1e-06 + v1
│       v3 = rsqrt(v2)
└─ lift: λ(v3, a0, a2) -> (v5)
     in1 = load x[a0, a2]
     v4 = in1 * v3
     in2 = load p_weight[a2]
     v5 = v4 * in2
outputs
└─ sweep(a2) rms_norm[a0, a2] = v5"""
    )


def test_a_product_is_one_contraction_and_unmapped_before_a_row_is_chosen() -> None:
    assert (
        show_tile(B.linear(16, 64, 32, "f32"), None, ("b", "a"), ("hidden",))
        == """\
place  free=(a0,a1)  unmapped
Fold[a2 in 0..32] contraction
├─ operand[in0]: load b[a1, a2]   ‹materialized›
├─ operand[in1]: load a[a0, a2]   ‹materialized›
├─ init: (0)
├─ lift: λ(a2, in0, in1) -> (v0)
│    v0 = in0 * in1
└─ combine: λ(acc0, acc0__o) -> (acc0)
     acc0 += acc0__o
outputs
└─ hidden[a0, a1] = acc0"""
    )


def test_attention_shows_one_twisted_contraction_over_a_contraction() -> None:
    text = show_tile(B.attention(1, 1, 1, 16, 16, 16, dtype="f32"))
    assert text.count("contraction   <twist=softmax>") >= 1
    assert text.count("] contraction   ‹computed›") >= 1


def test_folds_of_one_row_share_a_loop() -> None:
    assert show_loop(K.layer_norm(4, 8)).count("for ") == 3


def test_running_folds_end_where_they_stand() -> None:
    assert "for a2 in 0..a1 + 1" in show_loop(K.cumulative(3, 5))


def test_every_body_prints() -> None:
    bodies = (K.rotary(3, 2, 8), K.embedding(3, 9, 4), K.positions(2, 3), K.two_spaces(2, 3))
    for body in (*bodies, K.channel_statistics(2, 3, 4)):
        assert "y0[" in show_loop(body)
        assert "place  free=" in show_tile(body)


def test_kernel_ir_says_what_a_launch_needs() -> None:
    text = show_kernel(lower(K.rms_norm(32, 2048), "row", ROW, target("sm_120a"), "k_rms_norm", *NAMES))
    assert text.startswith("kernel k_rms_norm  grid=(32, 1, 1)  threads=256  smem=128")
    for line in ("smem f32 acc0_s[1, 8]", "shuffle other0 = acc0 xor offset", "sync", "acc0 += v0"):
        assert line in text
