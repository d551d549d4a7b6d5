"""A candidate on the GPU: its modules, its launches on every copy of the buffers, its graphs."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Final

from .buffers import Buffers, workspace_bytes
from .card import Card
from .driver import CudaError, cuda
from .launches import Call, Graph

Json = dict[str, Any]
SAMPLE_SECONDS: Final = 200e-6


class Candidate:
    """A candidate that is loaded, checked and ready to be timed."""

    def __init__(self, card: Card, buffers: Buffers, kernels: Mapping[str, Json], c: Json) -> None:
        self.id = c["id"]
        self.modules: list[Any] = []
        self.work: list[int] = []
        self.cold: Graph | None = None
        self.warm: Graph | None = None
        self.samples: list[float] = []
        self.warm_samples: list[float] = []
        self.errors: dict[str, float] = {}
        self.estimate = 0.0
        self.nodes = 1
        self.flushes = True
        try:
            self.load(card, buffers, kernels, c)
        except CudaError as e:
            if not e.fatal:  # a lost context takes everything with it
                self.close()
            raise

    def load(self, card: Card, buffers: Buffers, kernels: Mapping[str, Json], c: Json) -> None:
        """Modules, workspaces, launches on every copy of the buffers, and what is launched once."""
        loaded: dict[str, Any] = {}
        for l in [*c.get("setup", ()), *c["launches"]]:
            if l["kernel"] in loaded:
                continue
            kernel = kernels[l["kernel"]]
            module = card.load(base64.b64decode(kernel["cubin"]))
            self.modules.append(module)
            loaded[l["kernel"]] = f = cuda("cuModuleGetFunction", module, kernel["entry"].encode())
            smem = max(x["smem"] for x in [*c.get("setup", ()), *c["launches"]] if x["kernel"] == l["kernel"])
            if smem:
                from cuda.bindings import driver as d

                most = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                cuda("cuFuncSetAttribute", f, most, smem)
            if math.prod(l.get("cluster", (1, 1, 1))) > 8:
                from cuda.bindings import driver as d

                large = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                cuda("cuFuncSetAttribute", f, large, 1)
        live = [l for l in c["launches"] if 0 not in l["grid"]]
        # launches run one after another, so that the same memory of their own serves every copy of the buffers
        work = [self.workspaces(card, l) for l in live]
        self.sets = [
            [
                # the first launch of a run does not overlap with the run before, which is another sample's
                Call(loaded[l["kernel"]], l, [*(s[a] for a in l["args"]), *w], bool(k and l.get("dependent")))
                for k, (l, w) in enumerate(zip(live, work, strict=True))
            ]
            for s in buffers.sets
        ]
        setup = [(l, self.workspaces(card, l)) for l in c.get("setup", ())]
        for s in buffers.sets:
            for l, w in setup:
                Call(loaded[l["kernel"]], l, [*(s[a] for a in l["args"]), *w]).start(card.stream)

    def workspaces(self, card: Card, launch: Json) -> list[int]:
        """Memory of one launch's own: zeros where it needs them, which it leaves behind."""
        made = []
        for w in launch.get("work", ()):
            bytes = workspace_bytes(w)
            made.append(int(cuda("cuMemAlloc", bytes)))
            self.work.append(made[-1])
            cuda("cuMemsetD8Async", made[-1], 0 if w["zeroed"] else 0xFF, bytes, card.stream)
        return made

    def run(self, stream: Any, copy: int = 0) -> None:
        for call in self.sets[copy]:
            call.start(stream)

    def build(self, buffers: Buffers) -> None:
        self.nodes = max(1, min(len(self.sets), math.ceil(SAMPLE_SECONDS / max(self.estimate, 1e-7))))
        self.flushes = self.nodes * buffers.footprint < 2 * buffers.card.l2
        self.cold = Graph([c for s in self.sets[: self.nodes] for c in s])

    def build_warm(self) -> None:
        self.warm_nodes = max(1, min(100, math.ceil(SAMPLE_SECONDS / max(self.estimate, 1e-7))))
        self.warm = Graph([c for _ in range(self.warm_nodes) for c in self.sets[0]])

    def close(self) -> None:
        for g in (self.cold, self.warm):
            if g is not None:
                g.close()
        for m in self.modules:
            cuda("cuModuleUnload", m)
        for p in self.work:
            cuda("cuMemFree", p)
