"""What can be said on the command line: the fields of frozen dataclasses, from which typer derives the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

Opt = typer.Option
O = TypeVar("O")
SEEDS = (1 << 32) - 1  # the largest seed


@dataclass(frozen=True)
class ModelOptions:
    """Which program, for which card, under which restrictions."""

    source: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A .pt2/.pt file, a Hugging Face id, or a checkpoint folder."),
    ] = None
    code: Annotated[str | None, Opt("-c", "--code", metavar="CODE", help="Code whose last expression is compiled.")] = (
        None
    )
    target: Annotated[
        str, Opt("--target", help="sm_80, sm_86, sm_89, sm_90a, sm_120a. Default: the local card, else sm_90a.")
    ] = ""
    gpu: Annotated[str, Opt("--gpu", help="The card to compile for, by name: H200, 'RTX 4090'.")] = ""
    inputs: Annotated[
        str | None, Opt("--inputs", metavar="SPEC", help="Inputs of a pickled module: 'f32[1,32],i64[1]'.")
    ] = None
    trust_pickle: Annotated[
        bool, Opt("--trust-pickle", help="Open a pickled nn.Module. This runs code from the file.")
    ] = False
    layer: Annotated[int | None, Opt("--layer", help="Only this layer of a Hugging Face model.")] = None
    seq_len: Annotated[
        int | None, Opt("--seq-len", help="Tokens a sequence (default 512, or what the model allows).")
    ] = None
    cache_len: Annotated[int | None, Opt("--cache-len", help="Decode one token on a filled cache of this length.")] = (
        None
    )
    batch: Annotated[int | None, Opt("--batch", help="Sequences a batch (default 1).")] = None
    dtype: Annotated[str | None, Opt("--dtype", help="Type of weights and activations: bf16 (default), f16, f32.")] = (
        None
    )
    hold: Annotated[list[str] | None, Opt("--hold", metavar="RULE", help="Leave out a rule, by name (repeatable).")] = (
        None
    )
    pin: Annotated[
        list[str] | None,
        Opt("--pin", metavar="ROW", help="Pin (part of) a schedule row, as EMMY_KNOBS does (repeatable)."),
    ] = None
    allow: Annotated[
        list[str] | None,
        Opt(
            "--allow",
            metavar="WHAT",
            help="tf32: products of f32 may round factors. atomics: sums may be added in any order, so that "
            "runs differ (repeatable; or EMMY_ALLOW).",
        ),
    ] = None
    no_fallback: Annotated[bool, Opt("--no-fallback", help="An operation that we do not know is an error.")] = False
    no_check: Annotated[bool, Opt("--no-check", help="Do not compile the kernels with NVRTC.")] = False
    strict_evidence: Annotated[
        bool, Opt("--strict-evidence", help="An error for kernels that no measurement decided.")
    ] = False
    db: Annotated[Path | None, Opt("--db", help="Evidence store (default: the user's, or EMMY_TUNE_DB).")] = None
    max_launches: Annotated[int, Opt("--max-launches", help="Stop saturation at this many launches.")] = 200_000
    max_seconds: Annotated[float, Opt("--max-seconds", help="Stop saturation after this many seconds.")] = 600.0
    max_megabytes: Annotated[float, Opt("--max-megabytes", help="Stop saturation at this much memory.")] = 16_000.0


def with_options(run: Callable[[Any], None], options: type[O]) -> Callable[..., None]:
    """`run(options)` as a function with one parameter for each field, which is what typer wants."""

    def command(**given: Any) -> None:
        run(options(**given))

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(options)  # type: ignore[arg-type]
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = run.__doc__
    return command
