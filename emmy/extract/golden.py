"""Golden files: reviewed measurements that travel with the repository, `golden/<gpu>_sm<capability>.json`.

One JSON document, one row a line, so that a review shows what changed:

    {"format": "emmy-golden", "version": 1, "gpu": "H200", "capability": 90, "compiler": "…", "numerics": "",
     "l2": "cold", "rows": [
    {"body": "…", "name": "k_rms_norm", "sizes": {}, "family": "row", "row": "WORK=t256", "n": 30, "median": 3e-05, …},
    {"body": "…", "name": "k_linear", "sizes": {"s": 512}, "family": "mma", "row": "…"}
    ], "bodies": [
    {"body": "…", "name": "k_rms_norm", "features": {"programs": "…"}, "text": "(body …)"}
    ]}

A row without times is a proposal: a schedule worth trying, no evidence.  `bodies` hold the Loop IR of the rows' bodies,
so that a file can be checked against today's rules, and learnt from.  A golden file is data from outside: every field
is checked before it is believed; that a body's text has its hash is checked where the text is used.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from emmy.arguments import expanded
from emmy.errors import StoreError
from emmy.extract.checks import LONGEST
from emmy.extract.evidence import standing
from emmy.extract.files import replacing
from emmy.extract.outside import is_number, read_at_most, read_json
from emmy.extract.records import KernelRecord, Measurement, Regime, Sizes
from emmy.extract.store import Store

FORMAT: Final = "emmy-golden"
VERSION: Final = 1
MAX_BYTES: Final = 64 << 20
_BODY: Final = re.compile(r"[0-9a-f]{8,64}")
_WORD: Final = re.compile(r"[ -~]{0,400}")


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """One line: `name` is for people, `measurement` is None for a proposal."""

    body: str
    name: str
    sizes: Sizes
    family: str
    row: str
    measurement: Measurement | None


# A program whose bodies a file holds: {"code": …} or {"model": …, "layer": 0, "seq_len": 512, …}.
Case = Mapping[str, str | int]
CASE_KEYS: Final[Mapping[str, type]] = {
    "code": str, "model": str, "layer": int, "seq_len": int, "cache_len": int, "batch": int, "dtype": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """What a file holds.  All its rows are of one regime; `cases` are the programs that its bodies came from."""

    regime: Regime
    rows: tuple[GoldenRow, ...]
    bodies: tuple[KernelRecord, ...] = ()
    cases: tuple[Case, ...] = ()

    @property
    def measurements(self) -> list[Measurement]:
        return [r.measurement for r in self.rows if r.measurement is not None]

    @property
    def proposals(self) -> list[GoldenRow]:
        return [r for r in self.rows if r.measurement is None]


def file_name(regime: Regime) -> str:
    """`h200_sm90.json`: of one card, whatever the compiler."""
    gpu = re.sub(r"[^a-z0-9]+", "-", regime.gpu.lower()).strip("-")
    return f"{gpu}_sm{regime.capability}.json"


def golden_path(regime: Regime, directory: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that holds for a card: `EMMY_GOLDEN_FILE` where it is set (empty: none), else the one in `directory`."""
    named = environ.get("EMMY_GOLDEN_FILE")
    if named is not None:
        return expanded(named) if named else None
    path = directory / file_name(regime)
    return path if os.path.exists(path) else None


def write_golden(
    path: Path,
    regime: Regime,
    rows: Iterable[GoldenRow],
    bodies: Iterable[KernelRecord] = (),
    cases: Iterable[Case] = (),
) -> None:
    """Write rows sorted by (name, body, sizes, median), bodies by (name, body); the file appears whole or not at all.

    StoreError where it cannot be written.
    """
    ordered = sorted(
        rows, key=lambda r: (r.name, r.body, r.sizes, _short(r.measurement.median) if r.measurement else 0.0, r.row)
    )
    head = {"format": FORMAT, "version": VERSION, "gpu": regime.gpu, "capability": regime.capability,
            "compiler": regime.compiler, "numerics": regime.numerics, "l2": regime.l2}  # fmt: skip
    lines = ",\n".join(json.dumps(_row_json(r)) for r in ordered)
    kernels = sorted(bodies, key=lambda k: (k.name, k.body))
    texts = ",\n".join(json.dumps(_body_json(k)) for k in kernels)
    programs = ",\n".join(json.dumps(dict(c)) for c in cases)
    parts = {"rows": lines, "bodies": texts, "cases": programs}
    text = json.dumps(head)[:-1] + "".join(f', "{k}": [\n{v}\n]' for k, v in parts.items()) + "}\n"
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"golden file {path} cannot be written: {error.strerror}", "name another file") from error


def read_golden(path: Path, bodies: Container[str] | None = None) -> GoldenFile:
    """The file's content, checked.  StoreError says which row and which field is wrong.

    With `bodies`, only rows of these are looked at, and no Loop IR: a compile needs few of many.
    """
    try:
        document = read_json(read_at_most(path, MAX_BYTES).decode())
    except OSError as error:
        raise StoreError(f"golden file {path} cannot be read: {error.strerror}", _OFF) from error
    except ValueError as error:
        raise StoreError(f"golden file {path} is not JSON: {error}", _OFF) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StoreError(f"{path} is no golden file (no format {FORMAT!r})", _OFF)
    if document.get("version") != VERSION:
        raise StoreError(f"golden file {path} has version {document.get('version')!r}, this Emmy knows {VERSION}", _OFF)
    check = _Check(path)
    l2 = check.text(document, "l2")
    if l2 not in ("cold", "warm"):
        raise check.wrong("l2", "cold or warm")
    regime = Regime(
        check.text(document, "gpu"), check.integer(document, "capability", 50, 999), check.text(document, "compiler"),
        check.text(document, "numerics"), "cold" if l2 == "cold" else "warm",
    )  # fmt: skip
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise check.wrong("rows", "a list")
    texts = document.get("bodies", [])
    if not isinstance(texts, list):
        raise check.wrong("bodies", "a list")
    numbered: Iterable[tuple[int, Any]] = enumerate(rows)
    if bodies is not None:
        numbered = ((k, r) for k, r in numbered if not _of_another(r, bodies))
        texts = []
    return GoldenFile(
        regime,
        tuple(_row(path, k, row, regime) for k, row in numbered),
        tuple(_body(path, k, text) for k, text in enumerate(texts)),
        read_cases(document.get("cases", []), f"golden file {path}"),
    )


def _of_another(row: object, bodies: Container[str]) -> bool:
    """A row of a body that is not among these; what names no body is for the checks."""
    body = row.get("body") if isinstance(row, dict) else None
    return isinstance(body, str) and body not in bodies


def read_cases(cases: object, where: str) -> tuple[Case, ...]:
    """The programs that a JSON list names.  StoreError where one is none."""
    if not isinstance(cases, list):
        raise StoreError(f"{where}: cases must be a list", _OFF)
    for k, case in enumerate(cases):
        fits = isinstance(case, dict) and all(type(v) is CASE_KEYS.get(key) for key, v in case.items())
        if not fits or ("code" in case) == ("model" in case):
            raise StoreError(
                f"{where}, case {k} must have code or model, and of {', '.join(CASE_KEYS)} what it needs",
                'for example {"model": "Qwen/Qwen3-0.6B", "layer": 0, "seq_len": 512}',
            )
    return tuple(cases)


def recorded(
    store: Store, regime: Regime, former: GoldenFile | None = None
) -> tuple[list[GoldenRow], list[KernelRecord]]:
    """What a golden file of this regime holds: one measurement of each (body, sizes, row) of the store.

    Rows of `former` that were not measured again stay; a row that was once drawn uniformly is one of that sample for
    good, however it came to be measured again.  A row whose body's Loop IR is not in the store stays out: it
    could not be checked.
    """
    kernels = {k.body: k for k in (*(former.bodies if former else ()), *store.kernels())}
    groups: dict[tuple[str, Sizes, str, str], list[Measurement]] = defaultdict(list)
    for m in store.measurements():
        if m.regime == regime and m.body in kernels:
            groups[(m.body, m.sizes, m.family, m.row)].append(m)
    rows = {
        (r.body, r.sizes, r.family, r.row): r
        for r in (former.rows if former else ())
        if former is not None and (former.regime == regime or r.measurement is None)
    }
    for key, measurements in groups.items():
        counted, before = max(measurements, key=standing), rows.get(key)
        earlier = before.measurement if before is not None else None
        if any(m.uniform for m in measurements) or (earlier is not None and earlier.uniform):
            counted = replace(counted, drawn="uniform")
        rows[key] = GoldenRow(key[0], kernels[key[0]].name, key[1], key[2], key[3], counted)
    used = {r.body for r in rows.values()}
    return list(rows.values()), [k for body, k in kernels.items() if body in used]


_OFF: Final = "restore it, or name another; EMMY_GOLDEN_FILE= (empty) turns golden files off for compiling"


def _short(x: float) -> float:
    """Five digits: no timing has more."""
    return float(f"{x:.4e}")


def _row_json(r: GoldenRow) -> dict[str, Any]:
    row: dict[str, Any] = {"body": r.body, "name": r.name, "sizes": dict(r.sizes), "family": r.family, "row": r.row}
    if r.measurement is not None:
        m = r.measurement
        row |= {"n": m.n, "median": _short(m.median), "p10": _short(m.p10), "p90": _short(m.p90)}
        row |= {"clock_before": _short(m.clock_before), "clock_after": _short(m.clock_after), "when": round(m.when)}
        drawn = "uniform" if m.uniform else m.drawn
        row |= {"drawn": drawn} if drawn else {}
    return row


def _body_json(k: KernelRecord) -> dict[str, Any]:
    features = dict(sorted(k.features.items()))
    return {"body": k.body, "name": k.name, "features": features, "text": k.text}


def _body(path: Path, number: int, body: object) -> KernelRecord:
    check = _Check(path, number, "body")
    if not isinstance(body, dict):
        raise check.wrong("it", "an object")
    if not isinstance(body.get("body"), str) or not _BODY.fullmatch(body["body"]):
        raise check.wrong("body", "a hash in hexadecimal")
    features, text = body.get("features", {}), body.get("text")
    if not isinstance(features, dict) or not all(isinstance(v, str) or is_number(v) for v in features.values()):
        raise check.wrong("features", "an object of numbers and texts")
    if not isinstance(text, str) or len(text) > LONGEST:
        raise check.wrong("text", f"Loop IR of at most {LONGEST} characters")
    return KernelRecord(body["body"], text, check.text(body, "name"), features)


def _row(path: Path, number: int, row: object, regime: Regime) -> GoldenRow:
    check = _Check(path, number)
    if not isinstance(row, dict):
        raise check.wrong("it", "an object")
    body = check.text(row, "body")
    if not _BODY.fullmatch(body):
        raise check.wrong("body", "a hash in hexadecimal")
    sizes = row.get("sizes")
    if not isinstance(sizes, dict) or not all(type(v) is int and 0 <= v < 1 << 63 for v in sizes.values()):
        raise check.wrong("sizes", "an object of whole numbers")
    bound: Sizes = tuple(sorted(sizes.items()))
    name, family, text = (check.text(row, key) for key in ("name", "family", "row"))
    if "median" not in row:
        return GoldenRow(body, name, bound, family, text, None)
    n = check.integer(row, "n", 1, (1 << 31) - 1)
    median, p10, p90 = (check.positive(row, key) for key in ("median", "p10", "p90"))
    if not p10 <= median <= p90:
        raise check.wrong("median", "between p10 and p90")
    clocks = [check.number(row, key) for key in ("clock_before", "clock_after", "when")]
    measurement = Measurement(
        body,
        bound,
        family,
        text,
        regime,
        n,
        median,
        p10,
        p90,
        clocks[0],
        clocks[1],
        "golden",
        clocks[2],
        check.text(row, "drawn") if "drawn" in row else "",
    )
    return GoldenRow(body, name, bound, family, text, measurement)


class _Check:
    """Reads fields of one JSON object and says where a wrong one stands."""

    def __init__(self, path: Path, number: int | None = None, what: str = "row") -> None:
        self.where = f"golden file {path}" + ("" if number is None else f", {what} {number}")

    def wrong(self, key: str, expected: str) -> StoreError:
        return StoreError(f"{self.where}: {key} must be {expected}", _OFF)

    def text(self, row: Mapping[str, object], key: str) -> str:
        value = row.get(key)
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            raise self.wrong(key, "a printable text of at most 400 characters")
        return value

    def integer(self, row: Mapping[str, object], key: str, least: int, most: int) -> int:
        value = row.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, row: Mapping[str, object], key: str) -> float:
        value: Any = row.get(key, 0.0)
        if not is_number(value) or value < 0:
            raise self.wrong(key, "a number that is not negative")
        return float(value)

    def positive(self, row: Mapping[str, object], key: str) -> float:
        value = self.number(row, key)
        if value <= 0:
            raise self.wrong(key, "above 0")
        return value
