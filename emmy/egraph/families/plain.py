"""Facts and rows of the plain family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emmy.ir.config import KernelConfig
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body
from emmy.ir.schedule import Row, Work
from emmy.ir.target import Target
from emmy.ir.views.flat import total


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]]:
    return {"plain-body": [(body.hash,)]}


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, threads, _ in found:
        yield body, Row(Work("t", (threads,)))


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    points = max(integer(total(o.axes), sizes) for o in body.outs)
    threads = row.work.threads
    return KernelConfig("plain", threads, max(1, -(-points // threads)), tile_n=threads, registers=40)
