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
    p.add_argument("--devices", type=_devices, default=[0], help="GPUs to use: 0,1")
    p.add_argument("--jobs", type=_jobs, help="sources compiled at once (default: one a core)")
    p.add_argument("--seconds", type=_seconds, default=math.inf, help="stop after so long; the same command resumes")
    o = p.parse_args(arguments)
    out = o.out or o.packet / "results.jsonl"
    began = time.monotonic()
    try:
        results = measure_packet(o.packet, out, o.devices, o.jobs, o.seconds)
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


def _devices(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(n.isascii() and n.isdigit() and len(n) <= 3 for n in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs: write 0 or 0,1")
    return list(dict.fromkeys(int(n) for n in numbers))


def _jobs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of jobs: write 1 to 1024")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write a number of seconds above 0")
    return seconds
