"""What the tiled families share: linear indices and axes, operand parameters, and clamped element-wise evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.codegen.expr import Code, add, convert, div, i32, lt, mod, mul, select
from emmy.codegen.scalar import Scalars, Scope
from emmy.ir.kernel import Buffer, Kernel, Lit, Place, Ring, TensorMap, Var, X
from emmy.ir.loop import Ax, Body, Const, Expr, Load, Op, Size
from emmy.ir.views.affine import Affine, affine, gathered_form
from emmy.ir.views.product import unconditional

Env = Mapping[Ax, X]
Known = Mapping[Expr, X]
LARGE = 2**31


class Frame:
    """One kernel under construction: its parameters, names and the way to evaluate Loop IR in it."""

    def __init__(self, body: Body, scalars: Scalars, name: str, comment: str) -> None:
        self.body, self.scalars, self.name, self.comment = body, scalars, name, comment
        self.code = Code(scalars.names)

    def kernel(
        self, shared: Sequence[Buffer], grid: tuple[Expr, Expr, Expr], threads: int, min_blocks: int = 0,
        rings: tuple[Ring, ...] = (), maps: tuple[TensorMap, ...] = (), cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> Kernel:  # fmt: skip
        """What has been written into `code`, as a kernel."""
        body, params = tuple(self.code.statements), self.scalars.params
        return Kernel(
            self.name, self.comment, params, tuple(shared), grid, threads, body, min_blocks, rings, maps, cluster
        )

    # -- integers

    def count(self, e: Expr) -> X:
        """An extent or a stride as an i32 value."""
        if isinstance(e, Const):
            return i32(int(e.value))
        if isinstance(e, Size):
            return convert(Var(self.scalars.size(e.name), "i64"), "i32")
        if isinstance(e, Op) and e.name in ("add", "mul", "floordiv", "mod"):
            word = {"add": add, "mul": mul, "floordiv": div, "mod": mod}[e.name]
            return word(self.count(e.args[0]), self.count(e.args[1]))
        raise TypeError(f"no extent: {e.text}")

    def total(self, axes: Sequence[Ax]) -> X:
        """The number of points of some axes."""
        n: X = i32(1)
        for a in axes:
            n = mul(n, self.count(a.extent))
        return n

    def decode(self, linear: X, axes: Sequence[Ax]) -> dict[Ax, X]:
        """The axes of a mixed-radix index, the last one fastest."""
        env: dict[Ax, X] = {}
        for a in reversed(axes[1:]):
            env[a] = mod(linear, self.count(a.extent))
            linear = div(linear, self.count(a.extent))
        if axes:
            env[axes[0]] = linear
        return env

    # -- memory

    def wide(self, slot: int) -> bool:
        """True when element offsets of the operand may not fit 32 bits."""
        n = 1
        for e in self.body.slots[slot].shape:
            if not isinstance(e, Const):
                return True
            n *= int(e.value)
        return n >= LARGE

    def form(self, load: Load) -> Affine | None:
        return affine(load, self.body.slots[load.slot])

    def gathered(self, load: Load) -> Affine:
        """The offset of a load that lies in whole chunks (`gathered_load`, `async_copy`)."""
        form = gathered_form(load, self.body.slots[load.slot], ())
        assert form is not None
        return form

    def offset(self, form: Affine, env: Env, slot: int, axes: Sequence[Ax] | None = None, base: bool = True) -> X:
        """The part of an element offset that some axes (all where None) make; with `base`, the constant too."""
        type = "i64" if self.wide(slot) else "i32"
        total: X = convert(self.count(form.base), type) if base else Lit(0, type)
        for a, s in form.strides:
            if axes is None or a in axes:
                total = add(total, mul(convert(env[a], type), convert(self.count(s), type)))
        return total

    def data(self, code: Code, form: Affine, env: Env, slot: int) -> X:
        """The part of an element offset that values make which are read."""
        type = "i64" if self.wide(slot) else "i32"
        total: X = Lit(0, type)
        for value, s in form.data:
            read = convert(self.value(code, value, env, {}), type)
            total = add(total, mul(read, convert(self.count(s), type)))
        return total

    def readable(self, node: Load, root: Expr) -> bool:
        """True when the load can be made whatever the conditions in `root` are: none guards it, or it is in range."""
        return node in unconditional(root) or self.scalars.safe(node, self.scope(self.code, {}, {}))

    def at(self, slot: int, index: X) -> Place:
        return Place("global", self.scalars.operand(slot), (index,), self.body.slots[slot].dtype)

    def value(self, code: Code, e: Expr, env: Env, known: Known) -> X:
        """`e` at the point `env`; nodes in `known` are held by those values already."""
        return self.scalars.value(code, e, env, known)

    def scope(self, code: Code, env: Env, known: Known) -> Scope:
        """A point's scope: expressions evaluated in it share what they have in common."""
        return Scope(code, None, dict(env), False, dict(known))


def clamp(index: X, total: X) -> X:
    """min(index, total - 1): reads past the end repeat the last element."""
    return select(lt(index, total), index, add(total, -1))


def static(x: X) -> int | None:
    return int(x.value) if isinstance(x, Lit) else None


def fits(total: X, tile: int) -> bool:
    """True when tiles never pass the end."""
    n = static(total)
    return n is not None and n % tile == 0
