"""The `transformers` engine: batched sampling in process, from the very module that the learner trains.

A session keeps its KV cache across turns. One turn is a prefill of what is new (the last sampled token of the turn
before and the observation), then one forward a token over the rows that are not done; the token that ends a reply costs
no forward of its own. Rows with much to read would make the others pay for padding, so the prefill is split by length.

After an update `adopt` names the new weights: a session in progress then reads its rows again from the start, because
keys and values of old weights are worth nothing, and goes on as a fresh engine would from the same tokens.
"""

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.core import Reply
from actors.engines.cache import Plan, RowCache
from actors.engines.draw import Draw, Uniforms, admit, draw
from actors.engines.trie import Node, TokenTrie
from actors.sampling import Sampling
from protos.errors import ConfigError
from protos.records import Stop, TokenIds, Version
from protos.tokens import TextTokenizer

log = logging.getLogger(__name__)

FORWARD_COST = 64  # what a forward costs beside its tokens, in tokens: below it, splitting a prefill does not pay


class TransformersEngine:
    """Samples from `model`, a Hugging Face causal LM that is shared, not copied: `adopt` names its new weights."""

    def __init__(self, model: Any, tokenizer: TextTokenizer, sampling: Sampling, version: Version) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._sampling, self._version = sampling, version
        self.adoptions = 0  # a session compares it to tell whether its cache is still good
        self._check(model.config)
        log.info("sampling: %s (the checkpoint's generation_config is not used)", sampling)

    @property
    def version(self) -> Version:
        return self._version

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    def adopt(self, version: Version) -> None:
        """The module's weights are now `version`. Call it once the update has succeeded, between replies."""
        self._version = version
        self.adoptions += 1

    def session(self, seeds: Sequence[int], *, sampling: Sampling | None = None) -> "TransformersSession":
        """Open a session of one row a seed, with the engine's sampling or another."""
        return TransformersSession(self, seeds, sampling or self._sampling)

    def _check(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ConfigError(
                f"the transformers engine needs full attention in every layer; {config.model_type} has {kinds}"
            )
        if config._attn_implementation not in ("sdpa", "eager"):
            raise ConfigError(f"load the model with attn_implementation='sdpa', not {config._attn_implementation!r}")
        if config.vocab_size < self.tokenizer.size:
            raise ConfigError(f"the tokenizer has {self.tokenizer.size} tokens, the model only {config.vocab_size}")


class TransformersSession:
    """See `actors.core.Session`. A row's replies depend on its seed and tokens alone, up to rounding in sums."""

    def __init__(self, engine: TransformersEngine, seeds: Sequence[int], sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self._uniforms = Uniforms(seeds)
        self._history = History(len(seeds))
        self._rows = np.arange(len(seeds))  # the session's row in each row of the cache
        self._read = np.zeros(len(seeds), dtype=np.int64)  # tokens of each session row that the cache holds
        self._forget()

    def reply(
        self, rows: Sequence[int], new_tokens: Sequence[TokenIds], allowed: Sequence[Sequence[TokenIds]] | None = None
    ) -> list[Reply]:
        """See `actors.core.Session.reply`. `rows` are distinct, and never come back once they were left out."""
        if self._sampling.constrained and allowed is None:
            raise ValueError("sampling is constrained: `allowed` has to list the admissible replies")
        for row, tokens in zip(rows, new_tokens, strict=True):
            self._history.extend(row, tokens)
        self._keep(np.asarray(rows, dtype=np.int64))
        tries = self._tries(allowed) if self._sampling.constrained and allowed is not None else None
        model = self._engine.model
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                return self._sample(tries).replies(self._engine.version, self._engine.tokenizer.eoa_id)
        finally:
            model.train(training)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows = self._rows[:0]
        self._forget()

    def _tries(self, allowed: Sequence[Sequence[TokenIds]]) -> list[Node]:
        return [TokenTrie(replies, self._engine.tokenizer.eoa_id).root for replies in allowed]

    def _forget(self) -> None:
        """Start with an empty cache: nothing has been read."""
        self._cache = RowCache(self._engine.model.config.num_hidden_layers, len(self._rows))
        self._read[:] = 0
        self._adoptions = self._engine.adoptions

    def _keep(self, rows: NDArray[np.int64]) -> None:
        """Let cache row j hold session row `rows[j]`; drop everything where the weights have changed."""
        if not np.array_equal(rows, self._rows):
            place = np.zeros(len(self._read), dtype=np.int64)
            place[self._rows] = np.arange(len(self._rows))
            self._cache.select(torch.from_numpy(place[rows]).to(self._engine.model.device))
            self._rows = rows
        if self._adoptions != self._engine.adoptions:
            self._forget()

    def _sample(self, nodes: list[Node] | None) -> "Turn":
        turn = Turn(len(self._rows), self._sampling.max_reply_tokens, nodes)
        logits = self._prefill()
        live = np.arange(len(self._rows))
        while True:
            if nodes is not None:
                logits = admit(logits, turn.admissible(live))
            drawn = draw(logits, self._uniforms.next(self._rows[live]), self._sampling)
            tokens = turn.record(live, drawn)
            self._history.append(self._rows[live], tokens)
            live = live[tokens != self._engine.tokenizer.eoa_id]
            if turn.full or not len(live):
                return turn
            logits = self._feed(live)

    def _prefill(self) -> Tensor:
        """Read everything new, rows of similar length in one forward; (n, V) logits at the last tokens."""
        unread = self._history.size[self._rows] - self._read[self._rows]
        logits = None
        for rows in split_by_length(unread, FORWARD_COST):
            part = self._feed(rows)
            if len(rows) == len(self._rows):
                return part
            if logits is None:
                logits = part.new_empty((len(self._rows), part.shape[-1]))
            logits[torch.from_numpy(rows).to(part.device)] = part
        assert logits is not None
        return logits

    def _feed(self, rows: NDArray[np.int64]) -> Tensor:
        """Read what cache rows `rows` (b,) have not read, left-padded to T; (b, V) logits at the last tokens."""
        model, index = self._engine.model, self._rows[rows]
        start, stop = self._read[index], self._history.size[index]
        width = int((stop - start).max())
        positions = np.arange(width) + (stop - width)[:, None]  # (b, T), columns of the cache
        row, column = np.nonzero(positions >= start[:, None])
        positions = positions.clip(0)
        columns = int(stop.max())
        self._check_length(columns)
        everyone = len(rows) == len(self._rows)
        self._cache.begin(
            Plan(
                rows=None if everyone else self._tensor(rows),
                source=self._tensor(row * width + column),
                row=self._tensor(rows[row]),
                column=self._tensor(positions[row, column]),
                columns=columns,
            )
        )
        place = self._tensor(positions)
        output = model(
            input_ids=self._tensor(self._history.ids[index[:, None], positions]),
            attention_mask=self._mask(place, columns),
            position_ids=place,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._read[index] = stop
        return output.logits[:, -1]

    def _mask(self, positions: Tensor, columns: int) -> Tensor:
        """(b, 1, T, columns): a token sees the columns up to its own, which the forward has just filled."""
        visible = (torch.arange(columns, device=positions.device) <= positions[:, :, None])[:, None]
        if self._engine.model.config._attn_implementation == "sdpa":
            return visible
        dtype = self._engine.model.dtype
        return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)

    def _check_length(self, columns: int) -> None:
        limit = getattr(self._engine.model.config, "max_position_embeddings", columns)
        if columns > limit:
            raise ConfigError(f"an episode has {columns} tokens, the model takes {limit}: lower prompt.max_tokens")

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._engine.model.device, torch.int64)


class History:
    """The token ids of every row, fed and sampled, in one array that grows."""

    def __init__(self, rows: int) -> None:
        self.ids = np.zeros((rows, 256), dtype=np.int32)  # (rows, capacity)
        self.size = np.zeros(rows, dtype=np.int64)

    def extend(self, row: int, tokens: TokenIds) -> None:
        """Append the prompt `tokens` to one row."""
        size = int(self.size[row])
        self._reserve(size + len(tokens))
        self.ids[row, size : size + len(tokens)] = tokens
        self.size[row] += len(tokens)

    def append(self, rows: NDArray[np.int64], tokens: TokenIds) -> None:
        """Append one sampled token to each of `rows`."""
        self._reserve(int(self.size[rows].max()) + 1)
        self.ids[rows, self.size[rows]] = tokens
        self.size[rows] += 1

    def _reserve(self, columns: int) -> None:
        if columns > self.ids.shape[1]:
            self.ids = np.pad(self.ids, ((0, 0), (0, max(columns, 2 * self.ids.shape[1]) - self.ids.shape[1])))


class Turn:
    """What n rows sample in one turn, token by token: arrays (n, limit), converted once at the end."""

    def __init__(self, rows: int, limit: int, nodes: list[Node] | None) -> None:
        self._ids = np.zeros((rows, limit), dtype=np.int32)
        self._log_probs = np.zeros((rows, limit), dtype=np.float32)
        self._entropies = np.zeros((rows, limit), dtype=np.float32)
        self._length = np.zeros(rows, dtype=np.int64)
        self._nodes = nodes
        self._allowed: list[list[TokenIds]] = [[] for _ in range(rows)]
        self._step = 0

    @property
    def full(self) -> bool:
        return self._step == self._ids.shape[1]

    def admissible(self, rows: NDArray[np.int64]) -> list[TokenIds]:
        """The ids that may come next in each of `rows`, noted for the record."""
        assert self._nodes is not None
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

    def replies(self, version: Version, stop: int) -> list[Reply]:
        return [
            Reply(
                token_ids=self._ids[row, :n],
                log_probs=self._log_probs[row, :n],
                entropies=self._entropies[row, :n],
                stop=Stop.STOP if self._ids[row, n - 1] == stop else Stop.LENGTH,
                versions=((n, version),),
                allowed=tuple(self._allowed[row]) if self._nodes is not None else None,
            )
            for row, n in enumerate(self._length.tolist())
        ]


def split_by_length(lengths: NDArray[np.int64], forward_cost: int) -> list[NDArray[np.int64]]:
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
        groups.append(np.nonzero((lengths >= values[cut[end]]) & (lengths <= values[end - 1]))[0])
        end = cut[end]
    return groups
