"""What is said of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear between neighbours."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def summary(samples: Sequence[float]) -> Json:
    p10, median, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
    return {"n": len(samples), "median": median, "p10": p10, "p90": p90}
