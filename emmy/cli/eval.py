"""`emmy eval`: what the measurements say about choices."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.cli.db import StoreOptions, open_store
from emmy.cli.options import Opt, with_options

if TYPE_CHECKING:
    from emmy.evidence.fit import Fold
    from emmy.evidence.measured import Found, Predict
    from emmy.extract.golden import GoldenFile
    from emmy.extract.store import Store
    from emmy.ir.target import Target

eval_app = typer.Typer(
    help="What was measured: variants of a body, failures, regret of the untuned pick.", no_args_is_help=True
)


@dataclass(frozen=True)
class EvalOptions(StoreOptions):
    gpu: Annotated[str, Opt("--gpu", help="Only rows of this card, by name.")] = ""
    no_golden: Annotated[bool, Opt("--no-golden", help="Leave out the golden files that ship.")] = False


@dataclass(frozen=True)
class _BodyFirst:
    body: Annotated[
        str, typer.Argument(metavar="[BODY]", help="A body's hash or its beginning, or a kernel's name. Default: all.")
    ] = ""


@dataclass(frozen=True)
class VariantsOptions(EvalOptions, _BodyFirst):
    limit: Annotated[int, Opt("--limit", help="Rows shown of each body; 0: all.")] = 20


@dataclass(frozen=True)
class RegretOptions(EvalOptions):
    prior: Annotated[str, Opt("--prior", help="learned (refitted without each body and its model) or analytic.")] = (
        "learned"
    )
    jobs: Annotated[int | None, Opt("--jobs", min=1, help="Threads that fit. Default: one a core.")] = None
    check: Annotated[bool, Opt("--check", help="Exit with 1 when the regret is above what it is held to.")] = False


def goldens(o: EvalOptions) -> list[GoldenFile]:
    """The golden files that count: those that ship, or the one that EMMY_GOLDEN_FILE names."""
    from emmy.arguments import expanded
    from emmy.extract.golden import read_golden
    from emmy.resources import golden
    from emmy.settings import Settings

    named = Settings.read().golden
    if o.no_golden or named == "":
        return []
    paths = [expanded(named)] if named else sorted(golden().glob("*_sm*.json"))
    return [read_golden(p) for p in paths]


def measured(o: EvalOptions, store: Store) -> Found:
    """The rows of the store and of golden files, of the card that was asked for."""
    from emmy.evidence.measured import Found, read_measured

    found = read_measured(store, goldens(o))
    wanted = o.gpu.replace(" ", "").lower()
    return Found(tuple(b for b in found.bodies if wanted in b.regime.gpu.replace(" ", "").lower()), found.skipped)


def variants_command(o: VariantsOptions) -> None:
    """Show every measured row of a body: time, ratio to the best, what the prior thinks."""
    from emmy.errors import UsageError
    from emmy.inspect.evaluate import variants
    from emmy.inspect.evaluate_text import skipped_lines, variants_lines

    found = measured(o, open_store(o))
    chosen = [b for b in found.bodies if not o.body or b.name == o.body or b.body.hash.startswith(o.body)]
    if o.body and not chosen:
        names = sorted({f"{b.name} {b.body.hash}" for b in found.bodies})
        known = "; ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise UsageError(f"no measured body is called {o.body!r}", f"there are {known}" if names else "there is none")
    listed = [variants(b, installed(b.target)) for b in chosen]
    if o.json:
        print(json.dumps({"bodies": [asdict(v) for v in listed], "skipped": dict(found.skipped)}))
        return
    for v in listed:
        print("\n".join(variants_lines(v, o.limit)), end="\n\n")
    lines = skipped_lines(found.skipped)
    if lines or not listed:
        print("\n".join(lines or ["no measured bodies"]))


def installed(target: Target) -> Predict:
    """The prior that a compile for this card asks, by EMMY_PRIOR."""
    from emmy.cli.request import note
    from emmy.evidence.measured import predictor
    from emmy.extract.priors import prior_of
    from emmy.resources import golden
    from emmy.settings import Settings

    prior, notes = prior_of(target, golden(), Settings.read().prior)
    for text in notes:
        note(text)
    return predictor(prior.score)


def failures_command(o: StoreOptions) -> None:
    """Count the failures by kind."""
    from emmy.inspect.evaluate import failure_kinds
    from emmy.inspect.evaluate_text import failure_lines

    kinds = failure_kinds(open_store(o).failures())
    print(json.dumps([asdict(k) for k in kinds]) if o.json else "\n".join(failure_lines(kinds)))


def regret_command(o: RegretOptions) -> None:
    """Compare the untuned pick of every measured body with its best measured row.

    The learned prior is fitted once for every fold of bodies, each time, which takes seconds a fold.
    """
    from emmy.errors import UsageError
    from emmy.evidence.fit import folds_of
    from emmy.evidence.measured import analytic_folds
    from emmy.inspect.evaluate import LIMITS, by_family, regrets
    from emmy.inspect.evaluate_text import regret_lines

    if o.prior not in ("learned", "analytic"):
        raise UsageError(f"--prior {o.prior!r} is none", "use learned or analytic")
    store = open_store(o)
    found = measured(o, store)
    folds = analytic_folds if o.prior == "analytic" else folds_of(found.bodies, observe=told, jobs=o.jobs)
    bodies = regrets(found.bodies, folds, store.failures())
    families = by_family(bodies)
    if o.json:
        print(json.dumps({
            "families": _plain(asdict(f) | {"within": f.within} for f in families),
            "bodies": _plain(asdict(b) for b in bodies), "limits": LIMITS, "skipped": dict(found.skipped),
        }))  # fmt: skip
    else:
        print("\n".join(regret_lines(bodies, families, found.skipped)))
    if o.check and not (families and families[-1].within):
        raise typer.Exit(1)


def told(fold: Fold) -> None:
    """Say that a fold was fitted; with an estimate on a terminal."""
    from emmy.cli.request import note
    from emmy.inspect.fit_text import fold_line

    note(fold_line(fold, sys.stderr.isatty()))


def _plain(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records whose numbers JSON can spell: nan is null."""
    return [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in r.items()} for r in records]


eval_app.command("variants")(with_options(variants_command, VariantsOptions))
eval_app.command("failures")(with_options(failures_command, StoreOptions))
eval_app.command("regret")(with_options(regret_command, RegretOptions))
