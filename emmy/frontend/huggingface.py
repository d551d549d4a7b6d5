"""Models by their Hugging Face name or checkpoint folder, whole or one layer, without touching the network.

The architecture comes from transformers, the weights from safetensors in the folder or in the local cache; without them
the weights are random, from a seed and the parameter's name, and the program says so.  Parameters are allocated but not
written until they are read (`LazyWeights`), so capturing one layer of a large model takes little memory.

One layer is captured in place: the model runs as a whole, but the layer ignores what reaches it and takes the input
`hidden_states` instead.  The mask and the rotary embedding are computed as the model computes them; the embedding, the
other layers and the head are dead code and vanish.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from emmy.arguments import expanded, positive
from emmy.errors import ModelFileError, UnsupportedError, UsageError
from emmy.frontend.capture import capture, sign
from emmy.frontend.program import LazyWeights, Program
from emmy.ir.torch_types import TORCH

BUNDLED: Final = Path(__file__).parent / "configs"
# Where the layers of a model stand, by the names that transformers uses.
_LAYER_LISTS: Final = ("layers", "encoder.layer", "encoder.layers", "layer", "h", "decoder.layers")


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is captured; sizes in tokens.

    layer: one layer by its index, or None for the whole model.
    cache_len: decode one token on a key-value cache of this many slots, the last of which it fills.
    """

    layer: int | None = None
    seq_len: int = 512
    cache_len: int | None = None
    batch: int = 1
    dtype: str = "bf16"
    seed: int = 0


def bundled() -> dict[str, Path]:
    """Configurations that ship with the package: model name -> JSON file."""
    return {p.stem.replace("--", "/"): p for p in sorted(BUNDLED.glob("*.json"))}


def load_hf(
    id_or_dir: str,
    layer: int | None = None,
    seq_len: int = 512,
    cache_len: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    seed: int = 0,
) -> Program:
    """The program of a model, or of one of its layers.

    Inputs of a layer: `hidden_states` dtype[batch, seq_len, hidden].  Of a whole text model: `input_ids`
    i64[batch, seq_len]; of an image model: `pixel_values` dtype[batch, channels, height, width].  With `cache_len` the
    sequence is one token and the inputs `position` i64[1], `key_cache_k` and `value_cache_k`
    dtype[batch, key-value heads, cache_len, head size] follow; the caches are updated.
    Raises UsageError for an unknown model or an option that does not fit it.
    """
    options = Options(layer, seq_len, cache_len, batch, dtype, seed)
    _check(options)
    folder, config, notes = find(id_or_dir)
    model = build(config, options)
    files = checkpoint_tensors(folder, model) if folder is not None else {}
    if not files:
        notes += (f"the weights of {id_or_dir} are not on this machine: random weights from seed {seed} are used",)
    args = instrument(model, options)
    where = id_or_dir.rstrip("/").split("/")[-1]
    name = where if layer is None else f"{where}.layer{layer}"
    program = capture(model, args, name=name)
    fill = filler(files, getattr(config, "initializer_range", 0.02), seed)
    weights = LazyWeights(program.weights, fill, tied(model))
    return replace(program, weights=weights, module=Materialized(model, weights), notes=notes)


def _check(o: Options) -> None:
    if o.dtype not in ("f32", "bf16", "f16"):
        raise UsageError(f"--dtype {o.dtype} is no floating type for a model", "use bf16, f16 or f32")
    for what, value in (("--seq-len", o.seq_len), ("--batch", o.batch), ("--cache-len", o.cache_len)):
        if value is not None:
            positive(what, value, int, "tokens" if what != "--batch" else "sequences")


def find(id_or_dir: str) -> tuple[Path | None, Any, tuple[str, ...]]:
    """(checkpoint folder or None, transformers configuration, notes) of a model; UsageError when it is unknown."""
    path = expanded(id_or_dir)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"{id_or_dir} is a folder without a config.json", "name a Hugging Face checkpoint folder")
        return path, _config(path / "config.json"), ()
    cached = _cached(id_or_dir)
    if cached is not None:
        return cached, _config(cached / "config.json"), ()
    known = bundled()
    if id_or_dir in known:
        return None, _config(known[id_or_dir]), ()
    near = nearest(id_or_dir, known)
    raise UsageError(
        f"no model {id_or_dir}: not a file or folder, not in the local Hugging Face cache, and not bundled",
        f"did you mean {' or '.join(near)}?" if near else f"bundled are {', '.join(known)}",
    )


def nearest(name: str, known: Iterable[str], most: int = 2) -> list[str]:
    """The names that `name` may be a slip of, the nearest first: by letters without case, with or without the owner."""
    spelt = {form: k for k in known for form in (k.lower(), k.lower().partition("/")[2])}
    close = get_close_matches(name.lower(), spelt, n=2 * most, cutoff=0.8)
    return list(dict.fromkeys(spelt[form] for form in close))[:most]


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ModelFileError(f"{path} is not JSON: {e}", "restore the config.json of the checkpoint") from e
    kind = data.pop("model_type", None) if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise ModelFileError(f"{path} names no model_type", "restore the config.json of the checkpoint")
    data.pop("auto_map", None)  # names code that a checkpoint ships; we run only what transformers has
    try:
        return AutoConfig.for_model(kind, **data)
    except ValueError as e:
        raise UnsupportedError(f"transformers does not know the model type {kind} of {path}") from e


def _cached(model_id: str) -> Path | None:
    """Snapshot folder of a model in the local Hugging Face cache; the network is never asked."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model_id, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def build(config: Any, o: Options) -> nn.Module:
    """The model in eval mode with allocated but unwritten parameters and true buffers.

    For one layer, the model is built with that layer only, which keeps its index in its name.
    """
    import transformers

    kinds = getattr(config, "layer_types", None)
    if o.layer is not None:
        if not 0 <= o.layer < config.num_hidden_layers:
            count = config.num_hidden_layers
            raise UsageError(f"--layer {o.layer} of a model with {count} layers", f"use 0 to {count - 1}")
        config.num_hidden_layers = 1
        config.layer_types = None if kinds is None else [kinds[o.layer]]
    factory: Any = transformers.AutoModel
    whole = [getattr(transformers, a) for a in config.architectures or () if hasattr(transformers, a)]
    options = {"dtype": TORCH[o.dtype], "attn_implementation": "sdpa"}
    with torch.device("meta"):
        build_whole = o.layer is None and whole
        model = whole[0]._from_config(config, **options) if build_whole else factory.from_config(config, **options)
    model.to_empty(device="cpu")
    model.tie_weights()
    for module in model.modules():
        if list(module.buffers(recurse=False)):
            model._init_weights(module)
    model.requires_grad_(False)
    if o.layer is not None:
        layers = layer_list(model)
        layers._modules = {str(o.layer): layers[0]}
    built = model.eval()
    assert isinstance(built, nn.Module)
    return built


def layer_list(model: nn.Module) -> nn.ModuleList:
    """The list of the model's layers; UnsupportedError where none of the usual places has one."""
    for path in _LAYER_LISTS:
        found: Any = model
        for part in path.split("."):
            found = getattr(found, part, None)
        if isinstance(found, nn.ModuleList):
            return found
    raise UnsupportedError(f"{type(model).__name__} keeps its layers in no list that we know", "capture it whole")


class _Slot:
    """Carries a layer's input in and its result out of the model's own forward."""

    def __init__(self) -> None:
        self.given: Any = None
        self.result: Any = None


def _tap(layer: nn.Module) -> _Slot:
    """Make a layer read `slot.given` in place of what reaches it, and leave its result in `slot.result`."""
    slot = _Slot()

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (slot.given, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": slot.given}

    def leave(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        slot.result = result[0] if isinstance(result, tuple) else result

    layer.register_forward_pre_hook(enter, with_kwargs=True)
    layer.register_forward_hook(leave)
    return slot


def instrument(model: Any, o: Options) -> tuple[torch.Tensor, ...]:
    """Give the model the forward that is captured; returns its example inputs."""
    config, generator = model.config, torch.Generator().manual_seed(o.seed)
    run, dtype = model.forward, TORCH[o.dtype]
    image = model.main_input_name == "pixel_values"
    if o.cache_len is not None and not _decodes(config):
        raise UsageError(f"--cache-len: {type(model).__name__} has no key-value cache")
    length = 1 if o.cache_len is not None else o.seq_len
    if image:
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        whole = torch.randn(o.batch, config.num_channels, *size, generator=generator).to(dtype)
    else:
        _check_length(config, o)
        whole = torch.randint(config.vocab_size, (o.batch, length), generator=generator)
    examples: dict[str, torch.Tensor] = {model.main_input_name: whole}
    slot = None
    if o.layer is not None:
        slot = _tap(next(iter(layer_list(model))))
        tokens = _patches(config, whole) if image else length
        hidden = torch.randn(o.batch, tokens, config.hidden_size, generator=generator).to(dtype)
        examples = {"hidden_states": hidden}
    if o.cache_len is not None:
        examples |= _cache_examples(config, o, generator)

    def forward(*args: torch.Tensor) -> torch.Tensor:
        first, rest = args[0], args[1:]
        given = first
        if slot is not None:
            slot.given = first
            given = torch.zeros(whole.shape, dtype=whole.dtype, device=first.device)
        state = _cache_arguments(run, config, rest) if rest else _no_cache(run)
        result = run(**{model.main_input_name: given}, **state)
        if slot is not None:
            layer_result, slot.given, slot.result = slot.result, None, None
            assert isinstance(layer_result, torch.Tensor)
            return layer_result
        out = result.logits if "logits" in result else result.last_hidden_state
        assert isinstance(out, torch.Tensor)
        return out

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    sign(forward, [inspect.Parameter(n, kind) for n in examples])
    model.forward = forward
    return tuple(examples.values())


def _decodes(config: Any) -> bool:
    """True for a model that generates text token by token."""
    generates = any("CausalLM" in a or "LMHead" in a for a in config.architectures or ())
    return generates or bool(getattr(config, "is_decoder", False))


def _check_length(config: Any, o: Options) -> None:
    most = getattr(config, "max_position_embeddings", None)
    wanted = o.cache_len or o.seq_len
    if most is not None and wanted > most:
        raise UsageError(f"{wanted} tokens: the model has positions for {most}", f"use --seq-len {most} or less")


def _patches(config: Any, image: torch.Tensor) -> int:
    """Tokens of an image: one a patch, and the class token."""
    patch = config.patch_size if isinstance(config.patch_size, list | tuple) else [config.patch_size] * 2
    return int((image.shape[2] // patch[0]) * (image.shape[3] // patch[1]) + 1)


def _no_cache(run: Callable[..., Any]) -> dict[str, Any]:
    return {"use_cache": False} if "use_cache" in inspect.signature(run).parameters else {}


def _cache_examples(config: Any, o: Options, generator: torch.Generator) -> dict[str, torch.Tensor]:
    assert o.cache_len is not None
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    examples = {"position": torch.tensor([o.cache_len - 1])}
    for k in range(config.num_hidden_layers):
        for what in ("key", "value"):
            shape = (o.batch, heads, o.cache_len, head)
            examples[f"{what}_cache_{k}"] = torch.randn(shape, generator=generator).to(TORCH[o.dtype])
    if o.layer is not None:
        examples = {n.removesuffix("_0"): v for n, v in examples.items()}
    return examples


def _cache_arguments(run: Callable[..., Any], config: Any, state: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Keyword arguments that make the model decode on the given caches: position, then key and value of each layer."""
    from transformers import StaticCache

    cache = StaticCache(config=config, max_cache_len=int(state[1].shape[2]))
    layers: list[Any] = list(cache.layers)
    for k, layer in enumerate(layers):
        key, value = state[1 + 2 * k], state[2 + 2 * k]
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        layer.cumulative_length = state[0].clone()
    name = "cache" if "cache" in inspect.signature(run).parameters else "past_key_values"
    return {name: cache, "use_cache": True}


def tied(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Every parameter's name -> all names of that parameter, in the model's order (several where weights are tied)."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() for name in group}


@dataclass(frozen=True)
class Materialized:
    """The eager model; its weights get their values before the first call."""

    model: nn.Module
    weights: Mapping[str, torch.Tensor]

    def __call__(self, *args: torch.Tensor) -> Any:
        for name in self.weights:
            self.weights[name]
        with torch.no_grad():
            return self.model(*args)


def checkpoint_tensors(folder: Path, model: Any) -> dict[str, tuple[Path, str]]:
    """Where the value of each parameter of the model lies: parameter -> (safetensors file, name in it).

    Checkpoint names are mapped as transformers maps them (renamed layers, base model prefix).
    """
    from safetensors import SafetensorError, safe_open
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    wanted = model.state_dict()
    renamings = [r for r in get_model_conversion_mapping(model) if isinstance(r, WeightRenaming)]
    table: dict[str, tuple[Path, str]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as f:
                names = list(f.keys())
        except SafetensorError as e:
            raise ModelFileError(f"{path} is no safetensors file: {e}", "download the checkpoint again") from e
        for name in names:
            target, _ = rename_source_key(name, renamings, [], model.base_model_prefix, wanted)
            table[target] = (path, name)
    return table


def filler(
    files: Mapping[str, tuple[Path, str]], std: float, seed: int
) -> Callable[[tuple[str, ...], torch.Tensor], None]:
    """What writes a parameter's value: from its file, or (no files at all) at random from the seed and its first name.

    Random matrices and biases are normal with deviation `std`, as the models initialize matrices; vectors called
    `weight` (norms) are 1 plus that with deviation 0.1, so that a forgotten scale is seen.
    """

    def fill(names: tuple[str, ...], tensor: torch.Tensor) -> None:
        if files:
            _read(files, names, tensor)
            return
        name = names[0]
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        norm = tensor.ndim == 1 and name.endswith("weight")
        with torch.no_grad():
            tensor.normal_(1.0 if norm else 0.0, 0.1 if norm else std, generator=generator)

    return fill


def _read(files: Mapping[str, tuple[Path, str]], names: tuple[str, ...], tensor: torch.Tensor) -> None:
    from safetensors import safe_open

    found = next((files[n] for n in names if n in files), None)
    if found is None:
        raise ModelFileError(f"the checkpoint lacks {names[0]}", "it does not fit this architecture; download it again")
    with safe_open(found[0], framework="pt") as f:
        value = f.get_tensor(found[1])
    if value.shape != tensor.shape:
        raise ModelFileError(f"{found[1]} in {found[0]} has shape {list(value.shape)}, the model {list(tensor.shape)}")
    with torch.no_grad():
        tensor.copy_(value)
