"""Kinds of rows: mechanisms that a row uses or does not, whatever its sizes.

Who knows rows without a mechanism has no opinion of it, however many they are: the learned prior is cautious about
kinds of which nothing was measured, and tuning measures each of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emmy.extract.columns import Columns


def mechanisms(c: Columns) -> dict[str, npt.NDArray[np.bool_]]:
    """Which configs use which mechanism.  `eighths`, `wide`: factors on tensor cores of 8 bits, and of more than 16."""
    return {
        "held": c.held > 0, "direct": c.direct > 0, "group": c.group > 0, "persist": c.persist > 0,
        "turns": c.turns > 0, "staged": c.staged > 0, "swapped": c.swapped > 0, "coop": c.reduce_threads > 1,
        "splits": c.splits > 1, "shares": c.shares > 1, "exchange": c.exchange > 0, "stream": c.stream > 0,
        "eighths": c.bits < 16, "wide": c.bits > 16,
    }  # fmt: skip


def kinds(c: Columns) -> npt.NDArray[np.str_]:
    """The kind of each config: its family and mechanisms, such as `mma+direct+splits`."""
    found = mechanisms(c)
    codes = np.zeros(len(c.blocks), np.int64)
    for k, used in enumerate(found.values()):
        codes += used.astype(np.int64) << k
    words = {
        n: "".join(f"+{word}" for k, word in enumerate(found) if n >> k & 1) for n in np.unique(codes).tolist()
    }  # fmt: skip
    return np.array([f"{f}{words[n]}" for f, n in zip(c.family.tolist(), codes.tolist(), strict=True)], np.str_)


__all__ = ["kinds", "mechanisms"]
