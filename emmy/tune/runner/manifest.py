"""The manifest of a packet, `manifest.json`: what its fields may be.

It is data from outside: every field is checked before it is used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
FORMAT: Final = "emmy-packet"
VERSION: Final = 2
READS: Final = (1, VERSION)  # version 1 has no launches with memory of their own
# (bytes, code of the compare kernel, largest finite value)
DTYPES: Final[dict[str, tuple[int, int, float]]] = {
    "f32": (4, 0, 3.4028234663852886e38), "f16": (2, 1, 65504.0), "bf16": (2, 2, 3.3895313892515355e38),
    "f8e4m3": (1, 3, 448.0), "f8e5m2": (1, 4, 57344.0), "f64": (8, 5, 1.7976931348623157e308), "i64": (8, 6, 0.0),
    "i32": (4, 7, 0.0), "i16": (2, 8, 0.0), "i8": (1, 9, 0.0), "u8": (1, 10, 0.0), "bool": (1, 11, 0.0),
}  # fmt: skip
# bytes of an element of a tensor map: f32 that are rounded to tf32 as they are loaded have a name of their own
MAP_TYPES: Final[dict[str, int]] = {**{name: bytes for name, (bytes, _, _) in DTYPES.items()}, "tf32": 4}

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,199}")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_FILE = re.compile(r"(sources/[0-9a-f]{16}\.cu|data/[0-9a-f]{16}\.npy)")
_GRID = (2**31 - 1, 65535, 65535)
_MOST_BYTES: Final = 1 << 40
_MOST_MANIFEST: Final = 256 << 20


class BadPacket(Exception):
    """A packet that is not one of ours; says which field is wrong and what was expected."""


class _Field:
    """A JSON value with its place in the manifest."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def bad(self, expected: str) -> BadPacket:
        shown = repr(self.value)
        return BadPacket(f"{self.where} must be {expected}, found {shown[:80]}")

    def get(self, key: str, default: Any = None) -> _Field:
        if not isinstance(self.value, dict):
            raise self.bad("an object")
        if key not in self.value and default is None:
            raise BadPacket(f"{self.where} lacks {key!r}")
        return _Field(self.value.get(key, default), f"{self.where}.{key}")

    def items(self, most: int = 1_000_000) -> list[_Field]:
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.bad(f"a list of at most {most}")
        return [_Field(v, f"{self.where}[{k}]") for k, v in enumerate(self.value)]

    def pairs(self) -> list[tuple[str, _Field]]:
        if not isinstance(self.value, dict):
            raise self.bad("an object")
        return [(k, _Field(v, f"{self.where}.{k}")) for k, v in self.value.items()]

    def text(self, pattern: re.Pattern[str] | None = None, expected: str = "a short text") -> str:
        ok = isinstance(self.value, str) and len(self.value) <= 2000
        if not ok or (pattern is not None and not pattern.fullmatch(self.value)):
            raise self.bad(expected)
        return str(self.value)

    def integer(self, low: int, high: int) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.bad(f"a whole number from {low} to {high}")
        return int(self.value)

    def number(self, low: float, high: float) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not low <= self.value <= high:
            raise self.bad(f"a number from {low:g} to {high:g}")
        return float(self.value)

    def one_of(self, allowed: Sequence[str] | Mapping[str, Any]) -> str:
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.bad(f"one of {', '.join(list(allowed)[:20])}")
        return self.value


def _object(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)[:60]!r} stands twice in one object")
    return found


def read_manifest(folder: Path) -> Json:
    """The manifest of a packet, every field checked; nothing outside of the folder is named by it."""
    path = folder / "manifest.json"
    try:
        if path.stat().st_size > _MOST_MANIFEST:
            raise BadPacket(f"{path} is larger than {_MOST_MANIFEST >> 20} MiB")
        manifest = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except OSError as e:
        raise BadPacket(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise BadPacket(f"{path} is not JSON: {e}") from e
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadPacket(f"{path} is no packet (no format {FORMAT!r})")
    if manifest.get("version") not in READS:
        raise BadPacket(f"{path} has version {manifest.get('version')!r}, this runner reads {VERSION} and before")
    check_manifest(manifest, folder)
    return manifest


def check_manifest(manifest: Json, folder: Path | None = None) -> None:
    """BadPacket where a field is wrong, or a file that it names is not in `folder`."""
    root = _Field(manifest, "manifest")
    target = root.get("target")
    target.get("gpu").text()
    target.get("capability").integer(50, 999)
    target.get("arch").text(re.compile(r"sm_\d{2,3}[af]?"), "like sm_90a")
    sources = {}
    for name, s in root.get("sources").pairs():
        s.get("entry").text(_ENTRY, "a C identifier")
        sources[name] = s.get("file").text(_FILE, "a file of the packet, sources/<16 hex digits>.cu")
        _present(folder, sources[name], s)
    ids: set[str] = set()
    for g in root.get("groups").items():
        _check_group(g, sources, folder)
        for c in g.get("candidates").items():
            key = g.value["id"] + "/" + c.value["id"]
            if key in ids:
                raise BadPacket(f"{c.where}: a second candidate {key!r}")
            ids.add(key)


def _present(folder: Path | None, name: str, field: _Field) -> None:
    if folder is not None and ((folder / name).is_symlink() or not (folder / name).is_file()):
        raise BadPacket(f"{field.where}: the packet has no file {name}")


def _check_group(g: _Field, sources: Mapping[str, str], folder: Path | None) -> None:
    g.get("id").text(_NAME, "a name")
    g.get("least_seconds").number(0, 1e6)
    for key in ("body", "name"):
        g.get(key, "").text()
    buffers: dict[str, str] = {}
    total = 0
    for b in g.get("buffers").items(100_000):
        name = b.get("name").text(_NAME, "a name")
        if name in buffers:
            raise BadPacket(f"{b.where}: a second buffer {name!r}")
        buffers[name] = b.get("role").one_of(("in", "out", "update", "temp"))
        total += b.get("count").integer(0, 1 << 40) * DTYPES[b.get("dtype").one_of(DTYPES)][0]
        _check_fill(b.get("fill", {"kind": "zeros"}), folder)
    if total > _MOST_BYTES:
        raise BadPacket(f"{g.where}: its buffers take {total} bytes")
    written = {n for n, role in buffers.items() if role in ("out", "update")}
    for name, t in g.get("tolerance").pairs():
        if name not in written:
            raise BadPacket(f"{t.where}: no output is called {name!r}")
        t.number(0, 1)
    for name, f in g.get("expected", {}).pairs():
        if name not in written:
            raise BadPacket(f"{f.where}: no output is called {name!r}")
        _present(folder, f.text(_FILE, "a file of the packet, data/<16 hex digits>.npy"), f)
    ids = {c.get("id").text(_NAME, "a name") for c in g.get("candidates").items()}
    for key in ("anchor", "check"):
        if g.get(key, "").text() not in ids | {""}:
            raise g.get(key).bad("the id of a candidate of the group")
    if not g.value.get("check") and set(g.value.get("expected", {})) != written:
        raise BadPacket(f"{g.where}: neither a check candidate nor expected values of all outputs")
    for c in g.get("candidates").items():
        for key in ("family", "row"):
            c.get(key, "").text()
        for l in [*c.get("launches").items(100_000), *c.get("setup", []).items(100_000)]:
            _check_launch(l, sources, buffers)


def _check_fill(f: _Field, folder: Path | None) -> None:
    kind = f.get("kind").one_of(("normal", "integers", "file", "zeros"))
    if kind == "normal":
        f.get("mean").number(-1e6, 1e6)
        f.get("std").number(0, 1e6)
    elif kind == "integers":
        high = f.get("high").integer(-(1 << 62), 1 << 62)
        f.get("low").integer(-(1 << 62), high)
    elif kind == "file":
        _present(folder, f.get("file").text(_FILE, "a file of the packet, data/<16 hex digits>.npy"), f)


def _check_launch(l: _Field, sources: Mapping[str, str], buffers: Mapping[str, str]) -> None:
    l.get("kernel").one_of(sources)
    for a in l.get("args").items(1000):
        if a.text() not in buffers:
            raise a.bad("a buffer of the group")
    for s in l.get("sizes").items(100):
        s.integer(-(1 << 62), 1 << 62)
    grid = l.get("grid").items(3)
    if len(grid) != 3:
        raise l.get("grid").bad("three numbers")
    for extent, limit in zip(grid, _GRID, strict=True):
        extent.integer(0, limit)
    l.get("block").integer(1, 1024)
    l.get("smem").integer(0, 1 << 20)
    cluster = l.get("cluster", [1, 1, 1]).items(3)
    if len(cluster) != 3 or math.prod(c.integer(1, 16) for c in cluster) > 16:
        raise l.get("cluster").bad("three numbers whose product is at most 16")
    for w in l.get("work", []).items(16):
        w.get("dtype").one_of(DTYPES)
        w.get("count").integer(0, _MOST_BYTES >> 3)
        if type(w.get("zeroed").value) is not bool:
            raise w.get("zeroed").bad("true or false")
    for m in l.get("maps", []).items(16):
        m.get("arg").integer(0, len(l.value["args"]) - 1)
        m.get("dtype").one_of(MAP_TYPES)
        m.get("offset").integer(0, 1 << 40)
        m.get("swizzle").integer(0, 128)
        ranks = {len(m.get(k).items(5)) for k in ("shape", "strides", "box")}
        if len(ranks) != 1 or 0 in ranks:
            raise m.bad("a tensor map of 1 to 5 dimensions")
        for k in ("shape", "strides", "box"):
            for e in m.get(k).items(5):
                e.integer(1, 1 << 40)
