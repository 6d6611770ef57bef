"""A sum tree over numpy arrays: writes are remembered and carried up level by level when a draw needs them."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class SumTree:
    """Leaves hold masses; node k holds the sum of nodes 2k and 2k + 1, node 1 the whole.

    A sum is always its two children's and never a running total: rounding does not drift, and a tree rebuilt from the
    same leaves draws the same. Writing is O(1); `find` is O((writes + draws) log n), vectorised.
    """

    def __init__(self, capacity: int = 1024) -> None:
        assert capacity >= 2, "a tree of one node has no leaves"
        self._leaves = 1 << (capacity - 1).bit_length()
        self._nodes: FloatArray = np.zeros(2 * self._leaves)
        self._written: set[int] = set()

    def __getitem__(self, leaf: int) -> float:
        return float(self._nodes[self._leaves + leaf])

    def __setitem__(self, leaf: int, mass: float) -> None:
        """Set one mass, finite and >= 0; the tree grows to hold `leaf`."""
        while leaf >= self._leaves:
            self._grow()
        self._nodes[self._leaves + leaf] = mass
        self._written.add(leaf)

    def masses(self, count: int) -> FloatArray:
        """(count,) the first masses; a view."""
        return self._nodes[self._leaves : self._leaves + count]

    @property
    def total(self) -> float:
        self._carry()
        return float(self._nodes[1])

    def find(self, points: FloatArray) -> IntArray:
        """(n,) The leaf under each point in [0, total): the first whose cumulative mass exceeds it, never an empty."""
        self._carry()
        rest = points.copy()
        node = np.ones(len(points), dtype=np.int64)
        while node.size and node[0] < self._leaves:
            left = 2 * node
            mass = self._nodes[left]
            # Rounding can push a point to the edge of its node: the second test keeps it out of empty leaves.
            right = (rest >= mass) & (self._nodes[left + 1] > 0)
            rest = np.where(right, rest - mass, rest)
            node = left + right
        return node - self._leaves

    def _carry(self) -> None:
        """Recompute the ancestors of what was written."""
        if not self._written:
            return
        nodes = np.fromiter(self._written, dtype=np.int64, count=len(self._written)) + self._leaves
        self._written.clear()
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def _grow(self) -> None:
        leaves = self.masses(self._leaves)
        grown = np.zeros(4 * self._leaves)
        grown[2 * self._leaves : 3 * self._leaves] = leaves
        self._written = set(range(self._leaves))
        self._leaves, self._nodes = 2 * self._leaves, grown
