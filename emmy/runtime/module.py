"""A plan that runs: kernels loaded, weights on the device, launches replayed from CUDA graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from emmy.errors import CompileError, DeviceError, InputError, PlanError
from emmy.ir.graph import Node, Ref
from emmy.ir.plan import KernelLaunch, Launch, OpaqueLaunch, Plan
from emmy.ir.torch_types import TORCH
from emmy.runtime import driver
from emmy.runtime.arena import peak
from emmy.runtime.cache import CubinCache
from emmy.runtime.flow import Flow, analyse
from emmy.runtime.instance import Instance, Segment
from emmy.runtime.nvrtc import Job
from emmy.runtime.sizes import Argument, bind_sizes
from emmy.runtime.tensors import accept, plain, poison, view
from emmy.settings import Settings

# runs one operation with PyTorch: the node, its tensor operands in order, the sizes of this call
Opaque = Callable[[Node, list[Tensor], dict[str, int]], tuple[Tensor, ...]]
Value = Tensor | int | float | bool | None
_MAX_BINDINGS: Final = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device: the arena of a size binding, what of it is alive at the worst moment, and what is held."""

    arena: int
    peak: int
    held: int


class Module:
    """Call it with the plan's user inputs, in the plan's order; it returns the plan's outputs that update nothing.

    Inputs are used where they lie (a view that is not contiguous, or not aligned to 16 bytes, is copied first).
    Returned tensors are new at every call.  Inputs and buffers that the model updates are written in place.  Weights
    that already are on the device are not copied; folded launches read them once, so a later change of a weight does
    not reach what was folded.

    Work goes to the current stream.  With `graph`, the kernels between two opaque launches replay as one CUDA graph per
    size binding, of which the `max_bindings` last used are kept.  Under a stream capture of the caller's own they are
    launched one by one, on memory that comes from the pool of the caller's graph, as that of PyTorch's temporaries
    does, and that each replay zeroes where it must be zeros: a replay shares no such memory with other calls.  With
    `poison`, whatever kernels are to write is filled with 0xFF bytes before each run.

    Errors: CompileError for a kernel that does not build, DeviceError from the driver, PlanError for a plan that
    contradicts itself, InputError for arguments and weights that do not fit.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Tensor],
        *,
        device: str | torch.device = "cuda",
        opaque: Opaque | None = None,
        graph: bool = True,
        poison: bool | None = None,
        cache: CubinCache | None = None,
        max_bindings: int = _MAX_BINDINGS,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.poison = Settings.read().poison if poison is None else poison
        self._flow: Flow = analyse(plan)
        self._opaque = opaque
        self._check_opaque()
        self.device = _cuda_device(device, plan.arch)
        self._lock = threading.RLock()
        self._max_bindings = max_bindings
        self._instances: OrderedDict[tuple[tuple[int, ...], ...], Instance] = OrderedDict()
        self._stream: torch.cuda.Stream | None = None
        with torch.cuda.device(self.device), torch.no_grad():
            self._context = driver.primary_context(self.device.index)
            driver.enter(self._context)
            self._arena = torch.empty(0, dtype=torch.uint8, device=self.device)
            self._zeros = torch.zeros(0, dtype=torch.uint8, device=self.device)
            self._functions = _load(plan, cache or CubinCache())
            self._held = self._take_weights(weights)
            self._fold()

    def __call__(self, *inputs: Tensor) -> tuple[Value, ...]:
        with self._lock, torch.cuda.device(self.device), torch.no_grad():
            driver.enter(self._context)
            if not torch.cuda.is_current_stream_capturing():
                self._follow(torch.cuda.current_stream())
                return self._run(inputs, self.graph)
            with self._memory_of_its_own():
                return self._run(inputs, False)

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The held tensors by qualified name: weights that launches read at each call, and the model's buffers."""
        names = {n: self._flow.buffers[n] for n in self._held}
        return {b.source or n: self._held[n] for n, b in names.items()}

    def memory(self, *inputs: Tensor) -> Memory:
        """What a call with these inputs needs beside its inputs and outputs."""
        with self._lock:
            instance = self._bind(self._accept(inputs))
        held = instance.zeros.bytes + sum(t.numel() * t.element_size() for t in self._held.values())
        return Memory(instance.layout.bytes, peak(instance.lifetimes), held)

    def close(self) -> None:
        """Give back graphs and memory.  The module cannot be called afterwards."""
        with self._lock:
            for instance in self._instances.values():
                instance.close()
            self._instances.clear()
            self._held = {}
            self._arena = self._zeros = torch.empty(0, dtype=torch.uint8)

    # what is done once

    def _check_opaque(self) -> None:
        first = next((n for n in self.plan.launches if isinstance(n, OpaqueLaunch)), None)
        if first is not None and self._opaque is None:
            raise PlanError(f"launch {first.name!r} ({first.node.op}) needs PyTorch", "give the module `opaque`")

    def _take_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        held: dict[str, Tensor] = {}
        moved: dict[tuple[object, ...], Tensor] = {}  # tied weights are moved once
        read_at_build = {name for n in self._flow.build for name in n.operands}
        for name in self._flow.weights:
            b = self._flow.buffers[name]
            if name not in read_at_build and name not in self._flow.kept:
                continue
            if b.source not in weights:
                raise InputError(f"weight {b.source!r} is missing (buffer {name!r})", "pass the model's whole state")
            given = weights[b.source].detach()
            bind_sizes([Argument(b.source, b.tensor, tuple(given.shape), "weight")], ())
            place = (given.device, given.data_ptr(), given.dtype, given.shape, given.stride())
            if place not in moved:
                moved[place] = plain(given.to(self.device))
            held[name] = accept(moved[place], b.tensor.dtype, self.device, f"weight {b.source!r}")
        return held

    def _fold(self) -> None:
        """Run the launches that depend on weights only, then let go of the weights that nothing else reads."""
        if self._flow.build:
            instance = Instance(self._flow.buffers, {}, self._flow.build, {}, self._functions)
            for name in (r for n in _kernels(self._flow.build) for r in n.results):
                self._held[name] = self._new(instance, name)
            self._reserve(instance)
            self._execute(instance, self._held, torch.cuda.current_stream().cuda_stream, graph=False)
        self._held = {name: t for name, t in self._held.items() if name in self._flow.kept}

    # what is done at each call

    def _run(self, inputs: Sequence[Tensor], graph: bool) -> tuple[Value, ...]:
        given = self._accept(inputs)
        instance = self._bind(given)
        originals = dict(zip(self._flow.inputs, inputs, strict=True))
        call = {name: plain(t) for name, t in given.items()}
        before = {name: self._tensor(name, instance, call).clone() for name in self._flow.returned_before}
        for name in self._flow.fresh:
            call[name] = self._new(instance, name)
        self._reserve(instance)
        self._execute(instance, call, torch.cuda.current_stream().cuda_stream, graph)
        self._write_back(instance, call, originals)
        return self._outputs({**call, **originals, **before})

    def _follow(self, stream: torch.cuda.Stream) -> None:
        """Order this call after the last one, and memory after both, when the caller has changed streams."""
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
            for t in (self._arena, self._zeros, *self._held.values()):
                t.record_stream(stream)
        self._stream = stream

    @contextmanager
    def _memory_of_its_own(self) -> Iterator[None]:
        """For one call under a capture: an arena and zeros that the caller's graph reserves, and sets at each replay.

        Replays come in any order beside ordinary calls, on any stream, and so must share no memory with them.
        """
        mine = self._arena, self._zeros
        self._arena = self._zeros = torch.empty(0, dtype=torch.uint8, device=self.device)
        try:
            yield
        finally:
            self._arena, self._zeros = mine

    def _accept(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        names = self._flow.inputs
        if len(inputs) != len(names):
            raise InputError(f"expected {len(names)} inputs ({', '.join(names)}), found {len(inputs)}")
        dtypes = [self._flow.buffers[n].tensor.dtype for n in names]
        return {
            n: accept(t, dtype, self.device, f"input {n!r}") for n, dtype, t in zip(names, dtypes, inputs, strict=True)
        }

    def _bind(self, given: Mapping[str, Tensor]) -> Instance:
        shapes = tuple(tuple(t.shape) for t in given.values())
        instance = self._instances.get(shapes)
        if instance is not None:
            self._instances.move_to_end(shapes)
            return instance
        arguments = [
            Argument(name, self._flow.buffers[name].tensor, found)
            for name, found in zip(self._flow.inputs, shapes, strict=True)
        ]
        sizes = bind_sizes(arguments, self.plan.sizes)
        instance = Instance(self._flow.buffers, self._flow.lives, self._flow.run, sizes, self._functions)
        for name, t in self._held.items():
            instance.point(name, t.data_ptr())
        self._instances[shapes] = instance
        if len(self._instances) > self._max_bindings:
            self._instances.popitem(last=False)[1].close()
        return instance

    def _new(self, instance: Instance, name: str) -> Tensor:
        dtype = TORCH[self._flow.buffers[name].tensor.dtype]
        made = torch.empty(instance.shapes[name], dtype=dtype, device=self.device)
        if self.poison:
            poison(made)
        return made

    def _reserve(self, instance: Instance) -> None:
        """Make the arena, which all size bindings share, large enough, and point this binding's launches into it.

        They share what is zeros between launches too: calls run one after another, and every launch leaves zeros.
        """
        if self._arena.numel() < instance.layout.bytes:
            self._arena = torch.empty(instance.layout.bytes, dtype=torch.uint8, device=self.device)
        if self.poison:
            poison(self._arena)
        instance.rebase(self._arena.data_ptr())
        if self._zeros.numel() < instance.zeros.bytes:
            self._zeros = torch.zeros(instance.zeros.bytes, dtype=torch.uint8, device=self.device)
        instance.put_zeros(self._zeros.data_ptr())

    def _execute(self, instance: Instance, call: dict[str, Tensor], stream: int, graph: bool) -> None:
        """Run all steps on the tensors of `call`, which takes the results of opaque launches."""
        for name, t in call.items():
            instance.point(name, t.data_ptr())
        for step in instance.steps:
            if isinstance(step, Segment):
                step.run(stream, graph)
                continue
            for name, t in self._by_torch(step, instance, call).items():
                call[name] = t
                instance.point(name, t.data_ptr())

    def _by_torch(self, launch: OpaqueLaunch, instance: Instance, call: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._opaque is None:
            raise PlanError(f"launch {launch.name!r} needs PyTorch", "give the module `opaque`")
        operands = [self._tensor(name, instance, call) for name in launch.operands]
        results = self._opaque(launch.node, operands, dict(instance.sizes))
        if len(results) != len(launch.results):
            raise PlanError(f"{launch.node.op} gave {len(results)} results, launch {launch.name!r} expects"
                            f" {len(launch.results)}")  # fmt: skip
        lent = {t.untyped_storage().data_ptr() for t in operands}
        made: dict[str, Tensor] = {}
        for name, result in zip(launch.results, results, strict=True):
            tensor = self._flow.buffers[name].tensor
            if result.dtype != TORCH[tensor.dtype] or tuple(result.shape) != instance.shapes[name]:
                raise PlanError(
                    f"{launch.node.op} gave {result.dtype} {list(result.shape)}, launch {launch.name!r} expects"
                    f" {tensor.text} = {list(instance.shapes[name])}"
                )
            # a view of an operand would change when the operand's memory is used again
            lives_on = result.untyped_storage().data_ptr() in lent
            made[name] = result.clone(memory_format=torch.contiguous_format) if lives_on else plain(result)
        return made

    def _tensor(self, name: str, instance: Instance, call: Mapping[str, Tensor]) -> Tensor:
        if name in call:
            return call[name]
        if name in self._held:
            return self._held[name]
        dtype = self._flow.buffers[name].tensor.dtype
        return view(self._arena, instance.layout.offsets[name], dtype, instance.shapes[name])

    def _write_back(self, instance: Instance, call: Mapping[str, Tensor], originals: Mapping[str, Tensor]) -> None:
        targets = {m.target for m in self._flow.mutations}
        pairs: list[tuple[Tensor, Tensor]] = []
        for m in self._flow.mutations:
            target = originals[m.target] if m.target in originals else self._held[m.target]
            value = self._tensor(m.value, instance, call)
            if value is target:
                continue
            exchanged = m.value in targets and m.value != m.target
            pairs.append((target, value.clone() if exchanged else value))
        for target, value in pairs:
            target.copy_(value)

    def _outputs(self, call: Mapping[str, Tensor]) -> tuple[Value, ...]:
        values: list[Value] = []
        for out in self.plan.outputs:
            if out.mutates:
                continue
            values.append(self._returned(out.value.name, call) if isinstance(out.value, Ref) else out.value)
        return tuple(values)

    def _returned(self, name: str, call: Mapping[str, Tensor]) -> Tensor:
        if name in call:
            return call[name]
        held = self._held[name]
        # a parameter is returned itself, as in eager; a caller must not be able to change what was folded
        return held.clone() if self._flow.buffers[name].role in ("constant", "folded") else held


def _cuda_device(device: str | torch.device, arch: str) -> torch.device:
    if not torch.cuda.is_available():
        raise DeviceError("PyTorch sees no CUDA device", "`emmy doctor` says why; `emmy saturate` needs none")
    wanted = torch.device(device)
    if wanted.type != "cuda":
        raise InputError(f"a module runs on CUDA, not on {wanted.type!r}")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    found = torch.cuda.get_device_capability(index)
    if not runs_on(arch, found):
        raise DeviceError(
            f"the plan is for {arch}, {torch.cuda.get_device_name(index)} is sm_{found[0]}{found[1]}",
            f"compile for sm_{found[0]}{found[1]}",
        )
    return torch.device("cuda", index)


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether machine code for `arch` runs on a device: the same major version and no higher minor one; with an `a`
    or `f` suffix that very capability."""
    number = arch.removeprefix("sm_")
    digits = number.rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if digits != number:
        return capability == (major, minor)
    return capability[0] == major and capability[1] >= minor


def _load(plan: Plan, cache: CubinCache) -> dict[tuple[str, str], driver.Function]:
    """Every distinct kernel of the plan, compiled or from the cache, and loaded."""
    smem: dict[tuple[str, str], int] = {}
    for n in _kernels(plan.launches):
        smem[n.source, n.name] = max(n.smem, smem.get((n.source, n.name), 0))
    jobs = [Job(source, name, plan.arch) for source, name in smem]
    functions: dict[tuple[str, str], driver.Function] = {}
    for (key, dynamic), compiled in zip(smem.items(), cache.compile_many(jobs), strict=True):
        if isinstance(compiled, CompileError):
            raise compiled
        functions[key] = driver.load(compiled.cubin, key[1], compiled.static_smem)
        driver.allow_smem(functions[key], dynamic)
    for n in _kernels(plan.launches):
        driver.allow_cluster(functions[n.source, n.name], prod(n.cluster))
    return functions


def _kernels(launches: Iterable[Launch]) -> list[KernelLaunch]:
    return [n for n in launches if isinstance(n, KernelLaunch)]
