import re
from pathlib import Path

import pytest

from tests.cli.conftest import Emmy

CHAIN = "torch.exp(torch.neg(torch.randn(8)))"
FEW_ROWS = "F.linear(torch.randn(16, 2048).bfloat16(), torch.randn(512, 2048).bfloat16())"
NORM = "nn.RMSNorm(64)(torch.randn(4, 64))"
LONG_NORM = "nn.RMSNorm(512)(torch.randn(4, 512))"
IRS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")


@pytest.mark.parametrize("ir", IRS)
def test_every_stage_is_printed_on_stdout_alone(emmy: Emmy, ir: str) -> None:
    done = emmy("compile", "-c", NORM, "--target", "sm_89", "--no-check", "--ir", ir)
    assert done.code == 0 and done.err == ""
    assert "rms_norm" in done.out


def test_an_unknown_stage_lists_those_there_are(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", CHAIN, "--ir", "ptx")
    assert refused.code == 2 and all(ir in refused.err for ir in IRS)


def test_rows_whose_sums_come_in_any_order_are_asked_for(emmy: Emmy) -> None:
    asked = ("compile", "-c", FEW_ROWS, "--target", "sm_89", "--no-check", "--ir", "tile", "--pin", "REDUCE=g4a")
    refused, wrong = emmy(*asked), emmy(*asked, "--allow", "bf16")
    assert refused.code == 2 and "--allow atomics" in refused.err
    assert wrong.code == 2 and "'bf16' cannot be allowed" in wrong.err
    for allow in (("--allow", "tf32", "--allow", "atomics"), ("--allow", "tf32,atomics")):
        done = emmy(*asked, *allow)
        assert done.code == 0 and "REDUCE=g4a" in done.out


def test_a_stage_after_the_last_pass_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", CHAIN, "--passes", "dol", "--ir", "tile")
    assert refused.code == 2 and "tile" in refused.err and "dol" in refused.err


def test_passes_that_are_no_prefix_are_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", CHAIN, "--passes", "dlo")
    assert refused.code == 2 and "dolfstpkc" in refused.err


@pytest.mark.parametrize(
    ("passes", "names"), [("dol", ["neg", "exp"]), ("dolf", ["exp"]), ("dolfs", ["k_exp_pointwise"])]
)
def test_a_prefix_of_the_passes_stops_there(emmy: Emmy, passes: str, names: list[str]) -> None:
    done = emmy("compile", "-c", CHAIN, "--passes", passes, "--ir", "loop")
    assert re.findall(r"^=== \d+: (\w+) ===$", done.out, re.M) == names


def test_without_the_optimization_pass_no_rule_of_it_applies(emmy: Emmy) -> None:
    code = "torch.randn(4, 8).T.T.reshape(8, 4)"
    one, both = (emmy("compile", "-c", code, "--passes", p, "--ir", "tensor").out for p in ("d", "do"))
    assert one.count("index_map_simple") == 3
    assert both.count("index_map_simple") == 1


def test_timings_and_counts_go_to_stderr(emmy: Emmy) -> None:
    done = emmy("compile", "-c", NORM, "--target", "sm_89", "--ir", "loop", "-v")
    assert re.search(r"^model/fuse +\d+\.\d+ s$", done.err, re.M)
    assert re.search(r"^decompose-rms-norm +\d+ x$", done.err, re.M)
    assert done.out.startswith("=== 0: k_rms_norm ===")


def test_rewrites_are_diffs_between_markers_in_pass_order(emmy: Emmy) -> None:
    done = emmy("compile", "-c", NORM, "--target", "sm_89", "--no-check", "-vv")
    opened = re.findall(r"^>>> (\w:[\w-]+)$", done.out, re.M)
    closed = re.findall(r"^<<< (\w:[\w-]+)$", done.out, re.M)
    letters = [name[0] for name in opened]
    assert opened == closed
    assert letters == sorted(letters, key="dolfstpkc".index)
    assert {"d:decompose-rms-norm", "l:lift-reduce", "f:grow", "f:fuse", "s:name"} <= set(opened)
    assert {letters[-2], letters[-1]} == {"k", "c"}


def test_a_decomposition_shows_the_operation_and_its_primitives(emmy: Emmy) -> None:
    done = emmy("compile", "-c", "nn.RMSNorm(64)(torch.randn(4, 64))", "--passes", "d", "-vv")
    block = done.out[done.out.index(">>> d:") : done.out.index("<<< d:")].splitlines()
    assert block[1] == "@@ matched at rms_norm @@"
    removed, added = ([l[1:] for l in block[2:] if l[0] == sign] for sign in "-+")
    assert len(removed) == 1 and " = rms_norm(inputs.x, " in removed[0]
    assert [w for w in ("sum(", "rsqrt(", "p_weight") if not any(w in line for line in added)] == []
    assert added[-1].startswith("let rms_norm: f32[4,64] = ")


def test_a_scale_that_leaves_a_sum_is_shown_as_a_better_body(emmy: Emmy) -> None:
    code = "nn.Linear(64, 32, bias=False)(nn.RMSNorm(64)(torch.randn(4, 64)))"
    done = emmy("compile", "-c", code, "--no-check", "-vv", EMMY_PLACE="fuse")
    assert ">>> t:equal-body" in done.out and "@@ matched at k_rms_norm_linear @@" in done.out


def test_every_stage_is_dumped_in_pass_order(emmy: Emmy, tmp_path: Path) -> None:
    done = emmy("compile", "-c", CHAIN, "--target", "sm_89", "--ir", "loop", EMMY_DUMP_DIR=str(tmp_path / "dump"))
    assert sorted(p.name for p in (tmp_path / "dump").iterdir() if p.is_file()) == [
        "00-torch.txt", "01-decomposition.txt", "02-optimization.txt", "03-lifting.txt", "04-fusion.txt",
        "05-stamping.txt", "06-tile.txt", "07-placement.txt", "08-kernel.txt", "09-cuda.cu",
    ]  # fmt: skip
    read = {p.name: p.read_text() for p in (tmp_path / "dump").iterdir() if p.is_file()}
    assert read["03-lifting.txt"].count("===\n") == 2 and read["04-fusion.txt"].count("===\n") == 1
    assert "=== 0: exp ===" in read["04-fusion.txt"] and read["05-stamping.txt"] == done.out
    assert "unmapped" in read["06-tile.txt"] and "grid=" in read["07-placement.txt"]
    assert (tmp_path / "dump/kernels/k_exp_pointwise.cu").read_text() in read["09-cuda.cu"]
    assert "dump" in done.err


def test_a_dump_after_few_passes_holds_those(emmy: Emmy, tmp_path: Path) -> None:
    emmy("compile", "-c", CHAIN, "--passes", "do", EMMY_DUMP_DIR=str(tmp_path / "dump"))
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == [
        "00-torch.txt", "01-decomposition.txt", "02-optimization.txt",
    ]  # fmt: skip


def test_a_pin_is_honoured_from_either_place_and_the_option_wins(emmy: Emmy) -> None:
    shown = [
        emmy("compile", "-c", LONG_NORM, "--target", "sm_89", "--no-check", "--ir", "tile", *options, **environment).out
        for options, environment in (
            (("--pin", "WORK=t32,REDUCE=coop"), {}),
            ((), {"EMMY_KNOBS": "WORK=t32,REDUCE=coop"}),
            (("--pin", "WORK=t32,REDUCE=coop"), {"EMMY_KNOBS": "WORK=t128"}),
        )
    ]
    assert shown[0] == shown[1] == shown[2]
    assert "work   t32" in shown[0] and "REDUCE=coop" in shown[0]


def test_a_pin_that_no_launch_can_honour_is_wrong_usage_and_shows_near_rows(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", CHAIN, "--pin", "WORK=w2x2")
    assert refused.code == 2 and "WORK=w2x2" in refused.err and "WORK=t" in refused.err


def test_a_pin_decides_which_launches_there_are(emmy: Emmy) -> None:
    code = "F.scaled_dot_product_attention(*(torch.randn(1, 2, 32, 16) for _ in range(3)))"
    done = emmy("compile", "-c", code, "--target", "sm_89", "--no-check", "--ir", "tile", "--pin", "WORK=t32,TILE=f4")
    assert done.out.count("===\n") == 1 and "<twist=softmax>" in done.out


def test_a_misspelt_placement_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", CHAIN, EMMY_PLACE="fused")
    assert refused.code == 2 and "EMMY_PLACE" in refused.err


def test_cuda_output_is_a_source_file(emmy: Emmy) -> None:
    from emmy.runtime.nvrtc import compile_cubin

    done = emmy("compile", "-c", NORM, "--target", "sm_89", "--ir", "cuda")
    assert compile_cubin(done.out, "k_rms_norm", "sm_89").registers > 0


def test_a_program_without_kernels_says_so(emmy: Emmy) -> None:
    assert "inputs or constants" in emmy("compile", "-c", "x=torch.randn(8); x", "--ir", "cuda").out
    assert "sorting" in emmy("compile", "-c", "torch.sort(torch.randn(8))", "--ir", "loop").out


def test_a_rule_that_is_not_there_cannot_be_held(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", "torch.neg(torch.randn(8))", "--hold", "no-such-rule")
    assert refused.code == 2 and "no-such-rule" in refused.err and refused.out == ""
