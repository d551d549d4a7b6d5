"""What a saturation holds, as text for people: each IR, the kernels, the report of every rule decision."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from textwrap import indent

from emmy.egraph.egg import rules_in
from emmy.egraph.naming import Names
from emmy.egraph.numbering import Prim
from emmy.ir.show import show_torch
from emmy.ir.show_tensor import TensorRow, show_tensor
from emmy.planning import Chosen
from emmy.resources import rulesets
from emmy.saturation import Saturation


def show_ir(s: Saturation, ir: str) -> str:
    """One stage of the chosen derivation."""
    if ir == "torch":
        return show_torch(s.program.graph)
    if ir == "tensor":
        return show_tensor(tensor_rows(s))
    if ir == "tile" and "k" not in s.options.passes:
        return "\n\n".join(titled(i, c.name, launch_text(s, c, ir, mapped=False), ir) for i, c in enumerate(s.launches))
    return "\n\n".join(titled(i, c.name, launch_text(s, c, ir), ir) for i, c in enumerate(s.launches))


def titled(i: int, name: str, text: str, ir: str) -> str:
    """The title is a comment in CUDA, so that what is printed compiles."""
    return f"// === {i}: {name} ===\n{text}" if ir == "cuda" else f"=== {i}: {name} ===\n{indent(text, '    ')}"


def launch_text(s: Saturation, c: Chosen, ir: str, mapped: bool = True) -> str:
    """One launch in the loop, tile, kernel or cuda IR.

    The loop IR shows the body as composed; the tile IR and what follows show the better body that the loop rules found
    for it, where that was chosen.  `mapped`: a tile is shown with its schedule row.
    """
    body = c.priced.body
    if ir == "loop":
        from emmy.ir.show_loop import show_loop

        return show_loop(c.launch.body, c.operands, c.results)
    if ir == "tile":
        from emmy.ir.tile import show_tile

        return show_tile(body, c.priced.scheduled if mapped else None, c.operands, c.results)
    if ir == "kernel":
        from emmy.ir.show_kernel import show_kernel

        return show_kernel(c.kernel)
    return c.source


def show_tensor_rows(s: Saturation, algebra: bool) -> str:
    """Tensor IR; without `algebra` no row is one that a rule of the optimization pass made, where there is another."""
    return show_tensor(tensor_rows(s, algebra))


def tensor_rows(s: Saturation, algebra: bool = True) -> list[TensorRow]:
    """Tensor IR of the chosen derivation: for every tensor that the outputs need, the primitive row that makes it."""
    from emmy.inspect.derivation import derive

    numbering, derivation = s.model.numbering, derive(s)
    later = _algebra_rules() if not algebra else frozenset()

    def rank(p: Prim) -> tuple[bool, bool, int]:
        return numbering.rules.get(p.id, "") in later, p.kind in ("Map", "As"), p.id

    made: dict[int, Prim] = {}
    for p in numbering.prims:
        if all(numbering.order[x] < numbering.order[p.result] for x in p.operands):
            best = made.get(p.result)
            if best is None or rank(p) < rank(best):
                made[p.result] = p
    if algebra:
        made.update(derivation.prims)
    needed: set[int] = set()
    stack = [*s.model.outputs, *(numbering.numbers[x] for o in s.opaque for x in o.call.operands)]
    while stack:
        t = stack.pop()
        if t in needed or t not in made:
            continue
        needed.add(t)
        stack.extend(made[t].operands)
    rows = [made[t] for t in sorted(needed, key=lambda t: (numbering.order[t], t))]
    return _named(s, rows, derivation.names)


def tensor_lines(s: Saturation, rows: Sequence[Prim], names: Names) -> list[str]:
    """Primitive rows as Tensor IR text."""
    return show_tensor(_named(s, rows, names)).splitlines()


def _named(s: Saturation, rows: Sequence[Prim], names: Names) -> list[TensorRow]:
    tensors = s.model.numbering.tensors
    scalars = {
        p.result: str(p.args[0]) for p in s.model.numbering.prims if p.kind == "Full" and not tensors[p.result].shape
    }
    inputs = {i.name: f"inputs.{i.name}" for i in s.program.graph.inputs if i.kind == "user"}

    def name(t: int) -> str:
        return scalars.get(t) or inputs.get(names.tensor(t), names.tensor(t))

    return [
        TensorRow(
            name(p.result), tensors[p.result], p.kind, tuple(a for a in p.args if not isinstance(a, tuple)),
            tuple((name(x), tensors[x]) for x in p.operands),
        )
        for p in rows
        if p.result not in scalars
    ]  # fmt: skip


def _algebra_rules() -> frozenset[str]:
    files = (rulesets() / "model" / f"{n}.egg" for n in ("algebra", "siblings"))
    return frozenset(r.name for f in files for r in rules_in(f))


# ---- the report


def rule_counts(s: Saturation) -> Counter[str]:
    """How many e-nodes each rule made first; for rules that ask for launches, how many launches."""
    made = Counter(l.rule for l in s.model.launches)
    return Counter({**made, **s.model.loop_stats.made, **s.selection.made, **s.model.egg.freeze().made()})


def report_lines(s: Saturation) -> list[str]:
    """Every rule with what became of it: fired (how often), refused (reason), or held; then rows and launches."""
    allowed = [f"allowed: {s.options.allow}"] if s.options.allow else []
    return [*allowed, *_rule_lines(s), *_family_lines(s), *_launch_lines(s)]


def _rule_lines(s: Saturation) -> list[str]:
    fired, refused = rule_counts(s), s.model.refusals
    lines: list[str] = []
    named: set[str] = set()
    for path in sorted(rulesets().glob("*/*.egg")):
        for rule in rules_in(path):
            named.add(rule.name)
            where = f"{path.parent.name}/{rule.name} [{rule.numerics}]"
            if rule.name in s.options.held:
                lines.append(f"{where}: held")
            elif fired[rule.name] and rule.numerics != "analysis":
                lines.append(f"{where}: fired {fired[rule.name]}")
            lines += [f"{where}: refused {n}: {why}" for (name, why), n in sorted(refused.items()) if name == rule.name]
    return lines + [
        f"decision {name}: refused {n}: {why}" for (name, why), n in sorted(refused.items()) if name not in named
    ]


def _family_lines(s: Saturation) -> list[str]:
    """Which bodies a family schedules, and why it declines the others."""
    rows, bodies = Counter[str](), Counter[str]()
    for found in s.selection.rows.values():
        rows.update(r.family for r in found)
        bodies.update({r.family for r in found})
    declined = Counter((f, why) for reasons in s.selection.declined.values() for f, why in reasons.items())
    return [
        *(f"family {f}: {n} rows of {bodies[f]} bodies" for f, n in sorted(rows.items())),
        *(f"family {f}: refused {n} bodies: {why}" for (f, why), n in sorted(declined.items())),
    ]


def _launch_lines(s: Saturation) -> list[str]:
    lines = [
        f"row {family} {row} of body {body}: refused: {reason}"
        for (body, family, row), reason in sorted(s.selection.refused.items())
    ]
    if s.timed is not None:
        lines.append(f"plan: whole plans decided: {s.timed.text}")
    for c in s.launches:
        d = c.priced.decision
        runner = f"; runner-up {d.runner_up} {d.runner_up_cost * 1e6:.2f} us" if d.runner_up else ""
        when = "at build" if c.at_build else f"{d.cost * 1e6:.2f} us {d.tier}"
        family = c.priced.scheduled.family
        lines.append(f"launch {c.name}: {family} {d.row}: {when}, {c.priced.alternatives} rows{runner}")
    for o in s.opaque:
        line = o.node.source or "no source line"
        lines.append(f"opaque {o.node.name}: {o.node.op} runs in PyTorch: {o.call.reason} ({line})")
    return lines


def report_text(lines: Sequence[str]) -> str:
    """What report.txt holds."""
    return "\n".join(lines) + "\n"


def report_digest(lines: Sequence[str]) -> str:
    """sha256 of report.txt, 64 hexadecimal digits: what `sha256sum` prints."""
    return hashlib.sha256(report_text(lines).encode()).hexdigest()
