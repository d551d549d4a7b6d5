"""`emmy golden`: reviewed measurements that travel with the repository."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.options import Opt, with_options

if TYPE_CHECKING:
    from emmy.evidence.review import Finding
    from emmy.extract.golden import Case, GoldenFile
    from emmy.extract.records import Regime
    from emmy.extract.store import Store
    from emmy.ir.loop import Body

golden_app = typer.Typer(help="Golden files: record, check, restamp reviewed measurements.", no_args_is_help=True)

CASES_HELP = 'JSON list of programs: [{"model": NAME, "layer": 0, "seq_len": 512}, {"code": CODE}, …].'


@dataclass(frozen=True)
class _FileFirst:
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A golden file. Default: the one of the card that ships.")
    ] = None


@dataclass(frozen=True)
class CardOptions(_FileFirst):
    json: Annotated[bool, Opt("--json", help="Print JSON.")] = False
    gpu: Annotated[str, Opt("--gpu", help="The card, by name.")] = ""
    target: Annotated[str, Opt("--target", help="The card that stands for sm_80, sm_86, sm_89, sm_90a, sm_120a.")] = ""


@dataclass(frozen=True)
class RecordOptions(CardOptions):
    db: Annotated[Path | None, Opt("--db", help="Evidence store (default: the user's, or EMMY_TUNE_DB).")] = None
    compiler: Annotated[
        str, Opt("--compiler", help="Rows of this compiler. Default: that of the card's newest row in the store.")
    ] = ""
    replace: Annotated[bool, Opt("--replace", help="Leave out rows of the file that the store does not have.")] = False
    cases: Annotated[
        Path | None, Opt("--cases", help=f"The programs that were tuned, kept in the file. {CASES_HELP}")
    ] = None


@dataclass(frozen=True)
class TodayOptions(CardOptions):
    code: Annotated[list[str] | None, Opt("-c", "--code", metavar="CODE", help="A program (repeatable).")] = None
    cases: Annotated[Path | None, Opt("--cases", help=CASES_HELP)] = None
    saturate: Annotated[
        bool, Opt("--saturate", help="Ask the programs that the file itself names. This runs their code.")
    ] = False


@dataclass(frozen=True)
class RestampOptions(TodayOptions):
    out: Annotated[Path | None, Opt("-o", "--out", help="Write here instead of over the file.")] = None


def record_command(o: RecordOptions) -> None:
    """Write the store's measurements of a card as a golden file, one row a line, sorted."""
    from emmy.cli.request import note
    from emmy.errors import StoreError
    from emmy.extract.golden import read_golden, recorded, write_golden
    from emmy.extract.store import Store

    store = Store(o.db)
    regime = _regime(o, store)
    path = o.file or _shipped(regime)
    former = read_golden(path) if path.exists() and not o.replace else None
    if former is not None and former.regime != regime:
        raise StoreError(
            f"{path} holds rows of {former.regime.gpu} and {former.regime.compiler}, not of {regime.gpu} and "
            f"{regime.compiler}",
            "name another file, or replace its rows with --replace",
        )
    rows, bodies = recorded(store, regime, former)
    cases = _unique([*(former.cases if former else ()), *_cases(o.cases)])
    write_golden(path, regime, rows, bodies, cases)
    if o.json:
        print(json.dumps({"file": str(path), "rows": len(rows), "bodies": len(bodies), "cases": len(cases)}))
        return
    print(f"{len(rows):,} rows of {len(bodies):,} bodies written to {path}")
    known = {b.body for b in bodies}
    left = sum(m.regime == regime and m.body not in known for m in store.measurements())
    if left:
        note(f"{left:,} measurements are left out: the store has no Loop IR of their bodies")


def check_command(o: TodayOptions) -> None:
    """Name rows whose body no longer exists or whose schedule is no longer legal; exit with 1 when there are any."""
    from emmy.evidence.review import check

    file, path = _file(o)
    findings = check(file, _today(o, file))
    if o.json:
        print(json.dumps({"file": str(path), "rows": len(file.rows), "findings": [asdict(f) for f in findings]}))
    else:
        print("\n".join([*_lines(findings), *_notes(file), f"{len(file.rows):,} rows, {len(findings):,} findings"]))
    if findings:
        raise typer.Exit(1)


def restamp_command(o: RestampOptions) -> None:
    """Rewrite a golden file onto today's bodies: rows whose body lives on keep their times, others become proposals."""
    from emmy.evidence.review import restamp
    from emmy.extract.golden import write_golden

    file, path = _file(o)
    done = restamp(file, _today(o, file))
    out = o.out or path
    write_golden(out, done.file.regime, done.file.rows, done.file.bodies, done.file.cases)
    if o.json:
        found = {"kept": done.kept, "proposed": done.proposed, "dropped": [asdict(f) for f in done.dropped]}
        print(json.dumps({"file": str(out), **found}))
        return
    summary = f"{done.kept:,} rows kept, {done.proposed:,} proposed, {sum(f.rows for f in done.dropped):,} dropped"
    print("\n".join([*_lines(done.dropped), f"{summary}; written to {out}"]))


def _lines(findings: Iterable[Finding]) -> list[str]:
    """Each finding and, below it, the row that it is about, at most 80 columns wide."""
    from textwrap import wrap

    from emmy.inspect.evaluate_text import wrapped
    from emmy.inspect.summary import WIDTH
    from emmy.ir.schedule import short_row

    lines = []
    for f in findings:
        rows = "" if f.row else f" ({f.rows} rows)"
        lines += wrap(f"{f.kind} {f.name or 'body'} {f.body}{rows}: {f.why}", WIDTH, subsequent_indent="    ")
        lines += wrapped(short_row(f.row), 4) if f.row else []
    return lines


def _notes(file: GoldenFile) -> list[str]:
    """What ages the file, or makes it no evidence where it ships."""
    from emmy.runtime.nvrtc import nvrtc_version

    here = f"nvrtc-{nvrtc_version()}"
    notes = [] if file.regime.compiler == here else [f"aged: measured with {file.regime.compiler}, here is {here}"]
    if file.regime.numerics:
        notes.append(f"no evidence but with numerics {file.regime.numerics!r}")
    return notes


def _file(o: CardOptions) -> tuple[GoldenFile, Path]:
    from emmy.errors import UsageError
    from emmy.extract.golden import read_golden
    from emmy.resources import golden

    if o.file is not None:
        return read_golden(o.file), o.file
    if o.gpu or o.target:
        from emmy.extract.records import Regime

        card = _card(o)
        path = _shipped(Regime(card[0], card[1], ""))
        return read_golden(path), path
    shipped = sorted(golden().glob("*_sm*.json"))
    if len(shipped) != 1:
        raise UsageError(f"{len(shipped)} golden files ship", "name one, or a card with --gpu")
    return read_golden(shipped[0]), shipped[0]


def _shipped(regime: Regime) -> Path:
    from emmy.extract.golden import file_name
    from emmy.resources import golden

    return golden() / file_name(regime)


def _card(o: CardOptions) -> tuple[str, int]:
    """Name and capability of the card: `--gpu`, else `--target`, else the local card, else an H200."""
    from emmy.cli.options import ModelOptions
    from emmy.cli.request import pick_target

    target = pick_target(ModelOptions(gpu=o.gpu, target=o.target))
    return target.gpu, target.capability


def _regime(o: RecordOptions, store: Store) -> Regime:
    """The regime whose rows are recorded: default numerics, L2 cold.  StoreError where the store has none."""
    from emmy.errors import StoreError

    gpu, capability = _card(o)
    mine = [
        m for m in store.measurements()
        if (m.regime.gpu, m.regime.capability, m.regime.numerics, m.regime.l2) == (gpu, capability, "", "cold")
        and o.compiler in ("", m.regime.compiler)
    ]  # fmt: skip
    if not mine:
        compiler = f" with {o.compiler}" if o.compiler else ""
        raise StoreError(f"the store {store.path} holds no measurement of {gpu}{compiler}", "measure with `emmy tune`")
    return max(mine, key=lambda m: (m.when, m.regime)).regime


def _cases(path: Path | None) -> tuple[Case, ...]:
    from emmy.errors import StoreError
    from emmy.extract.golden import read_cases

    if path is None:
        return ()
    try:
        return read_cases(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read as JSON: {error}", "name a JSON list of programs") from error


def _unique(cases: Iterable[Case]) -> list[Case]:
    return [dict(pairs) for pairs in dict.fromkeys(tuple(sorted(c.items())) for c in cases)]


def _today(o: TodayOptions, file: GoldenFile) -> dict[str, Body] | None:
    """Bodies of the programs that were named; None where none was."""
    from emmy.evidence.review import bodies_of
    from emmy.ir.target import target_of_gpu

    cases = [*({"code": c} for c in o.code or ()), *_cases(o.cases), *(file.cases if o.saturate else ())]
    return bodies_of(cases, target_of_gpu(file.regime.gpu)) if cases else None


golden_app.command("record")(with_options(record_command, RecordOptions))
golden_app.command("check")(with_options(check_command, TodayOptions))
golden_app.command("restamp")(with_options(restamp_command, RestampOptions))
