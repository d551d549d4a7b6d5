"""Work packets: a folder of CUDA sources, operands and launches, with the program that measures them.

    manifest.json     format, version, target, groups (see emmy.tune.runner.manifest)
    sources/*.cu      by content
    data/*.npy        integer operands and expected values, by content
    runner.py         runs emmy_runner, which needs Python, numpy and the CUDA bindings
    emmy_runner/*.py  a copy of emmy.tune.runner
    results.jsonl     what the runner has measured so far

A packet is written on any machine and measured on one with the card that it is for.  Packets and results are data from
outside: every field is checked before it is believed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from emmy.errors import EmmyError, PacketError, StoreError
from emmy.extract.checks import LONGEST, check_body
from emmy.extract.outside import is_number, read_json
from emmy.extract.records import Failure, KernelRecord, Measurement, PlanMeasurement, Regime, Routing, Sizes
from emmy.extract.store import Store
from emmy.ir.target import Target, target_of_gpu
from emmy.tune.groups import Group, Source
from emmy.tune.record import INNOCENT, failure_of, measurements_of
from emmy.tune.runner import bundle
from emmy.tune.runner.manifest import FORMAT, VERSION, BadPacket, read_manifest
from emmy.whole import key_of_pieces

Json = dict[str, Any]
_HASH: Final = re.compile(r"[0-9a-f]{8,64}")
_PIECE: Final = re.compile(r"[0-9a-f]{8,64} [a-z_]{1,40} [ -~]{0,400}")
_AGAIN: Final = "write it again with `emmy tune --packet-only`"
_RESULTS: Final = "measure the packet again with `emmy bench`"


def write_packet(
    folder: Path, groups: Sequence[Group], target: Target, numerics: str = "",
    plans: Sequence[tuple[Json, Mapping[str, Source]]] = (),
) -> int:  # fmt: skip
    """Write a packet into a new or empty folder; how many candidates it has.  PacketError where the folder is taken
    or cannot be written.

    `plans` are groups of whole plans (`emmy.tune.plans.plan_group`), measured last.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise PacketError(f"{folder} is not empty", "name another folder, or remove it")
        return _write(folder, groups, target, numerics, plans)
    except OSError as e:
        where = e.filename or folder
        raise PacketError(f"the packet {where} cannot be written: {e.strerror}", "name another folder") from e


def _write(
    folder: Path, groups: Sequence[Group], target: Target, numerics: str,
    plans: Sequence[tuple[Json, Mapping[str, Source]]],
) -> int:  # fmt: skip
    for name in ("sources", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = {}
    held = [*(g.sources for g in groups), *(p[1] for p in plans)]
    for s in {s.id: s for sources_of_group in held for s in sources_of_group.values()}.values():
        sources[s.id] = {"file": f"sources/{s.id}.cu", "entry": s.entry}
        (folder / sources[s.id]["file"]).write_text(s.text)
    every = [*(g.json for g in groups), *(p[0] for p in plans)]
    manifest = {
        "format": FORMAT, "version": VERSION, "numerics": numerics,
        "target": {"gpu": target.gpu, "capability": target.capability, "arch": target.arch},
        "sources": sources, "groups": [_to_files(g, folder) for g in every],
    }  # fmt: skip
    bundle.write(folder)
    part = folder / "manifest.json.part"
    part.write_text(json.dumps(manifest, indent=1))
    os.replace(part, folder / "manifest.json")
    return sum(len(g["candidates"]) for g in every)


def read_packet(folder: Path) -> Json:
    """The checked manifest.  PacketError says which field is wrong."""
    try:
        return read_manifest(folder)
    except BadPacket as e:
        raise PacketError(str(e), _AGAIN) from e


def read_results(path: Path, manifest: Json) -> tuple[Json, list[Json]]:
    """(facts of the machine, a line for each candidate), every field checked.  PacketError names the line."""
    known = {f"{g['id']}/{c['id']}" for g in manifest["groups"] for c in g["candidates"]}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise PacketError(f"the results {path} cannot be read: {e}", _RESULTS) from e
    facts: Json = {}
    found: list[Json] = []
    for k, line in enumerate(text.splitlines(), 1):
        try:
            value = read_json(line)
        except ValueError as e:
            raise PacketError(f"{path}, line {k} is not JSON: {e}", _RESULTS) from e
        if isinstance(value, dict) and "packet" in value:
            facts = _facts(value, f"{path}, line {k}")
            continue
        found.append(_result(value, known, f"{path}, line {k}"))
    if not facts:
        raise PacketError(f"{path} does not say on which card it was measured", _RESULTS)
    return facts, found


def _facts(value: Json, where: str) -> Json:
    texts = all(isinstance(value.get(n), str) and len(value[n]) < 200 for n in ("gpu", "compiler", "host"))
    if not texts or type(value.get("capability")) is not int:
        raise PacketError(f"{where}: gpu, compiler, host and capability must say where it was measured", _RESULTS)
    return value


def _result(value: Any, known: set[str], where: str) -> Json:
    if not isinstance(value, dict) or not isinstance(value.get("ok"), bool):
        raise PacketError(f"{where} is no result", _RESULTS)
    name = f"{value.get('group')}/{value.get('id')}"
    if name not in known:
        raise PacketError(f"{where}: the packet has no candidate {name}", "these are results of another packet")
    if not value["ok"]:
        if not all(isinstance(value.get(n), str) for n in ("kind", "reason")):
            raise PacketError(f"{where}: a failure lacks its kind or reason", _RESULTS)
        return value
    _check_times(value, where)
    if value.get("warm") is not None:
        _check_times(value["warm"], f"{where}, warm")
    for n in ("clock_before", "clock_after", "when"):
        if not _positive(value.get(n, 0.0), 0.0):
            raise PacketError(f"{where}: {n} must be a number that is not negative", _RESULTS)
    return value


def _check_times(value: Any, where: str) -> None:
    times: list[Any] = [value.get(n) for n in ("p10", "median", "p90")] if isinstance(value, dict) else [None]
    if not all(_positive(t, 1e-9) for t in times) or times != sorted(times):
        raise PacketError(f"{where}: p10 <= median <= p90 must be positive seconds, found {times}", _RESULTS)
    if type(value.get("n")) is not int or not 1 <= value["n"] < 1 << 31:
        raise PacketError(f"{where}: n must be a whole number of samples", _RESULTS)


def _positive(value: Any, least: float) -> bool:
    return is_number(value) and value >= least


def _to_files(group: Json, folder: Path) -> Json:
    """The group with its data in files of the packet."""
    buffers = []
    for b in group["buffers"]:
        f = b["fill"]
        buffers.append({**b, "fill": {"kind": "file", "file": _save(f["base64"], folder)}} if "base64" in f else b)
    return {**group, "buffers": buffers, "expected": {n: _save(d, folder) for n, d in group["expected"].items()}}


def _save(data: str, folder: Path) -> str:
    raw = base64.b64decode(data)
    name = f"data/{hashlib.sha256(raw).hexdigest()[:16]}.npy"
    np.save(folder / name, np.frombuffer(raw, np.uint8), allow_pickle=False)
    return name


def card_name(gpu: str) -> str:
    """The name that regimes use for a card: that of its target, where it has one."""
    try:
        return target_of_gpu(gpu).gpu
    except EmmyError:
        return gpu


def candidates_of(manifest: Json) -> Iterable[tuple[Json, Json]]:
    """(group, candidate) of all."""
    for g in manifest["groups"]:
        for c in g["candidates"]:
            yield g, c


def record_results(folder: Path, results: Path, store: Store) -> tuple[int, int]:
    """Record what a runner measured; (measurements, failures).  PacketError where the data is not what it should be."""
    manifest = read_packet(folder)
    facts, lines = read_results(results, manifest)
    target = manifest["target"]
    if facts["capability"] != target["capability"]:
        raise PacketError(f"the packet is for sm_{target['capability']}, it was measured on {facts['gpu']}", _RESULTS)
    regime = Regime(card_name(facts["gpu"]), facts["capability"], facts["compiler"], manifest.get("numerics", ""))
    by_name = {f"{g['id']}/{c['id']}": (g, c) for g, c in candidates_of(manifest)}
    measured: list[Measurement] = []
    failures: list[Failure] = []
    plans: list[PlanMeasurement] = []
    routings: list[Routing] = []
    for r in lines:
        group, c = by_name[f"{r['group']}/{r['id']}"]
        sizes, when = _sizes(group), float(r.get("when", 0.0))
        if not group.get("body"):
            if r["ok"]:
                routing = _routing(group, c, r["median"], when)
                key = key_of_pieces(routing.pieces)
                plans.append(PlanMeasurement(key, sizes, regime, r["n"], r["median"], r["p10"], r["p90"], "tune", when))
                routings.append(routing)
        elif r["ok"]:
            measured += measurements_of(r, group["body"], sizes, c["family"], c["row"], regime, "tune", when)
        elif r["kind"] not in INNOCENT:
            failures.append(failure_of(r, group["body"], sizes, c["row"], regime, target["arch"], when))
    known = {k.body for k in store.kernels()}
    bodies = {m.body for m in measured} | {f.body for f in failures}
    store.record_kernels(_kernels(manifest, bodies - known))
    store.record_measurements(measured)
    store.record_failures(failures)
    store.record_plans(plans)
    store.record_routing(routings)
    return len(measured) + len(plans), len(failures)


def _routing(group: Json, c: Json, seconds: float, when: float) -> Routing:
    """Of which program a candidate is a whole plan, and its launches."""
    program, pieces = group.get("program"), c.get("pieces")
    named = isinstance(program, str) and _HASH.fullmatch(program)
    if not named or not isinstance(pieces, list) or not all(isinstance(p, str) and _PIECE.fullmatch(p) for p in pieces):
        raise PacketError(f"group {group['id']}: {c['id']} must name its program and its launches", _AGAIN)
    if c["id"] != f"p{key_of_pieces(pieces)}":
        raise PacketError(f"group {group['id']}: {c['id']} is not the plan of its launches", _AGAIN)
    return Routing(str(program), tuple(pieces), seconds, "measured", when)


def _kernels(manifest: Json, bodies: set[str]) -> list[KernelRecord]:
    """What the packet says of these bodies: without their Loop IR times can be neither reviewed nor learnt from."""
    found: dict[str, KernelRecord] = {}
    for g in manifest["groups"]:
        if g.get("body") not in bodies or "text" not in g:
            continue
        if not isinstance(g["text"], str) or len(g["text"]) > LONGEST:
            raise PacketError(f"group {g['id']}: text must be Loop IR of at most {LONGEST} characters", _AGAIN)
        try:
            check_body(g["body"], g["text"], f"group {g['id']}")
        except StoreError as e:
            raise PacketError(e.what, _AGAIN) from e
        found[g["body"]] = KernelRecord(g["body"], g["text"], str(g.get("name", "")))
    return list(found.values())


def _sizes(group: Json) -> Sizes:
    sizes = group.get("sizes", {})
    whole = isinstance(sizes, dict) and all(type(v) is int and 0 <= v < 1 << 63 for v in sizes.values())
    if not whole:
        raise PacketError(f"group {group['id']}: sizes must be whole numbers by name", _AGAIN)
    return tuple(sorted(sizes.items()))
