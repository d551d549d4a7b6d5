"""The mask arithmetic of an exported Hugging Face model becomes a comparison of indices."""

from __future__ import annotations

import pytest

from emmy.ir.loop import Body, Op, Scan, const
from emmy.ir.target import TARGETS
from emmy.saturation import Options, Saturation, saturate_program

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def layer() -> Saturation:
    from emmy.frontend.huggingface import load_hf

    program = load_hf("Qwen/Qwen3-0.6B", layer=0, seq_len=16)
    return saturate_program(program, Options(TARGETS["sm_90a"], check=False, golden=""))


def chosen(s: Saturation) -> list[Body]:
    return [c.priced.body for c in s.launches]


def test_layer_compiles_whole(layer):
    assert not layer.opaque
    assert layer.launches


def test_no_launch_computes_a_prefix_sum(layer):
    for b in chosen(layer):
        assert not [n for n in b.nodes if isinstance(n, Scan)], b.text


def test_mask_is_neither_stored_nor_loaded(layer):
    buffers = {b.name: b for b in layer.plan.buffers if b.role in ("temporary", "folded")}
    assert not [b.name for b in buffers.values() if b.tensor.dtype == "bool"]


def test_attention_masks_by_comparing_key_and_query(layer):
    masks = {
        n.args[0].text for b in chosen(layer) for n in b.nodes
        if isinstance(n, Op) and n.name == "where" and n.args[2] is const(float("-inf"), "f32")
    }  # fmt: skip
    assert masks
    for text in masks:
        assert text.startswith("(le bool r") and " o" in text and "load" not in text, text
