"""What the model has read of each episode: token ids, the KV cache, and the forwards that bring both together.

A reader holds n rows, one an episode in progress. Tokens are first noted in the history (`place`, `append`) and later read by
the model, as many at a time as there are (`prefill`, `feed`): left-padded, so that the last position is always the one
whose logits are wanted. A row whose context changes keeps what it has read up to the first difference.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache import Plan, RowCache
from protos.errors import ConfigError
from protos.records import TokenIds

Rows = NDArray[np.int64]
FORWARD_TOKENS = 16_384  # of one prefill, padding included: bounds its memory
FORWARD_COST = 64  # what a forward costs beside its tokens, in tokens (measured: 1.2 ms against 18 us)


class Reader:
    """Reads rows of token ids with `model`, each token once."""

    def __init__(self, model: Any, rows: int) -> None:
        self._model = model
        self._ids = np.zeros((rows, 256), dtype=np.int32)  # (rows, capacity) all tokens, read or not
        self._size = np.zeros(rows, dtype=np.int64)
        self._read = np.zeros(rows, dtype=np.int64)
        self.forget()

    @property
    def rows(self) -> int:
        return len(self._size)

    def place(self, row: int, context: TokenIds) -> None:
        """Let `context` be the history of one row; at least its last token is read (again), for its logits are wanted."""
        size = len(context)
        self._reserve(size)
        agreed = self._ids[row, : min(int(self._read[row]), size - 1)]
        different = np.flatnonzero(agreed != context[: len(agreed)])
        self._read[row] = different[0] if len(different) else len(agreed)
        self._ids[row, :size] = context
        self._size[row] = size

    def append(self, rows: Rows, tokens: TokenIds) -> None:
        """Note one sampled token of each of `rows`."""
        self._reserve(int(self._size[rows].max()) + 1)
        self._ids[rows, self._size[rows]] = tokens
        self._size[rows] += 1

    def keep(self, rows: Rows) -> None:
        """Release all rows but `rows`, which become 0, 1, ... in this order."""
        self._ids, self._size, self._read = self._ids[rows], self._size[rows], self._read[rows]
        self._cache.select(self._tensor(rows))

    def forget(self) -> None:
        """Drop all that was read, as after a change of weights: the next `prefill` starts from the first token."""
        self._cache = RowCache(self._model.config.num_hidden_layers, self.rows)
        self._read[:] = 0

    def prefill(self) -> Tensor:
        """Read what is unread in every row; (n, V) logits at the last tokens.

        Rows with equal openings (the episodes of a group) are read once, and their part of the cache is copied.
        """
        if self._read.any():
            return self._prefill_distinct()
        places: dict[bytes, int] = {}
        copies = np.array(
            [places.setdefault(ids[:n].tobytes(), len(places)) for ids, n in zip(self._ids, self._size, strict=True)]
        )
        if len(places) == self.rows:
            return self._prefill_distinct()
        distinct = np.unique(copies, return_index=True)[1]
        opening = Reader(self._model, len(distinct))
        opening._ids, opening._size = self._ids[distinct], self._size[distinct]
        logits = opening._prefill_distinct()
        self._cache, self._read = opening._cache, self._size.copy()
        self._cache.select(self._tensor(copies))
        return logits.index_select(0, self._tensor(copies))

    def feed(self, rows: Rows) -> Tensor:
        """Read what is unread in `rows` (b,), in one forward over (b, T); (b, V) logits at the last tokens."""
        start, stop = self._read[rows], self._size[rows]
        width, columns = int((stop - start).max()), int(stop.max())
        self._check_length(columns)
        positions = np.arange(width) + (stop - width)[:, None]  # (b, T), columns of the cache
        real = positions >= start[:, None]
        positions = positions.clip(0)
        everyone = len(rows) == self.rows
        self._cache.begin(
            Plan(
                rows=None if everyone else self._tensor(rows),
                source=self._tensor(np.flatnonzero(real)),
                row=self._tensor(np.repeat(rows, stop - start)),
                column=self._tensor(positions[real]),
                columns=columns,
            )
        )
        place = self._tensor(positions)
        output = self._model(
            input_ids=self._tensor(self._ids[rows[:, None], positions]),
            attention_mask=self._mask(place, columns),
            position_ids=place,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._read[rows] = stop
        return output.logits[:, -1]

    def _prefill_distinct(self) -> Tensor:
        """Rows of similar length share a forward: rows with much to read would make the others pay for padding."""
        unread = self._size - self._read
        groups = [part for rows in split_by_length(unread, FORWARD_COST) for part in _within_budget(rows, unread)]
        if len(groups) == 1:
            return self.feed(groups[0])
        logits = torch.cat([self.feed(rows) for rows in groups])
        return logits.index_select(0, self._tensor(np.argsort(np.concatenate(groups))))

    def _mask(self, positions: Tensor, columns: int) -> Tensor:
        """(b, 1, T, columns), additive: a token sees the columns up to its own, which the forward has just filled."""
        hidden = torch.arange(columns, device=positions.device) > positions[:, None, :, None]
        dtype = self._model.dtype
        # Not a boolean mask: attention would turn it into this one again in every layer.
        return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)

    def _check_length(self, columns: int) -> None:
        limit = getattr(self._model.config, "max_position_embeddings", columns)
        if columns > limit:
            raise ConfigError(f"an episode has {columns} tokens, the model takes {limit}: lower prompt.max_tokens")

    def _reserve(self, columns: int) -> None:
        capacity = self._ids.shape[1]
        if columns > capacity:
            self._ids = np.pad(self._ids, ((0, 0), (0, max(columns, 2 * capacity) - capacity)))

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._model.device, torch.int64)


def split_by_length(lengths: Rows, forward_cost: int) -> list[Rows]:
    """Rows grouped by length so that forwards over padded groups cost least.

    Minimises the sum over groups of (rows * longest + forward_cost): dynamic programming over the k distinct lengths.
    """
    values, counts = np.unique(lengths, return_counts=True)
    below = np.concatenate([[0], counts.cumsum()])  # rows shorter than values[i]
    best, cut = [0.0], [0]
    for end in range(1, len(values) + 1):
        cost = np.array(best) + (below[end] - below[:end]) * values[end - 1] + forward_cost
        cut.append(int(cost.argmin()))
        best.append(float(cost.min()))
    groups, end = [], len(values)
    while end:
        groups.append(np.flatnonzero((lengths >= values[cut[end]]) & (lengths <= values[end - 1])))
        end = cut[end]
    return groups


def _within_budget(rows: Rows, lengths: Rows) -> list[Rows]:
    """`rows` in runs that one forward of FORWARD_TOKENS holds, at least one row each."""
    size = max(1, FORWARD_TOKENS // int(lengths[rows].max()))
    return [rows[start : start + size] for start in range(0, len(rows), size)]
