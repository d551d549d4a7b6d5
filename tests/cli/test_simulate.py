import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.conftest import Emmy

NORM = "nn.RMSNorm(64)(torch.randn(4, 64))"
LINEAR = "x=torch.randn(8,32); w=torch.randn(16,32); F.linear(x, w)"
TARGET = ("--target", "sm_90a", "--no-check")


def test_the_chosen_kernels_are_simulated_and_right(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", NORM, *TARGET)
    assert done.code == 0 and done.err == ""
    assert "k_rms_norm" in done.out and "no finding, all values right" in done.out


def test_the_table_fits_80_columns(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", LINEAR, *TARGET)
    head, units, first, *_ = done.out.splitlines()
    assert all(len(line) <= 80 for line in (head, units, first))
    assert [len(head), len(units)] == [len(first)] * 2


def test_results_for_machines_have_findings_errors_and_counters(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", NORM, *TARGET, "--json")
    document = json.loads(done.out)
    (kernel,) = document["kernels"]
    assert document["ok"] and kernel["ok"] and kernel["chosen"] and kernel["findings"] == []
    assert kernel["counters"]["bytes_written"] == 4 * 64 * 4
    assert 0.0 < kernel["error_share"] < 1.0


def test_sampled_rows_stand_in_for_the_chosen_one(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", NORM, *TARGET, "--all-rows", "3", "--json")
    rows = [k["row"] for k in json.loads(done.out)["kernels"]]
    assert len(set(rows)) == 3
    again = emmy("simulate", "-c", NORM, *TARGET, "--all-rows", "3", "--json")
    assert rows == [k["row"] for k in json.loads(again.out)["kernels"]]
    other = emmy("simulate", "-c", NORM, *TARGET, "--all-rows", "3", "--seed", "7", "--json")
    assert rows != [k["row"] for k in json.loads(other.out)["kernels"]]


def test_a_pinned_row_is_simulated(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", NORM, *TARGET, "--pin", "WORK=t32", "--json")
    (kernel,) = json.loads(done.out)["kernels"]
    assert kernel["row"].startswith("WORK=t32,")


def test_a_program_of_several_launches_runs_each_on_what_came_before(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", "torch.sort(torch.exp(torch.randn(4, 33)), -1)[0].neg().sum(-1)", *TARGET, "--json")
    kernels = json.loads(done.out)["kernels"]
    assert done.code == 0 and len(kernels) >= 2 and all(k["ok"] for k in kernels)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel as if all of its barriers had been forgotten."""
    from emmy.codegen.simulate import simulate
    from emmy.inspect import simulated
    from emmy.ir.kernel import Barrier, with_bodies

    def without(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(with_bodies(s, without) for s in body if not isinstance(s, Barrier))

    def forgetful(kernel: Any, *rest: Any, **more: Any) -> Any:
        return simulate(replace(kernel, body=without(kernel.body)), *rest, **more)

    monkeypatch.setattr(simulated, "simulate", forgetful)
    yield


def test_a_finding_is_printed_and_exits_with_1(emmy: Emmy, broken: None) -> None:
    # one launch whatever a prior says, whose warps meet at a barrier
    done = emmy("simulate", "-c", "torch.randn(2, 512).sum(-1)", *TARGET, "--pin", "WORK=t256,TILE=f2,REDUCE=coop")
    assert done.code == 1 and "shared race" in done.out and "thread" in done.out
    assert "1 with findings or wrong values" in done.out


def test_sampled_rows_honour_a_pin_and_are_all_named(emmy: Emmy) -> None:
    done = emmy("simulate", "-c", NORM, *TARGET, "--all-rows", "3", "--pin", "REDUCE=coop")
    rows = [line for line in done.out.splitlines() if " WORK=" in line]
    assert rows and all("REDUCE=coop," in f"{r.strip()}," for r in rows)
    assert len(rows) == sum(line.startswith("k_rms_norm") for line in done.out.splitlines())


def test_a_seed_that_no_generator_takes_is_wrong_usage(emmy: Emmy) -> None:
    assert emmy("simulate", "-c", NORM, *TARGET, "--seed", "9" * 23).code == 2


def test_a_pin_that_says_too_little_is_shown_the_rows_that_begin_like_it(emmy: Emmy) -> None:
    factors = "x=torch.randn(64,64,dtype=torch.bfloat16); y=torch.randn(64,64,dtype=torch.bfloat16); x @ y"
    refused = emmy("simulate", "-c", factors, *TARGET, "--pin", "TILE=wgmma_m64n64k16_bf16_f32")
    near = refused.err.split("legal rows are:")[1].splitlines()[1:]
    assert refused.code == 2 and "TILE=wgmma_m64n64k16_bf16_f32/" in near[0]
    assert all("TILE=wgmma_" in row for row in near)


def test_rows_that_round_to_tf32_are_held_to_tf32(emmy: Emmy) -> None:
    code = "F.linear(torch.randn(64, 64), torch.randn(64, 64))"
    words = ("simulate", "--target", "sm_90a", "--pin", "TILE=mma_m16n8k8_tf32_f32/f1x1/k2", "-c", code)
    done = emmy(*words, "--allow", "tf32")
    assert done.code == 0 and "all values right" in done.out + done.err


def test_pins_add_up(emmy: Emmy) -> None:
    code = (
        "def f(x, w, y):\n    return F.linear(x, w), torch.exp(y)\n"
        "f(torch.randn(16, 256), torch.randn(64, 256), torch.randn(65536))"
    )
    pins = ("--pin", "REDUCE=g4", "--pin", "WORK=t512,REDUCE=")
    done = emmy("saturate", "--target", "sm_90a", "--json", "-c", code, *pins, EMMY_GOLDEN_FILE="")
    rows = [k["row"] for k in json.loads(done.out)["kernels"]]
    assert any("REDUCE=g4" in r for r in rows) and any("WORK=t512," in r for r in rows)
