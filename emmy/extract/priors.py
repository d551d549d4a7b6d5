"""Which prior answers where nothing was measured: the learned one of the card where it ships and ranks well.

`EMMY_PRIOR` (the text `asked`): empty, the learned prior if there is one; `analytic`; `learned`, an error where there
is none; or a file, which is used as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from emmy.arguments import expanded
from emmy.errors import StoreError, UsageError
from emmy.extract.prior import predict_many
from emmy.extract.prior_file import file_name, load
from emmy.extract.work import Work
from emmy.ir.config import KernelConfig
from emmy.ir.target import Target

Score = Callable[[Work, Sequence[KernelConfig], Target], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Prior:
    """`score` gives seconds of each config; `name` says what decided."""

    name: str
    score: Score


ANALYTIC: Final = Prior("analytic prior", predict_many)


def prior_path(target: Target, directory: Path) -> Path:
    """Where the learned prior of a card is kept."""
    return directory / file_name(target.gpu, target.capability)


def prior_of(target: Target, directory: Path, asked: str = "") -> tuple[Prior, tuple[str, ...]]:
    """The prior for a card, and a text for whatever was expected and does not answer.

    `directory` holds the priors that ship.  UsageError and StoreError only where a file, or `learned`, was asked for.
    """
    if asked == "analytic":
        return ANALYTIC, ()
    named = expanded(asked) if asked not in ("", "learned") else None
    path = named or prior_path(target, directory)
    if not os.path.exists(path):
        if asked:
            raise UsageError(f"EMMY_PRIOR={asked}: there is no file {path}", "make one with `emmy fit`, or unset it")
        return ANALYTIC, ()
    try:
        learned = load(path)
    except StoreError as error:
        if asked:
            raise
        return ANALYTIC, (f"lost: the learned prior ({error.what}); the analytic prior answers",)
    if (learned.gpu, learned.capability) != (target.gpu, target.capability):
        what = f"prior {path} is of {learned.gpu} sm_{learned.capability}, not of {target.gpu} sm_{target.capability}"
        if asked:
            raise UsageError(what, "name a file of this card, or unset EMMY_PRIOR")
        return ANALYTIC, (f"{what}; the analytic prior answers",)
    doubt = learned.doubt()
    if doubt and not asked:
        return ANALYTIC, (f"the learned prior {path.name} is quarantined: {doubt}; the analytic prior answers",)
    notes = (f"the learned prior {path.name} answers although {doubt}",) if doubt else ()
    return Prior("learned prior", learned.seconds), notes
