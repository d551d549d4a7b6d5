"""`emmy tune`: measure schedules of a program's kernels, so that compiling it chooses by evidence."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from emmy.cli.options import SEEDS, ModelOptions, Opt
from emmy.errors import UsageError

if TYPE_CHECKING:
    from emmy.extract.store import Store
    from emmy.saturation import Options
    from emmy.tune.executors import Executor

EFFORTS: Final = ("quick", "normal", "full")


@dataclass(frozen=True)
class TuneCommand(ModelOptions):
    budget: Annotated[str, Opt("--budget", metavar="TIME", help="Stop after this long: 90s, 10m, 2h.")] = "10m"
    effort: Annotated[
        str, Opt("--effort", help="quick (24 rows a kernel), normal, or full (a third of the rows drawn at random).")
    ] = "normal"
    devices: Annotated[str, Opt("--devices", metavar="LIST", help="GPUs of this machine to use: 0,1.")] = "0"
    seed: Annotated[int, Opt("--seed", min=0, max=SEEDS, help="Which rows are drawn at random.")] = 0
    rows: Annotated[int | None, Opt("--rows", metavar="N", min=1, help="Measure at most N rows of each kernel.")] = None
    packet_only: Annotated[
        Path | None, Opt("--packet-only", metavar="DIR", help="Write a packet for another machine; no GPU is used.")
    ] = None
    cluster: Annotated[
        str, Opt("--cluster", metavar="ADDRESS", help="Measure on the GPUs of a Ray cluster (auto: the local one).")
    ] = ""
    stand_in: Annotated[
        bool,
        Opt("--stand-in", help="Make times up instead of measuring, to try the command; no evidence for any card."),
    ] = False
    json: Annotated[bool, Opt("--json", help="Print results as JSON.")] = False


def tune_command(o: TuneCommand) -> None:
    """Measure schedules until the budget ends or nothing is left that could win; the same command resumes."""
    budget = parse_seconds(o.budget)
    if o.effort not in EFFORTS:
        raise UsageError(f"--effort {o.effort!r} is none", f"use one of {', '.join(EFFORTS)}")
    if sum((bool(o.cluster), o.stand_in, o.packet_only is not None)) > 1:
        raise UsageError("--cluster, --stand-in and --packet-only exclude each other", "give one of them")
    ordinals = parse_devices(o.devices)
    from emmy.cli.request import compile_options, load_program, note
    from emmy.saturation import saturate_program
    from emmy.settings import Settings
    from emmy.tune.asked import TuneOptions
    from emmy.tune.report import Report, document, plan_lines, summary_lines, winner_lines
    from emmy.tune.tune import make_packet, tune

    settings = Settings.read()
    options = compile_options(o, "", settings)
    if o.strict_evidence:
        raise UsageError("--strict-evidence asks for measurements before there are any", "give it to compile or run")
    wanted = TuneOptions(budget, o.effort, o.seed, o.rows)  # type: ignore[arg-type]
    executor = None if o.packet_only else _executor(o, ordinals)
    try:
        store = _store(options)
        s = saturate_program(load_program(o), options)
        for text in s.notes[len(s.program.notes) :]:
            note(text)
        if o.packet_only is not None:
            bodies, candidates = make_packet(s, o.packet_only, wanted, note)
            note(f"{candidates} candidates of {bodies} kernels are in {o.packet_only}")
            print(f"python {o.packet_only / 'runner.py'}\nemmy bench {o.packet_only} --record")
            return
        assert executor is not None
        with Report() as report:
            tuned = tune(s, executor, store, wanted, report.note, report.observe, command=" ".join(sys.argv[:8]))
    except KeyboardInterrupt:
        note("interrupted: what was measured is kept, the same command goes on from there")
        raise typer.Exit(130) from None
    finally:
        if executor is not None:
            executor.close()
    if o.json:
        print(json.dumps(document(tuned.outcome, tuned.plans, tuned.saturation)))
        return
    print("\n".join([*summary_lines(tuned.outcome), *plan_lines(tuned.plans), *winner_lines(tuned.saturation)]))
    if not any(x.space.times for x in tuned.outcome.subjects):
        note("no row could be measured")
        raise typer.Exit(1)


def _store(options: Options) -> Store:
    from emmy.extract.store import Store

    return Store(options.database)


def _executor(o: TuneCommand, ordinals: list[int]) -> Executor:
    if o.stand_in:
        from emmy.tune.executors import StandIn

        return StandIn()
    if o.cluster:
        from emmy.tune.cluster import Cluster

        return Cluster(o.cluster)
    from emmy.tune.executors import Local

    return Local(ordinals)


def parse_seconds(text: str) -> float:
    """`90s`, `10m`, `1.5h` or a number of seconds; UsageError for anything else and for nothing."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds <= 1e7:
        raise UsageError(f"{text!r} is no time", "write 90s, 10m or 2h")
    return seconds


def parse_devices(text: str) -> list[int]:
    """`0,1`: numbers of GPUs, each once."""
    numbers = [p.strip() for p in text.split(",")]
    if not all(re.fullmatch(r"\d{1,3}", n) for n in numbers):
        raise UsageError(f"--devices {text!r} is no list of GPUs", "write 0 or 0,1")
    return list(dict.fromkeys(int(n) for n in numbers))
