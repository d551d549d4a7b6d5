"""Chunks of 16 bytes that begin anywhere in a row: the two aligned vectors that hold one are read, then shifted.

Rows whose length is no multiple of 16 bytes begin at other offsets each.  Reads stay inside the operand: vectors are
whole, and of the elements behind its last whole vector the few threads that need them read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emmy.codegen.expr import Code, add, convert, div, i32, lt, mod, mul
from emmy.codegen.families.frame import Env, Frame
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import LoadVector, ShiftVector, Var, X
from emmy.ir.loop import Ax, Const, Load, const
from emmy.ir.views.affine import Affine, merged_stride


@dataclass(frozen=True)
class Window:
    """One operand's chunks: `held` has two vectors a round of copies, `chunk` elements each."""

    frame: Frame
    node: Load
    form: Affine
    held: Var
    chunk: int

    def start(self, env: Env) -> X:
        """Element of the operand where the chunk at a point begins."""
        return self.frame.offset(self.form, env, self.node.slot)

    def _total(self, type: str) -> X:
        total: X = i32(1)
        for e in self.frame.body.slots[self.node.slot].shape:
            total = mul(convert(total, type), convert(self.frame.count(e), type))
        return convert(total, type)

    def whole(self, type: str) -> X:
        """Elements of the operand's whole vectors."""
        return mul(div(self._total(type), self.chunk), self.chunk)

    def read(self, code: Code, i: X, env: Env) -> None:
        """Read the vectors around the chunk of round i, where it does not reach the end; one twice where it is one."""
        start = code.let("window", self.start(env))
        for k, at in enumerate((start, add(start, self.chunk - 1))):
            place = self.frame.at(self.node.slot, mul(div(at, self.chunk), self.chunk))
            code.emit(LoadVector(self.held.name, add(mul(i, 2 * self.chunk), k * self.chunk), self.chunk, place))

    def shift(self, code: Code, i: X, env: Env) -> Var:
        """The chunk of round i."""
        chunk = code.declare("chunk", self.node.dtype, count=self.chunk)
        by = convert(mod(self.start(env), self.chunk), "i32")
        code.emit(ShiftVector(chunk.name, i32(0), self.held.name, mul(i, 2 * self.chunk), self.chunk, by))
        return chunk

    def ends(self, env: Env) -> X:
        """True where the chunk reaches behind the last whole vector."""
        start = self.start(env)
        return lt(self.whole(start.type), add(start, self.chunk))


def window(
    frame: Frame, node: Load, run: Sequence[Ax], chunk: int, rounds: int, code: Code, name: str
) -> Window | None:
    """The windows of an operand that is contiguous along the linear index over `run`; None where it is not.

    It must hold two vectors at least, whatever the sizes that are names (one, if they matter).
    """
    form = frame.form(node)
    if form is None or not run or chunk * DTYPES[node.dtype].bytes != 16:
        return None
    least = 1
    for e in frame.body.slots[node.slot].shape:
        least *= int(e.value) if isinstance(e, Const) else 1
    if merged_stride(form, run) is not const(1) or least < 2 * chunk:
        return None
    return Window(frame, node, form, code.declare(f"{name}_window", node.dtype, count=2 * chunk * rounds), chunk)


__all__ = ["Window", "window"]
