"""Loop IR expressions -> Kernel IR values, in the scopes of a kernel under construction.

A scope binds axes to values (an outer scope the row, an inner one the loop over its elements).  An expression is
computed once, in the innermost scope that binds an axis it depends on, so what does not change in a loop stands before
it.  Loads are guarded where they may be out of range: a `where` whose branch could read outside its operand becomes an
`if`.  Families stage operands by entering a load (or a fold) into a scope's `known` before they ask for its users.

Index arithmetic is 32 bits wide where every operand and result has fewer than 2^31 elements, else 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from emmy.codegen import folds
from emmy.codegen.expr import (
    Code,
    Names,
    add,
    call,
    compare,
    convert,
    div,
    global_at,
    mod,
    mul,
    negate,
    select,
    sub,
)
from emmy.codegen.identifiers import RESERVED, identifier
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import Assign, Bin, Call, Declare, If, Lit, Param, Un, Var, X
from emmy.ir.kernel import Load as LoadX
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Scan, Size, Tensor, op, visit
from emmy.ir.ranges import NARROW, Ranges
from emmy.ir.views.coarse import coarse, one_plus_tanh

_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_LOGIC = {"and": "&&", "or": "||", "xor": "!="}
_FLOATS = ("f32", "f64")
# words whose value may be off by 2^-17 of itself, where results show 16 bits of it
FAST = {"exp": "exp_fast", "sigmoid": "sigmoid_fast"}


@dataclass
class Scope:
    """Statements under construction, the axes bound here, and the values known here.

    `guarded`: the statements run under a condition, so a load asked for inside must stay inside.
    """

    code: Code
    parent: Scope | None = None
    axes: dict[Ax, X] = field(default_factory=dict)
    guarded: bool = False
    known: dict[Expr, X] = field(default_factory=dict)

    def axis(self, a: Ax) -> X:
        scope: Scope | None = self
        while scope is not None:
            if a in scope.axes:
                return scope.axes[a]
            scope = scope.parent
        raise KeyError(f"axis {a.text} has no value here")

    def binds(self, e: Expr) -> bool:
        return self.parent is None or any(a in self.axes for a in e.free)

    def look_up(self, e: Expr) -> X | None:
        scope = self
        while True:
            if e in scope.known:
                return scope.known[e]
            if scope.binds(e) or scope.parent is None:
                return None
            scope = scope.parent

    def home(self, e: Expr, reads: bool) -> Scope:
        """Where `e` is computed: as far out as its axes, the guards on its loads and the folds known here allow."""
        scope = self
        while not scope.binds(e) and scope.parent is not None and not ((scope.guarded and reads) or scope.holds(e)):
            scope = scope.parent
        return scope

    def holds(self, e: Expr) -> bool:
        """True when a fold inside `e` is known here: further out it would be made again, element by element."""
        seen: dict[Expr, None] = {}
        if e.has_fold and self.known:
            visit(e, seen)
        return any(n.has_fold and n in self.known for n in seen)


class Scalars:
    """Translates the expressions of one kernel, and names its parameters.

    `operands[i]` names the parameter of slot i, `results[k]` that of result k (made up where left out).  A load with
    one index into a tensor of another rank is a flat element index.  `limits` bounds symbolic sizes.
    """

    def __init__(
        self,
        body: Body,
        operands: Sequence[str] = (),
        results: Sequence[str] = (),
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.body, self.slots = body, body.slots
        self.names = Names(RESERVED)
        self.operands = [self.names.fresh(identifier(n)) for n in operands or [f"x{i}" for i in range(len(self.slots))]]
        self.results = [self.names.fresh(identifier(n)) for n in results or [f"y{k}" for k in range(len(body.outs))]]
        self.sizes = {n: self.names.fresh(identifier(n)) for n in body.sizes}
        self.ranges = Ranges(limits or {})
        tensors = (*self.slots, *(o.tensor for o in body.outs))
        self.index_type = "i32" if all(self._small(t) for t in tensors) else "i64"
        self.coarse = coarse(body)
        self._reads: dict[Expr, bool] = {}
        self.own: list[Param] = []  # memory of the launch's own

    @property
    def params(self) -> tuple[Param, ...]:
        """Operands in slot order, results in order, memory of the launch's own, symbolic sizes in order of name."""
        ins = [Param(n, t.dtype, "in") for n, t in zip(self.operands, self.slots, strict=True)]
        outs = [Param(n, o.tensor.dtype, "out") for n, o in zip(self.results, self.body.outs, strict=True)]
        return (*ins, *outs, *self.own, *(Param(n, "i64", "size") for n in self.sizes.values()))

    def work(self, hint: str, type: str, role: Literal["scratch", "zeroed"], count: Expr) -> str:
        """The name of a new parameter: `count` elements of memory of the launch's own."""
        self.own.append(Param(self.names.fresh(hint), type, role, count))
        return self.own[-1].name

    def operand(self, slot: int) -> str:
        return self.operands[slot]

    def result(self, k: int) -> str:
        return self.results[k]

    def size(self, name: str) -> str:
        return self.sizes[name]

    def value(self, code: Code, e: Expr, env: Mapping[Ax, X], known: Mapping[Expr, X]) -> X:
        """`e` at the point `env`, as statements of `code`; nodes in `known` are held by those values already."""
        return self.get(e, Scope(code, axes=dict(env), known=dict(known)))

    @contextmanager
    def rounding(self, also_coarse: frozenset[Expr]) -> Iterator[None]:
        """Meanwhile these values are rounded to 16 bits, too, by whoever asks for them."""
        before = self.coarse
        self.coarse = before | also_coarse
        yield
        self.coarse = before

    def _small(self, t: Tensor) -> bool:
        total = 1
        for e in t.shape:
            high = self.ranges.of(e)[1]
            if high is None:
                return False
            total *= high
        return total < NARROW

    # -- integers that address memory

    def index(self, e: Expr, scope: Scope) -> X:
        """An integer as an index (of `index_type`)."""
        if isinstance(e, Const):
            return Lit(int(e.value), self.index_type)
        if isinstance(e, Ax):
            return convert(scope.axis(e), self.index_type)
        known = scope.look_up(e)
        if known is not None:
            return convert(known, self.index_type)
        if isinstance(e, Size):
            return convert(Var(self.sizes[e.name], "i64"), self.index_type)
        if isinstance(e, Op) and e.dtype == "i64" and e.name in ("add", "mul", "sub"):
            a, b = (self.index(x, scope) for x in e.args)
            if e.name == "add" and isinstance(b, Lit) and int(b.value) < 0:
                return sub(a, -int(b.value))
            return {"add": add, "mul": mul, "sub": sub}[e.name](a, b)
        if isinstance(e, Op) and e.dtype == "i64" and e.name in ("floordiv", "mod"):
            return self._named(e, scope, self._quotient(e, scope))
        return convert(self.get(e, scope), self.index_type)

    def _quotient(self, e: Op, scope: Scope) -> X:
        home = scope.home(e, self.reads(e))
        a, b = (self.index(x, home) for x in e.args)
        low = self.ranges.of(e.args[0])[0]
        if low is not None and low >= 0:
            return div(a, b) if e.name == "floordiv" else mod(a, b)
        word = "floordiv_index" if e.name == "floordiv" else "floormod_index"
        return call(word, convert(a, self.index_type), convert(b, self.index_type), type=self.index_type)

    def _named(self, e: Expr, scope: Scope, value: X) -> X:
        home = scope.home(e, self.reads(e))
        if not isinstance(value, Lit | Var):
            value = home.code.let_numbered("i", value)
        home.known[e] = value
        return value

    # -- values

    def reads(self, e: Expr) -> bool:
        known = self._reads.get(e)
        if known is None:
            known = self._reads[e] = isinstance(e, Load) or any(self.reads(c) for c in e.children)
        return known

    def get(self, e: Expr, scope: Scope) -> X:
        """The value of `e`, of its register type (an i64 whose range is small may come as i32)."""
        known = scope.look_up(e)
        if known is not None:
            return known
        if isinstance(e, Const):
            return self.constant(e)
        if isinstance(e, Ax):
            return scope.axis(e)
        if isinstance(e, Size):
            return Var(self.sizes[e.name], "i64")
        home = scope.home(e, self.reads(e))
        if isinstance(e, Load):
            value: X = self.load(e, home)
        elif isinstance(e, Fold | Online):
            value = self.fold(e, home)
        elif isinstance(e, Scan):
            value = self.scan(e, home)
        else:
            assert isinstance(e, Op)
            value = self._operation(e, home)
        home.known[e] = value
        return value

    def constant(self, e: Const) -> Lit:
        if e.dtype == "i64" and self.ranges.narrow(e):
            return Lit(int(e.value), "i32")
        return Lit(e.value, e.type)

    def load(self, e: Load, scope: Scope, guard: X | None = None, fill: X | None = None) -> Var:
        name = scope.code.names.numbered("in")
        place = global_at(self.operands[e.slot], self.flat_index(e, scope), e.dtype)
        scope.code.emit(LoadX(name, register(e.dtype), place, guard, fill))
        return Var(name, register(e.dtype))

    def flat_index(self, e: Load, scope: Scope) -> X:
        """Element index of a load in its operand."""
        shape = self.slots[e.slot].shape
        if len(e.index) == 1:
            return self.index(e.index[0], scope)
        total: X = Lit(0, self.index_type)
        for i, n in zip(e.index, shape, strict=True):
            total = add(mul(total, self.index(n, scope)), self.index(i, scope))
        return total

    # -- operations

    def _operation(self, e: Op, scope: Scope) -> X:
        if e.name == "where":
            return self._where(e, scope)
        if e.name == "cast":
            return self._cast(e, scope)
        if e in self.coarse and (u := one_plus_tanh(e)) is not None:
            twice = Bin("*", Lit(2.0, "f32"), _as(self.get(u, scope), "f32"), "f32")
            half = scope.code.let_numbered("v", call("sigmoid_fast", twice, type="f32"))
            return scope.code.let_numbered("v", Bin("*", Lit(2.0, "f32"), half, "f32"))
        if e.name == "div" and e.type == "f32" and e.args[1].has_fold:
            divisor = scope.home(e.args[1], self.reads(e.args[1]))
            if divisor is not scope:
                return self._scaled(e, scope, divisor)
        args = [self.get(a, scope) for a in e.args]
        if e.name in _COMPARE and e.args[0].type == "i64":
            x = compare(_COMPARE[e.name], *_same_width(args[0], args[1]))
            return x if isinstance(x, Lit) else scope.code.let_numbered("v", x)
        if e.dtype == "i64" and e.name in ("add", "sub", "mul", "floordiv", "mod"):
            x = self._integer(e, args)
            return x if isinstance(x, Lit | Var) else scope.code.let_numbered("v", x)
        return scope.code.let_numbered("v", self._computed(e, args))

    def _scaled(self, e: Op, scope: Scope, outer: Scope) -> X:
        """Division of many elements by one folded value: by its reciprocal, which is off by 1.5 ulp at most.

        The reciprocal and the product are each rounded once (half an ulp); zero, infinity and NaN come out as from a
        division, a denormal divisor gives infinity.
        """
        reciprocal = op("recip", e.args[1], dtype="f32")
        x, r = self.get(e.args[0], scope), self.get(reciprocal, outer)
        return scope.code.let_numbered("v", Bin("*", _as(x, "f32"), r, "f32"))

    def _integer(self, e: Op, args: list[X]) -> X:
        """i64 arithmetic: on 32 bits where operands and result are known to be small, wrapping on loaded values."""
        small = self.ranges.narrow(e) and all(self.ranges.narrow(a) for a in e.args)
        low, least = self.ranges.of(e.args[0])[0], self.ranges.of(e.args[1])[0]
        a, b = (convert(x, "i32" if small else "i64") for x in args)
        if e.name in ("floordiv", "mod"):
            if low is None or low < 0 or least is None or least <= 0:
                return self._computed(e, [a, b])
            return div(a, b) if e.name == "floordiv" else mod(a, b)
        if not small and self.reads(e):
            return self._computed(e, [a, b])
        return {"add": add, "sub": sub, "mul": mul}[e.name](a, b)

    def _computed(self, e: Op, args: list[X]) -> X:
        """The operation on operands brought to one type."""
        t = self._operand_type(e)
        if t == "i64" and all(x.type == "i32" for x in args) and self.ranges.narrow(e):
            t = "i32"
        xs = [_as(x, t) for x in args]
        if e.name in ("add", "sub", "mul", "div") and t in _FLOATS:
            x: X = Bin({"add": "+", "sub": "-", "mul": "*", "div": "/"}[e.name], xs[0], xs[1], t)
        elif e.name in _COMPARE:
            x = Bin(_COMPARE[e.name], xs[0], xs[1], "bool")
        elif e.name in _LOGIC:
            x = Bin(_LOGIC[e.name], xs[0], xs[1], "bool")
        elif e.name == "not":
            x = negate(xs[0])
        elif e.name == "neg" and t in _FLOATS:
            x = Un("-", xs[0], t)
        elif e.name in FAST and t == "f32" and e in self.coarse:
            x = Call(FAST[e.name], tuple(xs), t)
        else:
            x = Call(e.name, tuple(xs), "bool" if e.type == "bool" else t)
        return x if x.type == "i32" and e.type == "i64" else convert(x, e.type)

    def _operand_type(self, e: Op) -> str:
        """Type in which an operation is computed."""
        types = [a.type for a in e.args]
        if e.name in ("and", "or", "xor", "not"):
            return "bool"
        if "f64" in types or e.type == "f64":
            return "f64"
        if "f32" in types or e.type == "f32":
            return "f32"
        return max(types, key=lambda t: DTYPES[t].bits if DTYPES[t].kind == "int" else 0)

    def _cast(self, e: Op, scope: Scope) -> X:
        x = self.get(e.args[0], scope)
        if _exact(e):
            return _as(x, "f32")
        if e.dtype in ("bf16", "f16", "f8e4m3", "f8e5m2"):
            return scope.code.let_numbered("v", call(f"round_{e.dtype}", _as(x, "f32"), type="f32"))
        if x.type == e.type or (e.type == "i64" and x.type == "i32" and self.ranges.narrow(e)):
            return x
        return scope.code.let_numbered("v", _as(x, e.type))

    # -- choice

    def safe(self, e: Expr, scope: Scope) -> bool:
        """True when no load that `e` still has to make can be out of range, whatever the axes are."""
        if scope.look_up(e) is not None:
            return True
        if isinstance(e, Load) and not all(self.inside(i, n) for i, n in self._bounds(e)):
            return False
        return all(self.safe(c, scope) for c in e.children)

    def _bounds(self, e: Load) -> list[tuple[Expr, Expr]]:
        from emmy.ir.build import imul

        shape = self.slots[e.slot].shape
        if len(e.index) == len(shape):
            return list(zip(e.index, shape, strict=True))
        return [(e.index[0], imul(*shape))]

    def inside(self, i: Expr, n: Expr) -> bool:
        if isinstance(i, Ax) and i.extent is n:
            return True
        low, high = self.ranges.of(i)
        least = self.ranges.of(n)[0]
        return low is not None and low >= 0 and high is not None and least is not None and high < least

    def _where(self, e: Op, scope: Scope) -> X:
        cond, yes, no = e.args
        c = _as(self.get(cond, scope), "bool")
        if isinstance(c, Lit):
            return self.get(yes if c.value else no, scope)
        if not (self.safe(yes, scope) and self.safe(no, scope)):
            return self._branches(e, c, scope)
        a, b = _same(self.get(yes, scope), self.get(no, scope), e.type)
        return scope.code.let_numbered("v", select(c, a, b))

    def _branches(self, e: Op, c: X, scope: Scope) -> X:
        """`if` around branches whose loads may be out of range; a single guarded load needs no statement of its own."""
        _, yes, no = e.args
        for cond, branch, other in ((c, yes, no), (negate(c), no, yes)):
            if isinstance(branch, Load) and not self.reads(other) and not any(self.reads(i) for i in branch.index):
                fill = _as(self.get(other, scope), register(branch.dtype))
                return self.load(branch, scope, cond, fill)
        name = scope.code.names.numbered("v")
        target = Var(name, e.type)
        scope.code.emit(Declare(name, e.type))
        sides = []
        for branch in (yes, no):
            inner = Scope(Code(scope.code.names), scope, guarded=True)
            inner.code.emit(Assign(target, _as(self.get(branch, inner), e.type)))
            sides.append(tuple(inner.code.statements))
        scope.code.emit(If(c, sides[0], sides[1]))
        return target

    # -- folds, one thread

    def fold(self, e: Fold | Online, scope: Scope) -> X:
        """A fold by one thread, element after element."""
        state = self.declare_state(e, scope.code)
        type = "i32" if self.ranges.narrow(e.axis.extent) else self.index_type
        stop = convert(self.index(e.axis.extent, scope), type)
        with scope.code.loop("k", stop, type=type) as (code, k):
            self.fold_step(e, state, Scope(code, scope, {e.axis: k}))
        return self._result(e, state, scope.code)

    def scan(self, e: Scan, scope: Scope) -> X:
        """One element of a scan by one thread: the fold over 0 .. at."""
        state = self.declare_state(e, scope.code)
        stop = add(convert(self.get(e.at, scope), self.index_type), Lit(1, self.index_type))
        with scope.code.loop("k", stop, type=self.index_type) as (code, k):
            self.fold_step(e, state, Scope(code, scope, {e.axis: k}))
        return self._result(e, state, scope.code)

    def _result(self, e: Expr, state: Sequence[Var], code: Code) -> X:
        x = folds.result(e, state)
        return x if isinstance(x, Var) else code.let_numbered("v", x)

    def declare_state(self, e: Expr, code: Code) -> tuple[Var, ...]:
        state = []
        for r in folds.registers(e):
            name = code.names.numbered(r.stem)
            code.emit(Declare(name, r.type, r.init))
            state.append(Var(name, r.type))
        return tuple(state)

    def elements(self, e: Fold | Online | Scan) -> tuple[Expr, ...]:
        return (e.score, e.value) if isinstance(e, Online) else (e.body,)

    def fold_step(self, e: Fold | Online | Scan, state: Sequence[Var], scope: Scope) -> None:
        """Takes the element that the scope's axes point at."""
        values = [_as(self.get(b, scope), "f32" if isinstance(e, Online) else e.type) for b in self.elements(e)]
        folds.step(scope.code, e, state, values)


def _exact(e: Op) -> bool:
    """A cast of loaded elements of 8 bits to a float of 16, which holds every one of them."""
    a = e.args[0]
    return e.dtype in ("bf16", "f16") and isinstance(a, Load) and a.dtype in ("i8", "u8", "f8e4m3", "f8e5m2")


def _as(x: X, type: str) -> X:
    if x.type == type:
        return x
    if type == "bool" and isinstance(x, Lit):
        return Lit(bool(x.value), "bool")
    if x.type == "bool" and isinstance(x, Lit):
        return Lit(float(x.value) if type in _FLOATS else int(x.value), type)
    return convert(x, type)


def _same_width(a: X, b: X) -> tuple[X, X]:
    if a.type == b.type:
        return a, b
    if isinstance(a, Lit) or isinstance(b, Lit):
        return a, b
    return convert(a, "i64"), convert(b, "i64")


def _same(a: X, b: X, type: str) -> tuple[X, X]:
    """Both sides of a choice in one type: small i64 stay narrow where both are."""
    if a.type == b.type:
        return a, b
    return _as(a, type), _as(b, type)
