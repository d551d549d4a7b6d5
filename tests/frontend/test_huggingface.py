"""Hugging Face models: the bundled seven offline, layers in place, decoding on a cache, weights from safetensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from emmy.errors import ModelFileError, UsageError
from emmy.frontend import interpret
from emmy.frontend.huggingface import bundled, load_hf
from emmy.frontend.program import Program

transformers = pytest.importorskip("transformers")

# model -> (type of the layer's input, parameters of one layer, largest nodes of a layer)
MODELS = {
    "Qwen/Qwen3-0.6B": ("bf16[1,16,1024]", 11),
    "Qwen/Qwen3-Embedding-0.6B": ("bf16[1,16,1024]", 11),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": ("bf16[1,16,2048]", 9),
    "meta-llama/Llama-3.1-8B": ("bf16[1,16,4096]", 9),
    "google-bert/bert-base-uncased": ("bf16[1,16,768]", 16),
    "openai-community/gpt2": ("bf16[1,16,768]", 12),
    "google/vit-base-patch16-224": ("bf16[1,197,768]", 16),
}
DECODERS = ["Qwen/Qwen3-0.6B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "openai-community/gpt2"]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the user's own Hugging Face cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def outputs(program: Program) -> list[torch.Tensor]:
    found = interpret(program.graph, program.weights, program.example_tensors())
    return [v for v, o in zip(found, program.graph.outputs, strict=True) if not o.mutates]  # type: ignore[misc]


def test_the_seven_models_are_bundled() -> None:
    assert sorted(bundled()) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_first_layer_of_every_bundled_model_is_captured_alone(model: str) -> None:
    program = load_hf(model, layer=0, seq_len=16)
    shape, parameters = MODELS[model]
    assert [(i.name, i.tensor.text) for i in program.graph.inputs if i.kind == "user"] == [("hidden_states", shape)]
    held = [i for i in program.graph.inputs if i.kind == "parameter"]
    assert len(held) == parameters
    assert all(".0." in i.target for i in held)
    (result,) = program.graph.outputs
    assert program.graph.tensors[result.value.name].text == shape  # type: ignore[union-attr]
    assert "random weights from seed 0" in program.notes[0]
    assert sum(n.op == "aten.scaled_dot_product_attention.default" for n in program.graph.nodes) == 1


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "google-bert/bert-base-uncased", "openai-community/gpt2"])
def test_layer_computes_what_eager_computes(model: str) -> None:
    program = load_hf(model, layer=2, seq_len=16, batch=2, dtype="f32")
    assert program.module is not None
    expected = program.module(*program.example_inputs)
    assert torch.isfinite(expected).all()
    assert torch.equal(outputs(program)[0], expected)


@pytest.mark.parametrize("model", DECODERS)
def test_decoding_writes_the_caches_and_equals_the_last_row_of_the_prefill(model: str) -> None:
    """Fill a cache by hand from the keys and values of a prefill, then decode the last token on it."""
    length = 8
    full = load_hf(model, layer=0, seq_len=length, dtype="f32")
    step = load_hf(model, layer=0, cache_len=length, dtype="f32")
    names = [i.name for i in step.graph.inputs if i.kind == "user"]
    assert names == ["hidden_states", "position", "key_cache", "value_cache"]
    assert [o.mutates for o in step.graph.outputs] == ["key_cache", "value_cache", ""]
    hidden = full.example_tensors()[0]
    expected = outputs(full)[0]
    key, value = (torch.zeros_like(t) for t in step.example_tensors()[2:])
    for k in range(length):
        token = hidden[:, k : k + 1].contiguous()
        key, value, out = interpret(step.graph, step.weights, [token, torch.tensor([k]), key, value])  # type: ignore[assignment]
        assert torch.allclose(out, expected[:, k : k + 1], atol=1e-5)


def test_whole_decoder_gives_logits_and_decodes_with_a_cache_a_layer(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, layers=2)
    whole = load_hf(str(folder), seq_len=6, dtype="f32")
    assert outputs(whole)[0].shape == (1, 6, 50)
    step = load_hf(str(folder), cache_len=6, dtype="f32")
    names = [i.name for i in step.graph.inputs if i.kind == "user"]
    assert names == ["input_ids", "position", "key_cache_0", "value_cache_0", "key_cache_1", "value_cache_1"]
    assert len([o for o in step.graph.outputs if o.mutates]) == 4


def tiny_llama(folder: Path, layers: int = 3) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llama")
    return folder / "llama"


def tiny_models(folder: Path) -> dict[str, Path]:
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = {
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **small)),
        "vit": transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=16, **small)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
    return {"llama": tiny_llama(folder), **{name: folder / name for name in made}}


def test_weights_come_from_the_safetensors_of_a_folder(tmp_path: Path) -> None:
    for name, folder in tiny_models(tmp_path).items():
        program = load_hf(str(folder), seq_len=5, dtype="f32")
        assert program.notes == ()
        auto = transformers.AutoModelForImageClassification if name == "vit" else (
            transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
        )  # fmt: skip
        eager = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        with torch.no_grad():
            expected = eager(program.example_inputs[0]).logits
        assert torch.allclose(outputs(program)[0], expected, atol=1e-5), name


def test_a_layer_of_a_folder_takes_that_layers_weights(tmp_path: Path) -> None:
    for name, folder in tiny_models(tmp_path).items():
        program = load_hf(str(folder), layer=1, seq_len=5, dtype="f32")
        eager = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
        wanted = dict(eager.named_parameters())
        for target in (i.target for i in program.graph.inputs if i.kind == "parameter"):
            assert ".1." in target
            assert torch.equal(program.weights[target], wanted[target]), (name, target)


def test_checkpoint_of_the_local_cache_is_used(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    snapshot = tmp_path / "hub" / "models--me--tiny" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = tmp_path / "hub" / "models--me--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    program = load_hf("me/tiny", layer=0, seq_len=4)
    assert program.notes == ()
    assert program.name == "tiny.layer0"


def test_checkpoint_that_lacks_a_weight_says_which(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tiny_llama(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, path)
    program = load_hf(str(path.parent), layer=0, seq_len=4)
    with pytest.raises(ModelFileError, match=r"lacks layers.0.mlp.up_proj.weight"):
        dict(program.weights)


@pytest.mark.parametrize(
    ("text", "says"), [("{", "is not JSON"), ("[]", "no model_type"), ('{"model_type": 3}', "no model_type")]
)
def test_damaged_configuration_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=says):
        load_hf(str(tmp_path))


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ModelFileError, match="no safetensors file"):
        load_hf(str(folder), layer=0)


def test_code_that_a_checkpoint_ships_is_not_run(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Model", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('mark').touch()\n")
    load_hf(str(folder), layer=0, seq_len=4)
    assert not (folder / "mark").exists()


def test_random_weights_depend_on_the_seed_and_the_name_alone() -> None:
    name = "h.1.mlp.c_fc.weight"
    one = load_hf("openai-community/gpt2", layer=1, seq_len=4, dtype="f32").weights[name].clone()
    whole = load_hf("openai-community/gpt2", layer=1, seq_len=9, dtype="f32")
    dict(whole.weights)
    assert torch.equal(whole.weights[name], one)
    other = load_hf("openai-community/gpt2", layer=1, seq_len=4, dtype="f32", seed=1).weights[name]
    assert not torch.equal(other, one)


def test_scaled_rotary_frequencies_are_the_models_own() -> None:
    """Llama 3.1 stretches its slow frequencies by 8 and leaves the fast ones."""
    program = load_hf("meta-llama/Llama-3.1-8B", layer=0, seq_len=4)
    found = program.weights["rotary_emb.inv_freq"]
    plain = 500000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert torch.allclose(found[:20].double(), plain[:20], rtol=1e-5)
    assert torch.allclose(found[-8:].double(), plain[-8:] / 8, rtol=1e-5)


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_capturing_a_whole_model_touches_no_weights() -> None:
    before = resident()
    program = load_hf("TinyLlama/TinyLlama-1.1B-Chat-v1.0", seq_len=16)
    assert sum(w.numel() for w in program.weights._tensors.values()) > 10**9  # type: ignore[attr-defined]
    assert resident() - before < 400 << 20
    assert len([n for n in program.graph.nodes if n.op == "aten.linear.default"]) == 22 * 7 + 1


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("openai-community/gpt2", {"layer": 12}, "--layer 12 of a model with 12 layers"),
        ("openai-community/gpt2", {"layer": -1}, "--layer -1"),
        ("openai-community/gpt2", {"seq_len": 2000}, "positions for 1024"),
        ("openai-community/gpt2", {"seq_len": 0}, "--seq-len is 0"),
        ("openai-community/gpt2", {"dtype": "i8"}, "--dtype i8"),
        ("google/vit-base-patch16-224", {"cache_len": 4}, "no key-value cache"),
        ("google-bert/bert-base-uncased", {"cache_len": 4, "layer": 0}, "no key-value cache"),
        ("nobody/nothing", {}, "not bundled"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(model: str, options: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_hf(model, **options)  # type: ignore[arg-type]


def test_program_is_plain_data_around_its_module() -> None:
    program = load_hf("openai-community/gpt2", layer=0, seq_len=4)
    assert dataclasses.replace(program, name="other").graph is program.graph


def test_tied_weights_are_written_once() -> None:
    """GPT-2 uses its embedding as its head: every name of it reads the same values."""
    program = load_hf("openai-community/gpt2", seq_len=4, dtype="f32")
    head, embedding = "lm_head.weight", "transformer.wte.weight"
    held = [n for n in (head, embedding) if n in program.weights]
    first = program.weights[held[0]].clone()
    assert all(torch.equal(program.weights[n], first) for n in held)
    assert program.module is not None
    assert torch.equal(outputs(program)[0], program.module(*program.example_inputs))
