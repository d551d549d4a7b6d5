"""Golden files held against today's rules: which rows still mean something, and how the others are carried over.

A row is evidence where its body still exists and its schedule is legal for it.  Whether a body exists is asked of
today's saturation of given programs; without programs only the rows' legality is checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from emmy.egraph.schedule import schedule_rows
from emmy.errors import EmmyError
from emmy.extract.golden import Case, GoldenFile, GoldenRow
from emmy.extract.records import KernelRecord, Sizes
from emmy.ir.counts import contractions, reductions
from emmy.ir.loop import Body
from emmy.ir.normal import normalize
from emmy.ir.parse import parse_body
from emmy.ir.target import Target, target_of_gpu
from emmy.resources import rulesets

Kind = Literal["unreadable", "gone", "illegal"]
Bodies = Mapping[str, Body]
Spelled = tuple[str, str]  # family and row
_NO_TEXT: Final = "the file has no Loop IR of this body"


@dataclass(frozen=True, slots=True)
class Finding:
    """A body that today's Emmy does not know (`row` empty, `rows` says how many it takes), or a row that is illegal."""

    kind: Kind
    body: str
    name: str
    row: str
    rows: int
    why: str


@dataclass(frozen=True, slots=True)
class Restamped:
    """`kept` rows with their times; `proposed` rows that lost them; `dropped`: what had no place, and why."""

    file: GoldenFile
    kept: int
    proposed: int
    dropped: tuple[Finding, ...]


def bodies_of(cases: Iterable[Case], target: Target) -> dict[str, Body]:
    """Every body that a launch of these programs could have today."""
    from emmy.frontend.source import load
    from emmy.frontend.translate import translate
    from emmy.saturation import Options, saturate_model

    found: dict[str, Body] = {}
    for case in cases:
        given = dict(case)
        program = load(given.pop("model", None), given.pop("code", None), **given)  # type: ignore[arg-type]
        options = Options(target)
        model = saturate_model(program, translate(program.graph, options.fallback), options)
        found.update((b.hash, b) for b in model.bodies())
    return found


def check(file: GoldenFile, today: Bodies | None = None) -> list[Finding]:
    """What of a file means nothing today, in the order of names; `today` are the bodies of its programs.

    UsageError for a card that is not known.
    """
    target = target_of_gpu(file.regime.gpu)
    known, findings = _read(file, today or {})
    counts = _rows_of(file.rows)
    if today is not None:
        gone = [k for k in known if k not in today]
        findings += [_gone(file, k, len(counts[k]), "no launch of the given programs has this body") for k in gone]
    alive = [r for r in file.rows if r.body in known]
    legal = _legal(alive, known, target)
    findings += [_illegal(r) for r in alive if (r.family, r.row) not in legal[(r.body, r.sizes)]]
    return sorted(findings, key=lambda f: (f.name, f.body, f.row))


def restamp(file: GoldenFile, today: Bodies | None = None) -> Restamped:
    """The file on today's bodies.

    A row whose body kept its identity keeps its times; where another body took its place (one of equal meaning, else
    the only one of equal operands, results, products and folds), the schedule stays as a proposal without times; a row
    that is not legal there is dropped.
    """
    target = target_of_gpu(file.regime.gpu)
    known, dropped = _read(file, today or {})
    place = {h: b if today is None or h in today else successor(b, today.values()) for h, b in known.items()}
    counts = _rows_of(file.rows)
    lost = [h for h, b in place.items() if b is None]
    dropped += [_gone(file, h, len(counts[h]), "no body of the given programs takes its place") for h in lost]
    moved = [(r, b) for r in file.rows if (b := place.get(r.body)) is not None]
    bodies = {b.hash: b for _, b in moved}
    stamped = [r if b.hash == r.body else replace(r, body=b.hash, measurement=None) for r, b in moved]
    legal = _legal(stamped, bodies, target)
    rows: dict[tuple[str, Sizes, str, str], GoldenRow] = {}
    for r in sorted(stamped, key=lambda r: r.measurement is None):
        if (r.family, r.row) in legal[(r.body, r.sizes)]:
            rows.setdefault((r.body, r.sizes, r.family, r.row), r)
        else:
            dropped.append(_illegal(r))
    used = {r.body for r in rows.values()}
    records = {k.body: k for k in file.bodies}
    kept_bodies = {}
    for h, b in place.items():
        if b is not None and b.hash in used and b.hash not in kept_bodies:
            former = records.get(b.hash) or records.get(h)
            kept_bodies[b.hash] = KernelRecord(
                b.hash, b.text, former.name if former else "", former.features if former else {}
            )
    new = GoldenFile(file.regime, tuple(rows.values()), tuple(kept_bodies.values()), file.cases)
    timed = sum(r.measurement is not None for r in new.rows)
    ordered = tuple(sorted(dropped, key=lambda f: (f.name, f.body, f.row)))
    return Restamped(new, timed, len(new.rows) - timed, ordered)


def successor(body: Body, today: Iterable[Body]) -> Body | None:
    """The body of today that took this one's place; None where none did, or where it cannot be told."""
    listed = sorted(today, key=lambda b: b.hash)
    key = _meaning(body)
    same = [b for b in listed if _meaning(b) == key]
    if same:
        return same[0]
    signature = _signature(body)
    like = [b for b in listed if _signature(b) == signature]
    return like[0] if len(like) == 1 else None


def _meaning(body: Body) -> str:
    """A body's normal form with its operands in the order of their use."""
    return normalize(body.outs, body.slots)[0].hash


def _signature(body: Body) -> tuple[object, ...]:
    operands, results = (sorted(t.text for t in ts) for ts in (body.slots, [o.tensor for o in body.outs]))
    return operands, results, contractions(body), reductions(body)


def _read(file: GoldenFile, today: Bodies) -> tuple[dict[str, Body], list[Finding]]:
    """The rows' bodies by hash, and those that cannot be read."""
    texts = {k.body: k.text for k in file.bodies}
    known: dict[str, Body] = {}
    findings: list[Finding] = []
    for body, rows in _rows_of(file.rows).items():
        if body not in texts and body in today:
            known[body] = today[body]
            continue
        parsed = _parsed(body, texts.get(body))
        if isinstance(parsed, str):
            findings.append(Finding("unreadable", body, rows[0].name, "", len(rows), parsed))
        else:
            known[body] = parsed
    return known, findings


def _parsed(body: str, text: str | None) -> Body | str:
    if text is None:
        return _NO_TEXT
    try:
        parsed = parse_body(text)
    except EmmyError as e:
        return f"its text is no Loop IR of today: {e.what}"
    return parsed if parsed.hash == body else f"its text is that of body {parsed.hash}"


def _rows_of(rows: Iterable[GoldenRow]) -> dict[str, list[GoldenRow]]:
    found: dict[str, list[GoldenRow]] = defaultdict(list)
    for r in rows:
        found[r.body].append(r)
    return found


def _legal(rows: Sequence[GoldenRow], bodies: Bodies, target: Target) -> dict[tuple[str, Sizes], set[Spelled]]:
    """Legal (family, row) of each body at the sizes that its rows have; bodies of equal sizes share one e-graph."""
    by_sizes: dict[Sizes, set[str]] = defaultdict(set)
    for r in rows:
        by_sizes[r.sizes].add(r.body)
    legal: dict[tuple[str, Sizes], set[Spelled]] = {}
    for sizes, hashes in by_sizes.items():
        bound = {n for n, _ in sizes}
        whole = [bodies[h] for h in sorted(hashes) if set(bodies[h].sizes) <= bound]
        found = schedule_rows(whole, target, dict(sizes), rulesets()).rows
        for h in hashes:
            legal[(h, sizes)] = {(s.family, s.row.text) for s in found.get(h, ())}
    return legal


def _gone(file: GoldenFile, body: str, rows: int, why: str) -> Finding:
    name = next((k.name for k in file.bodies if k.body == body), "")
    return Finding("gone", body, name, "", rows, why)


def _illegal(r: GoldenRow) -> Finding:
    why = f"family {r.family} has no such row for this body"
    return Finding("illegal", r.body, r.name, r.row, 1, why)
