"""The public functions: what `import emmy` offers, and what a compiled callable does with its arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import emmy
from emmy.api import build_options, serves
from emmy.egraph.model import Limits
from emmy.errors import InputError, LoweringError, PinError, UnsupportedError, UsageError
from emmy.frontend.capture import capture
from emmy.frontend.reference import interpret
from emmy.ir.target import target
from emmy.saturation import program_key, regime_of
from emmy.settings import Settings


def test_importing_emmy_loads_nothing_heavy() -> None:
    code = "import sys, emmy; assert 'compile' in dir(emmy); print('torch' in sys.modules, 'egglog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_every_public_name_is_there() -> None:
    assert all(getattr(emmy, name) is not None for name in emmy.__all__)
    with pytest.raises(AttributeError, match="nothing_here"):
        emmy.nothing_here  # noqa: B018


@pytest.mark.nvrtc
def test_saturate_compiles_for_a_card_that_is_not_here() -> None:
    s = emmy.saturate(nn.RMSNorm(64), (torch.randn(4, 64),), target="sm_120")
    assert s.options.target.arch == "sm_120a" and [c.name for c in s.launches] == ["k_rms_norm"]
    assert s["k_rms_norm"].source in s.plan.launches[0].source  # type: ignore[union-attr]
    with pytest.raises(KeyError, match="k_rms_norm"):
        s["k_softmax"]


def test_stages_are_observed_in_order_with_their_results() -> None:
    seen: list[str] = []
    emmy.saturate(
        torch.neg, (torch.randn(4),), target="sm_89", check=False, observe=lambda stage, *_: seen.append(stage)
    )
    assert seen[:2] == ["tensor", "model"] and seen[-2:] == ["choice", "plan"]


def test_an_option_that_there_is_not_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match="strict_evidence"):
        emmy.saturate(torch.neg, (torch.randn(4),), optimise=True)


def test_options_come_from_the_environment_unless_given() -> None:
    settings = Settings.read({"EMMY_KNOBS": "WORK=t64", "EMMY_PLACE": "cut"})
    asked = build_options("sm_89", settings)
    assert [p.text for p in asked.pins] == ["WORK=t64"] and asked.place == "cut"
    given = build_options("sm_89", settings, pins="WORK=t32", place="fuse", held=["fuse"])
    assert [p.text for p in given.pins] == ["WORK=t32"] and given.place == "fuse" and given.held == {"fuse"}


def test_what_is_allowed_may_be_several_and_rows_without_an_order_want_it() -> None:
    settings = Settings.read({"EMMY_KNOBS": "REDUCE=g8a", "EMMY_ALLOW": "atomics"})
    asked = build_options("sm_90a", settings)
    assert (asked.allow, asked.target.allowed, asked.target.numerics) == ("atomics", ("atomics",), "")
    both = build_options("sm_90a", settings, allow="tf32,atomics")
    assert (both.allow, both.target.allowed, both.target.numerics) == ("atomics,tf32", ("atomics", "tf32"), "tf32")
    assert regime_of(asked.target) == regime_of(target("sm_90a"))
    for allow in ("", "tf32"):
        with pytest.raises(PinError, match=r"REDUCE=g8a.*\n.*--allow atomics"):
            build_options("sm_90a", settings, allow=allow)
    assert build_options("sm_90a", Settings.read({"EMMY_KNOBS": "REDUCE=g8"})).target == target("sm_90a")


def test_a_program_is_the_same_where_sums_may_come_in_any_order() -> None:
    program = capture(nn.RMSNorm(8), (torch.randn(3, 8),))
    keys = [program_key(program, build_options("sm_90a", Settings.read({}), allow=a)) for a in ("", "atomics", "tf32")]
    assert keys[0] == keys[1] != keys[2] == program_key(program, build_options("sm_90a", allow="atomics,tf32"))


def test_arguments_on_the_cpu_are_refused_with_what_to_do() -> None:
    fast = emmy.compile(nn.RMSNorm(64), target="sm_89")
    with pytest.raises(InputError, match=r"cpu.*\n.*\.cuda\(\)"):
        fast(torch.randn(4, 64))


def test_a_program_without_fallback_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnsupportedError, match="linalg"):
        emmy.saturate(torch.linalg.inv, (torch.randn(4, 4),), target="sm_89", fallback=False)


def test_a_program_serves_the_sizes_within_its_bounds() -> None:
    length = torch.export.Dim("length", min=2, max=64)
    program = capture(nn.RMSNorm(8), (torch.randn(3, 8),), dynamic_shapes=({0: length},))
    assert serves(program, (torch.randn(33, 8),), {})
    assert not serves(program, (torch.randn(65, 8),), {})
    assert not serves(program, (torch.randn(33, 9),), {})
    assert not serves(program, (torch.randn(33, 8).half(),), {})
    assert not serves(program, (torch.randn(33, 8), 1), {})


class Pair(nn.Module):
    """A pytree in, a pytree out, a number beside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64)

    def forward(self, xs: dict[str, torch.Tensor], scale: float) -> dict[str, object]:
        y = self.norm(xs["a"]) * scale
        return {"sum": y + xs["b"], "parts": (y, y.mean())}


@pytest.fixture
def pair() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Pair().cuda(), {"a": torch.randn(4, 64, device="cuda"), "b": torch.randn(4, 64, device="cuda")}


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_results_have_the_modules_structure(pair) -> None:
    module, xs = pair
    fast = emmy.compile(module)
    found, wanted = fast(xs, 2.0), module(xs, 2.0)
    assert found.keys() == wanted.keys() and isinstance(found["parts"], tuple)
    close(found["sum"], wanted["sum"])
    close(found["parts"][0], wanted["parts"][0])
    close(found["parts"][1], wanted["parts"][1])


@pytest.mark.gpu
def test_other_shapes_types_and_numbers_are_compiled_again_and_old_ones_kept(pair) -> None:
    module, xs = pair
    fast = emmy.compile(module, (xs, 2.0), max_variants=2)
    first = fast.variants[0]
    longer = {k: torch.randn(9, 64, device="cuda") for k in xs}
    close(fast(longer, 2.0)["sum"], module(longer, 2.0)["sum"])
    close(fast(xs, 2.0)["sum"], module(xs, 2.0)["sum"])
    assert len(fast.variants) == 2 and fast.variants[-1] is first
    close(fast(xs, 3.0)["sum"], module(xs, 3.0)["sum"])
    assert len(fast.variants) == 2 and first in fast.variants


@pytest.mark.gpu
def test_one_plan_serves_every_length() -> None:
    module = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 32)).cuda()
    length = torch.export.Dim("length", min=1, max=4096)
    fast = emmy.compile(module, dynamic_shapes=({0: length},))
    for n in (17, 1, 128, 511, 2048):
        x = torch.randn(n, 64, device="cuda")
        torch.testing.assert_close(fast(x), module(x).detach(), rtol=1e-4, atol=1e-4)
    assert len(fast.variants) == 1


@pytest.mark.gpu
def test_a_function_and_its_keyword_arguments_are_compiled() -> None:
    def f(x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + bias, -1)

    x, bias = torch.randn(5, 33, device="cuda"), torch.randn(33, device="cuda")
    close(emmy.compile(f)(x, bias=bias), f(x, bias=bias))


@pytest.mark.gpu
def test_what_pytorch_must_run_is_run_by_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x + 4 * torch.eye(8, device=x.device)) * 2

    x = torch.rand(8, 8, device="cuda")
    torch.testing.assert_close(emmy.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_weights_may_stay_on_the_cpu() -> None:
    module = nn.Linear(64, 32)
    x = torch.randn(4, 64)
    torch.testing.assert_close(emmy.compile(module)(x.cuda()).cpu(), module(x).detach(), rtol=1e-4, atol=1e-4)


class OnCpu:
    """An executable whose kernels are eager operations: what the callable does around them is under test."""

    def __init__(self, program, plan, *, device, cache) -> None:
        self.program, self.plan, self.device, self.open = program, plan, device, True

    def __call__(self, *args, **kwargs):
        assert self.open
        values = interpret(self.program.graph, self.program.weights, self.program.flatten(args, kwargs))
        return self.program.unflatten(values)

    def close(self) -> None:
        self.open = False


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emmy.api.Executable", OnCpu)
    monkeypatch.setattr("emmy.api.common_device", lambda leaves: torch.device("cpu"))


OPTIONS = {"target": "sm_89", "check": False}


def test_variants_are_made_once_and_the_least_used_is_let_go(on_cpu: None) -> None:
    module = Pair()
    inputs = {n: {k: torch.randn(n, 64) for k in "ab"} for n in (4, 5, 6)}
    fast = emmy.compile(module, max_variants=2, **OPTIONS)
    for n in (4, 5, 4, 6, 4):
        found, wanted = fast(inputs[n], 2.0), module(inputs[n], 2.0)
        close(found["sum"], wanted["sum"])
        close(found["parts"][1], wanted["parts"][1])
    assert [v.program.graph.inputs[-1].tensor.text for v in fast.variants] == ["f32[6,64]", "f32[4,64]"]


def test_another_number_or_type_is_another_variant(on_cpu: None) -> None:
    fast = emmy.compile(lambda x, scale: x * scale, **OPTIONS)
    x = torch.randn(8)
    close(fast(x, 2.0), x * 2)
    close(fast(x, 3.0), x * 3)
    assert fast(x.to(torch.bfloat16), 2.0).dtype == torch.bfloat16
    assert len(fast.variants) == 3


def test_what_is_let_go_is_closed(on_cpu: None) -> None:
    fast = emmy.compile(torch.neg, (torch.randn(4),), max_variants=1, **OPTIONS)
    first = fast.variants[0]
    fast(torch.randn(5))
    assert not first.open and len(fast.variants) == 1


def test_symbolic_sizes_are_compiled_once_and_others_again(on_cpu: None) -> None:
    module = nn.RMSNorm(8)
    fast = emmy.compile(module, dynamic_shapes=({0: torch.export.Dim("length", min=1, max=64)},), **OPTIONS)
    for n in (7, 1, 64):
        x = torch.randn(n, 8)
        close(fast(x), module(x))
    assert len(fast.variants) == 1
    x = torch.randn(7, 8, dtype=torch.float16)
    fast.module = module.half()
    fast(x)
    assert len(fast.variants) == 2


def test_keeping_no_variant_is_refused() -> None:
    with pytest.raises(UsageError, match="max_variants"):
        emmy.compile(torch.neg, max_variants=0)


def test_a_held_rule_must_be_there() -> None:
    assert build_options("sm_89", held="fuse").held == {"fuse"}
    with pytest.raises(UsageError, match=r"'fues'\n.*fuse"):
        build_options("sm_89", held=["fues"])
    with pytest.raises(UsageError, match=r"'model/fuse'\n  near it: fuse$"):
        build_options("sm_89", held=["model/fuse"])


def test_a_misspelt_placement_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="beside"):
        build_options("sm_89", place="beside")


def test_inputs_are_a_sequence_and_the_module_is_callable() -> None:
    with pytest.raises(UsageError, match=r"\(x,\)"):
        emmy.saturate(nn.Linear(4, 2), torch.randn(1, 4))  # the row alone would fit the layer
    with pytest.raises(UsageError, match=r"\(x,\)"):
        emmy.compile(nn.Linear(4, 2), torch.randn(1, 4))
    with pytest.raises(UsageError, match="str is no module"):
        emmy.saturate("model.pt2", (torch.randn(1, 4),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pins": 3}, "pins is 3, of type int"),
        ({"pins": ["WORK=t32", 3]}, "a pin is 3"),
        ({"held": 3}, "held is 3"),
        ({"held": [3]}, "a name in held is 3"),
        ({"place": None}, "place is None"),
        ({"passes": 3}, "passes is 3"),
        ({"limits": 3}, r"limits is 3, of type int\n.*Limits"),
        ({"check": 1}, "check is 1"),
        ({"fallback": "no"}, "fallback is 'no'"),
        ({"strict_evidence": None}, "strict_evidence is None"),
        ({"database": 3}, "database is 3"),
        ({"golden": 3}, "golden is 3"),
        ({"target": 90}, r"target is 90, of type int\n.*sm_90a"),
        ({"kwargs": [1]}, "kwargs is"),
        ({"kwargs": {1: 2}}, "a name in kwargs is 1"),
        ({"inputs": 3}, r"inputs is 3, of type int\n.*\(x,\)"),
        ({"inputs": "x"}, "inputs is 'x'"),
        ({"observe": 3}, "observe is 3"),
    ],
)
def test_an_argument_of_the_wrong_type_is_wrong_usage(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        emmy.saturate(torch.neg, **{"inputs": (torch.randn(4),), **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_variants": "8"}, "max_variants is '8'"),
        ({"max_variants": 0}, "max_variants is 0"),
        ({"cache": 3}, "cache is 3"),
        ({"module": 3}, "int is no module"),
        ({"pins": 3}, "pins is 3"),
    ],
)
def test_a_callable_is_made_from_arguments_of_the_right_types(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        emmy.compile(**{"module": torch.neg, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": 3}, "source is 3"),
        ({"source": "openai-community/gpt2", "layer": "0"}, "layer is '0'"),
        ({"source": "openai-community/gpt2", "seq_len": True}, "seq_len is True"),
        ({"source": None, "code": 3}, "code is 3"),
        ({"source": "m.pt2", "trust_pickle": "yes"}, "trust_pickle is 'yes'"),
    ],
)
def test_a_model_is_named_by_text_and_its_sizes_are_numbers(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        emmy.load(**options)


def test_files_are_named_by_text_or_path(tmp_path: Path) -> None:
    given = build_options("sm_89", database=str(tmp_path / "e.duckdb"), golden=tmp_path / "g.json")
    assert given.database == tmp_path / "e.duckdb" and given.golden == str(tmp_path / "g.json")


@pytest.mark.parametrize("name", ["launches", "seconds", "megabytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "3", True])
def test_a_limit_is_a_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name if name == "launches" else rf"\(--max-{name}\)"):
        Limits(**{name: value})


def exported(**options: Any) -> torch.export.ExportedProgram:
    return torch.export.export(nn.RMSNorm(8), (torch.randn(3, 8),), **options)


def test_an_exported_program_compiles_like_the_module_it_came_from() -> None:
    x = torch.randn(3, 8)
    module = emmy.saturate(nn.RMSNorm(8), (x,), target="sm_89", check=False)
    for inputs in ((), (x,)):
        s = emmy.saturate(exported(), inputs, target="sm_89", check=False)
        assert [l.source for l in s.launches] == [l.source for l in module.launches]
        assert s.program.module is not None
    torch.testing.assert_close(s.program.module(x), nn.RMSNorm(8)(x))


def test_arguments_that_do_not_fit_the_exported_program_are_told() -> None:
    rows = torch.export.Dim("rows", min=2, max=16)
    bounded = exported(dynamic_shapes=({0: rows},))
    assert emmy.saturate(bounded, (torch.randn(9, 8),), target="sm_89", check=False).launches
    for program, inputs, said in (
        (exported(), (torch.randn(4, 8),), r"shape \[4, 8\]"),
        (exported(), (torch.randn(3, 8).half(),), "float16"),
        (exported(), (torch.randn(3, 8), 1), "built like"),
        (bounded, (torch.randn(17, 8),), r"17.*2\.\.=16"),
    ):
        with pytest.raises(UsageError, match=said):
            emmy.saturate(program, inputs, target="sm_89", check=False)
    with pytest.raises(UsageError, match="dynamic_shapes"):
        emmy.saturate(exported(), dynamic_shapes=({0: rows},), target="sm_89")


@pytest.mark.gpu
def test_an_exported_or_captured_program_is_called_like_its_module() -> None:
    rows = torch.export.Dim("rows", min=2, max=16)
    example = (torch.randn(3, 8),)
    captured = capture(nn.RMSNorm(8), example, dynamic_shapes=({0: rows},))
    for program in (exported(dynamic_shapes=({0: rows},)), captured):
        fast = emmy.compile(program)
        for n in (3, 7):
            x = torch.randn(n, 8, device="cuda")
            close(fast(x), nn.RMSNorm(8)(x.cpu()).cuda())
        assert len(fast.variants) == 1
        with pytest.raises(UsageError):
            fast(torch.randn(17, 8, device="cuda"))


def attends(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1)


def test_an_operation_without_a_kernel_is_named_with_the_users_line() -> None:
    with pytest.raises(LoweringError) as e:
        emmy.saturate(attends, (torch.randn(4, 8), torch.randn(8, 8)), target="sm_89", check=False, held="lift-reduce")
    told = str(e.value)
    assert "aten.softmax.int (softmax)" in told and "return torch.softmax(x @ w, -1)" in told
    assert "held rules: lift-reduce" in told and "report" not in told and "tensors [" not in told
