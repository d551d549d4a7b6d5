"""Layout operations, joins, creation: all are index maps and must read the elements that eager reads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.frontend.translate.reference import check, check_all


def test_views_permutations_and_repetitions() -> None:
    check_all(
        {
            "view": lambda x: x.view(4, 15),
            "reshape": lambda x: x.reshape(5, 3, 4),
            "flatten": lambda x: x.flatten(1),
            "ravel": torch.ravel,
            "unflatten": lambda x: x.unflatten(2, (5, 1)),
            "T": lambda x: x[0].T,
            "mT": lambda x: x.mT,
            "t": lambda x: x[0].t(),
            "permute": lambda x: x.permute(2, 0, -2),
            "transpose": lambda x: x.transpose(-1, 0),
            "movedim": lambda x: x.movedim(0, -1),
            "movedims": lambda x: torch.movedim(x, (0, 1), (2, 0)),
            "swapaxes": lambda x: x.swapaxes(0, 1),
            "unsqueeze": lambda x: x.unsqueeze(-1),
            "squeeze": lambda x: x[:1].squeeze(),
            "squeeze0": lambda x: x[:1].squeeze(0),
            "squeeze1": lambda x: x.squeeze(1),
            "none": lambda x: x[:, None, ..., None],
            "expand": lambda x: x[:, :1].expand(-1, 7, -1),
            "lead": lambda x: x.expand(2, 3, 4, 5),
            "as": lambda x: x[:1].expand_as(x),
            "broadcast": lambda x: x[0].broadcast_to(6, 4, 5),
            "repeat": lambda x: x.repeat(2, 1, 3),
            "repeat_lead": lambda x: x[0].repeat(3, 2, 1),
            "tile": lambda x: x.tile(2),
            "tile1": lambda x: x.tile(1, 2, 1, 1),
            "interleave": lambda x: x.repeat_interleave(2, 1),
            "interleave_all": lambda x: x.repeat_interleave(3),
            "contiguous": lambda x: x.mT.contiguous(),
            "clone": torch.clone,
            "view_as": lambda x: x.view_as(x.reshape(3, 4, 5)),
            "detach": torch.detach,
            "atleast": torch.atleast_2d,
        },
        torch.randn(3, 4, 5),
    )


def test_slices_flips_and_rolls() -> None:
    check_all(
        {
            "neg": lambda x: x[-2:],
            "step": lambda x: x[:, ::3],
            "beyond": lambda x: x[2:100],
            "both": lambda x: x[1:-1, -3:-1],
            "below": lambda x: x[-100:2],
            "last": lambda x: x[-1],
            "select": lambda x: x[:, 2],
            "nothing": lambda x: x[3:2],
            "narrow": lambda x: x.narrow(1, 1, 3),
            "flip": lambda x: x.flip(0, -1),
            "fliplr": torch.fliplr,
            "flipud": torch.flipud,
            "roll": lambda x: x.roll(2, 1),
            "roll2": lambda x: x.roll((1, -3), (0, 1)),
            "rollall": lambda x: x.roll(-4),
            "rot": lambda x: torch.rot90(x, 1),
            "rot2": lambda x: torch.rot90(x, 2),
            "rot3": lambda x: torch.rot90(x, 3),
            "unfold": lambda x: x.unfold(1, 3, 2),
            "strided": lambda x: x.as_strided((2, 3), (1, 2), 3),
        },
        torch.randn(4, 7),
    )


def test_splits_and_joins() -> None:
    check_all(
        {
            "split": lambda x: x.split(2),
            "sizes": lambda x: x.split([1, 4], 0),
            "chunk": lambda x: x.chunk(3, 1),
            "tensor_split": lambda x: x.tensor_split(3, 1),
            "at": lambda x: x.tensor_split((1, 4), 1),
            "unbind": lambda x: x.unbind(1),
            "cat": lambda x: torch.cat([x, x * 2, x[:1]]),
            "cat1": lambda x: torch.cat([x, x[:, :2]], -1),
            "empty": lambda x: torch.cat([x.new_empty(0), x]),
            "one": lambda x: torch.cat([x]),
            "mixed": lambda x: torch.cat([x, x.long()]),
            "zero": lambda x: torch.cat([x[:0], x, x[:0]]),
            "stack": lambda x: torch.stack([x, -x, x + 1], 1),
            "stack_last": lambda x: torch.stack([x, -x], -1),
            "hstack": lambda x: torch.hstack([x, x]),
            "hstack1": lambda x: torch.hstack([x[0], x[1]]),
            "vstack": lambda x: torch.vstack([x[0], x]),
            "dstack": lambda x: torch.dstack([x, x]),
            "column": lambda x: torch.column_stack([x[:, 0], x]),
            "grid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"),
            "xy": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="xy"),
            "bool": lambda x: torch.cat([x > 0, x < 0]),
            "broadcast": lambda x: torch.broadcast_tensors(x, x[:1]),
        },
        torch.randn(5, 6),
    )


def test_diagonals_and_triangles() -> None:
    check_all(
        {
            "diagonal": torch.diagonal,
            "off": lambda x: x.diagonal(1),
            "below": lambda x: x.diagonal(-2),
            "diag": torch.diag,
            "build": lambda x: torch.diag(x[0]),
            "build_off": lambda x: torch.diag(x[0], -1),
            "embed": torch.diag_embed,
            "embed_off": lambda x: torch.diag_embed(x, 2),
            "tril": torch.tril,
            "triu": torch.triu,
            "tril1": lambda x: x.tril(1),
            "batched": lambda x: torch.stack([x, x]).triu(),
            "triu-1": lambda x: x.triu(-1),
            "bool": lambda x: (x > 0).triu(1),
            "trace": torch.trace,
        },
        torch.randn(4, 5),
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding(mode: str) -> None:
    x = torch.randn(2, 3, 5, 6)
    check(lambda x: (F.pad(x, (2, 1, 1, 3), mode=mode), F.pad(x, (1, 2, 0, 0), mode=mode)), x)


def test_constant_padding_takes_a_value_and_crops() -> None:
    x = torch.randn(3, 4)
    check_all(
        {
            "v": lambda x: F.pad(x, (1, 2), value=7.5),
            "crop": lambda x: F.pad(x, (-1, 2, 1, -1)),
            "int": lambda x: F.pad(x.long(), (1, 1), value=-3),
            "bool": lambda x: F.pad(x > 0, (1, 0), value=True),
        },
        x,
    )


def test_shuffles_and_folds() -> None:
    check_all(
        {
            "shuffle": lambda x: F.pixel_shuffle(x, 2),
            "unshuffle": lambda x: F.pixel_unshuffle(x, 2),
            "channels": lambda x: F.channel_shuffle(x, 2),
            "unfold": lambda x: F.unfold(x, 3),
            "unfold_all": lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(2, 1)),
            "fold": lambda x: F.fold(F.unfold(x, 2), (4, 6), 2),
            "fold_all": lambda x: F.fold(F.unfold(x, (2, 3), 1, 1, 2), (4, 6), (2, 3), 1, 1, 2),
        },
        torch.randn(2, 4, 4, 6),
    )


def test_creation() -> None:
    check_all(
        {
            "full": lambda x: torch.full((2, 3), 1.5),
            "int": lambda x: torch.full((2,), 7),
            "zeros": lambda x: torch.zeros(2),
            "ones": lambda x: torch.ones(2, dtype=torch.int64),
            "like": lambda x: torch.full_like(x, 2),
            "ones_like": torch.ones_like,
            "new": lambda x: x.new_ones(2),
            "new_full": lambda x: x.new_full((2,), 3),
            "zeros_like": torch.zeros_like,
            "bool": lambda x: torch.ones(3, dtype=torch.bool),
            "arange": lambda x: torch.arange(5),
            "step": lambda x: torch.arange(9, 1, -2),
            "float": lambda x: torch.arange(0.0, 1.0, 0.1),
            "end": lambda x: torch.arange(4, dtype=torch.float32),
            "int32": lambda x: torch.arange(2, 6, dtype=torch.int32),
            "linspace": lambda x: torch.linspace(-1, 2, 7),
            "linspace1": lambda x: torch.linspace(3, 2, 1),
            "eye": lambda x: torch.eye(3),
            "eye2": lambda x: torch.eye(2, 4),
            "scalar": lambda x: torch.scalar_tensor(2.0),
            "tensor": lambda x: x * torch.tensor(3.0),
            "list": lambda x: torch.tensor([1, 2]),
            "one_hot": lambda x: F.one_hot(torch.tensor([0, 2, 1]), 4),
            "fill": lambda x: x.clone().fill_(3),
            "zero": lambda x: x.clone().zero_(),
            "copy": lambda x: torch.zeros(2, 3).copy_(x[0]),
            "double": lambda x: x + 2,
        },
        torch.randn(2, 3),
    )


def test_assignments_become_values() -> None:
    def assign(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1] = 2.0
        y[1:3] = x[:2]
        y[::2, 3:] = 9.0
        y[-1] += 1
        y.mul_(2).add_(x)
        return y

    check(assign, torch.randn(4, 6))


def test_symbolic_lengths_stay_symbolic() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        n = x.shape[1]
        mask = torch.arange(n)[None] <= torch.arange(n)[:, None]
        return [
            x.reshape(2, n, 2, 3).transpose(1, 2),
            x.flatten(1),
            x[:, 1:],
            x[:, -2:],
            torch.cat([x, y], 1),
            x.unsqueeze(1),
            x.expand(2, n, 6),
            x * n,
            torch.zeros(n, 2),
            mask,
            x @ x.mT,
            x.softmax(1),
            x.mean(1),
            x.sum((1, 2)),
            x[:, -1],
            x.flip(1),
            x.masked_fill(mask[:1, :, None], 0.0),
            F.pad(x, (0, 0, 1, 2)),
            x.view(2 * n, 6),
            x.repeat(1, 2, 1),
            torch.stack([x, x], 1),
        ]

    n, m = torch.export.Dim("n", min=3, max=64), torch.export.Dim("m", min=3, max=64)
    program = check(fn, torch.randn(2, 5, 6), torch.randn(2, 4, 6), dynamic_shapes=({1: n}, {1: m}))
    assert {s for t in program.terms for e in t.tensor.shape for s in e.sizes} == {"s0", "s1"}


def test_a_layer_over_a_symbolic_length() -> None:
    def fn(i: torch.Tensor, e: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
        n = i.shape[1]
        x = F.linear(F.embedding(i, e), w)
        q = x.view(2, n, 2, 3).transpose(1, 2)
        place = torch.arange(n, device=i.device)[None]
        new = torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != 1
        packed = new.cumsum(-1)
        mask = (place[:, None, None] <= place[:, None, :, None]) & (packed[:, None, :, None] == packed[:, None, None])
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(2, n, 6)
        z = F.scaled_dot_product_attention(q, q, q, is_causal=True).flatten(1)
        angle = place[..., None].float() * torch.tensor([1.0, 0.5, 0.25])
        turned = torch.cat([-x[..., 3:], x[..., :3]], -1) * torch.cat([angle, angle], -1).cos()
        last = x[torch.arange(2), (i != 0).sum(1) - 1]
        return [
            y, z, turned, last,
            x.gather(1, i[..., None].clamp(max=3)), F.layer_norm(x, (6,)), F.rms_norm(x, (6,), w[0]),
            F.conv1d(x.mT, k, padding=1), x.roll(-1, 1), *x.split(2, -1), x.mean(1), x.var(1), x.argmax(1),
            F.log_softmax(x, 1), x.amax(1), x.index_select(1, i[0] % 3), torch.einsum("bik,bjk->bij", x, x), x.tril(),
            F.one_hot(i, 7), x.unflatten(1, (1, n)), x[:, ::2],
        ]  # fmt: skip

    n = torch.export.Dim("n", min=4, max=64)
    i = torch.tensor([[1, 2, 3, 4, 5], [6, 5, 0, 1, 2]])
    check(
        fn, i, torch.randn(7, 6), torch.randn(6, 6), torch.randn(4, 6, 3), rtol=1e-4, atol=1e-5,
        dynamic_shapes=({1: n}, None, None, None),
    )  # fmt: skip
