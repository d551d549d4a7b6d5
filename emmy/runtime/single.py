"""One kernel on tensors of one's own, outside of a plan: what tests, probes and measurements launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.ir.kernel import Kernel
from emmy.ir.plan import tensor_maps
from emmy.runtime.driver import Arguments, Function, Invocation, allow_cluster, allow_smem, load
from emmy.runtime.maps import BoundMap
from emmy.runtime.nvrtc import Compiled
from emmy.runtime.sizes import evaluate


def loaded(kernel: Kernel, built: Compiled) -> Function:
    """The compiled kernel in the current context, with the shared memory and clusters that it needs."""
    function = load(built.cubin, kernel.name, built.static_smem)
    allow_smem(function, kernel.dynamic_smem)
    blocks = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
    allow_cluster(function, blocks)
    return function


def invocation(
    kernel: Kernel, function: Function, pointers: Sequence[int], sizes: Mapping[str, int] | None = None
) -> Invocation:
    """A launch of `kernel` on device addresses of its operands and results, in the order of its parameters."""
    known = dict(sizes or {})
    values = [known[p.name] for p in kernel.params if p.role == "size"]
    arguments = Arguments([*pointers, *values], len(kernel.maps))
    for k, m in enumerate(tensor_maps(kernel)):
        arguments.set_map(k, BoundMap(m, known).at(pointers[m.argument]))
    x, y, z = (evaluate(e, known) for e in kernel.grid)
    return Invocation(
        function, (x, y, z), kernel.threads, kernel.dynamic_smem, arguments, kernel.cluster, kernel.dependent
    )
