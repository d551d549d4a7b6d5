"""What a plan's buffers are to the runtime: when each is written and last read, and who owns its memory.

held      weights, and what folded launches made of them: allocated once
input     the caller's tensors, used in place
fresh     returned results that kernels write: allocated anew by each call
loose     results of opaque launches: whatever tensor PyTorch returns
arena     everything else that kernels write, and workspaces of single launches
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.errors import PlanError
from emmy.ir.graph import Ref
from emmy.ir.plan import Buffer, KernelLaunch, Launch, OpaqueLaunch, Plan


@dataclass(frozen=True, slots=True)
class Mutation:
    """After all launches, the contents of `target` (an input or a held buffer) are those of `value`."""

    value: str
    target: str


@dataclass(frozen=True)
class Flow:
    """`lives` gives each arena buffer its first and last launch in `run`, inclusive."""

    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    build: tuple[Launch, ...]
    run: tuple[Launch, ...]
    folded: frozenset[str]
    fresh: frozenset[str]
    lives: dict[str, tuple[int, int]]
    # inputs and buffers that are returned as they were before the call updates them
    returned_before: frozenset[str]
    mutations: tuple[Mutation, ...]
    # held buffers that are still needed once folded launches have run
    kept: frozenset[str]


def analyse(plan: Plan) -> Flow:
    """Raises PlanError, which names the launch and the buffer, for a plan that cannot be executed."""
    buffers = {b.name: b for b in plan.buffers}
    if len(buffers) != len(plan.buffers):
        raise PlanError("two buffers of one name")
    for n in plan.launches:
        _check_names(n, buffers, {v.name for v in plan.sizes})
    returned, mutations = _outputs(plan, buffers)
    inputs = tuple(b.name for b in plan.buffers if b.role == "input")
    weights = tuple(b.name for b in plan.buffers if b.role in ("parameter", "buffer", "constant"))
    build = tuple(n for n in plan.launches if _at_build(n, buffers))
    run = tuple(n for n in plan.launches if not _at_build(n, buffers))
    folded = frozenset(r for n in build for r in n.results)
    _check_folded(plan, folded)

    writable = frozenset(m.target for m in mutations)
    _check_order(build, set(weights), frozenset())
    _check_order(run, {*inputs, *weights, *folded}, writable)
    made = frozenset(r for n in run for r in n.results)
    _check_outputs(returned, mutations, {*inputs, *weights, *folded, *made})

    loose = frozenset(r for n in run if isinstance(n, OpaqueLaunch) for r in n.results)
    fresh = (made & returned) - loose - {*inputs, *weights}
    arena = made - fresh - loose - {*inputs, *weights}
    read = {name for n in run for name in n.operands} | returned | {m.value for m in mutations} | writable
    return Flow(
        buffers=buffers,
        inputs=inputs,
        weights=weights,
        build=build,
        run=run,
        folded=folded,
        fresh=fresh,
        lives=_lives(run, arena, frozenset(m.value for m in mutations)),
        returned_before=(returned & writable) - made,
        mutations=mutations,
        kept=frozenset(read | made) & {*weights, *folded},
    )


def _outputs(plan: Plan, buffers: dict[str, Buffer]) -> tuple[frozenset[str], tuple[Mutation, ...]]:
    sources = {b.source: b.name for b in plan.buffers if b.source and b.role in ("input", "parameter", "buffer")}
    returned: set[str] = set()
    mutations: list[Mutation] = []
    for out in plan.outputs:
        if out.mutates:
            target = out.mutates if out.mutates in buffers else sources.get(out.mutates, "")
            if not target or not isinstance(out.value, Ref):
                raise PlanError(f"an output updates {out.mutates!r}, which is no input or parameter of the plan")
            mutations.append(Mutation(out.value.name, target))
        elif isinstance(out.value, Ref):
            returned.add(out.value.name)
    return frozenset(returned), tuple(mutations)


def _at_build(launch: Launch, buffers: dict[str, Buffer]) -> bool:
    if isinstance(launch, KernelLaunch):
        return launch.at_build
    return bool(launch.results) and all(r in buffers and buffers[r].role == "folded" for r in launch.results)


def _check_names(launch: Launch, buffers: dict[str, Buffer], declared: set[str]) -> None:
    for name in (*launch.operands, *launch.results):
        if name not in buffers:
            raise PlanError(f"launch {launch.name!r} names {name!r}, which is no buffer of the plan")
    if not isinstance(launch, KernelLaunch):
        return
    mapped = [e for m in launch.maps for e in (*m.shape, *m.strides, m.offset)]
    used = {*launch.sizes, *(s for e in (*launch.grid, *mapped, *(w.count for w in launch.work)) for s in e.sizes)}
    if any(not 0 <= m.argument < len(launch.operands) + len(launch.results) for m in launch.maps):
        raise PlanError(f"launch {launch.name!r} maps a tensor that it does not have")
    if used - declared:
        raise PlanError(f"launch {launch.name!r} uses sizes that the plan lacks: {', '.join(sorted(used - declared))}")
    if used and launch.at_build:
        raise PlanError(f"launch {launch.name!r} runs at build, where no size is known: {', '.join(sorted(used))}")


def _check_folded(plan: Plan, folded: frozenset[str]) -> None:
    for b in plan.buffers:
        if (b.role == "folded") != (b.name in folded):
            writer = "a" if b.name in folded else "no"
            raise PlanError(f"buffer {b.name!r} has role {b.role!r}, but {writer} launch that runs at build writes it")
        if b.role == "folded" and any(e.sizes for e in b.tensor.shape):
            raise PlanError(f"folded buffer {b.name!r} has a symbolic size: {b.tensor.text}")


def _check_order(launches: tuple[Launch, ...], ready: set[str], writable: frozenset[str]) -> None:
    given = frozenset(ready)
    for n in launches:
        for name in n.operands:
            if name not in ready:
                raise PlanError(f"launch {n.name!r} reads {name!r} before anything has written it")
        for name in n.results:
            if name in given and name not in writable:
                raise PlanError(f"launch {n.name!r} writes {name!r}, which no output lists as mutated")
        ready.update(n.results)


def _check_outputs(returned: frozenset[str], mutations: tuple[Mutation, ...], known: set[str]) -> None:
    for name in (*returned, *(m.value for m in mutations), *(m.target for m in mutations)):
        if name not in known:
            raise PlanError(f"output {name!r} is never written")


def _lives(run: tuple[Launch, ...], arena: frozenset[str], to_end: frozenset[str]) -> dict[str, tuple[int, int]]:
    lives: dict[str, tuple[int, int]] = {}
    for k, n in enumerate(run):
        for name in (*n.operands, *n.results):
            if name in arena:
                lives[name] = (lives.get(name, (k, k))[0], k)
    return {name: (first, len(run) if name in to_end else last) for name, (first, last) in lives.items()}
