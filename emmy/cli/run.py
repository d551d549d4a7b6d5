"""`emmy run`: compile for this machine's GPU, run, check the values, time it beside PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from emmy.cli.options import SEEDS, ModelOptions, Opt
from emmy.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from emmy.checking import Checked
    from emmy.executable import Executable
    from emmy.runtime.bench import Timing
    from emmy.saturation import Saturation

# --tune is bounded by its rows; this ends it where something hangs over and over
_TUNE_SECONDS: Final = 3600.0
BACKENDS: Final = ("eager", "tcompile", "emmy")


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    bench: Annotated[bool, Opt("--bench", help="Time it.")] = False
    bench_backends: Annotated[
        str, Opt("--bench-backends", metavar="LIST", help="What to time: eager,tcompile,emmy (default: eager,emmy).")
    ] = "eager,emmy"
    repeats: Annotated[int, Opt("--repeats", min=1, help="Samples of each backend.")] = 50
    warm: Annotated[bool, Opt("--warm", help="Time with a warm L2 cache; default: cold.")] = False
    seed: Annotated[
        int | None, Opt("--seed", min=0, max=SEEDS, help="Shuffle the example's floating inputs by this seed.")
    ] = None
    strict: Annotated[bool, Opt("--strict", help="Exit with 1 when Emmy is slower than the best other backend.")] = (
        False
    )
    tune: Annotated[
        int | None, Opt("--tune", metavar="N", min=1, help="First measure N schedule rows of each kernel.")
    ] = None
    json: Annotated[bool, Opt("--json", help="Print results as JSON.")] = False


def run_command(o: RunOptions) -> None:
    """Run a model on this machine's GPU and check its values against PyTorch; exit with 1 when they are wrong."""
    backends = _backends(o.bench_backends)
    if o.strict and not o.bench:
        raise UsageError("--strict compares times, and nothing is timed", "add --bench")
    _require_gpu()
    from emmy.checking import check, example_inputs
    from emmy.cli.request import compile_options, load_program, note
    from emmy.executable import Executable
    from emmy.saturation import require_evidence, saturate_program
    from emmy.settings import Settings

    options = compile_options(o, "", Settings.read())
    program = load_program(o)
    # with --tune the measurements are yet to come
    s = saturate_program(program, replace(options, strict_evidence=o.strict_evidence and o.tune is None))
    for text in s.notes[len(program.notes) :]:
        note(text)
    tuned: list[str] = []
    if o.tune is not None:
        s, tuned = _tuned(s, o.tune)
        if o.strict_evidence:
            require_evidence(s)
    # what kernels write is poisoned before the checked run, so that a result which nothing wrote is seen
    poisoned = Executable(program, s.plan, poison=True)
    inputs = example_inputs(program, poisoned.device, o.seed)
    checked = check(s, poisoned, inputs)
    poisoned.close()
    timings: dict[str, Timing] = {}
    lost: dict[str, str] = {}
    if o.bench:
        from emmy.runtime.bench import measure

        calls, lost = _calls(backends, Executable(program, s.plan, poison=False), inputs)
        timings = measure(calls, cold=not o.warm, rounds=o.repeats)
    from emmy.inspect.summary import kernel_lines, summary

    slower = _slower(timings)
    result = summary(s)
    if o.json:
        print(json.dumps(_document(result, checked, timings, lost, slower)))
    else:
        print("\n".join([*tuned, *kernel_lines(result), "", *_check_lines(checked), *_time_lines(timings, lost)]))
    _exit(checked, slower, o.strict)


def _tuned(s: Saturation, rows: int) -> tuple[Saturation, list[str]]:
    """The program as compile chooses it once `rows` rows of each kernel were measured, and what was found."""
    from emmy.extract.store import Store
    from emmy.tune.asked import TuneOptions
    from emmy.tune.executors import Local
    from emmy.tune.report import Report, plan_lines, summary_lines
    from emmy.tune.tune import tune

    executor = Local([0])
    try:
        with Report() as report:
            options = TuneOptions(budget=_TUNE_SECONDS, rows=rows)
            found = tune(
                s, executor, Store(s.options.database), options, report.note, report.observe, command="emmy run"
            )
    finally:
        executor.close()
    return found.saturation, [*summary_lines(found.outcome), *plan_lines(found.plans), ""]


def _backends(text: str) -> list[str]:
    names = [n.strip() for n in text.split(",") if n.strip()]
    wrong = [n for n in names if n not in BACKENDS]
    if wrong or not names:
        raise UsageError(
            f"--bench-backends {text!r}: unknown {', '.join(wrong) or 'empty list'}", f"use {','.join(BACKENDS)}"
        )
    return list(dict.fromkeys(names))


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise DeviceError(
            "emmy run needs a GPU, and PyTorch sees none here",
            "`emmy saturate` and `emmy compile --target ARCH` need none; `emmy doctor` says what is missing",
        )


def _calls(
    backends: Sequence[str], ours: Executable, inputs: Sequence[Any]
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """What to time by name, and why a backend is not timed."""
    import torch

    calls: dict[str, Callable[[], object]] = {}
    lost: dict[str, str] = {}
    eager = _eager(ours, inputs)
    for name in backends:
        if name == "emmy":
            calls[name] = lambda: ours.run_flat(inputs)
        elif name == "eager":
            calls[name] = eager
        else:
            from torch._dynamo.exc import TorchDynamoException

            compiled = torch.compile(eager)
            try:
                compiled()
            except TorchDynamoException as e:
                lost[name] = f"torch.compile fails here: {str(e).strip().splitlines()[0]}"
                continue
            calls[name] = compiled
    return calls, lost


def _eager(ours: Executable, inputs: Sequence[Any]) -> Callable[[], object]:
    """The program in eager PyTorch on the GPU: its module, or its graph node by node where it has none."""
    import torch
    from torch.utils import _pytree as pytree

    from emmy.frontend.reference import interpret

    program = ours.program
    module = program.module
    held = module if isinstance(module, torch.nn.Module) else getattr(module, "model", None)
    if module is None:
        weights = {n: t.to(ours.device) for n, t in program.weights.items()}
        return lambda: interpret(program.graph, weights, inputs)
    for name in program.weights:
        program.weights[name]  # weights get their values when they are first read
    if isinstance(held, torch.nn.Module):
        held.to(ours.device)
    leaves, spec = pytree.tree_flatten((program.example_inputs, program.example_kwargs))
    given = iter(inputs)
    args, kwargs = pytree.tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
    target = held if isinstance(held, torch.nn.Module) else module

    def call() -> object:
        with torch.no_grad():
            return target(*args, **kwargs)

    return call


def _slower(timings: dict[str, Timing]) -> str:
    """The backend that beats Emmy by most, empty where none does."""
    others = {n: t.median for n, t in timings.items() if n != "emmy"}
    if "emmy" not in timings or not others:
        return ""
    best = min(others, key=lambda n: others[n])
    return best if others[best] < timings["emmy"].median else ""


def _check_lines(checked: Sequence[Checked]) -> list[str]:
    lines = []
    for c in checked:
        verdict = (
            "" if c.ours.ok else f" (eager is off by {c.eager.error:.2e}: {'accepted' if c.ok else 'not accepted'})"
        )
        lines.append(f"{c.name}: {c.ours}{verdict}")
    return lines


def _time_lines(timings: dict[str, Timing], lost: dict[str, str]) -> list[str]:
    if not timings and not lost:
        return []
    base = timings.get("emmy")
    lines = ["", f"{'backend':<10} {'median us':>10} {'p10':>9} {'p90':>9} {'emmy is':>9}  L2, method"]
    for name, t in timings.items():
        ratio = f"{t.median / base.median:.2f}x" if base else ""
        lines.append(
            f"{name:<10} {t.median * 1e6:>10.2f} {t.p10 * 1e6:>9.2f} {t.p90 * 1e6:>9.2f} {ratio:>9}  {t.l2}, {t.method}"
        )
    return [*lines, *(f"{name:<10} {why}" for name, why in lost.items())]


def _document(
    result: dict[str, Any], checked: Sequence[Checked], timings: dict[str, Timing], lost: dict[str, str], slower: str
) -> dict[str, Any]:
    times = {
        n: {
            "n": t.n,
            "median_us": t.median * 1e6,
            "p10_us": t.p10 * 1e6,
            "p90_us": t.p90 * 1e6,
            "l2": t.l2,
            "method": t.method,
        }
        for n, t in timings.items()
    }
    outputs = [{"name": c.name, "ok": c.ok, "ours": asdict(c.ours), "eager": asdict(c.eager)} for c in checked]
    return {
        **result,
        "outputs": outputs,
        "ok": all(c.ok for c in checked),
        "timings": times,
        "lost": lost,
        "slower_than": slower,
    }


def _exit(checked: Sequence[Checked], slower: str, strict: bool) -> None:
    from emmy.cli.request import note

    wrong = [c.name for c in checked if not c.ok]
    if wrong:
        note(f"wrong values in {', '.join(wrong)}")
        raise typer.Exit(1)
    if strict and slower:
        note(f"slower than {slower}")
        raise typer.Exit(1)
