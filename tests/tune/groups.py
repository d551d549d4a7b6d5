"""A small group by hand: `out0 = 2 * in0`, with candidates that do it right, wrong, or worse."""

from __future__ import annotations

import base64
from typing import Any

Json = dict[str, Any]
N = 1000


def launch(kernel: str, args: list[str] | None = None) -> Json:
    return {"kernel": kernel, "args": args or ["in0", "out0"], "sizes": [], "grid": [1, 1, 1], "block": 32, "smem": 0}


def candidate(name: str, predicted: float = 1e-5) -> Json:
    return {"id": name, "family": "map", "row": f"WORK={name}", "predicted": predicted, "launches": [launch(name)]}


def group(names: list[str], anchor: str = "", check: str = "good") -> Json:
    return {
        "id": "g", "body": "b0b0b0b0", "sizes": {}, "name": "k", "least_seconds": 1e-7, "anchor": anchor,
        "check": check, "expected": {}, "tolerance": {"out0": 1e-6},
        "buffers": [
            {"name": "in0", "dtype": "f32", "count": N, "role": "in", "fill": {"kind": "normal", "mean": 0, "std": 1}},
            {"name": "out0", "dtype": "f32", "count": N, "role": "out", "fill": {"kind": "zeros"}},
        ],
        "candidates": [candidate(n) for n in dict.fromkeys([*names, *([check] if check else [])])],
    }  # fmt: skip


def task(names: list[str], **more: Any) -> Json:
    """For a worker: the code of each kernel is its name."""
    g = group(names, **more)
    kernels = {c["id"]: {"entry": c["id"], "cubin": base64.b64encode(b"code").decode()} for c in g["candidates"]}
    return {"group": g, "kernels": kernels, "wanted": names, "warm": True}
