"""A kernel compiled for the simulator: statements as closures over a gang.

A statement that may block (a barrier among gangs, a wait for a ring) compiles to a generator that yields a `Wait`; a
list that holds such a statement is run as a generator too, every other one as plain calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from emmy.ir.kernel import Bin, Call, Convert, Cursor, Kernel, S, Select, Un, operands, walk

if TYPE_CHECKING:
    from emmy.codegen.simulate.counters import Tally
    from emmy.codegen.simulate.gang import Gang


@dataclass(slots=True)
class Wait:
    """Why a gang does not go on."""

    gang: Gang
    ready: Callable[[], bool]
    what: object  # as text, when it is asked for
    outer: bool = False  # for gangs inside of this one


Run = Callable[["Gang"], None]
Steps = Callable[["Gang"], Iterator[Wait]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One statement: `steps` where it may block, else `run`."""

    run: Run | None
    steps: Steps | None = None
    branches: bool = False  # some threads may wait in it while others do not


@dataclass(slots=True)
class Body:
    statements: list[Compiled]
    blocking: bool = field(init=False)
    branches: bool = field(init=False)

    def __post_init__(self) -> None:
        self.branches = any(c.branches for c in self.statements)
        self.blocking = any(c.steps is not None for c in self.statements)

    def run(self, g: Gang) -> None:
        for c in self.statements:
            assert c.run is not None  # a body that waits takes steps
            c.run(g)

    def steps(self, g: Gang) -> Iterator[Wait]:
        for c in self.statements:
            if c.run is not None:
                c.run(g)
            elif c.steps is not None:
                yield from c.steps(g)


Build = Callable[["Compiler", Any], Compiled]  # of a statement of one type
_FLOPS: Final = {"fma": 2}
_NO_FLOPS: Final = (
    "round_", "pack_", "unpack_", "bits_of", "f32_of", "join", "cast", "where", "lt", "le", "eq", "ne", "isnan",
    "isinf",
)  # fmt: skip
_FLOAT: Final = ("f32", "f64")


def cost(node: object) -> tuple[int, int]:
    """(instructions, floating operations a thread) of the values inside a statement, those of its bodies left out."""
    alu = flops = 0
    if isinstance(node, Bin | Un):
        alu, flops = 1, int(node.type in _FLOAT)
    elif isinstance(node, Call):
        counts = node.type in _FLOAT and not node.name.startswith(_NO_FLOPS)
        alu, flops = 1, _FLOPS.get(node.name, 1) if counts else 0
    elif isinstance(node, Select | Convert):
        alu = 1
    for part in operands(node):
        a, f = cost(part)
        alu, flops = alu + a, flops + f
    return alu, flops


class Compiler:
    """`builders` says how each statement is compiled; statements without one do nothing."""

    def __init__(self, kernel: Kernel, tally: Tally, builders: dict[type, Build], sizes: Mapping[str, int]) -> None:
        self.kernel, self.tally, self.builders = kernel, tally, builders
        rings = {r.name: r for r in kernel.rings}
        self.cursors = {s.name: rings[s.ring] for s in walk(kernel.body) if isinstance(s, Cursor)}
        self.sizes = sizes
        self.finish: dict[int, Callable[..., None]] = {}  # how the product of a Wgmma (by identity) is computed

    def body(self, statements: tuple[S, ...]) -> Body:
        return Body([self.statement(s) for s in statements if type(s) in self.builders])

    def statement(self, s: S) -> Compiled:
        built = self.builders[type(s)](self, s)
        note = self.counted(s)
        if built.run is not None:
            return Compiled(_after(note, built.run))
        assert built.steps is not None
        return Compiled(None, _steps_after(note, built.steps), built.branches)

    def counted(self, s: S) -> Run:
        """Notes the statement and counts it, a warp at a time."""
        tally, kind = self.tally, type(s).__name__
        alu, flops = cost(s)

        def note(g: Gang) -> None:
            g.at = s
            if tally.on:
                warps, threads = g.census()
                tally.instructions[kind] += warps
                tally.instructions["alu"] += alu * warps
                tally.flops += flops * threads

        return note


def _after(note: Run, run: Run) -> Run:
    def noted(g: Gang) -> None:
        note(g)
        run(g)

    return noted


def _steps_after(note: Run, steps: Steps) -> Steps:
    def noted(g: Gang) -> Iterator[Wait]:
        note(g)
        yield from steps(g)

    return noted
