"""`emmy compile`: any stage of a compile, printed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from emmy.cli.options import ModelOptions, Opt


@dataclass(frozen=True)
class CompileOptions(ModelOptions):
    ir: Annotated[str, Opt("--ir", help="Print this stage: torch, tensor, loop, tile, kernel, cuda.")] = ""
    passes: Annotated[str, Opt("--passes", help="Run a prefix of dolfstpkc only.")] = ""
    verbose: Annotated[
        int, Opt("-v", "--verbose", count=True, help="-v: timings and rule counts; -vv: every rewrite as a diff.")
    ] = 0


def compile_command(o: CompileOptions) -> None:
    """Compile a model and print one of its stages: decomposition, optimization, lifting, fusion, stamping, tile, placement, kernel, cuda."""
    from emmy.cli.request import compile_options, load_program, note
    from emmy.settings import Settings

    settings = Settings.read()
    began = time.perf_counter()
    program = load_program(o)
    loaded = time.perf_counter() - began
    from emmy.inspect.views import show_ir
    from emmy.saturation import PASSES, saturate_program

    passes = o.passes or PASSES
    s = saturate_program(program, compile_options(o, passes, settings))
    for text in s.notes[len(program.notes) :]:
        note(text)
    if o.ir:
        print(show_ir(s, o.ir))
        return
    from emmy.inspect.summary import summary, summary_lines

    print("\n".join(summary_lines(summary(s, loaded))))
