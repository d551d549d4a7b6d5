"""What may be asked of a compile: for which card, under which restrictions, on what evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from emmy.arguments import allowances
from emmy.egraph.egg import rules_in
from emmy.egraph.model import Limits
from emmy.errors import PinError, UsageError
from emmy.ir.schedule import Pin, Reduce
from emmy.ir.target import Target, allowing
from emmy.resources import rulesets

PASSES: Final = "dolfstpkc"


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask for.  `passes` is a prefix of `dolfstpkc`; `held` names rules that are left out.

    `pins` are partial schedule rows; `place` is `fuse`, `cut` or empty; `check` compiles every kernel with NVRTC.
    `allow` is empty, `atomics`, `tf32` or both with a comma between (see `emmy.arguments`); the target then says so.
    `database` names the evidence store (None: the user's); `golden` a file of reviewed measurements (None: the one that
    ships for the card, empty: none); `prior` is empty, `analytic`, `learned` or a file (see `emmy.extract.priors`).
    """

    target: Target
    pins: tuple[Pin, ...] = ()
    place: str = ""
    allow: str = ""
    held: frozenset[str] = frozenset()
    passes: str = PASSES
    limits: Limits = field(default_factory=Limits)
    fallback: bool = True
    strict_evidence: bool = False
    check: bool = True
    database: Path | None = None
    golden: str | None = None
    prior: str = ""

    def __post_init__(self) -> None:
        if not self.passes or not PASSES.startswith(self.passes):
            raise UsageError(f"--passes {self.passes!r} is not a prefix of {PASSES}", "for example --passes dolf")
        if self.place not in ("", "fuse", "cut"):
            raise UsageError(f"{self.place!r} is not a placement", "use fuse or cut, or leave it out")
        object.__setattr__(self, "allow", ",".join(allowances(self.allow)))
        if self.allow != ",".join(self.target.allowed):
            object.__setattr__(self, "target", allowing(self.target, self.allow))
        if not self.target.atomics:
            _check_order(self.pins)
        if self.held:
            _check_held(self.held)


def _check_order(pins: tuple[Pin, ...]) -> None:
    """PinError for a pin of rows whose blocks add their sums in any order, where that is not allowed."""
    for pin in pins:
        if any(isinstance(value, Reduce) and value.finish == "a" for *_, value in pin.settings):
            raise PinError(
                f"the pin {pin.text!r} is of rows that add sums by atomics, in another order at every run",
                "allow them by --allow atomics (EMMY_ALLOW=atomics, allow='atomics' in Python), or leave out the a",
            )


def _check_held(held: frozenset[str]) -> None:
    """UsageError for a name that no rule has, with the nearest that there are."""
    from difflib import get_close_matches

    known = {r.name for path in rulesets().glob("*/*.egg") for r in rules_in(path)}
    for name in sorted(held - known):
        # the report writes a rule as SET/NAME
        near = [n for n in (name.rpartition("/")[2],) if n in known] or get_close_matches(name, known)
        hint = f"near it: {', '.join(near)}" if near else "`emmy saturate` writes report.txt, which names them"
        raise UsageError(f"no rule is called {name!r}", hint)
