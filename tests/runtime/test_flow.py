import pytest

from emmy.errors import PlanError
from emmy.ir.plan import Buffer, KernelLaunch, Launch, Plan
from emmy.runtime.flow import Mutation, analyse
from tests.runtime.plans import ADD_ROW, COLUMNS, DOUBLE, buffer, launch, opaque, plan, tensor, two_kernels


def test_temporaries_live_from_their_writer_to_their_last_reader() -> None:
    buffers = [buffer("x", "input"), buffer("a", "temporary"), buffer("b", "temporary"), buffer("y", "output")]
    launches: list[Launch] = [
        launch("double_it", "x", "a", DOUBLE),
        launch("double_it", "a", "b", DOUBLE),
        launch("add_row", "b a", "y", ADD_ROW),
    ]
    flow = analyse(plan(buffers, launches, "y"))
    assert flow.lives == {"a": (0, 2), "b": (1, 2)}
    assert flow.fresh == {"y"}
    assert flow.inputs == ("x",)


def test_contents_for_a_mutation_live_to_the_end() -> None:
    buffers = [buffer("x", "input"), buffer("new", "temporary"), buffer("y", "output")]
    launches: list[Launch] = [launch("double_it", "x", "new", DOUBLE), launch("double_it", "x", "y", DOUBLE)]
    flow = analyse(plan(buffers, launches, "y", mutates="x=new"))
    assert flow.lives == {"new": (0, 2)}
    assert flow.mutations == (Mutation("new", "x"),)


def test_results_of_pytorch_are_not_in_the_arena() -> None:
    buffers = [buffer("x", "input"), buffer("a", "temporary"), buffer("y", "output")]
    launches: list[Launch] = [opaque("sort", "aten.sort", "x", "a", tensor()), launch("double_it", "a", "y", DOUBLE)]
    assert analyse(plan(buffers, launches, "y")).lives == {}


def folded_plan() -> Plan:
    row = tensor(COLUMNS)
    buffers = [
        buffer("x", "input"),
        buffer("w", "parameter", row),
        buffer("v", "parameter", row),
        buffer("w2", "folded", row),
        buffer("y", "output"),
    ]
    launches: list[Launch] = [
        launch("double_it", "w", "w2", DOUBLE, sizes=(), elements=COLUMNS, at_build=True),
        launch("add_row", "x w2", "y", ADD_ROW),
    ]
    return plan(buffers, launches, "y")


def test_only_weights_that_calls_read_are_kept() -> None:
    flow = analyse(folded_plan())
    assert [n.name for n in flow.build] == ["double_it"]
    assert [n.name for n in flow.run] == ["add_row"]
    assert flow.kept == {"w2"}


def broken(buffers: list[Buffer], launches: list[Launch], outputs: str, mutates: str = "") -> str:
    with pytest.raises(PlanError) as caught:
        analyse(plan(buffers, launches, outputs, mutates=mutates))
    return caught.value.what


X, T, Y = buffer("x", "input"), buffer("t", "temporary"), buffer("y", "output")
F = buffer("f", "folded", tensor(COLUMNS))


def double(operand: str, result: str, sizes: tuple[str, ...] = ("s",)) -> KernelLaunch:
    return launch("double_it", operand, result, DOUBLE, sizes=sizes)


def test_plans_that_contradict_themselves_are_refused() -> None:
    assert "names 'gone', which is no buffer" in broken([X, Y], [double("gone", "y")], "y")
    assert "reads 't' before anything has written it" in broken([X, T, Y], [double("t", "y")], "y")
    assert "output 't' is never written" in broken([X, T, Y], [double("x", "y")], "t")
    assert "two buffers of one name" in broken([X, Y, Y], [double("x", "y")], "y")
    assert "writes 'x', which no output lists as mutated" in broken([X, Y], [double("x", "x")], "x")
    assert "uses sizes that the plan lacks: n" in broken([X, Y], [double("x", "y", ("n",))], "y")
    assert "updates 'z', which is no input" in broken([X, Y], [double("x", "y")], "y", mutates="z=y")


def test_folded_buffers_and_build_launches_must_agree() -> None:
    assert "'f' has role 'folded', but no launch" in broken([X, Y, F], [double("x", "y")], "y")
    early = launch("double_it", "x", "f", DOUBLE, sizes=(), elements=COLUMNS, at_build=True)
    assert "reads 'x' before anything has written it" in broken([X, F], [early], "f")
    sized = launch("double_it", "x", "f", DOUBLE, at_build=True)
    assert "runs at build, where no size is known: s" in broken([X, F], [sized], "f")


def test_a_valid_plan_passes() -> None:
    assert analyse(two_kernels()).weights == ("w",)
