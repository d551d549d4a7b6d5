"""Sums that several blocks share, on the card: values, repeats, replays in graphs, launches that start early."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.graph import Output, Ref
from emmy.ir.loop import Body, Const
from emmy.ir.plan import Buffer, KernelLaunch, Plan, kernel_launch
from emmy.ir.schedule import Scheduled
from emmy.ir.target import TARGETS, Target, allowing
from emmy.resources import rulesets
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on
from emmy.runtime.numerics import compare
from tests import bodies as B

pytestmark = pytest.mark.gpu
SHAPES = ((1, 512, 4096), (16, 1024, 4096), (33, 200, 2056), (64, 520, 1032), (130, 264, 4096))
FINISHES = ("", "a")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@pytest.fixture(scope="module")
def card() -> Target:
    capability = torch.cuda.get_device_capability()
    return allowing(TARGETS[next(a for a in reversed(TARGETS) if runs_on(a, capability))], "atomics")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    return CubinCache(Path(tmp_path_factory.mktemp("parts")))


def divided(body: Body, card: Target, finish: str, through: Callable[[Scheduled], bool]) -> list[Scheduled]:
    """A legal row of each number of parts."""
    found = schedule_rows([body], card, {}, rulesets()).rows[body.hash]
    rows = [r for r in found if r.row.reduce.parts > 1 and r.row.reduce.finish == finish and through(r)]
    by_parts = itertools.groupby(sorted(rows, key=lambda r: r.row.reduce.parts), lambda r: r.row.reduce.parts)
    return [pile[len(pile) // 2] for pile in (list(rows) for _, rows in by_parts)]


def in_workspace(r: Scheduled) -> bool:
    return r.config.exchange > 0


def module(body: Body, row: Scheduled, card: Target, cache: CubinCache, chain: int = 1, graph: bool = True) -> Module:
    """`chain` launches of one kernel, each on the inputs; the plan returns every result."""
    launches: list[KernelLaunch] = []
    names = [f"x{k}" for k in range(len(body.slots))]
    for k in range(chain):
        kernel = lower(body, row.family, row.row, card, f"k_parts{k}", names, [f"y{k}"])
        launches.append(kernel_launch(kernel, source(kernel), tuple(names), (f"y{k}",), "", row.family, row.row.text))
    buffers = [Buffer(n, t, "input", n) for n, t in zip(names, body.slots, strict=True)]
    buffers += [Buffer(f"y{k}", body.outs[0].tensor, "output") for k in range(chain)]
    outputs = tuple(Output(Ref(f"y{k}")) for k in range(chain))
    return Module(Plan(card.arch, tuple(buffers), tuple(launches), outputs), {}, cache=cache, graph=graph, poison=True)


def operands(m: int, n: int, k: int, dtype: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=g).to("cuda", DTYPES[dtype]) for s in ((m, k), (n, k)))  # type: ignore[return-value]


def arranged(body: Body, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The operands in the order of the body's slots, told apart by their shapes."""
    shapes = [tuple(e.value for e in slot.shape if isinstance(e, Const)) for slot in body.slots]
    assert {tuple(x.shape), tuple(w.shape)} == set(shapes) and x.shape != w.shape
    return tuple(x if tuple(x.shape) == shape else w for shape in shapes)


def assert_right(found: Tensor, x: Tensor, w: Tensor) -> None:
    comparison = compare(found, x.double() @ w.double().T, terms=x.shape[1], stores=2)
    assert comparison.ok, str(comparison)


def cases() -> list[tuple[int, int, int, str, str]]:
    return [(*shape, dtype, finish) for shape, dtype, finish in itertools.product(SHAPES, DTYPES, FINISHES)]


@pytest.mark.parametrize(("m", "n", "k", "dtype", "finish"), cases())
def test_parts_have_the_value_of_the_whole_and_repeat(
    m: int, n: int, k: int, dtype: str, finish: str, card: Target, cache: CubinCache
) -> None:
    body, (x, w) = B.linear(m, n, k, dtype), operands(m, n, k, dtype)
    for row in divided(body, card, finish, in_workspace):
        made = module(body, row, card, cache)
        bits = set()
        for _ in range(10):
            (y,) = made(*arranged(body, x, w))
            assert isinstance(y, Tensor)
            assert_right(y, x, w)
            bits.add(y.cpu().view(torch.uint8).numpy().tobytes())
        # atomics come in any order; the last block adds the parts in one
        assert len(bits) == 1 or finish == "a", row.row.text
        made.close()


@pytest.mark.parametrize(("m", "n", "k"), [(1536, 2560, 512), (2300, 1160, 1032), (2048, 1544, 264)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_equal_shares_of_all_stages_have_the_value_of_the_whole_and_repeat(
    m: int, n: int, k: int, dtype: str, card: Target, cache: CubinCache
) -> None:
    body, (x, w) = B.linear(m, n, k, dtype), operands(m, n, k, dtype)
    legal = schedule_rows([body], card, {}, rulesets()).rows[body.hash]
    rows = [r for r in legal if r.row.reduce.stream]
    if card.capability != 90:
        assert not rows
        pytest.skip("only Hopper multiplies by warpgroups")
    for row in rows[:: max(1, len(rows) // 6)]:
        made = module(body, row, card, cache, chain=2)
        bits = set()
        for _ in range(10):
            for y in made(*arranged(body, x, w)):
                assert isinstance(y, Tensor)
                assert_right(y, x, w)
                bits.add(y.cpu().view(torch.uint8).numpy().tobytes())
        assert len(bits) == 1, row.row.text
        made.close()


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_launches_in_a_row_that_start_early_do_not_meet_in_their_counters(
    dtype: str, graph: bool, finish: str, card: Target, cache: CubinCache
) -> None:
    """Four launches of one kernel in a graph, replayed on inputs that change."""
    body = B.linear(16, 512, 2048, dtype)
    for row in divided(body, card, finish, in_workspace)[:3]:
        made = module(body, row, card, cache, chain=4, graph=graph)
        for seed in range(20):
            x, w = operands(16, 512, 2048, dtype, seed)
            for y in made(*arranged(body, x, w)):
                assert isinstance(y, Tensor)
                assert_right(y, x, w)
        made.close()


def test_a_graph_of_the_callers_own_finds_zeros_at_every_replay(card: Target, cache: CubinCache) -> None:
    body = B.linear(16, 512, 2048)
    row = divided(body, card, "", in_workspace)[-1]
    made = module(body, row, card, cache, chain=2)
    x, w = operands(16, 512, 2048, "bf16")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = made(*arranged(body, x, w))
    for seed in range(5):
        a, b = operands(16, 512, 2048, "bf16", seed)
        x.copy_(a)
        w.copy_(b)
        captured.replay()
        (between, _) = made(*arranged(body, a, b))  # calls outside of the graph, in turn with its replays
        assert isinstance(between, Tensor)
        assert_right(between, a, b)
        for y in results:
            assert isinstance(y, Tensor)
            assert_right(y, a, b)
    made.close()
