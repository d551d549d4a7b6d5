"""The `emmy` command.  Commands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from emmy.cli.bench import BenchOptions, bench_command
from emmy.cli.compile import CompileOptions, compile_command
from emmy.cli.db import db_app
from emmy.cli.doctor import DoctorOptions, doctor_command
from emmy.cli.eval import eval_app
from emmy.cli.explain import ExplainOptions, explain_command
from emmy.cli.fit import FitOptions, fit_command
from emmy.cli.golden import golden_app
from emmy.cli.ops import OpsOptions, ops_command
from emmy.cli.options import with_options
from emmy.cli.run import RunOptions, run_command
from emmy.cli.saturate import SaturateOptions, saturate_command
from emmy.cli.simulate import SimulateOptions, simulate_command
from emmy.cli.tune import TuneCommand, tune_command
from emmy.errors import EmmyError, UsageError

app = typer.Typer(
    name="emmy",
    help="An optimizing compiler from PyTorch to CUDA in which no alternative is ever thrown away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("saturate")(with_options(saturate_command, SaturateOptions))
app.command("compile")(with_options(compile_command, CompileOptions))
app.command("run")(with_options(run_command, RunOptions))
app.command("tune")(with_options(tune_command, TuneCommand))
app.command("bench")(with_options(bench_command, BenchOptions))
app.command("simulate")(with_options(simulate_command, SimulateOptions))
app.command("explain")(with_options(explain_command, ExplainOptions))
app.command("doctor")(with_options(doctor_command, DoctorOptions))
app.command("ops")(with_options(ops_command, OpsOptions))
app.command("fit")(with_options(fit_command, FitOptions))
app.add_typer(db_app, name="db")
app.add_typer(eval_app, name="eval")
app.add_typer(golden_app, name="golden")


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """What Emmy logs reads like its notes: `emmy: …`, warnings and worse."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("emmy: %(message)s"))
    handler.setLevel(logging.WARNING)
    log = logging.getLogger("emmy")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def main() -> None:
    """Exit codes: 0 ok, 1 a finding or failure, 2 wrong usage, 130 interrupted."""
    try:
        with _log_to_stderr():
            app()
    except UsageError as e:
        print(f"emmy: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    except EmmyError as e:
        print(f"emmy: {e}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as e:  # what a command writes itself: a full disk, a closed pipe
        print(f"emmy: {e}", file=sys.stderr)
        if e.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            print("  free space where it writes, or name another folder for scratch files with TMPDIR", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("emmy: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
