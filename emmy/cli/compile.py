"""`emmy compile`: any stage of a compile, printed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from emmy.cli.options import ModelOptions, Opt
from emmy.errors import UsageError

if TYPE_CHECKING:
    from emmy.saturation import Saturation


@dataclass(frozen=True)
class CompileOptions(ModelOptions):
    ir: Annotated[str, Opt("--ir", metavar="IR", help="Print this stage: torch, tensor, loop, tile, kernel, cuda.")] = (
        ""
    )
    passes: Annotated[
        str,
        Opt(
            "--passes",
            help="Run a prefix of dolfstpkc: decomposition, optimization, lifting, fusion, stamping, tile, placement, "
            "kernel, cuda.",
        ),
    ] = ""
    verbose: Annotated[
        int, Opt("-v", "--verbose", count=True, help="-v: timings and rule counts; -vv: every rewrite as a diff.")
    ] = 0


def compile_command(o: CompileOptions) -> None:
    """Compile a model and print one of its stages."""
    from emmy.cli.request import compile_options, load_program, note
    from emmy.settings import Settings

    settings = Settings.read()
    options = compile_options(o, o.passes, settings)
    _check_ir(o.ir, options.passes)
    began = time.perf_counter()
    program = load_program(o)
    loaded = time.perf_counter() - began
    from emmy.saturation import saturate_program

    s = saturate_program(program, options)
    for text in s.notes[len(program.notes) :]:
        note(text)
    _show(s, o, loaded)
    if settings.dump_dir is not None:
        from emmy.inspect.stages import dump

        dump(s, settings.dump_dir)
        note(f"wrote every stage to {settings.dump_dir}")


def _check_ir(ir: str, passes: str) -> None:
    from emmy.inspect.stages import NEEDS, PASS_NAMES

    if not ir:
        return
    if ir not in NEEDS:
        raise UsageError(f"--ir {ir} is no stage", f"use one of {', '.join(NEEDS)}")
    if NEEDS[ir] not in passes:
        letter = NEEDS[ir]
        raise UsageError(
            f"--ir {ir} needs the pass {PASS_NAMES[letter]} ({letter}), and --passes {passes} ends before it",
            "leave --passes out, or give a longer prefix of dolfstpkc",
        )


def _nothing(s: Saturation) -> str:
    """Why no launch is shown: a comment in every language."""
    if not s.opaque:
        return "// no kernels: the results are inputs or constants"
    return f"// no kernels: {', '.join(c.call.reason for c in s.opaque)} (run by PyTorch)"


def _show(s: Saturation, o: CompileOptions, loaded: float) -> None:
    if o.verbose:
        from emmy.inspect.stages import timings

        print("\n".join(timings(s, loaded)), file=sys.stderr)
    if o.verbose > 1:
        from emmy.inspect.derivation import rewrites

        for rewrite in rewrites(s):
            print(f"{rewrite.text}\n")
    if o.ir:
        from emmy.inspect.views import show_ir

        print(show_ir(s, o.ir) or _nothing(s))
    elif o.verbose < 2:
        from emmy.inspect.summary import summary, summary_lines

        print("\n".join(summary_lines(summary(s, loaded))))
