"""Work packets: a folder of CUDA sources, operands and launches, with the program that measures them.

    manifest.json     format, version, target, groups (see emmy.tune.runner)
    sources/*.cu      by content
    data/*.npy        integer operands and expected values, by content
    runner.py         needs Python, numpy and the CUDA bindings
    results.jsonl     what the runner has measured so far

A packet is written on any machine and measured on one with the card that it is for.  Packets and results are data from
outside: every field is checked before it is believed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from emmy.errors import PacketError
from emmy.ir.target import Target
from emmy.tune import runner
from emmy.tune.groups import Group
from emmy.tune.runner import BadPacket, read_manifest

Json = dict[str, Any]
_AGAIN: Final = "write it again with `emmy tune --packet-only`"
_RESULTS: Final = "measure the packet again with `emmy bench`"


def write_packet(folder: Path, groups: Sequence[Group], target: Target, numerics: str = "") -> int:
    """Write a packet into a new or empty folder; how many candidates it has.  PacketError where the folder is taken."""
    if folder.exists() and any(folder.iterdir()):
        raise PacketError(f"{folder} is not empty", "name another folder, or remove it")
    for name in ("sources", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = {}
    for s in {s.id: s for g in groups for s in g.sources.values()}.values():
        sources[s.id] = {"file": f"sources/{s.id}.cu", "entry": s.entry}
        (folder / sources[s.id]["file"]).write_text(s.text)
    manifest = {
        "format": runner.FORMAT, "version": runner.VERSION, "numerics": numerics,
        "target": {"gpu": target.gpu, "capability": target.capability, "arch": target.arch},
        "sources": sources, "groups": [_to_files(g.json, folder) for g in groups],
    }  # fmt: skip
    shutil.copyfile(runner.__file__, folder / "runner.py")
    part = folder / "manifest.json.part"
    part.write_text(json.dumps(manifest, indent=1))
    os.replace(part, folder / "manifest.json")
    return sum(len(g.json["candidates"]) for g in groups)


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
            value = json.loads(line)
        except ValueError as e:
            raise PacketError(f"{path}, line {k} is not JSON", _RESULTS) from e
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
    times = [value.get(n) for n in ("p10", "median", "p90")] if isinstance(value, dict) else [None]
    if not all(_positive(t, 1e-9) for t in times) or times != sorted(times):  # type: ignore[type-var]
        raise PacketError(f"{where}: p10 <= median <= p90 must be positive seconds, found {times}", _RESULTS)
    if type(value.get("n")) is not int or value["n"] < 1:
        raise PacketError(f"{where}: n must be a whole number of samples", _RESULTS)


def _positive(value: Any, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least


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


def candidates_of(manifest: Json) -> Iterable[tuple[Json, Json]]:
    """(group, candidate) of all."""
    for g in manifest["groups"]:
        for c in g["candidates"]:
            yield g, c
