"""What is said of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

Json = dict[str, Any]
# how far the clocks of a card fall under load, at most: from 1.98 GHz on an H200, with some room
CLOCKS: Final = 1.5


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear between neighbours."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def steady(reference: float, now: float) -> float:
    """What times are multiplied by, to tell them at the state of the card in which an anchor takes `reference` seconds
    and not the `now` that it took beside them; 1 where either is missing, or where they are further apart than clocks
    are: then something else happened, such as a reference that was measured on another kernel."""
    if not reference > 0 or not now > 0 or not 1 / CLOCKS <= reference / now <= CLOCKS:
        return 1.0
    return reference / now


def summary(samples: Sequence[float]) -> Json:
    p10, median, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
    return {"n": len(samples), "median": median, "p10": p10, "p90": p90}
