"""`emmy simulate`: run the chosen kernels on the CPU, check their values and their synchronization, count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.options import SEEDS, ModelOptions, Opt

if TYPE_CHECKING:
    from emmy.inspect.simulated import Simulated


@dataclass(frozen=True)
class SimulateOptions(ModelOptions):
    all_rows: Annotated[
        int, Opt("--all-rows", metavar="N", min=0, help="N sampled schedule rows of each kernel, not the chosen one.")
    ] = 0
    seed: Annotated[
        int,
        Opt("--seed", min=0, max=SEEDS, help="Of the inputs, the sampled rows, and the order of what runs at once."),
    ] = 0
    json: Annotated[bool, Opt("--json", help="Print results as JSON.")] = False


def simulate_command(o: SimulateOptions) -> None:
    """Simulate a model's kernels on the CPU; exit with 1 on a race, a deadlock, any other finding or a wrong value."""
    import sys

    import torch

    from emmy.checking import example_inputs
    from emmy.cli.request import compile_options, load_program, note
    from emmy.inspect.simulated import simulate_program
    from emmy.saturation import saturate_program
    from emmy.settings import Settings

    options = compile_options(o, "", Settings.read())
    program = load_program(o)
    s = saturate_program(program, options)
    for text in s.notes[len(program.notes) :]:
        note(text)
    inputs = example_inputs(program, torch.device("cpu"), o.seed)
    found: list[Simulated] = []
    for done in simulate_program(s, inputs, o.all_rows, o.seed):
        found.append(done)
        if sys.stderr.isatty():
            note(f"{done.kernel}: {done.seconds:.1f} s")
    if o.json:
        document = {"program": program.name, "target": options.target.arch, "ok": all(d.ok for d in found)}
        print(json.dumps({**document, "kernels": [d.document() for d in found]}))
    else:
        print("\n".join(_lines(found, o.all_rows > 0)))
    if not all(d.ok for d in found):
        raise typer.Exit(1)


def _lines(found: Sequence[Simulated], sampled: bool) -> list[str]:
    from emmy.inspect.evaluate_text import wrapped
    from emmy.ir.schedule import short_row

    if not found:
        return ["no kernels: PyTorch runs everything"]
    heads = f"{'find-':>5} {'error /':>8} {'global':>8} {'bytes /':>7} {'bank':>7} {'instruc-':>8} {'':>7} {'regi-':>5}"
    units = (
        f"{'ings':>5} {'allowed':>8} {'sectors':>8} {'sector':>7} {'confl.':>7} {'tions':>8} {'flop':>7} {'sters':>5}"
    )
    lines = [f"{'kernel':<17}{heads}", f"{'':<17}{units}"]
    for d in found:
        k = d.counters
        sectors, instructions = k.sectors_read + k.sectors_written, sum(k.instructions.values())
        lines.append(
            f"{d.kernel[:16]:<17}{len(d.findings) or '':>5} {d.share:>8.3f} {_short(sectors):>8} "
            f"{32 * k.efficiency:>7.1f} {_short(k.conflicts):>7} {_short(instructions):>8} {_short(k.flops):>7} "
            f"{k.registers:>5}"
        )
        if not d.ok or sampled:
            lines.append(f"  {d.family}{' (chosen)' if sampled and d.chosen else ''}")
            lines += wrapped(short_row(d.row), 4)
        lines += [f"  {f}" for f in d.findings]
        lines += [f"  {c}" for c in d.compared if not c.ok]
    bad = sum(not d.ok for d in found)
    seconds = sum(d.seconds for d in found)
    verdict = f"{bad} with findings or wrong values" if bad else "no finding, all values right"
    return [*lines, "", f"{len(found)} simulated in {seconds:.1f} s: {verdict}"]


def _short(n: int) -> str:
    """A count in at most six characters."""
    value, units = float(n), iter("kMGT")
    unit = ""
    while value >= 9999.5:
        value, unit = value / 1000, next(units)
    return f"{value:.0f}{unit}" if value >= 100 or not unit else f"{value:.1f}{unit}"
