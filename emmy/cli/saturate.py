"""`emmy saturate`: a model in, kernels, plan, report and e-graphs out."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from emmy.cli.options import ModelOptions, Opt


@dataclass(frozen=True)
class SaturateOptions(ModelOptions):
    out: Annotated[
        Path | None, Opt("-o", "--out", metavar="FOLDER", help="Where to write (default ./emmy-out/NAME-ARCH).")
    ] = None
    json: Annotated[bool, Opt("--json", help="Print the summary as JSON.")] = False


def saturate_command(o: SaturateOptions) -> None:
    """Compile a model: write its kernels, plan, report and e-graphs, and print what was chosen."""
    from emmy.cli.request import compile_options, load_program, note
    from emmy.settings import Settings

    options = compile_options(o, "", Settings.read())
    began = time.perf_counter()
    program = load_program(o)
    loaded = time.perf_counter() - began
    from emmy.inspect.artifacts import write_artifacts
    from emmy.inspect.summary import summary, summary_lines
    from emmy.saturation import saturate_program

    s = saturate_program(program, options)
    for text in s.notes[len(program.notes) :]:
        note(text)
    folder = o.out or Path("emmy-out") / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', program.name)}-{s.options.target.arch}"
    write_artifacts(s, folder)
    result = summary(s, loaded)
    if o.json:
        print(json.dumps({**result, "out": str(folder)}))
        return
    print("\n".join(summary_lines(result)))
    note(f"wrote kernels, plan.json, report.txt and egraph.json.gz to {folder}")
