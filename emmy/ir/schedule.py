"""The schedule codec: one row names one complete schedule; parse and print are inverse.

    WORK=w2x2,TILE=mma_m16n8k16_f16_f32/f2x2/k4,REDUCE=,STAGE=d2/smem-tma,RASTER=

    WORK   workers of a block: `t256`, `t32x16` threads; `w2x2` warps; `+p1` producer warps; `+pp` ping-pong
    TILE   what each worker holds: `f4x8`; `mma_m16n8k16_bf16_f32/f2x4/k4`; `wgmma_m64n256k16_bf16_f32/f2x1/k4`
    REDUCE how a summed axis is divided: `` serial; `coop` across threads; `coop/r2` two accumulators each;
           `g8` over 8 blocks, finished inside the launch; `g8a` by atomics; `g8k` by a finishing launch; `sk` over
           blocks that stay, each with an equal share of the stages of all tiles
    STAGE  how operands reach fast memory: `d3/smem-async`, `d4/smem-tma/c2`, `d1/smem`; `turn` what runs along the
           sum lies across it there; `reg` the left ones by way of registers in which they are computed; `out` results
           through shared memory
    RASTER order of blocks: `` row major; `gm8` grouped; `persist`

A kernel with several scheduled steps may suffix a key: `TILE@scores=…`.  A suffixed value that equals the plain one is
left out, so every schedule has one spelling.  A pin is any subset of a row's keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from emmy.errors import PinError
from emmy.ir.config import KernelConfig

KNOBS: Final = ("WORK", "TILE", "REDUCE", "STAGE", "RASTER")
_DIMS = r"[1-9]\d*(?:x[1-9]\d*)?"
_WORK = re.compile(rf"(?P<unit>[tw])(?P<dims>{_DIMS})(?:\+p(?P<producers>[1-9]\d*))?(?P<pingpong>\+pp)?")
_REDUCE_SPLIT = re.compile(r"g(?P<parts>[1-9]\d*)(?P<finish>[ak]?)")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_STEP = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Work:
    """`unit` t (threads) or w (warps); `dims` one or two counts."""

    unit: str
    dims: tuple[int, ...]
    producers: int = 0
    pingpong: bool = False

    @property
    def text(self) -> str:
        tail = (f"+p{self.producers}" if self.producers else "") + ("+pp" if self.pingpong else "")
        return self.unit + "x".join(map(str, self.dims)) + tail

    @property
    def threads(self) -> int:
        """Threads of a block, producer warps included."""
        n = 32 if self.unit == "w" else 1
        for d in self.dims:
            n *= d
        return n + 32 * self.producers

    @staticmethod
    def parse(text: str) -> Work:
        m = _WORK.fullmatch(text)
        if m is None:
            raise _bad("WORK", text, "t256, t32x16, w2x2, w2x2+p1, w2x1+p1+pp")
        dims = tuple(int(d) for d in m["dims"].split("x"))
        return Work(m["unit"], dims, int(m["producers"] or 0), m["pingpong"] is not None)


@dataclass(frozen=True, slots=True)
class Tile:
    """`instruction` names a matrix instruction or is empty; `fragment` one or two counts; `k` steps a stage."""

    instruction: str = ""
    fragment: tuple[int, ...] = ()
    k: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, n, k) of the instruction."""
        m = _SHAPE.search(self.instruction)
        assert m is not None, self.instruction
        return int(m[1]), int(m[2]), int(m[3])

    @property
    def factor(self) -> str:
        """Type of the instruction's factors."""
        return self.instruction.split("_")[2]

    @property
    def text(self) -> str:
        parts = [self.instruction] if self.instruction else []
        parts += ["f" + "x".join(map(str, self.fragment))] if self.fragment else []
        parts += [f"k{self.k}"] if self.k else []
        return "/".join(parts)

    @staticmethod
    def parse(text: str) -> Tile:
        instruction, k = "", 0
        fragment: tuple[int, ...] = ()
        for n, part in enumerate(p for p in text.split("/") if text):
            if re.fullmatch(rf"f{_DIMS}", part) and not fragment and not k:
                fragment = tuple(int(d) for d in part[1:].split("x"))
            elif re.fullmatch(r"k[1-9]\d*", part) and not k:
                k = int(part[1:])
            elif n == 0 and re.fullmatch(r"w?g?mma_[a-z0-9_]+", part):
                instruction = part
            else:
                raise _bad("TILE", text, "f8, f4x8, f4x8/k16, mma_m16n8k16_bf16_f32/f2x4/k4, or nothing")
        return Tile(instruction, fragment, k)


@dataclass(frozen=True, slots=True)
class Reduce:
    """`coop` across the threads of a block with `accumulators` each; `parts` blocks, `finish` `` in launch, a, k.

    `stream`: blocks take equal shares of the work, wherever tiles begin.
    """

    coop: bool = False
    accumulators: int = 1
    parts: int = 0
    finish: str = ""
    stream: bool = False

    @property
    def text(self) -> str:
        if self.stream:
            return "sk"
        parts = (["coop"] if self.coop else []) + ([f"r{self.accumulators}"] if self.accumulators > 1 else [])
        return "/".join(parts + ([f"g{self.parts}{self.finish}"] if self.parts else []))

    @staticmethod
    def parse(text: str) -> Reduce:
        if text == "sk":
            return Reduce(stream=True)
        coop, accumulators, parts, finish, order = False, 1, 0, "", 0
        for part in (p for p in text.split("/") if text):
            m = _REDUCE_SPLIT.fullmatch(part)
            if part == "coop" and order < 1:
                coop, order = True, 1
            elif re.fullmatch(r"r([2-9]|[1-9]\d+)", part) and order < 2:
                accumulators, order = int(part[1:]), 2
            elif m and order < 3:
                parts, finish, order = int(m["parts"]), m["finish"], 3
            else:
                raise _bad("REDUCE", text, "coop, coop/r2, g8, g8a, g8k, coop/g8, sk, or nothing (serial)")
        return Reduce(coop, accumulators, parts, finish)


@dataclass(frozen=True, slots=True)
class Stage:
    """`depth` buffers through `where` (smem, smem-async, smem-tma), multicast over `cluster`; `registers`, `out`.

    `turn`: operands that run along the sum lie across it in shared memory.
    """

    depth: int = 0
    where: str = ""
    cluster: int = 0
    registers: bool = False
    out: bool = False
    turn: bool = False

    @property
    def text(self) -> str:
        parts = [f"d{self.depth}", self.where] if self.depth else []
        parts += ([f"c{self.cluster}"] if self.cluster else []) + (["turn"] if self.turn else [])
        return "/".join(parts + (["reg"] if self.registers else []) + (["out"] if self.out else []))

    @staticmethod
    def parse(text: str) -> Stage:
        m = re.fullmatch(
            r"(?:d(?P<depth>[1-9]\d*)/(?P<where>smem(?:-async|-tma)?)(?:/c(?P<cluster>[1-9]\d*))?(?P<turn>/turn)?)?"
            r"(?P<reg>/?reg)?(?P<out>/?out)?",
            text,
        )
        allowed = "d3/smem-async, d4/smem-tma, d4/smem-tma/c2, d3/smem-async/turn, d1/smem, reg, out, or nothing"
        if m is None:
            raise _bad("STAGE", text, allowed)
        depth, cluster = int(m["depth"] or 0), int(m["cluster"] or 0)
        stage = Stage(
            depth, m["where"] or "", cluster, m["reg"] is not None, m["out"] is not None, m["turn"] is not None
        )
        if stage.text != text:
            raise _bad("STAGE", text, allowed)
        return stage


@dataclass(frozen=True, slots=True)
class Raster:
    group: int = 0
    persist: bool = False

    @property
    def text(self) -> str:
        return "/".join(([f"gm{self.group}"] if self.group else []) + (["persist"] if self.persist else []))

    @staticmethod
    def parse(text: str) -> Raster:
        m = re.fullmatch(r"(?:gm(?P<group>[1-9]\d*))?(?P<persist>/?persist)?", text)
        raster = None if m is None else Raster(int(m["group"] or 0), m["persist"] is not None)
        if raster is None or raster.text != text:
            raise _bad("RASTER", text, "gm8, persist, gm8/persist, or nothing (row major)")
        return raster


Field = Work | Tile | Reduce | Stage | Raster
_PARSERS: Final[dict[str, Callable[[str], Field]]] = {
    "WORK": Work.parse, "TILE": Tile.parse, "REDUCE": Reduce.parse, "STAGE": Stage.parse, "RASTER": Raster.parse,
}  # fmt: skip


def _bad(knob: str, text: str, allowed: str) -> PinError:
    return PinError(f"{knob}={text} is not a schedule", f"{knob} takes {allowed}")


def parse_field(knob: str, text: str) -> Field:
    """The value of one knob; PinError says what is allowed."""
    if knob not in _PARSERS:
        raise PinError(f"unknown knob {knob!r}", f"use one of {', '.join(KNOBS)}, or KNOB@step")
    return _PARSERS[knob](text)


@dataclass(frozen=True)
class Row:
    """One complete schedule.  `steps` holds (knob, step, value) where a step differs from the plain value, sorted."""

    work: Work
    tile: Tile = Tile()
    reduce: Reduce = Reduce()
    stage: Stage = Stage()
    raster: Raster = Raster()
    steps: tuple[tuple[str, str, Field], ...] = ()

    def __post_init__(self) -> None:
        plain = self.plain
        kept = {(k, s): v for k, s, v in self.steps if v != plain[k]}
        ordered = sorted(kept.items(), key=lambda item: (KNOBS.index(item[0][0]), item[0][1]))
        object.__setattr__(self, "steps", tuple((k, s, v) for (k, s), v in ordered))

    @property
    def plain(self) -> dict[str, Field]:
        values = (self.work, self.tile, self.reduce, self.stage, self.raster)
        return dict(zip(KNOBS, values, strict=True))

    def at(self, knob: str, step: str) -> Field:
        """The value of a knob for one step."""
        return next((v for k, s, v in self.steps if (k, s) == (knob, step)), self.plain[knob])

    @cached_property
    def text(self) -> str:
        parts: list[str] = []
        for knob, value in self.plain.items():
            parts.append(f"{knob}={value.text}")
            parts += [f"{k}@{s}={v.text}" for k, s, v in self.steps if k == knob]
        return ",".join(parts)

    @staticmethod
    def parse(text: str) -> Row:
        """The row that prints as `text`.  Every knob must be there once; PinError otherwise."""
        pin = Pin.parse(text)
        plain = {knob: value for knob, step, value in pin.settings if not step}
        missing = [k for k in KNOBS if k not in plain]
        if missing:
            missed = ", ".join(missing)
            raise PinError(f"{text!r} is not a whole row: {missed} missing", "write every knob, or use a pin")
        steps = tuple(s for s in pin.settings if s[1])
        work, tile, reduce, stage, raster = (plain[k] for k in KNOBS)
        return Row(work, tile, reduce, stage, raster, steps)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Pin:
    """A wish for part of a row: (knob, step or empty, value)."""

    settings: tuple[tuple[str, str, Field], ...] = ()

    @staticmethod
    def parse(text: str) -> Pin:
        """`WORK=t256,REDUCE=coop`; a knob twice, an unknown knob or a bad value raise PinError."""
        settings: list[tuple[str, str, Field]] = []
        for part in (p.strip() for p in text.split(",") if p.strip()):
            key, eq, value = part.partition("=")
            knob, at, step = key.strip().partition("@")
            if not eq:
                raise PinError(f"{part!r} is not KNOB=value", f"the knobs are {', '.join(KNOBS)}")
            if at and not _STEP.fullmatch(step):
                raise PinError(f"{key!r}: a step is a lower-case word", "for example TILE@scores")
            if any((k, s) == (knob, step) for k, s, _ in settings):
                raise PinError(f"{key} is set twice in {text!r}", "keep one of the two")
            settings.append((knob, step, parse_field(knob, value.strip())))
        return Pin(tuple(settings))

    @property
    def text(self) -> str:
        return ",".join(f"{k}{'@' + s if s else ''}={v.text}" for k, s, v in self.settings)

    def matches(self, row: Row) -> bool:
        """True when the row has every wished value (a plain wish also binds the steps that are not named apart)."""
        named = {(k, s) for k, s, _ in self.settings if s}
        for knob, step, value in self.settings:
            if step:
                if row.at(knob, step) != value:
                    return False
                continue
            others = [v for k, s, v in row.steps if k == knob and (k, s) not in named]
            if row.plain[knob] != value or any(v != value for v in others):
                return False
        return True


def short_row(text: str) -> str:
    """A row without its empty knobs, for people to read: as a pin it says less."""
    return ",".join(p for p in text.split(",") if not p.endswith("="))


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One legal schedule of a body: the code generator that takes it, its row, and what it means for cost."""

    family: str
    row: Row
    config: KernelConfig
