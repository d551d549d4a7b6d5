"""Programs that the user exported with `torch.export.export`, in memory or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from emmy.errors import UsageError
from emmy.frontend.capture import from_exported
from emmy.frontend.program import Program
from emmy.frontend.symbolic import bind_sizes
from emmy.ir.torch_types import NAMES


class Exported:
    """The exported program as PyTorch runs it; made when it is first called."""

    def __init__(self, exported: torch.export.ExportedProgram) -> None:
        self.exported = exported
        self.module: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.module is None:
            self.module = self.exported.module(check_guards=False)
        with torch.no_grad():
            return self.module(*args, **kwargs)


def program_of(
    exported: torch.export.ExportedProgram, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Program:
    """The program of an exported one; its own example stands in where no arguments are given.

    UsageError for arguments of another structure, shape or number than those that it was exported for.
    """
    program = from_exported(exported, args, kwargs, Exported(exported), "exported")
    if args or kwargs:
        check_fit(program, args, kwargs)
    return program


def check_fit(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
    """UsageError unless the program takes arguments of this structure, these numbers, shapes and types."""
    user = [i for i in program.graph.inputs if i.kind == "user"]
    tensors = program.flatten(args, kwargs)
    bind_sizes([(i.name, i.tensor) for i in user], tensors, program.graph.sizes)
    for i, t in zip(user, tensors, strict=True):
        if NAMES.get(t.dtype) != i.tensor.dtype:
            raise UsageError(f"input {i.name} is {i.tensor.text}, got one of type {t.dtype}", "convert it with .to")
