"""Normal form and composition: equal programs, one text, and never another meaning."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emmy.ir.build import scalar
from emmy.ir.evaluate import evaluate
from emmy.ir.loop import Ax, Body, Expr, Fold, Load, Online, Op, Out, Scan, Tensor, ax, fold, load, online, op, scan
from emmy.ir.normal import compose, normalize
from emmy.ir.scalar import SCALAR
from tests.strategies import SIZES, bodies, operands, outputs, tensors

PREFIX = "z"


def respell(node: Expr, slots: dict[int, int], swap: bool, free: dict[Ax, Ax]) -> Expr:
    """The same function in other words: axes renamed, slots renumbered, operands of commuting operations swapped."""
    if isinstance(node, Ax):
        return free[node]
    if isinstance(node, Load):
        return load(slots[node.slot], tuple(respell(i, slots, swap, free) for i in node.index), node.dtype)
    if isinstance(node, Op):
        args = tuple(respell(a, slots, swap, free) for a in node.args)
        if swap and SCALAR[node.name].commutes and node.dtype != "i64":
            args = args[::-1]
        return op(node.name, *args, dtype=node.dtype)
    if isinstance(node, Fold | Scan | Online):
        axis = ax(PREFIX + node.axis.name, node.axis.extent)
        inner = {**free, node.axis: axis}
        if isinstance(node, Fold):
            return fold(node.kind, axis, respell(node.body, slots, swap, inner), node.operand)
        if isinstance(node, Scan):
            return scan(node.kind, axis, respell(node.at, slots, swap, free), respell(node.body, slots, swap, inner))
        return online(
            axis, respell(node.score, slots, swap, inner), respell(node.value, slots, swap, inner), node.operand
        )
    return node


def respelled(body: Body, order: list[int], swap: bool) -> Body:
    """Slot `k` of the body becomes slot `order.index(k)`."""
    slots = {old: new for new, old in enumerate(order)}
    outs = []
    for o in body.outs:
        free = {a: ax(PREFIX + a.name, a.extent) for a in o.axes}
        index = tuple(respell(i, slots, swap, free) for i in o.index)
        outs.append(Out(tuple(free[a] for a in o.axes), index, respell(o.value, slots, swap, free), o.tensor))
    return Body(tuple(outs), tuple(body.slots[k] for k in order))


def same(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9)


@given(bodies())
def test_normalize_keeps_the_meaning(body: Body):
    arrays = operands(body)
    normal, slots = normalize(body.outs, body.slots)
    same(evaluate(normal, [arrays[s] for s in slots], SIZES), evaluate(body, arrays, SIZES))


@given(bodies(), st.randoms(use_true_random=False))
def test_normalize_keeps_nan_and_infinities(body: Body, random: Random):
    arrays = operands(body)
    for a in arrays:
        a.reshape(-1)[random.randrange(a.size)] = random.choice((np.nan, np.inf, -np.inf, 0.0))
    normal, slots = normalize(body.outs, body.slots)
    same(evaluate(normal, [arrays[s] for s in slots], SIZES), evaluate(body, arrays, SIZES))


@given(bodies())
def test_normalize_is_idempotent(body: Body):
    normal, _ = normalize(body.outs, body.slots)
    again, slots = normalize(normal.outs, normal.slots)
    assert again.text == normal.text
    arrays = operands(normal)  # slots that are interchangeable may change places
    same(evaluate(again, [arrays[s] for s in slots], SIZES), evaluate(normal, arrays, SIZES))


@given(bodies(), st.booleans(), st.data())
def test_normalize_does_not_see_names_slots_or_operand_order(body: Body, swap: bool, data: st.DataObject):
    order = data.draw(st.permutations(range(len(body.slots))))
    other = respelled(body, list(order), swap)
    normal, slots = normalize(body.outs, body.slots)
    again, renumbered = normalize(other.outs, other.slots)
    assert again.text == normal.text
    arrays = operands(body)
    moved = [arrays[order[s]] for s in renumbered]
    same(evaluate(again, moved, SIZES), evaluate(normal, [arrays[s] for s in slots], SIZES))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Body, Body, int]:
    """A producer, a consumer that loads its result, and the slot where it does."""
    slots = tuple(draw(st.lists(tensors(), min_size=1, max_size=2)))
    first = draw(outputs(slots, depth=2))
    slot = draw(st.integers(0, 1))
    others = draw(tensors())
    read = (first.tensor, others) if slot == 0 else (others, first.tensor)
    last = draw(st.lists(outputs(read, depth=2), min_size=1, max_size=2))
    producer, _ = normalize((first,), slots), None
    return producer[0], Body(tuple(last), read), slot


@given(chains(), st.booleans())
def test_composition_is_substitution(chain: tuple[Body, Body, int], keep: bool):
    producer, consumer, slot = chain
    free = operands(producer, seed=1)
    made = evaluate(producer, free, SIZES)[0]
    other = operands(consumer, seed=2)[1 - slot]
    expected = evaluate(consumer, [made, other] if slot == 0 else [other, made], SIZES)
    # the common list: the producer's operands, then the consumer's other operand, then the value that is inlined
    tensors_ = [*producer.slots, consumer.slots[1 - slot], producer.outs[0].tensor]
    n = len(producer.slots)
    consumer_slots = [n + 1, n] if slot == 0 else [n, n + 1]
    body, order = compose(producer, 0, consumer, slot, range(n), consumer_slots, tensors_, keep)
    assert n + 1 not in order
    same(evaluate(body, [[*free, other][k] for k in order], SIZES), [*expected, made] if keep else expected)


def test_operands_that_look_alike_are_ordered_by_their_other_uses():
    i = ax("i", 4)
    t = Tensor("f32", (i.extent,))
    x, y = load(0, (i,), "f32"), load(1, (i,), "f32")
    texts = set()
    for a, b in ((x, y), (y, x)):
        for c, d in ((x, y), (y, x)):
            value = scalar("div", scalar("add", a, b), scalar("mul", c, d))
            texts |= {normalize((Out((i,), (i,), v, t),), (t, t))[0].text for v in (value, scalar("sub", value, x))}
    assert len(texts) == 2


def test_equal_sums_share_a_body_and_a_node():
    i = ax("i", 4)
    t = Tensor("f32", (i.extent,))
    x, y = load(0, (i,), "f32"), load(1, (i,), "f32")

    def body(value: Expr) -> Body:
        return normalize((Out((i,), (i,), value, t),), (t, t))[0]

    add = lambda a, b: scalar("add", a, b)  # noqa: E731
    assert body(add(add(x, x), y)) == body(add(y, add(x, x)))
    square = scalar("mul", x, x)
    twice = body(add(square, square))
    assert sum(isinstance(n, Load) for n in twice.nodes) == 1
    assert sum(isinstance(n, Op) and n.name == "mul" for n in twice.nodes) == 1


def test_extent_dtype_and_layout_are_part_of_the_identity():
    i, j = ax("i", 4), ax("j", 6)

    def body(dtype: str, index: tuple[Expr, ...], shape: tuple[Ax, ...]) -> str:
        t = Tensor(dtype, tuple(a.extent for a in shape))
        out = Tensor("f32", (i.extent, j.extent))
        return normalize((Out((i, j), (i, j), load(0, index, dtype), out),), (t,))[0].hash

    plain = body("f32", (i, j), (i, j))
    assert plain == body("f32", (i, j), (i, j))
    assert len({plain, body("bf16", (i, j), (i, j)), body("f32", (j, i), (j, i))}) == 3


def test_the_deviation_of_a_single_element_is_zero_but_not_for_nan():
    i, k = ax("i", 2), ax("k", 1)
    t = Tensor("f32", (i.extent, k.extent))
    value = fold("m2", k, load(0, (i, k), "f32"))
    body, _ = normalize((Out((i,), (i,), value, Tensor("f32", (i.extent,))),), (t,))
    np.testing.assert_array_equal(evaluate(body, [np.array([[3.0], [np.inf]])])[0], [0.0, np.nan])
