"""Emmy: an optimizing compiler from PyTorch to CUDA that keeps every alternative in an e-graph.

saturation = emmy.saturate(module, (x,), target="sm_89")     no GPU needed
fast = emmy.compile(module, (x,))                            on this machine's GPU
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from emmy.api import CompiledFunction as CompiledFunction
    from emmy.api import compile as compile
    from emmy.api import saturate as saturate
    from emmy.errors import EmmyError as EmmyError
    from emmy.frontend.source import load as load
    from emmy.saturation import Saturation as Saturation

# imported when first used: `import emmy` loads neither PyTorch nor egglog
_EXPORTS: Final = {
    "CompiledFunction": "emmy.api",
    "EmmyError": "emmy.errors",
    "Saturation": "emmy.saturation",
    "compile": "emmy.api",
    "load": "emmy.frontend.source",
    "saturate": "emmy.api",
}

__all__ = ["CompiledFunction", "EmmyError", "Saturation", "compile", "load", "saturate"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'emmy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
