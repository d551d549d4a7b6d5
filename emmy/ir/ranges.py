"""The range of an integer expression when symbolic sizes have an upper limit."""

from __future__ import annotations

from collections.abc import Mapping

from emmy.ir.loop import Ax, Const, Expr, Load, Op, Size

Range = tuple[int | None, int | None]
NARROW = 2**31 - 2**22  # room for the threads of a last, partial block
_INT_RANGE: dict[str, Range] = {"u8": (0, 255), "i8": (-128, 127), "i16": (-(2**15), 2**15 - 1), "bool": (0, 1)}
_INTEGRAL = ("i64", "i32", "i16", "i8", "u8", "bool")


class Ranges:
    """`limits` gives the greatest value of each symbolic size that has one."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self.memo: dict[Expr, Range] = {}

    def of(self, e: Expr) -> Range:
        """Smallest and largest value, None where unknown."""
        known = self.memo.get(e)
        if known is None:
            known = self.memo[e] = self._of(e)
        return known

    def narrow(self, e: Expr) -> bool:
        """True when every value fits 32 bits with room to spare."""
        low, high = self.of(e)
        return low is not None and high is not None and low > -NARROW and high < NARROW

    def _of(self, e: Expr) -> Range:
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        if isinstance(e, Ax):
            high = self.of(e.extent)[1]
            return 0, None if high is None else max(0, high - 1)
        if isinstance(e, Size):
            return 0, self.limits.get(e.name)
        if isinstance(e, Load):
            return _INT_RANGE.get(e.dtype, (None, None))
        if not isinstance(e, Op):
            return None, None
        if e.name == "cast" and e.args[0].type in _INTEGRAL and e.dtype in ("i64", "i32"):
            return self.of(e.args[0])
        if e.name in ("floordiv", "mod"):
            return self._divided(e)
        if e.name == "where":
            (a, b), (c, d) = self.of(e.args[1]), self.of(e.args[2])
            return _least(a, c), _most(b, d)
        if e.name == "neg":
            a, b = self.of(e.args[0])
            return (None if b is None else -b), (None if a is None else -a)
        if e.name in ("add", "sub", "mul", "min", "max"):
            return _arithmetic(e.name, self.of(e.args[0]), self.of(e.args[1]))
        return _INT_RANGE.get(e.dtype, (None, None))

    def _divided(self, e: Op) -> Range:
        (a, b), (c, d) = self.of(e.args[0]), self.of(e.args[1])
        if e.name == "mod":
            if c is None or c < 0:
                return None, None
            top = None if d is None else max(0, d - 1)
            return 0, top if b is None or top is None or a is None or a < 0 else min(b, top)
        if a is None or a < 0 or c is None or c < 0:
            return None, None
        return (a // d if d else 0), (None if b is None else b // max(1, c))


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _arithmetic(name: str, x: Range, y: Range) -> Range:
    (a, b), (c, d) = x, y
    if name == "add":
        return (None if a is None or c is None else a + c), (None if b is None or d is None else b + d)
    if name == "sub":
        return (None if a is None or d is None else a - d), (None if b is None or c is None else b - c)
    if name == "min":
        return _least(a, c), min((v for v in (b, d) if v is not None), default=None)
    if name == "max":
        return max((v for v in (a, c) if v is not None), default=None), _most(b, d)
    if a is None or b is None or c is None or d is None:
        return (0 if a is not None and c is not None and a >= 0 and c >= 0 else None), None
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)
