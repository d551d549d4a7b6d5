"""The schedule e-graph: every legal schedule row of a batch of bodies, by the rules of `rulesets/schedule`.

A family says what a body offers it as facts (or why the body is not one of its), its rules unite complete kernels with
the body, and its reader spells what is found as rows.  Legality stands in the rules and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from emmy.egraph.egg import Egg
from emmy.egraph.families import attention, contraction, plain, tf32, wgmma
from emmy.egraph.families import map as maps
from emmy.egraph.families import row as reduced
from emmy.egraph.families import scan as scans
from emmy.egraph.families import turn as turns
from emmy.ir.config import KernelConfig
from emmy.ir.loop import Body
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.target import Target
from emmy.ir.views.clipped import clipped_by_boxes
from emmy.ir.views.reach import kept_in_range

Facts = Mapping[str, Sequence[tuple[object, ...]]]  # relation -> rows, the body's hash first
Sizes = Mapping[str, int]


def _in_range(body: Body) -> bool:
    """Every fold is in range, whatever the conditions around it are."""
    return not kept_in_range(body)


def _looks_first(body: Body) -> bool:
    """Threads look at conditions before they compute what these guard."""
    return True


@dataclass(frozen=True, slots=True)
class Family:
    """One code generator's schedules.

    `facts(body, target, sizes)`: what the rules of `file` need, or the reason why the body is not of this family.
    `rows(constructor rows, *option rows)`: (body hash, row) of each row of `constructor` in the saturated e-graph;
    `options` name further constructors, of choices that several kernels share.
    `config(body, row, target, sizes)`: the row's meaning for cost.
    """

    name: str
    file: str
    facts: Callable[[Body, Target, Sizes], Facts | str]
    constructor: str
    rows: Callable[..., Iterator[tuple[str, Row]]]
    config: Callable[[Body, Row, Target, Sizes], KernelConfig]
    options: tuple[str, ...] = ()
    # it can store where loads say, into an operand's own memory
    updates: bool = False
    # whether its kernels read nothing out of range of a fold that only a condition around it keeps in range
    lazy: Callable[[Body], bool] = _in_range


# In order of preference where nothing else decides; the plain family closes every list.
FAMILIES: Final[tuple[Family, ...]] = (
    Family("map", "map.egg", maps.facts, "Map", maps.rows, maps.config, updates=True),
    Family("turn", "turn.egg", turns.facts, "Turn", turns.rows, turns.config),
    Family(
        "attention", "attention.egg", attention.facts, "AttentionRows", attention.rows, attention.config,
        ("AttentionMma", "AttentionRing"),
    ),
    Family(
        "wgmma", "wgmma.egg", wgmma.facts, "Wgmma", wgmma.rows, wgmma.config, ("WgmmaStages", "WgmmaOrder"),
        lazy=clipped_by_boxes,
    ),
    Family(
        "mma", "mma.egg", contraction.mma_facts, "Mma", contraction.mma_rows, contraction.mma_config,
        ("MmaRing", "MmaBands"),
    ),
    Family("tf32", "tf32.egg", tf32.facts, "Tf32", tf32.rows, tf32.config, ("Tf32Ring", "Tf32Bands")),
    Family(
        "tile", "tile.egg", contraction.tile_facts, "Tile", contraction.tile_rows, contraction.tile_config,
        ("TileRing", "TileBands"),
    ),
    Family("row", "row.egg", reduced.facts, "Row", reduced.rows, reduced.config),
    Family("scan", "scan.egg", scans.facts, "Scanned", scans.rows, scans.config),
    Family("plain", "plain.egg", plain.facts, "Plain", plain.rows, plain.config, updates=True, lazy=_looks_first),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedules:
    """`rows[body.hash]`: legal schedules in a fixed order; `declined[body.hash]`: family -> reason; `enodes`: size.

    `made`: how many complete kernels each rule built first.
    """

    rows: dict[str, list[Scheduled]]
    declined: dict[str, dict[str, str]]
    enodes: int
    made: Counter[str] = field(default_factory=Counter)


def schedule_rows(
    bodies: Iterable[Body],
    target: Target,
    sizes: Sizes,
    rulesets: Path,
    held: frozenset[str] = frozenset(),
    families: Sequence[Family] = FAMILIES,
) -> Schedules:
    """Every legal schedule of each distinct body, by one e-graph for all of them.

    `sizes` are the values that symbolic sizes are scheduled for; `rulesets` is the folder of rule files; `held` names
    rules that are left out.
    """
    distinct = {b.hash: b for b in bodies}
    egg = Egg(held=held, provenance=frozenset({"K"}))
    egg.load(rulesets / "schedule" / "base.egg", *(rulesets / "schedule" / f.file for f in families))
    _target_facts(egg, target)
    declined: dict[str, dict[str, str]] = {h: {} for h in distinct}
    for family in families:
        _family_facts(egg, family, distinct, target, sizes, declined)
    egg.run("schedule", saturate=True)
    frozen = egg.freeze()
    found: dict[str, list[Scheduled]] = {h: [] for h in distinct}
    for family in families:
        options = [frozen.rows(o) for o in family.options]
        rows = sorted(family.rows(frozen.rows(family.constructor), *options), key=lambda pair: (pair[0], pair[1].text))
        for h, row in rows:
            config = family.config(distinct[h], row, target, sizes)
            found[h].append(Scheduled(family.name, row, config))
    return Schedules(found, declined, frozen.size(), frozen.made())


def _target_facts(egg: Egg, target: Target) -> None:
    limits = {
        "max-threads": target.threads_block,
        "max-smem": target.smem_block,
        "max-registers": target.registers_thread,
        "sm-registers": target.registers_sm,
        "sms": target.sms,
        "capability": target.capability,
    }
    for name, value in limits.items():
        egg.facts(name, [(value,)])
    egg.facts("allowed", [(a,) for a in target.allowed])


def _family_facts(
    egg: Egg,
    family: Family,
    bodies: Mapping[str, Body],
    target: Target,
    sizes: Sizes,
    declined: dict[str, dict[str, str]],
) -> None:
    merged: dict[str, list[tuple[object, ...]]] = {}
    for h, body in bodies.items():
        if any(o.into >= 0 for o in body.outs) and not family.updates:
            declined[h][family.name] = "a result that is stored in place"
            continue
        if not family.lazy(body):
            declined[h][family.name] = "a fold that only a condition around it keeps in range"
            continue
        facts = family.facts(body, target, sizes)
        if isinstance(facts, str):
            declined[h][family.name] = facts
            continue
        for relation, rows in facts.items():
            merged.setdefault(relation, []).extend(rows)
    for relation, relation_rows in merged.items():
        egg.facts(relation, relation_rows)
