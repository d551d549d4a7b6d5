"""Canonical spelling of bodies, and the one way to combine two of them.

`normalize` gives equal programs one text: axes of extent 1 vanish, axes that are only used through `// c` and `% c`
split in two, bound axes take the smallest name not free in their binder (so alpha-equal terms are one node), operands
of commuting operations are ordered by a hash that is blind to slot numbers, and slots are numbered by first use.

`compose` inlines a producer's result into a consumer by substitution: the producer's axes become the consumer's
indices, whatever those are.  Layouts, gathers and broadcasts need no cases of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from emmy.ir.build import iadd, idiv, imod, imul, isub, rebuild, scalar
from emmy.ir.loop import (
    Ax,
    Binder,
    Body,
    Const,
    Expr,
    Fold,
    Load,
    Online,
    Op,
    Out,
    Scan,
    Tensor,
    ax,
    const,
    fold,
    load,
    online,
    scan,
    visit,
)
from emmy.ir.order import sort_operands

Env = dict[Ax, Expr]


class Substitution:
    """Replaces free axes, renumbers slots and inlines producers; bound axes get fresh names on the way.

    Fresh names start with `prefix`: no axis that stays free, and none in what replaces one, may have such a name.
    """

    def __init__(
        self, slots: Mapping[int, int], inline: Mapping[int, Producer] | None = None, prefix: str = "b"
    ) -> None:
        self.slots = slots
        self.inline = inline or {}
        self.prefix = prefix
        self.memo: dict[tuple[Expr, tuple[Expr | None, ...]], Expr] = {}
        self.fresh = 0

    def apply(self, node: Expr, env: Env) -> Expr:
        key = (node, tuple(env.get(a) for a in node.axes))
        done = self.memo.get(key)
        if done is None:
            done = self.memo[key] = self._apply(node, env)
        return done

    def _apply(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Ax):
            return env.get(node, node)
        if isinstance(node, Load):
            index = tuple(self.apply(i, env) for i in node.index)
            producer = self.inline.get(node.slot)
            if producer is None:
                return load(self.slots[node.slot], index, node.dtype)
            return producer.at(index)
        if isinstance(node, Fold | Scan | Online):
            axis = ax(f"{self.prefix}{self.fresh}.", node.axis.extent)
            self.fresh += 1
            inner = {**env, node.axis: axis}
            return _rebound(node, axis, lambda e: self.apply(e, env), lambda e: self.apply(e, inner))
        if not node.children:
            return node
        return rebuild(node, tuple(self.apply(c, env) for c in node.children))


def _rebound(
    node: Fold | Scan | Online, axis: Ax, outside: Callable[[Expr], Expr], inside: Callable[[Expr], Expr]
) -> Expr:
    """A binder over another axis; `inside` rewrites what is under it, `outside` the position of a scan."""
    if isinstance(node, Fold):
        return fold(node.kind, axis, inside(node.body), node.operand)
    if isinstance(node, Scan):
        return scan(node.kind, axis, outside(node.at), inside(node.body))
    return online(axis, inside(node.score), inside(node.value), node.operand)


class Producer:
    """A result that is computed where it is read: `at(index)` is its value there."""

    def __init__(self, out: Out, slots: Mapping[int, int], counter: list[int]) -> None:
        self.out, self.slots, self.counter = out, slots, counter
        self.solved = _solve_index(out)
        self.memo: dict[tuple[Expr, ...], Expr] = {}

    def at(self, index: tuple[Expr, ...]) -> Expr:
        value = self.memo.get(index)
        if value is None:
            value = self.memo[index] = self._at(index)
        return value

    def _at(self, index: tuple[Expr, ...]) -> Expr:
        env = {axis: recover(index) for axis, recover in self.solved.items()}
        # the index holds axes that the consumer's substitution named, so the producer's own get another prefix
        sub = Substitution(self.slots, prefix="p")
        sub.fresh = self.counter[0]
        value = sub.apply(self.out.value, env)
        self.counter[0] = sub.fresh + 1
        return value


class _Recover:
    """Axis value from the stored index of one dimension: `index[dim] // div % mod`."""

    def __init__(self, dim: int, div: Expr, mod: Expr | None) -> None:
        self.dim, self.div, self.mod = dim, div, mod

    def __call__(self, index: tuple[Expr, ...]) -> Expr:
        e = idiv(index[self.dim], self.div)
        return e if self.mod is None else imod(e, self.mod)


def _solve_index(out: Out) -> dict[Ax, _Recover]:
    """How each axis of an output follows from the element's index: every dimension is a mixed-radix sum of axes."""
    solved: dict[Ax, _Recover] = {}
    for dim, e in enumerate(out.index):
        axes = sorted(e.free, key=lambda a: a.text)
        placed = _radix(e, axes)
        for k, (axis, stride) in enumerate(placed):
            solved[axis] = _Recover(dim, stride, None if k == 0 else axis.extent)
    missing = [a for a in out.axes if a not in solved]
    if missing:
        raise ValueError(f"output index does not determine axes {missing}: {out.text}")
    return solved


def _radix(e: Expr, axes: Sequence[Ax]) -> list[tuple[Ax, Expr]]:
    """Axes of a mixed-radix sum, outermost first, with their strides."""
    order: list[tuple[Ax, Expr]] = []
    rest = list(axes)
    stride: Expr = const(1)
    total: Expr = const(0)
    while rest:
        for a in rest:
            env: Env = {b: const(0) for b in axes if b is not a}
            if Substitution({}).apply(e, env) is imul(a, stride):
                order.insert(0, (a, stride))
                total = iadd(total, imul(a, stride))
                stride = imul(stride, a.extent)
                rest.remove(a)
                break
        else:
            raise ValueError(f"not a mixed-radix index: {e.text}")
    if total is not e:
        raise ValueError(f"not a mixed-radix index: {e.text}")
    return order


# ---- normal form ---------------------------------------------------------------------------------------------------


def _drop_unit_axes(outs: Sequence[Out]) -> list[Out]:
    result = []
    for o in outs:
        env: Env = {a: const(0) for a in o.axes if a.size == 1}
        sub = _UnitFolds()
        index = tuple(sub.apply(i, env) for i in o.index)
        axes = tuple(a for a in o.axes if a not in env)
        result.append(replace(o, axes=axes, index=index, value=sub.apply(o.value, env)))
    return result


class _UnitFolds(Substitution):
    """Replaces folds over one element by their body."""

    def __init__(self) -> None:
        super().__init__(_Same())

    def _apply(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Fold | Scan) and node.axis.size == 1:
            only = self.apply(node.body, {**env, node.axis: const(0)})
            # one element deviates from itself by nothing, unless it is NaN or infinite
            return scalar("sub", only, only) if node.kind == "m2" else only
        return super()._apply(node, env)


class _Same(dict[int, int]):
    def __missing__(self, key: int) -> int:
        return key


def _split_uses(roots: Sequence[Expr], axis: Ax) -> int | None:
    """The largest constant c (1 < c < extent, c divides it) such that some use is `axis // c` or `axis % c`."""
    n = axis.size
    seen: dict[Expr, None] = {}
    for r in roots:
        visit(r, seen)
    best = None
    for node in seen:
        if isinstance(node, Op) and node.name in ("floordiv", "mod") and node.dtype == "i64":
            d = node.args[1]
            if node.args[0] is axis and isinstance(d, Const) and n and 1 < int(d.value) < n and n % int(d.value) == 0:
                best = max(best or 0, int(d.value))
    return best


def _split_free(out: Out, tag: int) -> Out:
    axes = list(out.axes)
    k = 0
    while k < len(axes):
        axis = axes[k]
        c = _split_uses((out.value,), axis)
        if c is None or axis.size is None:
            k += 1
            continue
        high, low = ax(f"s{tag}h{k}.{len(axes)}", axis.size // c), ax(f"s{tag}l{k}.{len(axes)}", c)
        env: Env = {axis: iadd(imul(high, c), low)}
        sub = Substitution(_Same())
        out = replace(out, index=tuple(sub.apply(i, env) for i in out.index), value=sub.apply(out.value, env))
        axes[k : k + 1] = [high, low]
    return replace(out, axes=tuple(axes))


def _merge_free(out: Out) -> Out:
    """Undo splits that nothing needs: two axes that are only used as `a * extent(b) + b` are one."""
    axes = list(out.axes)
    k = 0
    while k + 1 < len(axes):
        merged = _merged(out, axes[k], axes[k + 1])
        if merged is None:
            k += 1
            continue
        axis, out = merged
        axes[k : k + 2] = [axis]
        k = max(0, k - 1)
    return replace(out, axes=tuple(axes))


def _merged(out: Out, high: Ax, low: Ax) -> tuple[Ax, Out] | None:
    if high.size is None or low.size is None:
        return None
    seen: dict[Expr, None] = {}
    for root in (*out.index, out.value):
        visit(root, seen)
    places = [*out.index, *(i for n in seen if isinstance(n, Load) for i in n.index)]
    if any((high in e.free) != (low in e.free) for e in places):
        return None
    axis = ax(f"m{high.name}{low.name}", high.size * low.size)
    # with high = (axis - low) / extent(low), a use of both as one number loses `low`
    fused = _Fuse(high, low, axis)
    index = tuple(fused.apply(i) for i in out.index)
    value = fused.apply(out.value)
    if any(a in e.free for e in (*index, value) for a in (high, low)):
        return None
    return axis, replace(out, index=index, value=value)


class _Fuse:
    """Rewrites `high * n + low` (n the extent of low) to one axis wherever a sum holds both."""

    def __init__(self, high: Ax, low: Ax, axis: Ax) -> None:
        self.high, self.low, self.axis = high, low, axis
        self.both = iadd(imul(high, low.extent), low)
        self.memo: dict[Expr, Expr] = {}

    def apply(self, e: Expr) -> Expr:
        if self.high not in e.free and self.low not in e.free:
            return e
        done = self.memo.get(e)
        if done is None:
            done = self.memo[e] = self._apply(e)
        return done

    def _apply(self, e: Expr) -> Expr:
        if e.type == "i64" and isinstance(e, Op) and e.name in ("add", "mul"):
            # c * (high * n + low) + rest  =  c * axis + rest, where rest has neither axis
            at_low = Substitution(_Same()).apply(e, {self.high: const(0)})
            zero = Substitution(_Same()).apply(at_low, {self.low: const(0)})
            slope = isub(Substitution(_Same()).apply(at_low, {self.low: const(1)}), zero)
            if isinstance(slope, Const) and iadd(zero, imul(slope, self.both)) is e:
                return iadd(self.apply(zero), imul(slope, self.axis))
        if not e.children:
            return e
        return rebuild(e, tuple(self.apply(c) for c in e.children))


class _SplitFolds(Substitution):
    """sum over c of f(c // k, c % k)  ->  sum over c1 of sum over c2 of f(c1, c2); also max, min, prod, or, and."""

    def __init__(self) -> None:
        super().__init__(_Same())

    def _apply(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Fold) and node.kind != "m2" and node.axis.size is not None:
            c = _split_uses((node.body,), node.axis)
            if c is not None:
                high, low = ax(f"f{self.fresh}h.", node.axis.size // c), ax(f"f{self.fresh}l.", c)
                self.fresh += 1
                once = Substitution(_Same(), prefix=f"f{self.fresh}b")
                body = once.apply(node.body, {node.axis: iadd(imul(high, c), low)})
                # the two axes may split again
                return self.apply(fold(node.kind, high, fold(node.kind, low, body, node.operand), node.operand), env)
        return super()._apply(node, env)


class _Names:
    """Top-down canonical axis names: outputs o0, o1 …; a binder takes the smallest r<k> not free in it."""

    def __init__(self) -> None:
        self.memo: dict[tuple[Expr, tuple[Expr, ...]], Expr] = {}

    def apply(self, node: Expr, env: Env) -> Expr:
        key = (node, tuple(env[a] for a in node.axes))
        done = self.memo.get(key)
        if done is None:
            done = self.memo[key] = self._apply(node, env)
        return done

    def _apply(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Ax):
            return env[node]
        if isinstance(node, Fold | Scan | Online):
            used = {e.name for a in node.free if isinstance(e := env[a], Ax)}
            k = 1
            while f"r{k}" in used:
                k += 1
            axis = ax(f"r{k}", node.axis.extent)
            inner = {**env, node.axis: axis}
            return _rebound(node, axis, lambda e: self.apply(e, env), lambda e: self.apply(e, inner))
        if not node.children:
            return node
        return rebuild(node, tuple(self.apply(c, env) for c in node.children))


def normalize(outs: Sequence[Out], slots: Sequence[Tensor]) -> tuple[Body, tuple[int, ...]]:
    """The canonical body of these results, and for each of its slots the number that slot had before."""
    work = _drop_unit_axes(outs)
    folds = _SplitFolds()
    empty: Env = {}
    work = [replace(o, value=folds.apply(o.value, empty)) for o in work]
    work = [_merge_free(_split_free(o, n)) for n, o in enumerate(work)]
    names = _Names()
    named: list[Out] = []
    for o in work:
        axes = tuple(ax(f"o{i}", a.extent) for i, a in enumerate(o.axes))
        env: Env = dict(zip(o.axes, axes, strict=True))
        index = tuple(names.apply(i, env) for i in o.index)
        named.append(replace(o, axes=axes, index=index, value=names.apply(o.value, env)))
    ordered = sort_operands([o.value for o in named], slots)
    return _number_slots([replace(o, value=v) for o, v in zip(named, ordered, strict=True)], slots)


def _number_slots(outs: Sequence[Out], slots: Sequence[Tensor]) -> tuple[Body, tuple[int, ...]]:
    seen: dict[Expr, None] = {}
    for o in outs:
        visit(o.value, seen)
    for o in outs:
        for i in o.index:
            visit(i, seen)
    loaded = [n.slot for n in seen if isinstance(n, Load)]
    order = list(dict.fromkeys([*loaded, *(o.into for o in outs if o.into >= 0)]))
    sub = Substitution({old: new for new, old in enumerate(order)})
    renumbered = tuple(_reading(o, sub, sub_keep(sub, o.value)) for o in outs)
    return Body(renumbered, tuple(slots[s] for s in order)), tuple(order)


def _reading(o: Out, sub: Substitution, value: Expr) -> Out:
    """The result with another value, and what an update reads for its place renumbered as `sub` says."""
    if o.into < 0:
        return replace(o, value=value)
    return replace(o, index=tuple(sub_keep(sub, i) for i in o.index), value=value, into=sub.slots[o.into])


def sub_keep(sub: Substitution, root: Expr) -> Expr:
    """Renumber slots without touching axis names."""
    memo: dict[Expr, Expr] = {}
    seen: dict[Expr, None] = {}
    visit(root, seen)
    for n in seen:
        kids = tuple(memo[c] for c in n.children)
        if isinstance(n, Load):
            memo[n] = load(sub.slots[n.slot], kids, n.dtype)
        else:
            memo[n] = rebuild(n, kids) if kids else n
    return memo[root]


def reslot(body: Body, slots: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Body, tuple[int, ...]]:
    """The body with slot i reading operand `slots[i]` of `tensors` (equal numbers are one operand), normalized."""
    sub = Substitution(dict(enumerate(slots)))
    return normalize([_reading(o, sub, sub.apply(o.value, {})) for o in body.outs], tensors)


def beside(
    bodies: Sequence[Body], slots: Sequence[Sequence[int]], tensors: Sequence[Tensor]
) -> tuple[Body, tuple[int, ...]]:
    """One body with the results of all; `slots[b][i]` numbers operand i of body b in the common list `tensors`."""
    outs: list[Out] = []
    for body, numbers in zip(bodies, slots, strict=True):
        sub = Substitution(dict(enumerate(numbers)))
        outs += [_reading(o, sub, sub.apply(o.value, {})) for o in body.outs]
    return normalize(outs, tensors)


def canonical(values: Sequence[Expr], slots: Sequence[Tensor]) -> list[Expr]:
    """Canonical bound names and operand order of values whose free axes and slots already are."""
    names = _Names()
    return sort_operands([names.apply(v, {a: a for a in v.free}) for v in values], slots)


def _placed(o: Out, sub: Substitution, value: Expr) -> Out:
    """The same with producers inlined in the index as well."""
    if o.into < 0:
        return replace(o, value=value)
    return replace(o, index=tuple(sub.apply(i, {}) for i in o.index), value=value, into=sub.slots[o.into])


def compose(
    producer: Body, out: int, consumer: Body, slot: int,
    producer_slots: Sequence[int], consumer_slots: Sequence[int], tensors: Sequence[Tensor], keep: bool = False,
) -> tuple[Body, tuple[int, ...]]:  # fmt: skip
    """Inline result `out` of the producer where the consumer loads `slot`.

    `producer_slots[i]` and `consumer_slots[i]` number the operands of the two in one common list, `tensors`
    (equal numbers are the same tensor).  With `keep`, the producer's value is stored as a further result.
    """
    counter = [0]
    p_slots = dict(enumerate(producer_slots))
    source = Producer(producer.outs[out], p_slots, counter)
    sub = Substitution(dict(enumerate(consumer_slots)), {slot: source})
    outs = [_placed(o, sub, sub.apply(o.value, {})) for o in consumer.outs]
    if keep:
        kept, inner = producer.outs[out], Substitution(p_slots)
        outs.append(Out(kept.axes, kept.index, inner.apply(kept.value, {}), kept.tensor))
    return normalize(outs, tensors)


__all__ = ["Binder", "Producer", "Substitution", "beside", "canonical", "compose", "normalize", "reslot"]
