"""A KV cache whose rows have lengths of their own: token p of a row lies in column p of that row.

Hugging Face's caches append the same number of columns to every row, so a batch of episodes would pay, at each turn,
for the longest observation and the longest reply among them. Here a forward writes each token to the column of its
position and attends to the columns up to it: rows need no common length, and any subset of the rows can be fed.
Buffers are allocated ahead and grow in blocks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK = 64  # columns; growing copies the buffers


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Where one forward of (n, T) left-padded input reads and writes, the same for each layer (N real tokens)."""

    rows: Tensor | None  # (n,) cache rows that attend; None: all of them, in order
    source: Tensor  # (N,) place in the input, row * T + column
    row: Tensor  # (N,) cache row that each token is written to
    column: Tensor  # (N,) and its column there
    columns: int  # how many cache columns are attended to


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, each (rows, columns, heads, size): a token is one piece of memory, copied whole."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        self._plan: Plan | None = None

    def begin(self, plan: Plan, target: Tensor) -> None:
        """`target` (N,) is where the plan's tokens go, row * columns + column."""
        self._plan, self._target = plan, target

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._buffer(key_states), self._buffer(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the new states, (n, heads, T, size); those to attend to, (n, heads, columns, size)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._store(self.keys, key_states), self._store(self.values, value_states)

    def select(self, rows: Tensor) -> None:
        """Keep `rows`, in this order."""
        self.rows = len(rows)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def grow(self, columns: int) -> None:
        pad = (0, 0, 0, 0, 0, columns - self.columns)
        self.columns = columns
        if self.keys is not None and self.values is not None:
            self.keys, self.values = torch.nn.functional.pad(self.keys, pad), torch.nn.functional.pad(self.values, pad)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        return self._plan.columns if self._plan else 0

    def get_max_length(self) -> int:
        return -1

    def _buffer(self, states: Tensor) -> Tensor:
        """Zeros: a column that was never written has to be finite, because a masked NaN is still a NaN."""
        return states.new_zeros((self.rows, self.columns, states.shape[1], states.shape[3]))

    def _store(self, buffer: Tensor | None, states: Tensor) -> Tensor:
        assert buffer is not None
        assert self._plan is not None, "begin() comes before a forward"
        tokens = states.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self._plan.source)
        buffer.flatten(2).flatten(0, 1).index_copy_(0, self._target, tokens)
        attended = buffer[:, : self._plan.columns]
        if self._plan.rows is not None:
            attended = attended.index_select(0, self._plan.rows)
        return attended.transpose(1, 2)


class RowCache(Cache):
    """One `RowLayer` a layer of the model. Call `begin` before each forward."""

    def __init__(self, layers: int, rows: int, columns: int = BLOCK) -> None:
        self.columns = columns
        self._rows = [RowLayer(rows, columns) for _ in range(layers)]
        super().__init__(layers=list(self._rows))

    def begin(self, plan: Plan) -> None:
        """Make room for the plan's columns and hand it to every layer."""
        if plan.columns > self.columns:
            self.columns = -(-plan.columns // BLOCK) * BLOCK
            for layer in self._rows:
                layer.grow(self.columns)
        target = plan.row * self.columns + plan.column
        for layer in self._rows:
            layer.begin(plan, target)

    def select(self, rows: Tensor) -> None:
        """Release all rows but `rows`."""
        for layer in self._rows:
            layer.select(rows)
