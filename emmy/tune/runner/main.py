"""The command line of a packet's `runner.py`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .manifest import BadPacket
from .measure import measure_packet


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """Measure `folder`, or the packet that the arguments name.

    The exit code: 0, 1 failed, 2 no packet of ours, 130 interrupted.
    """
    p = argparse.ArgumentParser(description="Measure the kernels of a packet: one JSON line a candidate.")
    p.add_argument("packet", nargs="?", type=Path, default=folder)
    p.add_argument("--out", type=Path, help="results, one JSON line a candidate (default: PACKET/results.jsonl)")
    p.add_argument("--devices", default="0", help="GPUs to use: 0,1")
    p.add_argument("--jobs", type=int, help="sources compiled at once (default: one a core)")
    p.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; the same command resumes")
    o = p.parse_args(arguments)
    out = o.out or o.packet / "results.jsonl"
    began = time.monotonic()
    try:
        ordinals = [int(d) for d in o.devices.split(",")]
        results = measure_packet(o.packet, out, ordinals, o.jobs, o.seconds)
    except (BadPacket, RuntimeError, ValueError, OSError) as e:
        print(f"runner: {e}", file=sys.stderr)
        if isinstance(e, RuntimeError):
            print("  it takes an NVIDIA driver, numpy, cuda-bindings and nvidia-cuda-nvrtc", file=sys.stderr)
        return 2 if isinstance(e, BadPacket) else 1
    except KeyboardInterrupt:
        print(f"runner: interrupted; {out} keeps what was measured, the same command resumes", file=sys.stderr)
        return 130
    seconds = time.monotonic() - began
    print(f"{results.ok} measured, {results.failed} failed in {seconds:.1f} s: {out}", file=sys.stderr)
    return 0
