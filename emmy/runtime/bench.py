"""How long a callable takes on the GPU.

Callables are timed in turns, one sample of each a round, so that a change of clocks meets all of them; the order turns
around every other round.  A sample is the time between two CUDA events.

- L2 warm: a CUDA graph of several calls in a row, the sample divided by their number.
- L2 cold: before the first event the cache is filled with other data, by reading them (writing would leave dirty lines
  whose write-back the timed call pays for); then one call.  The GPU spends longer on that read than the CPU on what
  follows, so no launch latency is timed.  With `copies` of a call, each on tensors of its own that together exceed
  twice the cache, the graph of all copies is timed instead, and nothing has to be flushed.

What cannot be captured (a call that waits for the GPU) is timed without a graph, and its `method` says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from emmy.errors import UsageError

Call = Callable[[], object]
# events resolve about half a microsecond: a warm sample should last a hundred times that
_SAMPLE_SECONDS: Final = 50e-6
_MOST_CALLS: Final = 100


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call.  `method` is `graph`, `rotate` (a graph over copies) or `events`; `l2` is `cold` or `warm`."""

    name: str
    n: int
    median: float
    p10: float
    p90: float
    l2: str
    method: str
    samples: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """Distance of the 10th and 90th percentiles over the median."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of `name` over time of `base`, sample by sample of the same rounds."""

    name: str
    base: str
    median: float
    p10: float
    p90: float


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile (0..1), linear between neighbours."""
    if not samples:
        raise UsageError("no samples")
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def summary(name: str, samples: Sequence[float], l2: str, method: str) -> Timing:
    p10, median, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
    return Timing(name, len(samples), median, p10, p90, l2, method, tuple(samples))


def ratio(timing: Timing, base: Timing) -> Ratio:
    """Raises UsageError where the two were not timed in the same rounds."""
    if timing.n != base.n:
        raise UsageError(f"{timing.name} has {timing.n} samples and {base.name} {base.n}: they are no pairs")
    pairs = [a / b for a, b in zip(timing.samples, base.samples, strict=True)]
    return Ratio(timing.name, base.name, quantile(pairs, 0.5), quantile(pairs, 0.1), quantile(pairs, 0.9))


def turns(count: int, rounds: int) -> list[int]:
    """Who is timed when: every index once a round, the order turned around every other round."""
    order = list(range(count))
    return [k for r in range(rounds) for k in (order if r % 2 == 0 else reversed(order))]


def measure(
    calls: Mapping[str, Call | Sequence[Call]], *, cold: bool = True, rounds: int = 50, warmup: int = 3
) -> dict[str, Timing]:
    """Time every call on the current device; a sequence of calls is copies of one call on different tensors.

    Every call is made `warmup` times first, and must not change what a later call of it computes with.
    """
    if not torch.cuda.is_available():
        raise UsageError("timing needs a CUDA device")
    cache_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    filler = torch.zeros(2 * cache_bytes // 4 if cold else 0, dtype=torch.float32, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        timed = [_Timed(call, cold, warmup) for call in calls.values()]
        events = _sample(timed, cold, filler, rounds)
        torch.cuda.synchronize()
    torch.cuda.current_stream().wait_stream(stream)
    l2 = "cold" if cold else "warm"
    return {
        name: summary(name, [_seconds(a, b) / t.calls for a, b in pairs], l2, t.method)
        for name, t, pairs in zip(calls, timed, events, strict=True)
    }


class _Timed:
    """One callable made ready: `run` makes `calls` calls."""

    def __init__(self, call: Call | Sequence[Call], cold: bool, warmup: int) -> None:
        copies = [call] if callable(call) else list(call)
        for _ in range(warmup):
            for one in copies:
                one()
        torch.cuda.synchronize()
        rotate = cold and len(copies) > 1
        self.flush = cold and not rotate
        self.method = "rotate" if rotate else "graph"
        row = copies if cold else copies * _repeats(copies)
        self.calls = len(row)
        self._results: list[object] = []  # alive as long as the graph that writes them
        graph = None if any(_waits(one) for one in copies) else _capture(row, self._results)
        if graph is not None:
            self.run: Callable[[], object] = graph.replay
            return
        self.method, self.calls = "events", len(copies)
        self.run = lambda: [one() for one in copies]


def _repeats(copies: Sequence[Call]) -> int:
    start, end = _event(), _event()
    start.record()
    for one in copies:
        one()
    end.record()
    torch.cuda.synchronize()
    seconds = max(_seconds(start, end), 1e-6)
    return max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / seconds)))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * 1e-3


def _waits(call: Call) -> bool:
    """Whether the call waits for the GPU, which no capture allows; asked without one, since a capture that fails
    leaves PyTorch's allocator believing that it still goes on."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that this mode does not see every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False


def _capture(row: Sequence[Call], results: list[object]) -> torch.cuda.CUDAGraph | None:
    """A graph of the calls, None where one of them cannot be captured.  `results` takes what the last one returns."""
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    random = generator.clone_state()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for call in row:
                results[:] = [call()]
    except RuntimeError as error:
        # PyTorch raises this type for every call that capture forbids
        if "captur" not in str(error):
            raise
        generator.graphsafe_set_state(random)  # else it believes that the capture goes on, and refuses to be used
        torch.cuda.synchronize()
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph


Pair = tuple[torch.cuda.Event, torch.cuda.Event]


def _sample(timed: Sequence[_Timed], cold: bool, filler: Tensor, rounds: int) -> list[list[Pair]]:
    taken: list[list[Pair]] = [[] for _ in timed]
    sink = torch.zeros((), device="cuda")
    for k in turns(len(timed), rounds):
        start, end = _event(), _event()
        if cold and timed[k].flush:
            torch.sum(filler, dim=0, out=sink)
        start.record()
        timed[k].run()
        end.record()
        taken[k].append((start, end))
    return taken
