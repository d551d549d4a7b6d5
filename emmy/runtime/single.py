"""One kernel on tensors of one's own, outside of a plan: what tests, probes and measurements launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from emmy.errors import PlanError
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import Kernel
from emmy.ir.plan import tensor_maps, workspaces
from emmy.runtime.driver import Arguments, Function, Invocation, allow_cluster, allow_smem, load
from emmy.runtime.maps import BoundMap
from emmy.runtime.nvrtc import Compiled
from emmy.runtime.sizes import evaluate

if TYPE_CHECKING:
    from torch import Tensor


def loaded(kernel: Kernel, built: Compiled) -> Function:
    """The compiled kernel in the current context, with the shared memory and clusters that it needs."""
    function = load(built.cubin, kernel.name, built.static_smem)
    allow_smem(function, kernel.dynamic_smem)
    blocks = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
    allow_cluster(function, blocks)
    return function


def work_tensors(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> list[Tensor]:
    """Memory of the kernel's launch's own as bytes on the current device: zeros where it needs them, else 0xFF."""
    import torch

    known = dict(sizes or {})
    made = []
    for w in workspaces(kernel):
        count = max(1, evaluate(w.count, known)) * DTYPES[w.type].bytes
        made.append(torch.full((count,), 0 if w.zeroed else 0xFF, dtype=torch.uint8, device="cuda"))
    return made


def invocation(
    kernel: Kernel, function: Function, pointers: Sequence[int], sizes: Mapping[str, int] | None = None
) -> Invocation:
    """A launch of `kernel` on device addresses of its operands, results and workspaces, in the order of its
    parameters."""
    known = dict(sizes or {})
    expected = sum(p.role != "size" for p in kernel.params)
    if len(pointers) != expected:
        raise PlanError(
            f"{kernel.name} takes {expected} pointers, {len(pointers)} are given", "give its workspaces too"
        )
    values = [known[p.name] for p in kernel.params if p.role == "size"]
    arguments = Arguments([*pointers, *values], len(kernel.maps))
    for k, m in enumerate(tensor_maps(kernel)):
        arguments.set_map(k, BoundMap(m, known).at(pointers[m.argument]))
    x, y, z = (evaluate(e, known) for e in kernel.grid)
    return Invocation(
        function, (x, y, z), kernel.threads, kernel.dynamic_smem, arguments, kernel.cluster, kernel.dependent
    )
