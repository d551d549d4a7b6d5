"""The public functions: `emmy.saturate` compiles a model for a card, `emmy.compile` makes a callable on this one."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from emmy.arguments import expanded, require, shortened
from emmy.egraph.model import Limits
from emmy.errors import InputError, UsageError
from emmy.executable import Executable
from emmy.frontend.capture import capture
from emmy.frontend.exported import check_fit, program_of
from emmy.frontend.program import Program
from emmy.ir.schedule import Pin
from emmy.ir.target import TARGETS, Target
from emmy.ir.target import target as target_of
from emmy.ir.torch_types import NAMES
from emmy.runtime.cache import CubinCache
from emmy.runtime.local import local_arch
from emmy.runtime.sizes import Argument, bind_sizes
from emmy.saturation import Options, Saturation, saturate_program
from emmy.settings import Settings

if TYPE_CHECKING:
    from emmy.saturation import Observer

DEFAULT_ARCH: Final = "sm_90a"
MAX_VARIANTS: Final = 8
_TYPES: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "place": (str, "fuse, cut or nothing"),
    "allow": (str, "atomics, tf32, both with a comma between, or nothing"),
    "held": ((str, list, tuple, Set), "a rule's name, or several"),
    "passes": (str, "a prefix of dolfstpkc"),
    "limits": (Limits, "an emmy.egraph.model.Limits"),
    "fallback": (bool, "True or False"),
    "strict_evidence": (bool, "True or False"),
    "check": (bool, "True or False"),
    "database": ((str, Path, NoneType), "the path of an evidence store"),
    "golden": ((str, os.PathLike, NoneType), "the path of a golden file"),
    "prior": ((str, os.PathLike), "analytic, learned, or the path of a fitted prior"),
}


def build_options(target: str | Target | None = None, settings: Settings | None = None, **options: Any) -> Options:
    """Compile options from keywords: those of `emmy.saturation.Options`, where `pins` may be a row's text.

    What is not given comes from the environment (EMMY_KNOBS, EMMY_PLACE, EMMY_ALLOW, EMMY_TUNE_DB,
    EMMY_GOLDEN_FILE); the target from the local card, else sm_90a.  UsageError for a keyword that is none.
    """
    require("target", target, (str, Target, NoneType), "a name such as sm_90a, or a Target")
    known = {f.name for f in fields(Options)} - {"target"}
    wrong = sorted(options.keys() - known)
    if wrong:
        raise UsageError(f"unknown option {', '.join(wrong)}", f"the options are {', '.join(sorted(known))}")
    settings = settings or Settings.read()
    given = {
        "pins": settings.knobs, "place": settings.place, "allow": settings.allow,
        "database": settings.tune_db, "golden": settings.golden,
        "prior": settings.prior, **options,
    }  # fmt: skip
    given["pins"] = _pins(given["pins"])
    for name in given.keys() & _TYPES.keys():
        require(name, given[name], *_TYPES[name])
    held = given.get("held", ())
    given["held"] = frozenset([held] if isinstance(held, str) else held)
    for name in given["held"]:
        require("a name in held", name, str, "names of rules")
    if isinstance(given["database"], str):
        given["database"] = expanded(given["database"])
    for name in ("golden", "prior"):
        if isinstance(given[name], os.PathLike):
            given[name] = os.fspath(given[name])
    return Options(target=pick_target(target), **given)


def pick_target(target: str | Target | None) -> Target:
    """A target by its name; None: the local card's, else sm_90a."""
    if isinstance(target, Target):
        return target
    if target:
        return target_of(target)
    return TARGETS[local_arch() or DEFAULT_ARCH]


def _pins(value: str | Pin | Sequence[str | Pin]) -> tuple[Pin, ...]:
    wanted = "a row's text such as WORK=t256, a Pin, or a sequence of them"
    require("pins", value, (str, Pin, list, tuple, Set), wanted)
    if isinstance(value, str | Pin):
        value = [value] if value else []
    for p in value:
        require("a pin", p, (str, Pin), wanted)
    return tuple(p if isinstance(p, Pin) else Pin.parse(p) for p in value)


def saturate(
    module: Callable[..., Any] | Program | ExportedProgram,
    inputs: Sequence[Any] = (),
    *,
    target: str | Target | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    observe: Observer | None = None,
    **options: Any,
) -> Saturation:
    """Compile a module, function or captured program for a card, which need not be there.

    Args:
        module: captured on `inputs` and `kwargs`.  A `Program` was, and an `ExportedProgram` needs none.
        dynamic_shapes: as `torch.export.export` takes it.
        target: `sm_89`, a `Target`, or None for the local card.
        observe: called with (stage, result, seconds) after each stage.
        options: fields of `emmy.saturation.Options`.
    Raises:
        UsageError, UnsupportedError, PinError, LoweringError, EvidenceError.
    """
    if observe is not None and not callable(observe):
        raise UsageError(f"observe is {shortened(observe)}", "give a function of (stage, result, seconds)")
    built = build_options(target, **options)
    program = _captured(module, _positional(inputs), _named(kwargs), dynamic_shapes)
    return saturate_program(program, built, observe)


def _positional(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """A tensor is a sequence too, of its rows, and is never meant as one."""
    if isinstance(inputs, Tensor):
        raise UsageError("inputs is a tensor", "give the arguments as a sequence: (x,)")
    require("inputs", inputs, (list, tuple), "the arguments as a tuple: (x,)")
    return tuple(inputs)


def _named(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    require("kwargs", kwargs, (Mapping, NoneType), "a dict of keyword arguments")
    for name in kwargs or ():
        require("a name in kwargs", name, str, "names of parameters")
    return dict(kwargs or {})


def _captured(
    module: Callable[..., Any] | Program | ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> Program:  # fmt: skip
    if dynamic_shapes is not None and isinstance(module, Program | ExportedProgram):
        raise UsageError(f"dynamic_shapes: the {type(module).__name__} has its own", "give them when it is captured")
    if isinstance(module, Program):
        return module
    if isinstance(module, ExportedProgram):
        return program_of(module, args, kwargs)
    return _capture(module, args, kwargs, dynamic_shapes)


def _check_module(module: object) -> None:
    if not callable(module) and not isinstance(module, Program):
        raise UsageError(f"{type(module).__name__} is no module or function", "emmy.load opens files and model names")


def _capture(module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Program:
    """Captured where the module's parameters are, so that they need not be moved for it."""
    _check_module(module)
    first = next(iter(module.parameters()), None) if isinstance(module, torch.nn.Module) else None
    if first is not None:
        args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.detach().to(first.device), (args, kwargs))
    return capture(module, args, kwargs, dynamic_shapes)


def compile(
    module: Callable[..., Any] | Program | ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    target: str | Target | None = None,
    max_variants: int = MAX_VARIANTS,
    cache: CubinCache | None = None,
    **options: Any,
) -> CompiledFunction:
    """A callable that runs the module, function or exported program as generated kernels.

    It is compiled from `inputs` (and `kwargs`) now, or from the arguments of its first call.  A call with tensors of
    other shapes or types, or with other numbers, compiles once more; the `max_variants` last used are kept.  Sizes
    named in `dynamic_shapes`, or when a program was exported, are served by one compile.  Arguments are CUDA tensors
    (and numbers, None), in any pytree.  Results carry no gradient, and a later change of a weight need not reach them.
    """
    require("max_variants", max_variants, int, "a whole number")
    require("cache", cache, (CubinCache, NoneType), "a CubinCache")
    _check_module(module)
    made = CompiledFunction(
        module, dynamic_shapes, build_options(target, **options), max_variants, cache or CubinCache()
    )
    if inputs is not None or kwargs is not None:
        made.prepare(_positional(inputs if inputs is not None else ()), _named(kwargs))
    return made


class CompiledFunction:
    """What `emmy.compile` returns."""

    def __init__(
        self, module: Callable[..., Any] | Program | ExportedProgram, dynamic_shapes: Any, options: Options,
        max_variants: int, cache: CubinCache,
    ) -> None:  # fmt: skip
        if max_variants < 1:
            raise UsageError(f"max_variants is {max_variants}", "keep at least one")
        self.module, self.dynamic_shapes, self.options = module, dynamic_shapes, options
        self.max_variants, self.cache = max_variants, cache
        self._lock = threading.RLock()
        self._variants: OrderedDict[object, Executable] = OrderedDict()

    @property
    def variants(self) -> tuple[Executable, ...]:
        """What has been compiled and is kept, the last used one last."""
        return tuple(self._variants.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.prepare(args, kwargs)(*args, **kwargs)

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Executable:
        """The compiled program for these arguments; compiles it where there is none yet."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        device = common_device(leaves)
        key: object = (spec, tuple(_leaf_key(x) for x in leaves))
        with self._lock:
            if key not in self._variants:
                key = self._serving(args, kwargs, device) or key
            if key not in self._variants:
                self._variants[key] = self._make(args, kwargs, device)
            self._variants.move_to_end(key)
            if len(self._variants) > self.max_variants:
                self._variants.popitem(last=False)[1].close()
            return self._variants[key]

    def _serving(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> object | None:
        """The key of a variant with symbolic sizes that takes these shapes."""
        if self.dynamic_shapes is None and not isinstance(self.module, Program | ExportedProgram):
            return None
        variants = self._variants.items()
        return next((k for k, v in variants if v.device == device and serves(v.program, args, kwargs)), None)

    def _make(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Executable:
        program = _captured(self.module, args, dict(kwargs), self.dynamic_shapes)
        if isinstance(self.module, Program):
            check_fit(program, args, kwargs)
        saturation = saturate_program(program, self.options, cache=self.cache)
        return Executable(program, saturation.plan, device=device, cache=self.cache)


def serves(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the program takes these arguments: structure, numbers, types, and sizes within their bounds."""
    user = [i for i in program.graph.inputs if i.kind == "user"]
    try:
        tensors = program.flatten(args, kwargs)
        bind_sizes(
            [Argument(i.name, i.tensor, tuple(t.shape)) for i, t in zip(user, tensors, strict=True)],
            program.graph.sizes,
        )
    except UsageError:
        return False
    return all(NAMES.get(t.dtype) == i.tensor.dtype for i, t in zip(user, tensors, strict=True))


def common_device(leaves: Sequence[Any]) -> torch.device:
    """The one CUDA device of all tensors; the current one where there is none.  InputError for any other place."""
    devices = dict.fromkeys(x.device for x in leaves if isinstance(x, Tensor))
    elsewhere = [str(d) for d in devices if d.type != "cuda"]
    if elsewhere:
        raise InputError(
            f"an argument is on {elsewhere[0]}, compiled programs take CUDA tensors", "move it with .cuda()"
        )
    if len(devices) > 1:
        raise InputError(f"the arguments are on several devices: {', '.join(map(str, devices))}", "move them to one")
    return next(iter(devices), torch.device("cuda"))


def _leaf_key(x: Any) -> object:
    if isinstance(x, Tensor):
        return "tensor", x.dtype, tuple(x.shape), x.device
    return type(x), x


__all__ = ["CompiledFunction", "build_options", "compile", "saturate", "serves"]
