"""What a saturation holds, as text for people: each IR, the kernels, the report of every rule decision."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from emmy.egraph.egg import rules_in
from emmy.egraph.numbering import Prim
from emmy.egraph.naming import Names
from emmy.ir.loop import Tensor
from emmy.ir.show import show_tensor, show_torch
from emmy.planning import Chosen
from emmy.resources import rulesets
from emmy.saturation import Saturation

IRS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")


def show_ir(s: Saturation, ir: str) -> str:
    """One stage of the chosen derivation."""
    if ir == "torch":
        return show_torch(s.program.graph)
    if ir == "tensor":
        return show_tensor(tensor_rows(s))
    return "\n\n".join(f"=== {i}: {name} ===\n{text}" for i, (name, text) in enumerate(_launches(s, ir)))


def _launches(s: Saturation, ir: str) -> Iterator[tuple[str, str]]:
    for c in s.launches:
        yield c.name, launch_text(s, c, ir)


def launch_text(s: Saturation, c: Chosen, ir: str) -> str:
    """One launch in the loop, tile, kernel or cuda IR."""
    body = c.priced.body
    if ir == "loop":
        from emmy.ir.show_loop import show_loop

        return show_loop(body, c.operands, c.results)
    if ir == "tile":
        from emmy.ir.tile import show_tile

        return show_tile(body, c.priced.scheduled, c.operands, c.results)
    if ir == "kernel":
        from emmy.ir.show_kernel import show_kernel

        return show_kernel(c.kernel)
    return c.source


def tensor_rows(s: Saturation) -> list[tuple[str, Tensor, str, Sequence[object], Sequence[tuple[str, Tensor]]]]:
    """One decomposition of the program: for every tensor that the outputs need, its first primitive row."""
    numbering, names = s.model.numbering, Names(s.program.graph, s.tensor, s.model.numbering)
    made: dict[int, Prim] = {}
    for p in numbering.prims:
        if all(numbering.order[x] < numbering.order[p.result] for x in p.operands):
            best = made.get(p.result)
            if best is None or _rank(p) < _rank(best):
                made[p.result] = p
    needed: set[int] = set()
    stack = list(s.model.outputs)
    while stack:
        t = stack.pop()
        if t in needed or t not in made:
            continue
        needed.add(t)
        stack.extend(made[t].operands)

    def name(t: int) -> str:
        p = made.get(t)
        if p is not None and p.kind == "Full" and not numbering.tensors[t].shape:
            return str(p.args[0])
        return names.tensor(t) if t not in names.input_names else _input(s, names.input_names[t])

    rows = []
    for t in sorted(needed, key=lambda t: (numbering.order[t], t)):
        p = made[t]
        if p.kind == "Full" and not numbering.tensors[t].shape:
            continue
        operands = [(name(x), numbering.tensors[x]) for x in p.operands]
        rows.append((name(t), numbering.tensors[t], p.kind, [a for a in p.args if not isinstance(a, tuple)], operands))
    return rows


def _rank(p: Prim) -> tuple[bool, int]:
    return p.kind in ("Map", "As"), p.id


def _input(s: Saturation, name: str) -> str:
    kinds = {i.name: i.kind for i in s.program.graph.inputs}
    return f"inputs.{name}" if kinds.get(name) == "user" else name


# ---- the report


def report_lines(s: Saturation) -> list[str]:
    """Every rule with what became of it: fired (how often), refused (reason), or held; then every launch's evidence."""
    made = Counter(l.rule for l in s.model.launches)
    fired: Counter[str] = Counter()
    frozen = s.model.egg.freeze()
    for name in s.model.egg.signatures:
        if name.startswith("by_"):
            for row in frozen.rows(name):
                fired[row[-1]] += 1
    lines = []
    for path in sorted(rulesets().glob("*/*.egg")):
        for rule in rules_in(path):
            if rule.numerics == "analysis":
                continue
            where = f"{path.parent.name}/{rule.name} [{rule.numerics}]"
            if rule.name in s.options.held:
                lines.append(f"{where}: held")
                continue
            count = fired.get(rule.name, 0) or made.get(rule.name, 0)
            if count:
                lines.append(f"{where}: fired {count}")
            for (refused, reason), n in sorted(s.model.refusals.items()):
                if refused == rule.name:
                    lines.append(f"{where}: refused {n}: {reason}")
    for (rule, reason), n in sorted(s.model.refusals.items()):
        lines.append(f"decision {rule}: refused {n}: {reason}")
    for (body, family, row), reason in sorted(s.selection.refused.items()):
        lines.append(f"row {family} {row} of body {body}: refused: {reason}")
    for c in s.launches:
        d = c.priced.decision
        runner = f"; runner-up {d.runner_up} {d.runner_up_cost * 1e6:.2f} us" if d.runner_up else ""
        when = "at build" if c.at_build else f"{d.cost * 1e6:.2f} us {d.tier}"
        lines.append(f"launch {c.name}: {c.priced.scheduled.family} {d.row}: {when}, {c.priced.alternatives} rows{runner}")
    for o in s.opaque:
        lines.append(f"opaque {o.node.name}: {o.node.op} runs in PyTorch: {o.call.reason} ({o.node.source or 'no source line'})")
    return lines


def report_digest(lines: Sequence[str]) -> str:
    """sha256 of the report, 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
