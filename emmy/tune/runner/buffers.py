"""The buffers of a group in GPU memory: operands as they were, right values, and copies to launch on."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from .card import Card
from .driver import cuda
from .manifest import DTYPES, BadPacket
from .operands import fill

Json = dict[str, Any]
MOST_COPIES: Final = 64
GUARD: Final = 512  # bytes behind every output that must stay poisoned


def workspaces(candidate: Json) -> list[Json]:
    """Memory of their own that a candidate's launches ask for."""
    return [w for l in (*candidate.get("setup", ()), *candidate["launches"]) for w in l.get("work", ())]


def workspace_bytes(w: Json) -> int:
    return int(max(16, w["count"] * DTYPES[w["dtype"]][0]))


class Buffers:
    """A group's buffers: pristine operands, references, and `copies` of all for the launches."""

    def __init__(self, card: Card, group: Json) -> None:
        self.card, self.group = card, group
        self.held: list[Any] = []
        self.by_name = {b["name"]: b for b in group["buffers"]}
        self.bytes = {n: b["count"] * DTYPES[b["dtype"]][0] for n, b in self.by_name.items()}
        self.shared = [n for n, b in self.by_name.items() if b["role"] != "temp"]
        self.written = [n for n, b in self.by_name.items() if b["role"] in ("out", "update")]
        self.footprint = max(1, sum(self.bytes[n] for n in self.shared))
        every = sum(self.bytes.values()) + 1024 * len(self.bytes)
        wanted = max(-(-2 * card.l2 // self.footprint), 4 if self.footprint <= 512 << 20 else 1)
        # candidates of a batch are loaded together, each with memory of its own beside the copies
        own = sum(workspace_bytes(w) for c in group["candidates"] for w in workspaces(c))
        room = int(0.8 * card.free_bytes()) - 2 * self.footprint - own
        self.copies = max(1, min(MOST_COPIES, wanted, room // every))
        self.pristine: dict[str, int] = {}
        for k, n in enumerate(self.shared):
            if self.by_name[n]["role"] in ("in", "update"):
                self.pristine[n] = self.allocate(self.bytes[n])
                self.upload(self.pristine[n], fill(self.by_name[n], 1 + k))
        self.sets = [{n: self.allocate(self.bytes[n] + GUARD) for n in self.by_name} for _ in range(self.copies)]
        for s in self.sets:
            for n in self.by_name:
                self.reset(n, s)
        self.reference: dict[str, tuple[int, int]] = {}  # pointer, code of its type
        self.scale: dict[str, float] = {}

    def allocate(self, n: int) -> int:
        p = int(cuda("cuMemAlloc", max(16, n)))
        self.held.append(p)
        return p

    def upload(self, pointer: int, data: np.ndarray[Any, Any]) -> None:
        if data.nbytes:
            cuda("cuMemcpyHtoD", pointer, data.ctypes.data, data.nbytes)
            cuda("cuCtxSynchronize")  # our stream does not wait for the default one

    def reset(self, name: str, copy: Mapping[str, int]) -> None:
        """Operands as they were, results and temporaries poisoned."""
        n = self.bytes[name]
        if name in self.pristine and n:
            cuda("cuMemcpyDtoDAsync", copy[name], self.pristine[name], n, self.card.stream)
            cuda("cuMemsetD8Async", copy[name] + n, 0xFF, GUARD, self.card.stream)
        else:
            cuda("cuMemsetD8Async", copy[name], 0xFF, n + GUARD, self.card.stream)

    def take_expected(self, files: Mapping[str, str]) -> None:
        for name, data in files.items():
            array = np.frombuffer(base64.b64decode(data), np.uint8)
            b = self.by_name[name]
            real = DTYPES[b["dtype"]][1] < 6
            if array.nbytes != b["count"] * (8 if real else DTYPES[b["dtype"]][0]):
                raise BadPacket(f"expected values of {name} have {array.nbytes} bytes")
            pointer = self.allocate(array.nbytes)
            self.upload(pointer, array)
            self.refer(name, pointer, 5 if real else DTYPES[b["dtype"]][1])

    def take_reference(self, copy: Mapping[str, int]) -> None:
        """What the check candidate has left in the outputs is right from now on."""
        for name in self.written:
            pointer = self.allocate(self.bytes[name])
            if self.bytes[name]:
                cuda("cuMemcpyDtoDAsync", pointer, copy[name], self.bytes[name], self.card.stream)
            self.refer(name, pointer, DTYPES[self.by_name[name]["dtype"]][1])

    def refer(self, name: str, pointer: int, code: int) -> None:
        self.reference[name] = pointer, code
        n = self.by_name[name]["count"]
        self.scale[name] = self.card.counts("emmy_scale", pointer, n, code, int(self.card.out))[0]

    def close(self) -> None:
        for p in self.held:
            cuda("cuMemFree", p)
