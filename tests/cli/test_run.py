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


@pytest.mark.gpu
def test_every_backend_is_timed(emmy: Emmy) -> None:
    done = emmy("run", "--bench", "--bench-backends", "eager,tcompile,emmy", "--repeats", "5", "--json", "-c", NORM)
    result = json.loads(done.out)
    assert result["timings"].keys() | result["lost"].keys() == {"eager", "tcompile", "emmy"}
    assert all(t["n"] == 5 and t["median_us"] > 0 for t in result["timings"].values())


@pytest.mark.gpu
def test_other_values_of_the_inputs_are_right_too(emmy: Emmy) -> None:
    assert emmy("run", "-c", "torch.softmax(torch.randn(7, 33), -1)", "--seed", "3").code == 0


@pytest.mark.gpu
def test_an_updated_cache_is_an_output(emmy: Emmy) -> None:
    done = emmy("run", "-c", "x=torch.randn(8); y=torch.randn(8); x.add_(y)", "--json")
    assert done.code == 0 and json.loads(done.out)["ok"]
