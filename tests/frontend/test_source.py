"""The one door: what the user named decides the front end, and options that do not fit are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from emmy.errors import ModelFileError, UsageError
from emmy.frontend import load

ROOT = Path(__file__).parents[2]


def test_code_file_and_model_name_are_told_apart(tmp_path: Path) -> None:
    assert load(None, "torch.exp(torch.randn(3))").name == "code"
    assert load("openai-community/gpt2", layer=1, seq_len=8).name == "gpt2.layer1"
    with pytest.raises(ModelFileError, match="there is no file"):
        load(str(tmp_path / "missing.pt2"))


@pytest.mark.parametrize(
    ("source", "code", "options", "says"),
    [
        (None, None, {}, "name one model"),
        ("x.pt2", "x", {}, "name one model"),
        ("./nowhere", None, {}, "no file or folder ./nowhere"),
        ("nobody/nothing", None, {}, "bundled are"),
        ("not a name!", None, {}, "bundled are"),
        ("Qwen/Qwen3-0.6b", None, {}, "did you mean Qwen/Qwen3-0.6B?"),
        ("openai-comunity/gpt2", None, {}, "did you mean openai-community/gpt2?"),
        ("bert-base-uncased", None, {}, "did you mean google-bert/bert-base-uncased?"),
        ("", None, {}, "the name of the model is empty"),
        ("  ", None, {}, "the name of the model is empty"),
        (None, "\n", {}, "-c: the code is empty"),
        (None, "torch.exp(torch.randn(3))", {"layer": 0}, "--layer does not fit a line of code"),
        (None, "torch.exp(torch.randn(3))", {"inputs": "f32[1]"}, "--inputs does not fit"),
        ("x.pt2", None, {"seq_len": 3}, "--seq-len does not fit a model file"),
        ("openai-community/gpt2", None, {"trust_pickle": True}, "--trust-pickle does not fit"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(
    source: str | None, code: str | None, options: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError) as e:
        load(source, code, **options)  # type: ignore[arg-type]
    assert says in str(e.value)


def test_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without a config.json"):
        load(str(tmp_path))


def test_the_package_imports_without_pytorch() -> None:
    code = "import sys, emmy.frontend, emmy.frontend.source; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_example_script_writes_a_model_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "out" / "rms_linear.pt2"
    script = ROOT / "examples" / "export_rms_linear.py"
    subprocess.run([sys.executable, str(script), str(path)], check=True, capture_output=True)
    graph = load(str(path)).graph
    assert [n.op for n in graph.nodes][:2] == ["aten.rms_norm.default", "aten.linear.default"]
    assert graph.nodes[0].results[0].dtype == "bf16"
