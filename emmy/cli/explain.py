"""`emmy explain`: why each launch is as it is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from emmy.cli.options import ModelOptions, Opt


@dataclass(frozen=True)
class ExplainOptions(ModelOptions):
    kernel: Annotated[str, Opt("--kernel", metavar="NAME", help="Only this kernel.")] = ""
    json: Annotated[bool, Opt("--json", help="Print JSON, with everything that was refused.")] = False


def explain_command(o: ExplainOptions) -> None:
    """Say for every launch what else could run, at what cost and on what evidence, and what was refused and why."""
    from emmy.cli.request import compile_options, load_program, note
    from emmy.settings import Settings

    # evidence is asked for at the end, when the account has been given
    options = replace(compile_options(o, "", Settings.read()), strict_evidence=False)
    program = load_program(o)
    from emmy.inspect.explain import explain
    from emmy.inspect.explain_text import text_of
    from emmy.saturation import require_evidence, saturate_program

    s = saturate_program(program, options)
    for text in s.notes[len(program.notes) :]:
        note(text)
    kernels = explain(s, o.kernel)
    if o.json:
        print(json.dumps({
            "program": program.name, "target": options.target.arch, "gpu": options.target.gpu,
            "us": s.predicted_seconds * 1e6, "predicted_share": s.predicted_share, "method": s.choice.method,
            "timed": None if s.timed is None else asdict(s.timed),
            "opaque": [{"name": c.node.name, "op": c.node.op, "reason": c.call.reason} for c in s.opaque],
            "kernels": [_plain(asdict(e)) for e in kernels],
        }))  # fmt: skip
    else:
        print(text_of(s, kernels))
    if o.strict_evidence:
        require_evidence(s, o.kernel)


def _plain(value: Any) -> Any:
    """The value with null for infinity, which JSON cannot spell."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
