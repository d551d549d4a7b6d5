import pytest
import torch

from emmy.errors import InputError
from emmy.ir.dtype import DTYPES
from emmy.ir.torch_types import NAMES, TORCH
from emmy.runtime.tensors import accept, plain, poison, view

CPU = torch.device("cpu")


def test_every_storage_type_has_its_own_pytorch_type_of_that_width() -> None:
    assert TORCH.keys() == DTYPES.keys()
    assert {name: torch.empty((), dtype=t).element_size() for name, t in TORCH.items()} == {
        name: d.bytes for name, d in DTYPES.items()
    }
    assert len(NAMES) == len(TORCH)


def test_aligned_contiguous_tensors_are_used_where_they_lie() -> None:
    t = torch.randn(8, 8)
    assert plain(t) is t
    assert plain(t[4:]).data_ptr() == t[4:].data_ptr()


def test_views_that_kernels_cannot_read_are_copied() -> None:
    t = torch.randn(8, 8)
    for odd in (t.t(), t[:, ::2], t.flatten()[1:5], t[:1].expand(8, 8)):
        copy = plain(odd)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 16 == 0
        assert torch.equal(copy, odd)


def test_an_arena_is_seen_as_arrays() -> None:
    arena = torch.zeros(1024, dtype=torch.uint8)
    view(arena, 256, "f32", (2, 3)).fill_(1.0)
    assert arena.view(torch.float32).tolist() == [0.0] * 64 + [1.0] * 6 + [0.0] * 186
    assert view(arena, 512, "bool", (4,)).dtype == torch.bool
    assert view(arena, 0, "bf16", ()).shape == ()
    assert view(arena, 1024, "f32", (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("name", TORCH)
def test_poison_is_nan_in_every_float_type(name: str) -> None:
    t = torch.zeros(3, dtype=TORCH[name])
    scalar, empty = torch.zeros((), dtype=TORCH[name]), torch.zeros(0, dtype=TORCH[name])
    for each in (t, scalar, empty):
        poison(each)
    assert set(t.view(torch.uint8).tolist()) == {0xFF}
    if DTYPES[name].kind == "float":
        assert t.float().isnan().all() and scalar.float().isnan()


def test_what_does_not_fit_is_refused() -> None:
    t = torch.zeros(3)
    assert accept(t, "f32", CPU, "input 'x'") is t
    with pytest.raises(InputError, match="input 'x': expected dtype f16, found f32"):
        accept(t, "f16", CPU, "input 'x'")
    with pytest.raises(InputError, match=r"found torch\.complex64"):
        accept(t.to(torch.complex64), "f32", CPU, "input 'x'")
    with pytest.raises(InputError, match="expected it on cuda:0, found cpu"):
        accept(t, "f32", torch.device("cuda", 0), "input 'x'")
    with pytest.raises(InputError, match="expected a tensor, found list"):
        accept([1.0], "f32", CPU, "input 'x'")
