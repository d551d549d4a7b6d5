"""Decoding one token on filled caches, twice: the second step sees what the first one wrote into them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import emmy
from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.frontend.capture import capture
from emmy.frontend.reference import Value
from emmy.runtime.cache import CubinCache
from emmy.runtime.numerics import compare
from tests.integration.machine import Compiled, Machine, launches_where

HEADS, LENGTH, WIDTH = 4, 64, 32
# few tokens before it: the token that the first step adds weighs a third in the second
FIRST = 2
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 320, "vocab_size": 96,
    "max_position_embeddings": 256, "hidden_act": "silu", "rms_norm_eps": 1e-5, "initializer_range": 0.1,
}  # fmt: skip


class Step(nn.Module):
    """One token of attention on filled caches, which it extends at `place`."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, bias=False)

    def forward(self, x: torch.Tensor, place: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, HEADS, 1, WIDTH) for t in self.project(x).chunk(3, -1))
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        mask = torch.arange(LENGTH, device=x.device)[None, :] <= place[:, None]
        return nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def step(dtype: torch.dtype) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    module = Step().eval().to(dtype)
    caches = [torch.randn(1, HEADS, LENGTH, WIDTH, dtype=dtype) for _ in range(2)]
    return module, [torch.randn(1, HEADS * WIDTH, dtype=dtype), torch.tensor([FIRST]), *caches]


def in_place(model: ModelGraph, launch: Launch) -> bool:
    """No launch makes new contents of a cache but where the cache lies."""
    return launch.in_place is not None or not model.changed & set(launch.results)


@pytest.fixture(scope="module", params=["step", "step in place", "llama", "llama in place"])
def decode(machine: Machine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """User inputs: the token's vector, its position, the key cache, the value cache."""
    name, _, where = request.param.partition(" ")
    with launches_where(in_place) if where else nullcontext():
        if name == "step":
            module, inputs = step(torch.float16)
            return machine.compile(capture(module, tuple(inputs)))
        pytest.importorskip("transformers")
        folder: Path = tmp_path_factory.mktemp("llama")
        (folder / "config.json").write_text(json.dumps(LLAMA))
        return machine.compile(emmy.load(str(folder), layer=0, seq_len=1, cache_len=LENGTH, dtype="bf16"))


def arguments(c: Compiled, machine: Machine, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, position, *caches = c.saturation.program.example_tensors()
    made = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in (hidden, *caches)]
    return [t.to(machine.device) for t in (made[0], torch.full_like(position, FIRST), *made[1:])]


def returned(c: Compiled, values: Sequence[Value]) -> torch.Tensor:
    (found,) = (v for v, o in zip(values, c.saturation.program.graph.outputs, strict=True) if not o.mutates)
    assert isinstance(found, torch.Tensor)
    return found


def test_two_steps_in_a_row_are_right_and_write_only_their_own_slots(decode: Compiled, machine: Machine) -> None:
    hidden, position, *caches = inputs = arguments(decode, machine, 0)
    before, places = [t.clone() for t in caches], [t.data_ptr() for t in caches]
    for at in (FIRST, FIRST + 1):
        position.fill_(at)
        hidden.copy_(arguments(decode, machine, at)[0])
        exact, found = decode.exact(inputs), decode.run(inputs)
        decode.assert_right(found, exact)
    for cache, old, place in zip(caches, before, places, strict=True):
        kept = [k for k in range(LENGTH) if k not in (FIRST, FIRST + 1)]
        assert torch.equal(cache[:, :, kept], old[:, :, kept]) and cache.data_ptr() == place
        assert all(not torch.equal(cache[:, :, k], old[:, :, k]) for k in (FIRST, FIRST + 1))
    # a second step that had not seen the first is told apart
    stale = returned(decode, decode.exact([hidden, position, *before]))
    assert not compare(returned(decode, found).to(hidden.dtype), stale, terms=decode.terms, stores=decode.stores).ok


def test_caches_of_several_conversations_do_not_mix(decode: Compiled, machine: Machine) -> None:
    """One program, other tensors at every call, and the first ones again: addresses are not remembered."""
    several = [arguments(decode, machine, seed) for seed in (1, 2, 3)]
    for inputs in (*several, several[0]):
        exact = decode.exact(inputs)
        decode.assert_right(decode.run(inputs), exact)


def test_both_caches_are_updated_and_where_they_lie_if_so_asked(
    decode: Compiled, request: pytest.FixtureRequest
) -> None:
    changed = [o.mutates for o in decode.saturation.program.graph.outputs if o.mutates]
    assert len(changed) == 2
    if "in place" in request.node.callspec.id:
        updates = [c for c in decode.saturation.launches if c.launch.in_place]
        assert sorted(r for c in updates for r in c.results) == sorted(changed)


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True], ids=["own graphs", "graph of the caller"])
def test_compiled_callable_decodes_on_the_users_caches(captured: bool, tmp_path: Path) -> None:
    """Through `emmy.compile` on the same tensors at each step, by its own CUDA graphs or within one of the caller's."""
    made, inputs = step(torch.float32)
    module, given = made.cuda(), [t.cuda() for t in inputs]
    exact, wanted = copy.deepcopy(module).double(), [t.double() if t.is_floating_point() else t for t in given]
    caches = [t.clone() for t in given[2:]]
    fast = emmy.compile(module, golden="", database=tmp_path / "none.duckdb", cache=CubinCache(tmp_path))

    def call() -> torch.Tensor:
        found = fast(*given)
        assert isinstance(found, torch.Tensor)
        return found

    result, replay = call(), call
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

    for cache, old in zip(given[2:], caches, strict=True):
        cache.copy_(old)
    generator = torch.Generator().manual_seed(5)
    for at in range(FIRST, FIRST + 4):
        x = torch.randn(given[0].shape, generator=generator).cuda()
        given[0].copy_(x)
        given[1].fill_(at)
        with torch.no_grad():
            reference = exact(x.double(), given[1], *wanted[2:])
        for found, expected in zip((replay(), *given[2:]), (reference, *wanted[2:]), strict=True):
            comparison = compare(found, expected, terms=4 * HEADS * WIDTH, stores=2)
            assert comparison.ok, f"step {at}: {comparison}"
    assert len(fast.variants) == 1
