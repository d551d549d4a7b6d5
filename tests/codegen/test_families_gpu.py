"""Map, row, scan and plain kernels on a GPU: sampled rows of every body, results poisoned before each launch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body
from emmy.ir.schedule import Scheduled
from emmy.ir.target import target
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from tests import host_cuda
from tests.codegen import check
from tests.codegen import small as K
from tests.codegen.test_families import CASES, RULESETS, TOLERANCE

pytestmark = pytest.mark.gpu
ROWS = 20
EXTENTS = (1, 5, 7, 33, 77, 2304, 4097)
LARGE: dict[str, Body] = {
    "rms norm": K.rms_norm(1000, 4096, "bf16"),
    "softmax": K.softmax(300, 8192, "bf16"),
    "layer norm": K.layer_norm(257, 1024, "f16"),
    "column sums": K.column_sum(3000, 1000, "bf16"),
    "channel statistics": K.channel_statistics(16, 64, 784),
    "gelu": K.bias_gelu(500, 1234),
    "rotary": K.rotary(300, 16, 128),
    "cumulative sum": K.cumulative(64, 5000),
    "transpose": K.added_transpose(1000, 777),
}


def _device(a: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(a).view(np.uint8).reshape(-1).copy()).cuda()


def _launch(kernel: Kernel, built: Compiled, held: Sequence[Any], body: Body, sizes: Mapping[str, int]) -> list[Any]:
    import torch

    from emmy.runtime.single import invocation, loaded, work_tensors

    shapes = [tuple(integer(e, sizes) for e in o.tensor.shape) for o in body.outs]
    bytes = [int(np.prod(s)) * DTYPES[o.tensor.dtype].bytes for s, o in zip(shapes, body.outs, strict=True)]
    outs = [torch.full((n,), 0xFF, dtype=torch.uint8, device="cuda") for n in bytes]
    own = work_tensors(kernel, sizes)
    launch = invocation(kernel, loaded(kernel, built), [t.data_ptr() for t in (*held, *outs, *own)], sizes)
    launch.launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    types = [host_cuda.NUMPY[o.tensor.dtype] for o in body.outs]
    return [t.cpu().numpy().view(d).reshape(s) for t, d, s in zip(outs, types, shapes, strict=True)]


def check_rows(body: Body, sizes: Mapping[str, int], count: int, seed: int) -> None:
    """`count` legal rows by chance, the plain one among them, against the evaluator; twice, bit for bit the same."""
    from emmy.runtime.local import local_arch

    arch = local_arch()
    assert arch is not None
    legal = schedule_rows([body], target(arch), sizes, RULESETS).rows[body.hash]
    chosen: list[Scheduled] = [*random.Random(seed).sample(legal, min(count, len(legal))), legal[-1]]
    kernels = [lower(body, s.family, s.row, target(arch), "k_test") for s in chosen]
    built = compile_many([Job(source(k), k.name, arch) for k in kernels])
    given = check.operands(body, sizes)
    expected = evaluate(body, given, sizes)
    held = [_device(a) for a in given]
    for s, k, binary in zip(chosen, kernels, built, strict=True):
        assert isinstance(binary, Compiled), f"{s.row.text}: {binary}"
        first, second = (_launch(k, binary, held, body, sizes) for _ in range(2))
        assert check.distance(body, first, expected) < TOLERANCE, f"{s.family} {s.row.text}"
        for a, b in zip(first, second, strict=True) if s.row.reduce.finish != "a" else ():
            assert a.tobytes() == b.tobytes(), f"{s.family} {s.row.text} differs from run to run"


@pytest.mark.parametrize("name", CASES)
def test_rows_of_small_bodies(name: str) -> None:
    body, sizes = CASES[name]
    check_rows(body, sizes, ROWS, seed=len(name))


@pytest.mark.parametrize("name", LARGE)
def test_rows_of_large_bodies(name: str) -> None:
    check_rows(LARGE[name], {}, ROWS, seed=len(name))


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_odd_extents(n: int, dtype: str) -> None:
    bodies = [
        K.bias_gelu(7, n, dtype),
        K.softmax(3, n, dtype),
        K.column_sum(n, 7, dtype),
        K.cumulative(2, n, dtype=dtype),
    ]
    for body in bodies:
        check_rows(body, {}, 8, seed=n)


@pytest.mark.parametrize("old", ["f8e4m3", "f8e5m2"])
def test_loads_of_8_bit_floats_are_exact(old: str) -> None:
    """The hardware's conversion, where a card has it, gives what integer arithmetic does elsewhere."""
    from emmy.runtime.local import local_arch

    arch = local_arch()
    assert arch is not None
    card = target(arch)
    x = np.arange(256, dtype=np.uint8).view(host_cuda.NUMPY[old])
    body = K.converted(256, old, "f32")
    row = schedule_rows([body], card, {}, RULESETS).rows[body.hash][-1]
    kernel = lower(body, row.family, row.row, card, "k_test")
    (built,) = compile_many([Job(source(kernel), kernel.name, card.arch)])
    assert isinstance(built, Compiled), built
    (found,) = _launch(kernel, built, [_device(x)], body, {})
    np.testing.assert_array_equal(found, x.astype(np.float32))
