"""From the command line and the environment to a program and compile options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from emmy.cli.options import ModelOptions
from emmy.settings import Settings

if TYPE_CHECKING:
    from emmy.frontend.program import Program
    from emmy.ir.target import Target
    from emmy.saturation import Options


def note(text: str) -> None:
    """A line for people, on stderr."""
    print(f"emmy: {text}", file=sys.stderr)


def load_program(o: ModelOptions) -> Program:
    """The captured program; its notes (random weights …) go to stderr."""
    from emmy.frontend.source import load

    program = load(
        o.source, o.code, layer=o.layer, seq_len=o.seq_len, cache_len=o.cache_len, batch=o.batch, dtype=o.dtype,
        trust_pickle=o.trust_pickle, inputs=o.inputs,
    )  # fmt: skip
    for text in program.notes:
        note(text)
    return program


def pick_target(o: ModelOptions) -> Target:
    """`--gpu`, else `--target`, else the local card, else sm_90a."""
    from emmy.errors import UsageError
    from emmy.ir.target import TARGETS, target, target_of_gpu

    if o.gpu:
        chosen = target_of_gpu(o.gpu)
        if o.target and target(o.target) is not chosen:
            raise UsageError(f"{o.gpu} is {chosen.arch}, not {o.target}", "give one of --gpu and --target")
        return chosen
    if o.target:
        return target(o.target)
    from emmy.runtime.local import local_arch

    return TARGETS.get(local_arch() or "", TARGETS["sm_90a"])


def compile_options(o: ModelOptions, passes: str, settings: Settings) -> Options:
    """Compile options; `--pin` and `--db` go before EMMY_KNOBS and EMMY_TUNE_DB.  Empty `passes`: all."""
    from emmy.egraph.model import Limits
    from emmy.ir.schedule import Pin
    from emmy.saturation import PASSES, Options

    knobs = o.pin or ([settings.knobs] if settings.knobs else [])
    return Options(
        target=pick_target(o),
        pins=tuple(Pin.parse(k) for k in knobs),
        place=settings.place,
        allow=",".join(o.allow or ()) or settings.allow,
        held=frozenset(o.hold or ()),
        passes=passes or PASSES,
        limits=Limits(o.max_launches, o.max_seconds, o.max_megabytes),
        fallback=not o.no_fallback,
        strict_evidence=o.strict_evidence,
        check=not o.no_check,
        database=o.db or settings.tune_db,
        golden=settings.golden,
        prior=settings.prior,
    )
