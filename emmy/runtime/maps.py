"""Tensor maps of a launch, encoded for the address at which their tensor lies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from emmy.errors import PlanError
from emmy.ir.dtype import DTYPES, stored_as
from emmy.ir.plan import TensorMap
from emmy.runtime.driver import MAP_BYTES, encode_map
from emmy.runtime.sizes import Sizes, evaluate

# (type, pointer, shape, strides in bytes, box, swizzle) -> 128 bytes
Encode = Callable[[str, int, Sequence[int], Sequence[int], Sequence[int], int], bytes]
_KEPT: Final = 64  # addresses of one map: a caching allocator gives the same few again
_ALIGN: Final = 16  # bytes, of base and strides (CUDA driver API, cuTensorMapEncodeTiled)
_EMPTY: Final = bytes(MAP_BYTES)


class BoundMap:
    """A map with its sizes known.  Encoding takes the driver some microseconds, so that every address is done once.

    A tensor without elements has no map: the bytes are zeros, and a kernel has nothing to load from it.
    """

    def __init__(self, map: TensorMap, sizes: Sizes, encode: Encode = encode_map) -> None:
        size = DTYPES[stored_as(map.type)].bytes
        self.argument = map.argument
        self.shape = tuple(evaluate(e, sizes) for e in map.shape)
        self.strides = tuple(size * evaluate(e, sizes) for e in map.strides[:-1])
        self.offset = size * evaluate(map.offset, sizes)
        self._map = map
        self._encode = encode
        self._known: OrderedDict[int, bytes] = OrderedDict()
        if 0 in self.shape:
            return
        for what, bytes in (("origin", self.offset), *(("stride", n) for n in self.strides)):
            if bytes % _ALIGN:
                of = f"a tensor map of {map.type} {list(self.shape)}"
                raise PlanError(
                    f"{of} has a {what} of {bytes} bytes, no multiple of {_ALIGN}", "this schedule needs other sizes"
                )

    def at(self, pointer: int) -> bytes:
        """The map of the tensor at `pointer`, a device address."""
        if 0 in self.shape:
            return _EMPTY
        if pointer in self._known:
            self._known.move_to_end(pointer)
            return self._known[pointer]
        m = self._map
        encoded = self._encode(m.type, pointer + self.offset, self.shape, self.strides, m.box, m.swizzle)
        self._known[pointer] = encoded
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return encoded
