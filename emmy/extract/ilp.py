"""The exact choice: an integer program over candidates and tensors, solved by HiGHS with lazy cycle cuts.

    x_c in {0, 1}   candidate c is launched          minimize sum of cost_c * x_c
    y_t in [0, 1]   tensor t is made                 y_t = 1 for required tensors
    for each t:                 sum of x_c over makers of t >= y_t
    for each set of outs G:     sum of x_c over candidates that make exactly G <= 1
    for each (G, operand o):    sum of x_c over candidates that make exactly G and read o <= y_o

The third family is the aggregated form: one row for all candidates of a group instead of one each, which makes the
relaxation tight.  A solution whose launches wait for each other is excluded by a loop formula (Lin and Zhao, 2004):
for a set U of tensors that only support each other, each of them needs a launched maker of some member of U that
reads nothing of U.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import highspy
import numpy as np

from emmy.extract.prune import closure

if TYPE_CHECKING:
    from emmy.extract.choice import Candidate

Row = tuple[float, float, list[int], list[float]]  # lower, upper, columns, values


class QuietHighs(highspy.Highs):
    """HiGHS without its banner: standard output belongs to results."""

    def enableCallbacks(self) -> None:  # called by the constructor, and the call that prints
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]  # highspy does not annotate it


def solve(
    candidates: Sequence[Candidate],
    inputs: frozenset[int],
    outputs: frozenset[int],
    start: Sequence[Candidate],
    deadline: float,
) -> tuple[list[Candidate], float, bool]:
    """(plan, lower bound in seconds, proved).  `start` is a feasible plan and comes back where nothing is proved.

    `deadline` is on the monotonic clock.  Costs are scaled so that `start` costs 1000: HiGHS has absolute tolerances.
    """
    start_cost = sum(c.cost for c in start)
    if start_cost <= 0.0:
        return list(start), 0.0, True
    scale = 1000.0 / start_cost
    tensors = sorted({t for c in candidates for t in (*c.ops, *c.outs)} - inputs)
    column = {t: len(candidates) + k for k, t in enumerate(tensors)}
    model = _model(candidates, inputs, outputs, column, scale)
    _warm_start(model, candidates, inputs, start, column)
    bound, warm = 0.0, True
    while (left := deadline - time.monotonic()) > 0:
        model.setOptionValue("time_limit", float(model.getRunTime() + left))
        model.run()
        info = model.getInfo()
        bound = max(bound, info.mip_dual_bound / scale if np.isfinite(info.mip_dual_bound) else 0.0)
        if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            break
        values = model.getSolution().col_value
        plan = [c for i, c in enumerate(candidates) if values[i] > 0.5]
        if abs(sum(c.cost for c in plan) * scale - info.objective_function_value) > 1e-3:
            # after presolve has solved a problem alone, HiGHS 1.16 hands back the warm start beside the true objective
            if not warm:
                break
            model.clearSolver()
            warm = False
            continue
        made, _ = closure(plan, inputs)
        if outputs <= made:
            ran = closure(plan, inputs)[1]
            cheaper = sum(c.cost for c in ran) < start_cost * (1 - 1e-9)
            return (ran if cheaper else list(start)), bound, True
        for row in _loop_formulas(candidates, plan, made, inputs, column):
            model.addRow(row[0], row[1], len(row[2]), np.array(row[2], dtype=np.int32), np.array(row[3]))
    return list(start), min(bound, start_cost), False


def _model(
    candidates: Sequence[Candidate],
    inputs: frozenset[int],
    outputs: frozenset[int],
    column: dict[int, int],
    scale: float,
) -> highspy.Highs:
    makers: dict[int, list[int]] = defaultdict(list)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    uses: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for i, c in enumerate(candidates):
        outs = tuple(sorted(c.outs))
        groups[outs].append(i)
        for t in c.outs:
            makers[t].append(i)
        for t in sorted(c.ops - inputs):
            uses[outs, t].append(i)
    rows: list[Row] = []
    for t, col in column.items():
        rows.append((0.0, np.inf, [*makers[t], col], [1.0] * len(makers[t]) + [-1.0]))
    for members in groups.values():
        if len(members) > 1:
            rows.append((-np.inf, 1.0, members, [1.0] * len(members)))
    for (_, t), members in uses.items():
        rows.append((-np.inf, 0.0, [*members, column[t]], [1.0] * len(members) + [-1.0]))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(candidates) + len(column), len(rows)
    lp.col_cost_ = np.array([c.cost * scale for c in candidates] + [0.0] * len(column))
    lp.col_lower_ = np.array([0.0] * len(candidates) + [1.0 if t in outputs else 0.0 for t in column])
    lp.col_upper_ = np.ones(lp.num_col_)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(candidates) + [highspy.HighsVarType.kContinuous] * len(
        column
    )
    lp.row_lower_, lp.row_upper_ = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0] + [len(r[2]) for r in rows]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([c for r in rows for c in r[2]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for r in rows for v in r[3]])
    model = QuietHighs()  # type: ignore[no-untyped-call]  # nor its constructor
    model.setOptionValue("mip_rel_gap", 1e-9)
    model.setOptionValue("mip_abs_gap", 1e-9)
    # one thread and a fixed seed: the same problem must give the same plan in every process
    model.setOptionValue("threads", 1)
    model.setOptionValue("random_seed", 0)
    model.passModel(lp)
    return model


def _warm_start(
    model: highspy.Highs, candidates: Sequence[Candidate], inputs: frozenset[int], start: Sequence[Candidate],
    column: dict[int, int],
) -> None:  # fmt: skip
    on = {c.id for c in start}
    made = {t for c in start for t in c.outs}
    solution = highspy.HighsSolution()
    solution.col_value = [float(c.id in on) for c in candidates] + [float(t in made) for t in column]
    model.setSolution(solution)


def _loop_formulas(
    candidates: Sequence[Candidate],
    plan: Sequence[Candidate],
    made: set[int],
    inputs: frozenset[int],
    column: dict[int, int],
) -> list[Row]:
    """A cut for each smallest set of unmade tensors that only support each other in this plan."""
    stuck = [c for c in plan if not c.ops <= made]
    needs: dict[int, set[int]] = defaultdict(set)
    for c in stuck:
        for t in c.outs:
            if t not in made:
                needs[t] |= c.ops - made
    rows: list[Row] = []
    for loop in _bottom_sets(needs):
        outside = [i for i, c in enumerate(candidates) if loop & set(c.outs) and not loop & c.ops]
        for t in sorted(loop):
            rows.append((0.0, np.inf, [*outside, column[t]], [1.0] * len(outside) + [-1.0]))
    return rows


def _bottom_sets(needs: dict[int, set[int]]) -> list[frozenset[int]]:
    """Sets of tensors closed under `needs`, smallest reachable ones only."""
    reach: dict[int, frozenset[int]] = {}
    for t in needs:
        seen, stack = {t}, [t]
        while stack:
            fresh = needs.get(stack.pop(), set()) - seen
            seen |= fresh
            stack.extend(fresh)
        reach[t] = frozenset(seen)
    return sorted({s for s in reach.values() if all(reach.get(u) == s for u in s)}, key=sorted)
