"""Front ends: from a PyTorch module, a model file, a Hugging Face model or a line of code to Torch IR.

`load` chooses by what the user named and `capture.capture` takes a module; both give a `Program`.  `interpret` runs a
program's graph with PyTorch (in float64 on request), `run_node` one node of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emmy.frontend.opaque import run_node
    from emmy.frontend.program import Program
    from emmy.frontend.reference import interpret
    from emmy.frontend.source import load

__all__ = ["Program", "interpret", "load", "run_node"]


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds to import, and `--help` must not wait for it."""
    import importlib

    home = {
        "Program": "program",
        "interpret": "reference",
        "load": "source",
        "run_node": "opaque",
    }
    if name not in home:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{home[name]}"), name)
