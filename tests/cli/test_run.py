import json

import pytest

from tests.cli.conftest import Emmy

NORM = "nn.RMSNorm(64)(torch.randn(4, 64))"


def no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def test_without_a_gpu_it_says_what_works_here(emmy: Emmy) -> None:
    if not no_gpu():
        pytest.skip("there is a CUDA device here")
    refused = emmy("run", "-c", NORM)
    assert refused.code == 1 and refused.out == ""
    assert "needs a GPU" in refused.err and "emmy saturate" in refused.err and "emmy doctor" in refused.err


def test_an_unknown_backend_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("run", "--bench", "--bench-backends", "eager,jit", "-c", NORM)
    assert refused.code == 2 and "jit" in refused.err and "tcompile" in refused.err


def test_strictness_about_times_needs_times(emmy: Emmy) -> None:
    refused = emmy("run", "--strict", "-c", NORM)
    assert refused.code == 2 and "--bench" in refused.err


@pytest.mark.gpu
def test_values_are_checked_against_float64_and_eager(emmy: Emmy) -> None:
    done = emmy("run", "-c", NORM, "--json")
    result = json.loads(done.out)
    assert done.code == 0 and result["ok"]
    (output,) = result["outputs"]
    assert output["ours"]["dtype"] == "f32" and output["ours"]["count"] == 256
    assert output["ours"]["error"] <= output["ours"]["tolerance"]


LINEAR = "x=torch.randn(33, 256).half()\nw=torch.randn(130, 256).half()\nF.gelu(F.linear(x, w))"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what torch.compile imports warns of itself
@pytest.mark.parametrize("code", [NORM, LINEAR])
def test_every_backend_is_timed(emmy: Emmy, code: str) -> None:
    pytest.importorskip("triton", reason="torch.compile needs Triton on a GPU")
    bench = ("--bench", "--bench-backends", "eager,tcompile,emmy", "--repeats", "5", "--json")
    # no pool of processes that compile ahead: one kernel is compiled here
    done = emmy("run", *bench, "-c", code, TORCHINDUCTOR_COMPILE_THREADS="1")
    result = json.loads(done.out)
    assert done.code == 0 and result["ok"] and result["lost"] == {}
    assert list(result["timings"]) == ["eager", "tcompile", "emmy"]
    assert all(t["n"] == 5 and 0 < t["p10_us"] <= t["median_us"] <= t["p90_us"] for t in result["timings"].values())
    assert all(t["l2"] == "cold" for t in result["timings"].values())
    assert result["timings"]["emmy"]["method"] == "graph"


@pytest.mark.gpu
def test_other_values_of_the_inputs_are_right_too(emmy: Emmy) -> None:
    assert emmy("run", "-c", "torch.softmax(torch.randn(7, 33), -1)", "--seed", "3").code == 0


@pytest.mark.gpu
def test_an_updated_cache_is_an_output(emmy: Emmy) -> None:
    done = emmy("run", "-c", "x=torch.randn(8); y=torch.randn(8); x.add_(y)", "--json")
    assert done.code == 0 and json.loads(done.out)["ok"]


class OnCpu:
    """An executable whose kernels are eager operations, off by `error` in the first result's first element."""

    error = 0.0

    def __init__(self, program, plan, *, poison) -> None:
        import torch

        self.program, self.device = program, torch.device("cpu")
        self.module = self
        self.state = dict(program.weights)

    def run_flat(self, tensors):
        from emmy.frontend.reference import interpret

        values = interpret(self.program.graph, self.program.weights, tensors)
        returned = [v for v, o in zip(values, self.program.graph.outputs, strict=True) if not o.mutates]
        returned[0].view(-1)[0] += self.error
        return tuple(returned)

    def close(self) -> None:
        pass


def timed(**microseconds: float):
    from emmy.runtime.bench import summary

    def measure(calls, *, cold, rounds):
        for call in calls.values():
            call()
        l2 = "cold" if cold else "warm"
        return {n: summary(n, [microseconds[n] * 1e-6] * rounds, l2, "graph") for n in calls}

    return measure


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> type[OnCpu]:
    class Double(OnCpu):
        pass

    monkeypatch.setattr("emmy.executable.Executable", Double)
    monkeypatch.setattr("emmy.cli.run._require_gpu", lambda: None)
    monkeypatch.setattr("emmy.runtime.bench.measure", timed(eager=20.0, emmy=10.0))
    return Double


SMALL = ("-c", NORM, "--target", "sm_89", "--no-check")


def test_right_values_give_0_and_a_line_an_output(emmy: Emmy, on_cpu) -> None:
    done = emmy("run", *SMALL)
    assert done.code == 0
    assert "rms_norm: ok: f32 x 256" in done.out and "k_rms_norm" in done.out
    assert "median us" not in done.out


def test_wrong_values_give_1_and_name_the_output(emmy: Emmy, on_cpu) -> None:
    on_cpu.error = 0.5
    done = emmy("run", *SMALL)
    assert done.code == 1 and "rms_norm: WRONG" in done.out and "not accepted" in done.out
    assert "wrong values in rms_norm" in done.err


def test_times_are_beside_each_other(emmy: Emmy, on_cpu) -> None:
    done = emmy("run", "--bench", "--repeats", "7", *SMALL)
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line[:5] in ("eager", "emmy ")}
    assert rows["eager"][0] == "20.00" and rows["eager"][3] == "2.00x" and rows["emmy"][3] == "1.00x"
    assert rows["emmy"][4:] == ["cold,", "graph"]


@pytest.mark.parametrize("code", [NORM, LINEAR])
def test_torch_compile_is_timed_beside_the_others(emmy: Emmy, on_cpu, monkeypatch, code: str) -> None:
    """With its own backend left out, which needs a compiler: what is under test is that it can trace the program."""
    import torch

    whole = torch.compile
    monkeypatch.setattr("torch.compile", lambda f: whole(f, backend="eager", fullgraph=True))
    monkeypatch.setattr("emmy.runtime.bench.measure", timed(eager=20.0, tcompile=15.0, emmy=10.0))
    bench = ("--bench", "--bench-backends", "eager,tcompile,emmy", "--json", "--target", "sm_89", "--no-check")
    result = json.loads(emmy("run", *bench, "-c", code).out)
    assert result["ok"] and result["lost"] == {} and result["slower_than"] == ""
    assert [round(t["median_us"]) for t in result["timings"].values()] == [20, 15, 10]


def test_a_backend_that_fails_is_named_with_its_reason(emmy: Emmy, on_cpu, monkeypatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def fails() -> None:
        raise TorchDynamoException("no Triton here")

    monkeypatch.setattr("torch.compile", lambda f: fails)
    done = emmy("run", "--bench", "--bench-backends", "eager,tcompile,emmy", "--json", *SMALL)
    result = json.loads(done.out)
    assert done.code == 0 and result["timings"].keys() == {"eager", "emmy"}
    assert "no Triton here" in result["lost"]["tcompile"]


def test_being_slower_is_a_finding_only_where_it_was_asked_for(emmy: Emmy, on_cpu, monkeypatch) -> None:
    monkeypatch.setattr("emmy.runtime.bench.measure", timed(eager=9.0, emmy=10.0))
    assert emmy("run", "--bench", *SMALL).code == 0
    strict = emmy("run", "--bench", "--strict", *SMALL)
    assert strict.code == 1 and "slower than eager" in strict.err
    monkeypatch.setattr("emmy.runtime.bench.measure", timed(eager=11.0, emmy=10.0))
    assert emmy("run", "--bench", "--strict", *SMALL).code == 0


def test_json_holds_values_times_and_kernels(emmy: Emmy, on_cpu) -> None:
    result = json.loads(emmy("run", "--bench", "--warm", "--json", *SMALL).out)
    assert result["ok"] and [o["name"] for o in result["outputs"]] == ["rms_norm"]
    assert result["timings"]["eager"]["median_us"] == pytest.approx(20.0)
    assert result["timings"]["emmy"]["l2"] == "warm" and result["slower_than"] == ""
    assert [k["name"] for k in result["kernels"]] == ["k_rms_norm"]
