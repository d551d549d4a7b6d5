"""Which accumulators of wgmma are in flight where, as far as the order of statements says.

A wgmma's accumulators may be touched only after a WgmmaWait has ended its group.  `Flight` follows groups through
branches and loops (a body is walked twice, so that what the last round left in flight meets the next one): where ways
join, a group holds what it may hold on any of them, counted from the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from emmy.ir.kernel import For, If, Roles, S, Wgmma, WgmmaCommit, WgmmaWait, bodies, walk

Arrays = frozenset[str]
_NONE: Arrays = frozenset()


@dataclass(frozen=True, slots=True)
class Flight:
    """`groups` in flight, oldest first, by the accumulator arrays that they write; `open` is not committed yet."""

    groups: tuple[Arrays, ...] = ()
    open: Arrays = _NONE

    @property
    def arrays(self) -> Arrays:
        return self.open.union(*self.groups)

    def after(self, s: S) -> Flight:
        if isinstance(s, Wgmma):
            return Flight(self.groups, self.open | {s.acc})
        if isinstance(s, WgmmaCommit):
            return Flight((*self.groups, self.open), _NONE)
        if isinstance(s, WgmmaWait):
            return Flight(self.groups[max(0, len(self.groups) - s.pending) :], self.open)
        return self

    def joined(self, other: Flight) -> Flight:
        newest = zip_longest(reversed(self.groups), reversed(other.groups), fillvalue=_NONE)
        return Flight(tuple(a | b for a, b in reversed(list(newest))), self.open | other.open)


Visit = Callable[[S, Flight], None]


def follow(body: tuple[S, ...], visit: Visit, flight: Flight = Flight()) -> Flight:
    """Calls `visit` with every statement and what is in flight before it, once for each way that is told apart."""
    for s in body:
        visit(s, flight)
        if isinstance(s, For):
            again = flight.joined(follow(s.body, visit, flight))
            flight = flight.joined(follow(s.body, visit, again))
        elif isinstance(s, If | Roles):
            ways = [follow(b, visit, flight) for b in bodies(s)]
            flight = ways[0]
            for way in ways[1:]:
                flight = flight.joined(way)
        else:
            flight = flight.after(s)
    return flight


def settled(body: tuple[S, ...]) -> list[tuple[str, ...]]:
    """For each WgmmaWait, in the order of `walk`, the arrays that it ends: in flight before it and never after it."""
    waits = [s for s in walk(body) if isinstance(s, WgmmaWait)]
    # by object: where one object stands at several places, what holds at all of them
    ended: dict[int, set[str]] = {id(s): set() for s in waits}
    left: dict[int, set[str]] = {id(s): set() for s in waits}

    def visit(s: S, flight: Flight) -> None:
        if isinstance(s, WgmmaWait):
            after = flight.after(s)
            ended[id(s)] |= flight.arrays - after.arrays
            left[id(s)] |= after.arrays

    follow(body, visit)
    return [tuple(sorted(ended[id(s)] - left[id(s)])) for s in waits]
