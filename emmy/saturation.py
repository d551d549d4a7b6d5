"""The road of a model, in one straight line: Torch IR -> Tensor IR -> e-graphs -> choice -> kernels -> plan.

`saturate_program` calls `observe(stage, result, seconds)` after every stage; timing, dumping, printing and viewing
subscribe to it, and nothing else observes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph, saturate
from emmy.egraph.naming import Names, unique
from emmy.errors import EmmyError, LoweringError, StoreError
from emmy.extract.choice import Candidate, Choice, Unmade
from emmy.extract.evidence import predicted_share, require_measured
from emmy.extract.lookup import evidence_for_compile
from emmy.extract.priors import prior_of
from emmy.extract.records import Regime, Snapshot
from emmy.extract.store import Store
from emmy.ir.graph import Ref
from emmy.ir.kernel import Kernel
from emmy.ir.plan import Plan
from emmy.ir.target import Target
from emmy.ir.tensor import Program as TensorProgram
from emmy.options import PASSES, Options
from emmy.planning import Chosen, ChosenOpaque, build_plan
from emmy.resources import golden, rulesets
from emmy.selection import Priced, Selection
from emmy.whole import Timed, better_plans, pieces_of, sizes_of, split_piece

if TYPE_CHECKING:
    from emmy.frontend.program import Program
    from emmy.runtime.cache import CubinCache
    from emmy.runtime.nvrtc import Compiled

# What one opaque call is taken to cost beside its bytes: a launch through PyTorch's dispatcher.
OPAQUE_SECONDS: Final = 10e-6
T = TypeVar("T")
Observer = Callable[[str, object, float], None]


@dataclass
class Saturation:
    """A compiled program with everything that led to it."""

    program: Program
    options: Options
    tensor: TensorProgram
    model: ModelGraph
    selection: Selection
    choice: Choice
    chosen: tuple[Chosen | ChosenOpaque, ...]
    plan: Plan
    # names of tensors, as the plan's buffers have them
    names: Names
    regime: Regime
    seconds: dict[str, float]
    notes: tuple[str, ...]
    # what timing whole plans decided, where it did
    timed: Timed | None = None
    # what the compiler said of each kernel, by its name; empty where kernels were not compiled
    compiled: dict[str, Compiled] = field(default_factory=dict)

    @property
    def launches(self) -> tuple[Chosen, ...]:
        """Launches that are our kernels, in execution order."""
        return tuple(c for c in self.chosen if isinstance(c, Chosen))

    @property
    def opaque(self) -> tuple[ChosenOpaque, ...]:
        return tuple(c for c in self.chosen if isinstance(c, ChosenOpaque))

    def __getitem__(self, name: str) -> Chosen:
        """The first launch of that kernel name."""
        for c in self.launches:
            if c.name == name:
                return c
        raise KeyError(f"no kernel {name!r}; there are {', '.join(dict.fromkeys(c.name for c in self.launches))}")

    @property
    def predicted_seconds(self) -> float:
        return sum(c.priced.decision.cost for c in self.launches if not c.at_build)

    @property
    def predicted_share(self) -> float:
        """Share of the plan's time that rests on predictions."""
        return predicted_share(c.priced.decision for c in self.launches if not c.at_build)

    def __repr__(self) -> str:
        kernels = len({c.name for c in self.launches})
        return (
            f"<Saturation {self.program.name} for {self.options.target.arch}: {len(self.launches)} launches of "
            f"{kernels} kernels, {len(self.opaque)} opaque, {self.predicted_seconds * 1e6:.1f} us predicted>"
        )


def regime_of(target: Target) -> Regime:
    """Where measurements are evidence for this compile: the target's card and the compiler at hand."""
    from emmy.runtime.nvrtc import nvrtc_version

    return Regime(target.gpu, target.capability, f"nvrtc-{nvrtc_version()}", target.numerics)


def saturate_program(
    program: Program, options: Options, observe: Observer | None = None, cache: CubinCache | None = None
) -> Saturation:
    """Compile a captured program for a target.

    Errors: UnsupportedError (an unknown operation, with `fallback` off), PinError, LoweringError (a node for which no
    alternative became a kernel), EvidenceError (`strict_evidence`).
    """
    from emmy.frontend.translate import translate

    clock = _Clock(observe)
    sizes = {s.name: s.example for s in program.graph.sizes}
    tensor = clock("tensor", translate(program.graph, options.fallback))
    model = clock("model", saturate_model(program, tensor, options))
    regime = regime_of(options.target)
    evidence, lost = evidence_for_compile(
        [b.hash for b in model.bodies()], regime, golden(), database=options.database,
        environ={} if options.golden is None else {"EMMY_GOLDEN_FILE": options.golden},
    )  # fmt: skip
    prior, without = prior_of(options.target, golden(), options.prior)
    selection = Selection(
        model, options.target, sizes, regime, evidence, options.pins, options.held, unpruned=options.place == "fuse",
        prior=prior,
    )  # fmt: skip
    clock("evidence", selection)
    names = Names(program.graph, tensor, model.numbering)
    builder = _Kernels(program, tensor, model, selection, names, options, cache)
    choice, chosen = builder.settle()
    clock("choice", choice)
    plan = clock("plan", build_plan(program.graph, tensor, model, names, chosen, options.target.arch))
    notes = (*program.notes, *model.notes, *lost, *without)
    found = Saturation(
        program, options, tensor, model, selection, choice, tuple(chosen), plan, names, regime, clock.seconds,
        notes, compiled=builder.compiled,
    )  # fmt: skip
    found = as_timed(found, Store(options.database), cache)
    if options.strict_evidence:
        require_evidence(found)
    return found


def choose_again(
    s: Saturation, evidence: Snapshot, regime: Regime | None = None, cache: CubinCache | None = None,
    only: Mapping[str, tuple[str, str]] | None = None,
) -> Saturation:  # fmt: skip
    """The same program with its launches and rows chosen on other evidence (in another regime, where one is given).

    `only` names the bodies that may run, each with its (family, row).
    """
    selection = s.selection.informed(evidence, regime or s.regime, only)
    names = Names(s.program.graph, s.tensor, s.model.numbering)
    builder = _Kernels(s.program, s.tensor, s.model, selection, names, s.options, cache)
    choice, chosen = builder.settle()
    plan = build_plan(s.program.graph, s.tensor, s.model, names, chosen, s.options.target.arch)
    return replace(
        s, selection=selection, choice=choice, chosen=tuple(chosen), plan=plan, names=names, regime=selection.regime,
        timed=None, compiled=builder.compiled,
    )  # fmt: skip


def program_key(program: Program, options: Options) -> str:
    """Identity of what is compiled under which restrictions; the user's file and lines left out."""
    g = program.graph
    nodes = [(n.name, n.op, n.args, n.kwargs, n.results) for n in g.nodes]
    held = sorted(options.held)
    asked: tuple[object, ...] = (options.target.arch, [p.text for p in options.pins], options.place, held)
    # rows say themselves whether they add by atomics
    asked += (options.target.numerics,) if options.target.numerics else ()
    return hashlib.sha256(repr((g.inputs, nodes, g.outputs, g.sizes, asked)).encode()).hexdigest()[:16]


def as_timed(s: Saturation, store: Store, cache: CubinCache | None = None) -> Saturation:
    """The best plan of this program by what whole plans took in this regime, where that goes before the chosen one.

    A plan that was timed as a whole overrides sums that rest on predictions; see `rank_plans`.
    """
    try:
        program, sizes = program_key(s.program, s.options), sizes_of(s.program.graph)
        better = better_plans(store, program, s.chosen, s.regime, sizes)
    except StoreError:  # the lost tier was reported when the evidence was read
        return s
    lost: list[str] = []
    for pieces, timed in better:
        if pieces == pieces_of(s.chosen):
            return replace(s, timed=timed, notes=(*s.notes, *lost))
        try:
            made = of_pieces(s, pieces, s.selection.evidence, s.regime, cache)
        except LoweringError as e:
            lost.append(f"a plan that took {timed.seconds * 1e6:.2f} us as a whole cannot be made again: {e.what}")
            continue
        return replace(made, timed=timed, notes=(*s.notes, *lost))
    return replace(s, notes=(*s.notes, *lost))


def require_evidence(s: Saturation, kernel: str = "") -> None:
    """EvidenceError where launches (of that kernel, if one is named) rest on predictions: it names them.

    A plan that was timed as a whole rests on that.
    """
    if s.timed is not None:
        return
    why = [n for n in s.notes if n.startswith("lost") or "cannot be made again" in n]
    asked = " with the same model and options" + (f" and --db {s.options.database}" if s.options.database else "")
    hint = f"`emmy tune`{asked} measures them and the whole plan; without --strict-evidence predictions decide"
    found = [(c.name, c.priced.decision) for c in s.launches if not c.at_build and kernel in ("", c.name)]
    require_measured(found, s.regime, "\n  ".join([hint, *why]))


def of_pieces(
    s: Saturation, pieces: Sequence[str], evidence: Snapshot, regime: Regime, cache: CubinCache | None = None
) -> Saturation:
    """The plan of these launches (`pieces_of`); what runs at build is as in `s`.  LoweringError where there is none."""
    only = {}
    for piece in pieces:
        body, family, row = split_piece(piece)
        only[body] = (family, row)
    for c in s.launches:
        if c.at_build:
            only.setdefault(c.priced.body.hash, (c.priced.scheduled.family, c.priced.scheduled.row.text))
    made = choose_again(s, evidence, regime, cache, only)
    if pieces_of(made.chosen) != tuple(pieces):
        raise LoweringError("its launches now make another plan")
    return made


def opaque_candidates(s: Saturation) -> list[Candidate]:
    """The operations that PyTorch executes, as the choice of launches sees them."""
    return _Kernels(s.program, s.tensor, s.model, s.selection, s.names, s.options, None)._opaque_candidates()


def saturate_model(program: Program, tensor: TensorProgram, options: Options) -> ModelGraph:
    """The saturated model e-graph of a program: which launches could exist."""
    return saturate(
        tensor, rulesets(), parameters=_parameters(program, tensor),
        sizes={s.name: s.example for s in program.graph.sizes}, held=options.held, limits=options.limits,
        relaxed=options.place == "fuse", stages=options.passes[:4], mutated=_mutated(program, tensor),
    )  # fmt: skip


class _Clock:
    """Passes stage results through to the observer, timed."""

    def __init__(self, observe: Observer | None) -> None:
        self.observe, self.last = observe, time.perf_counter()
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, result: T) -> T:
        now = time.perf_counter()
        self.seconds[stage] = now - self.last
        if self.observe:
            self.observe(stage, result, now - self.last)
        self.last = time.perf_counter()
        return result


def _parameters(program: Program, tensor: TensorProgram) -> frozenset[int]:
    """Term ids of inputs whose values are known when the plan is built: not the user's, not what the model updates."""
    mutated = {o.mutates for o in program.graph.outputs if o.mutates}
    inputs = [t.id for t in tensor.terms if t.kind == "Input"]
    return frozenset(
        t for t, i in zip(inputs, program.graph.inputs, strict=False) if i.kind != "user" and i.name not in mutated
    )


def _mutated(program: Program, tensor: TensorProgram) -> dict[int, int]:
    """Position among the tensor program's outputs -> term id of the input that this output is the new contents of."""
    inputs = [t.id for t in tensor.terms if t.kind == "Input"]
    names = {i.name: t for t, i in zip(inputs, program.graph.inputs, strict=False)}
    made = [o for o in program.graph.outputs if isinstance(o.value, Ref)]
    return {k: names[o.mutates] for k, o in enumerate(made) if o.mutates in names}


class _Kernels:
    """Lowers chosen launches; a kernel that compiler or card refuses sends the choice back to its alternatives."""

    def __init__(
        self, program: Program, tensor: TensorProgram, model: ModelGraph, selection: Selection, names: Names,
        options: Options, cache: CubinCache | None,
    ) -> None:  # fmt: skip
        self.program, self.tensor, self.model, self.selection = program, tensor, model, selection
        self.names, self.options, self.cache = names, options, cache
        self.kernels: dict[tuple[str, str, str], tuple[Kernel, str]] = {}
        self.compiled: dict[str, Compiled] = {}
        self.used: dict[str, int] = {}
        self.opaque = {-(k + 1): c for k, c in enumerate(tensor.opaque)}

    def settle(self) -> tuple[Choice, list[Chosen | ChosenOpaque]]:
        """Choose, lower and check until nothing is refused."""
        by_id = {l.id: l for l in self.model.launches}
        while True:
            choice = self._choose()
            updates = (by_id[c.id].in_place for c in choice.candidates if c.id in by_id)
            self.names.in_place = dict(u for u in updates if u is not None)
            chosen: list[Chosen | ChosenOpaque] = []
            refused = False
            for c in choice.candidates:
                if c.id < 0:
                    chosen.append(self._opaque(c.id))
                    continue
                launch = by_id[c.id]
                priced = self.selection.cheapest(launch)
                assert priced is not None
                made = self._kernel(
                    launch.covers - self.model.anchors.fixed,
                    launch.results,
                    priced,
                    self._buffers(launch.operands),
                    self._buffers(launch.results),
                )
                if made is None:
                    refused = True
                    continue
                at_build = all(t in self.model.anchors.folded for t in launch.results)
                chosen.append(
                    Chosen(
                        launch, priced, *made, self._buffers(launch.operands), self._results(launch, choice), at_build
                    )
                )
            if not refused and not self._refuse_uncompilable(chosen):
                return choice, chosen

    def _choose(self) -> Choice:
        try:
            return self.selection.run(self._opaque_candidates(), self.options.place)
        except Unmade as e:
            what = "; ".join(dict.fromkeys(self._described(t) for t in e.roots))
            wanted = ", ".join(dict.fromkeys(self.names.tensor(t) for t in e.tensors))
            raise LoweringError(
                f"no kernel makes {what}\n  it is needed for {wanted}\n{self.selection.refusal_text()}",
                "lift the restrictions (held rules, pins, placement): without them every operation has a plain kernel",
            ) from e

    def _described(self, tensor: int) -> str:
        """A tensor as the user knows it: the Torch operation that it is (a part of), its name, and the user's line."""
        owner = self.names.owner(tensor)
        if owner < 0:
            return f"the tensor {self.names.tensor(tensor)}"
        node = self.program.graph.nodes[owner]
        whole = "" if tensor in self.names.final else "a part of "
        return f"{whole}{node.op} ({node.name}){f' at {node.source}' if node.source else ''}"

    def _buffers(self, tensors: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.names.tensor(t) for t in tensors)

    def _results(self, launch: Launch, choice: Choice) -> tuple[str, ...]:
        """Buffers of what a launch makes; apart where readers take the tensor from another launch."""
        return tuple(
            name if choice.makers.get(t, launch.id) == launch.id else f"{name}_by_{launch.id}"
            for t, name in zip(launch.results, self._buffers(launch.results), strict=True)
        )

    def _opaque_candidates(self) -> list[Candidate]:
        n = self.model.numbering.numbers
        return [
            Candidate(
                i,
                tuple(n[r] for r in c.results),
                frozenset(n[o] for o in c.operands),
                OPAQUE_SECONDS,
                f"opaque:{c.node}",
            )
            for i, c in self.opaque.items()
        ]

    def _opaque(self, number: int) -> ChosenOpaque:
        call, n = self.opaque[number], self.model.numbering.numbers
        operands, results = (tuple(n[x] for x in xs) for xs in (call.operands, call.results))
        return ChosenOpaque(call, self.program.graph.nodes[call.node], self._buffers(operands), self._buffers(results))

    def _kernel(
        self,
        covers: frozenset[int],
        tensors: tuple[int, ...],
        priced: Priced,
        operands: tuple[str, ...],
        results: tuple[str, ...],
    ) -> tuple[Kernel, str] | None:
        """The kernel and source of a body and row, made once; None when it is refused."""
        key = (priced.body.hash, priced.scheduled.family, priced.scheduled.row.text)
        if key not in self.kernels:
            stamped = "s" in self.options.passes
            named = self.names.kernel(covers, tensors, self.model.anchors.padded) if stamped else ""
            name = unique(self.used, named or self.names.tensor(tensors[0]))
            try:
                scheduled, target = priced.scheduled, self.options.target
                limits = {v.name: v.high for v in self.program.graph.sizes if v.high is not None}
                kernel = lower(priced.body, scheduled.family, scheduled.row, target, name, operands, results, limits)
            except LoweringError as e:
                self.selection.refuse(priced, f"lowering: {e.what}")
                return None
            self.kernels[key] = kernel, source(kernel)
        return self.kernels[key]

    def _refuse_uncompilable(self, chosen: list[Chosen | ChosenOpaque]) -> bool:
        """Compile every kernel; take out the rows that do not compile.  True when there were some."""
        if not self.options.check or "c" not in self.options.passes:
            return False
        from emmy.runtime.cache import CubinCache
        from emmy.runtime.nvrtc import Job

        kernels = {c.source: c for c in chosen if isinstance(c, Chosen)}
        cache = self.cache or CubinCache()
        jobs = [Job(s, c.kernel.name, self.options.target.arch) for s, c in kernels.items()]
        bad = False
        for c, compiled in zip(kernels.values(), cache.compile_many(jobs), strict=True):
            if isinstance(compiled, EmmyError):
                reason = compiled.what
            else:
                self.compiled[c.name] = compiled
                reason = self._too_large(c.kernel, compiled.registers)
            if reason:
                self.selection.refuse(c.priced, f"compile: {reason}")
                bad = True
        return bad

    def _too_large(self, kernel: Kernel, registers: int) -> str:
        t = self.options.target
        if registers * kernel.threads > t.registers_sm:
            return f"{registers} registers x {kernel.threads} threads exceed the {t.registers_sm} of an SM"
        return ""


__all__ = [
    "PASSES", "Observer", "Options", "Saturation", "as_timed", "choose_again", "of_pieces", "opaque_candidates",
    "pieces_of", "program_key", "regime_of", "require_evidence", "saturate_program",
]  # fmt: skip
