"""`emmy fit`: train the learned prior on what was measured, and judge it on bodies that it did not see."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.eval import EvalOptions, measured, told
from emmy.cli.options import Opt

if TYPE_CHECKING:
    from emmy.errors import StoreError
    from emmy.evidence.fit import Fitter
    from emmy.evidence.measured import Found, MeasuredBody
    from emmy.extract.learned import LearnedPrior
    from emmy.extract.store import Store


@dataclass(frozen=True)
class FitOptions(EvalOptions):
    out: Annotated[Path | None, Opt("-o", "--out", help="Write here. Default: the prior of the card that ships.")] = (
        None
    )
    search: Annotated[bool, Opt("--search", help="Try several recipes and take the best on held-out bodies.")] = False
    force: Annotated[bool, Opt("--force", help="Install it although it ranks worse.")] = False
    jobs: Annotated[int | None, Opt("--jobs", min=1, help="Threads that fit. Default: one a core.")] = None
    dry_run: Annotated[bool, Opt("--dry-run", help="Judge only; write nothing.")] = False


def fit_command(o: FitOptions) -> None:
    """Train the prior on the store and the golden files; install it unless it ranks held-out bodies worse."""
    from emmy.cli.db import open_store
    from emmy.cli.request import note
    from emmy.evidence.fit import RECIPES, Fitter, compared, cross_validate, dataset, fit, geometric
    from emmy.extract.prior_file import file_name, save
    from emmy.inspect.fit_text import fit_lines
    from emmy.resources import golden

    store = open_store(o)
    found = measured(o, store)
    bodies = _of_one_card(found.bodies)
    if not bodies:
        raise _nothing(o, store, found)
    data = dataset(bodies)
    target = bodies[0].target
    path = o.out or golden() / file_name(target.gpu, target.capability)
    best: tuple[float, str, Fitter] | None = None
    for name, recipe in RECIPES.items() if o.search else list(RECIPES.items())[:1]:
        fitter = Fitter(data, recipe, observe=told, jobs=o.jobs)
        regret = geometric([h.regret for h in cross_validate(fitter)])
        if o.search:
            note(f"recipe {name}: regret {regret:.4f} on held-out bodies")
        if best is None or regret < best[0]:
            best = regret, name, fitter
    assert best is not None
    regret, name, fitter = best
    report = cross_validate(fitter)
    prior = fit(data, fitter.recipe, report, target.gpu, target.capability, o.jobs)
    before = _installed(path)
    old = compared(before, data) if before else ()
    refused = prior.doubt()
    if old and not refused and regret > WORSE * geometric([h.regret for h in old]):
        refused = f"the installed prior's regret on the same bodies is {geometric([h.regret for h in old]):.3f}"
    installed = not o.dry_run and (not refused or o.force)
    if installed:
        save(prior, path)
    if o.json:
        print(json.dumps({
            "gpu": target.gpu, "recipe": name, "bodies": [asdict(h) for h in report],
            "installed_before": [asdict(h) for h in old], "rows": sum(len(d.measured) for d in data),
            "skipped": dict(found.skipped), "file": str(path) if installed else None, "refused": refused,
        }))  # fmt: skip
    else:
        print("\n".join(fit_lines(report, old, found.skipped)))
        print(f"written to {path}" if installed else f"not written: {refused or 'a dry run'}")
    if refused and not o.force:
        raise typer.Exit(1)


# A new prior may be this much worse than the installed one: less is noise.
WORSE = 1.01


def _installed(path: Path) -> LearnedPrior | None:
    """The prior that stands there; None where there is none, or one that today's Emmy cannot read, which is said."""
    from emmy.cli.request import note
    from emmy.errors import StoreError
    from emmy.extract.prior_file import load

    if not path.exists():
        return None
    try:
        return load(path)
    except StoreError as error:
        note(f"{error.what}: there is nothing to compare with")
        return None


def _nothing(o: FitOptions, store: Store, found: Found) -> StoreError:
    """Where was looked, what was left out, what to do.  A finding (exit code 1), with --dry-run as without."""
    from emmy.errors import StoreError

    where = f"{store.path}" + ("" if o.no_golden else " and the golden files") + (f", of {o.gpu}" if o.gpu else "")
    left = "; ".join(f"{n} rows left out: {why}" for why, n in found.skipped.items())
    return StoreError(
        f"no cold measurement that a prior could learn from in {where}{f' ({left})' if left else ''}",
        "measure with `emmy tune`, name another store with --db, or another card with --gpu",
    )


def _of_one_card(bodies: tuple[MeasuredBody, ...]) -> list[MeasuredBody]:
    """Cold measurements with default numerics, of the card that has most of them."""
    from collections import Counter

    usable = [b for b in bodies if b.regime.l2 == "cold" and not b.regime.numerics]
    rows: Counter[str] = Counter()
    for b in usable:
        rows[b.target.gpu] += len(b.rows)
    card = min(rows, key=lambda gpu: (-rows[gpu], gpu), default="")
    return [b for b in usable if b.target.gpu == card]
