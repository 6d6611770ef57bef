"""What n rows sample in one turn, collected token by token and converted once, at the end."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.core import Reply
from actors.engines.draw import Draw
from actors.engines.trie import TokenTrie
from protos.records import Stop, TokenIds, Version


class Turn:
    """Arrays (n, limit) of drawn tokens, and the place of each row in its trie where decoding is constrained."""

    def __init__(self, rows: int, limit: int, tries: Sequence[TokenTrie] | None) -> None:
        self._ids = np.zeros((rows, limit), dtype=np.int32)
        self._log_probs = np.zeros((rows, limit), dtype=np.float32)
        self._entropies = np.zeros((rows, limit), dtype=np.float32)
        self._length = np.zeros(rows, dtype=np.int64)
        self._nodes = [trie.root for trie in tries] if tries is not None else None
        self._allowed: list[list[TokenIds]] = [[] for _ in range(rows)]
        self._step = 0

    @property
    def full(self) -> bool:
        """The reply limit is reached."""
        return self._step == self._ids.shape[1]

    def admissible(self, rows: NDArray[np.int64]) -> list[TokenIds] | None:
        """The ids that may come next in each of `rows`, noted for the record; None where decoding is free."""
        if self._nodes is None:
            return None
        admissible = [self._nodes[row].allowed for row in rows.tolist()]
        for row, ids in zip(rows.tolist(), admissible, strict=True):
            self._allowed[row].append(ids)
        return admissible

    def record(self, rows: NDArray[np.int64], drawn: Draw) -> TokenIds:
        """Store the tokens drawn for `rows`; (len(rows),) their ids."""
        ids = drawn.token_ids.cpu().numpy().astype(np.int32)
        self._ids[rows, self._step] = ids
        self._log_probs[rows, self._step] = drawn.log_probs.cpu().numpy()
        self._entropies[rows, self._step] = drawn.entropies.cpu().numpy()
        self._length[rows] += 1
        self._step += 1
        if self._nodes is not None:
            for row, token in zip(rows.tolist(), ids.tolist(), strict=True):
                self._nodes[row] = self._nodes[row].next[token]
        return ids

    def replies(self, version: Version, stops: Sequence[int]) -> list[Reply]:
        return [
            Reply(
                token_ids=self._ids[row, :n],
                log_probs=self._log_probs[row, :n],
                entropies=self._entropies[row, :n],
                stop=Stop.STOP if self._ids[row, n - 1] in stops else Stop.LENGTH,
                versions=((n, version),),
                allowed=tuple(self._allowed[row]) if self._nodes is not None else None,
            )
            for row, n in enumerate(self._length.tolist())
        ]
