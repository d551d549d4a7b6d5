"""Sums of regression trees as plain arrays, evaluated by numpy for thousands of rows in one pass.

A tree has at most 16 leaves, numbered from left to right.  Every inner node carries a mask of the leaves that are still
possible where a row's feature is above its threshold (all but those of its left subtree); the leaf that a row falls
into is the lowest bit that is left of all masks of nodes whose test fails (Lucchese et al., "QuickScorer", SIGIR 2015).
Since such masks only accumulate as a feature grows, the masks of all trees are tabled by feature and by interval
between thresholds, so that a row costs one look-up a feature, whatever the number of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Masks = npt.NDArray[np.uint16]

LEAVES: Final = 16
_CHUNK: Final = 4096  # rows at a time: the masks of that many stay in cache


@dataclass(frozen=True)
class Forest:
    """`members` sums of as many trees each.

    Nodes, in any order: `feature` [nodes], `threshold` [nodes], `mask` [nodes], `tree` [nodes].  `leaf`
    [trees, LEAVES] values; tree t belongs to member t // (trees / members).
    """

    members: int
    feature: npt.NDArray[np.int16]
    threshold: Array
    mask: Masks
    tree: npt.NDArray[np.int32]
    leaf: Array

    @property
    def trees(self) -> int:
        return len(self.leaf)

    @cached_property
    def _tables(self) -> list[tuple[int, Array, Masks]]:
        """(feature, its thresholds in order, masks of all trees for each interval between them)."""
        tables = []
        for feature in np.unique(self.feature):
            mine = self.feature == feature
            thresholds, place = np.unique(self.threshold[mine], return_inverse=True)
            masks = np.full((len(thresholds) + 1, self.trees), 0xFFFF, np.uint16)
            np.bitwise_and.at(masks, (place + 1, self.tree[mine]), self.mask[mine])
            tables.append((int(feature), thresholds, np.bitwise_and.accumulate(masks, axis=0)))
        return tables

    @cached_property
    def _lowest(self) -> npt.NDArray[np.uint8]:
        """Number of the lowest bit of every mask."""
        every = np.arange(1 << LEAVES, dtype=np.uint32)
        lowest = every & (~every + 1)
        found: npt.NDArray[np.uint8] = np.log2(np.maximum(lowest, 1)).astype(np.uint8)
        return found

    def values(self, matrix: Array) -> Array:
        """[rows, members] from a matrix of features [rows, features]."""
        if not len(matrix):
            return np.zeros((0, self.members))
        return np.concatenate([self._values(matrix[k : k + _CHUNK]) for k in range(0, len(matrix), _CHUNK)])

    def _values(self, matrix: Array) -> Array:
        common = np.full(self.trees, 0xFFFF, np.uint16)
        varied: list[tuple[npt.NDArray[np.intp], Masks]] = []
        for feature, thresholds, masks in self._tables:
            place = np.searchsorted(thresholds, matrix[:, feature], side="left")
            # what describes the body is the same in all of its rows
            if (place == place[0]).all():
                common &= masks[place[0]]
            else:
                varied.append((place, masks))
        left = np.tile(common, (len(matrix), 1))
        for place, masks in varied:
            left &= masks.take(place, axis=0)
        leaf = self._lowest.take(left) + np.arange(self.trees, dtype=np.int32) * LEAVES
        found: Array = self.leaf.ravel().take(leaf).reshape(len(matrix), self.members, -1).sum(axis=2)
        return found
