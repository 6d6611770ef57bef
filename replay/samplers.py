"""Samplers choose what a reader gets, removers what leaves a full table: two choices, made apart for each table.

sampler.insert(key, priority); keys, importance = sampler.sample(count, rng); sampler.delete(key)

Keys are a table's item numbers, which only grow. `order` and `arrange` carry the one thing that draws depend on beside
priorities, so that a restored sampler draws what the saved one would have drawn.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from replay.sumtree import FloatArray, SumTree


class Sampler(Protocol):
    def insert(self, key: int, priority: float) -> None: ...

    def delete(self, key: int) -> None: ...

    def update(self, key: int, priority: float) -> None: ...

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        """Up to `count` keys, and the importance weight of each: 1 for the least likely item of the table."""
        ...

    def order(self) -> list[int]:
        """All keys, in the order that draws depend on."""
        ...

    def arrange(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        """Fill an empty sampler in the `order` of a saved one."""
        ...


class Remover(Protocol):
    def insert(self, key: int, priority: float) -> None: ...

    def delete(self, key: int) -> None: ...

    def update(self, key: int, priority: float) -> None: ...

    def choose(self) -> int:
        """The key that leaves next."""
        ...


class Fifo:
    """The earliest keys first, each once; as a sampler and as a remover."""

    def __init__(self) -> None:
        # Not a dict: finding the first key of one whose front was deleted walks over all that is gone.
        self._keys: OrderedDict[int, None] = OrderedDict()
        self._last = -1

    def insert(self, key: int, priority: float) -> None:
        self._keys[key] = None
        if key < self._last:  # an item that comes back takes its old place
            self._keys = OrderedDict.fromkeys(sorted(self._keys))
        self._last = max(self._last, key)

    def delete(self, key: int) -> None:
        del self._keys[key]

    def update(self, key: int, priority: float) -> None:
        pass  # age alone decides

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        keys = list(islice(self._keys, count))
        return keys, np.ones(len(keys))

    def choose(self) -> int:
        return next(iter(self._keys))

    def order(self) -> list[int]:
        return list(self._keys)

    def arrange(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        self._keys = OrderedDict.fromkeys(keys)
        self._last = max(keys, default=-1)


class Lowest:
    """A remover: the item of lowest priority leaves first, the older of two alike."""

    def __init__(self) -> None:
        self._priority: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def insert(self, key: int, priority: float) -> None:
        self._priority[key] = priority
        heapq.heappush(self._heap, (priority, key))

    def delete(self, key: int) -> None:
        del self._priority[key]
        if (
            len(self._heap) > 2 * len(self._priority) + 64
        ):  # entries of deleted and updated keys stay until they are many
            self._heap = [(priority, key) for key, priority in self._priority.items()]
            heapq.heapify(self._heap)

    def update(self, key: int, priority: float) -> None:
        self.delete(key)
        self.insert(key, priority)

    def choose(self) -> int:
        while True:
            priority, key = self._heap[0]
            if self._priority.get(key) == priority:
                return key
            heapq.heappop(self._heap)


class Uniform:
    """Independent draws, all items alike. Keys stand in a dense list; the last one fills the gap of one deleted."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._place: dict[int, int] = {}

    def insert(self, key: int, priority: float) -> None:
        self._place[key] = len(self._keys)
        self._keys.append(key)

    def delete(self, key: int) -> None:
        place = self._place.pop(key)
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._place[last] = place

    def update(self, key: int, priority: float) -> None:
        pass  # all items are alike

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        if not self._keys:
            return [], np.ones(0)
        return [self._keys[i] for i in rng.integers(len(self._keys), size=count)], np.ones(count)

    def order(self) -> list[int]:
        return list(self._keys)

    def arrange(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        for key, priority in zip(keys, priorities, strict=True):
            self.insert(key, priority)


class Prioritised(Uniform):
    """Independent draws with P(i) = p_i^alpha / sum_k p_k^alpha (proportional variant of arXiv 1511.05952, eq. 1).

    Importance weights are (N P(i))^-beta (sec. 3.4) divided by the greatest of the whole table: an item's weight does
    not depend on what it was drawn with. A priority below `floor` counts as `floor`; this class alone applies the
    exponent.
    """

    def __init__(self, exponent: float, importance_exponent: float, floor: float) -> None:
        super().__init__()
        self._exponent = exponent
        self._importance_exponent = importance_exponent
        self._floor = floor
        self._tree = SumTree()

    def insert(self, key: int, priority: float) -> None:
        self._tree[len(self._keys)] = self._mass(priority)
        super().insert(key, priority)

    def delete(self, key: int) -> None:
        place, last = self._place[key], len(self._keys) - 1
        self._tree[place] = self._tree[last]
        self._tree[last] = 0.0
        super().delete(key)

    def update(self, key: int, priority: float) -> None:
        self._tree[self._place[key]] = self._mass(priority)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        if not self._keys:
            return [], np.ones(0)
        leaves = self._tree.find(rng.random(count) * self._tree.total)
        masses = self._tree.masses(len(self._keys))
        importance = (masses.min() / masses[leaves]) ** self._importance_exponent
        return [self._keys[leaf] for leaf in leaves], importance

    def _mass(self, priority: float) -> float:
        return max(priority, self._floor) ** self._exponent


class TopFraction(Uniform):
    """Even draws from S_alpha, the ceil(alpha N) of highest priority, ties to the earlier (arXiv 2606.02388, eq. 4)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha
        self._priority: dict[int, float] = {}
        self._top: list[int] | None = None  # computed when a draw needs it, forgotten at a change

    def insert(self, key: int, priority: float) -> None:
        super().insert(key, priority)
        self._priority[key] = priority
        self._top = None

    def delete(self, key: int) -> None:
        super().delete(key)
        del self._priority[key]
        self._top = None

    def update(self, key: int, priority: float) -> None:
        self._priority[key] = priority
        self._top = None

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        if not self._keys:
            return [], np.ones(0)
        if self._top is None:
            self._top = self._select()
        return [self._top[i] for i in rng.integers(len(self._top), size=count)], np.ones(count)

    def _select(self) -> list[int]:
        keys = np.fromiter(self._priority, dtype=np.int64, count=len(self._priority))
        priorities = np.fromiter(self._priority.values(), dtype=np.float64, count=len(self._priority))
        size = math.ceil(self._alpha * len(keys) - 1e-9)  # 0.7 * 10 is 7, whatever floating point makes of it
        return keys[np.lexsort((keys, -priorities))[: max(size, 1)]].tolist()
