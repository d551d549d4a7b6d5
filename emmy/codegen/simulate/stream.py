"""The products (wgmma) that a gang's warpgroups have in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from emmy.codegen.simulate.numbers import Array
from emmy.ir.kernel import S

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import RegArray


@dataclass(slots=True)
class Product:
    at: S
    acc: RegArray
    first: int
    n: int
    type: str
    a: Array  # values [warpgroups, 64, k], or bytes of shared memory
    b: Array
    a_in_registers: bool
    accumulate: bool
    group: int
    held: list[tuple[RegArray, int]]  # registers that the product has


@dataclass(slots=True)
class Stream:
    """The products in flight of a gang's warpgroups.  `open`: number of the group that is not closed yet."""

    open: int = 1
    products: list[Product] = field(default_factory=list)
