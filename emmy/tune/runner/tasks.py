"""What a worker is sent: groups of a packet cut down to batches, with machine code and data."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

Json = dict[str, Any]
BATCH: Final = 12


def task_of(group: Json, kernels: Mapping[str, Json], wanted: Sequence[str], warm: bool = True) -> Json:
    """What a worker is sent: the group cut down to what these candidates, the anchor and the check need."""
    named = {*wanted, group.get("anchor"), group.get("check")}
    candidates = [c for c in group["candidates"] if c["id"] in named]
    used = {l["kernel"] for c in candidates for l in [*c["launches"], *c.get("setup", ())]}
    return {"group": {**group, "candidates": candidates}, "kernels": {k: kernels[k] for k in sorted(used)},
            "wanted": list(wanted), "warm": warm}  # fmt: skip


def with_data(group: Json, folder: Path) -> Json:
    """The group with the content of its data files in place of their names."""

    def content(name: str) -> str:
        array = np.load(folder / name, allow_pickle=False)
        return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()

    buffers = []
    for b in group["buffers"]:
        f = b.get("fill", {})
        buffers.append({**b, "fill": {"kind": "data", "base64": content(f["file"])}} if f.get("kind") == "file" else b)
    return {**group, "buffers": buffers, "expected": {n: content(f) for n, f in group.get("expected", {}).items()}}


def batches(group: Json, done: set[str]) -> Iterator[list[str]]:
    rest = [c["id"] for c in group["candidates"] if f"{group['id']}/{c['id']}" not in done]
    for k in range(0, len(rest), BATCH):
        yield rest[k : k + BATCH]


def kernel_of(manifest: Json, name: str, cubin: bytes) -> Json:
    """A compiled kernel as tasks carry it."""
    return {"entry": manifest["sources"][name]["entry"], "cubin": base64.b64encode(cubin).decode()}
