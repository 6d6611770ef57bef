"""The `transformers` engine: batched sampling in process, from the very module that the learner trains.

A session keeps its KV cache across turns, as far as a row's next context agrees with what it has read. One turn is a prefill
of what is new (under an `append` prompt the last sampled token of the turn before and the observation), then one forward
a token over the rows that are not done; the token that ends a reply costs no forward of its own.

After an update `adopt` names the new weights: a session in progress then reads its rows again from the start, because
keys and values of old weights are worth nothing, and goes on as a fresh engine would from the same tokens.
"""

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from actors.core import Reply
from actors.engines.draw import Uniforms, admit, draw
from actors.engines.reader import Reader
from actors.engines.trie import TokenTrie
from actors.engines.turn import Turn
from actors.sampling import Sampling
from protos.errors import ConfigError
from protos.records import TokenIds, Version
from protos.tokens import TextTokenizer

log = logging.getLogger(__name__)


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
        self._reader = Reader(engine.model, len(seeds))
        self._rows = np.arange(len(seeds))  # the session's row in each row of the reader
        self._adoptions = engine.adoptions

    def reply(
        self, rows: Sequence[int], contexts: Sequence[TokenIds], allowed: Sequence[Sequence[TokenIds]] | None = None
    ) -> list[Reply]:
        """See `actors.core.Session.reply`. `rows` are distinct, and never come back once they were left out."""
        if self._sampling.constrained and allowed is None:
            raise ValueError("sampling is constrained: `allowed` has to list the admissible replies")
        self._keep(rows)
        for place, context in enumerate(contexts):
            self._reader.place(place, context)
        if self._adoptions != self._engine.adoptions:
            self._reader.forget()
            self._adoptions = self._engine.adoptions
        model = self._engine.model
        training = model.training
        if training:  # walking the modules takes as long as a small forward
            model.eval()
        try:
            with torch.inference_mode():
                return self._sample(allowed if self._sampling.constrained else None)
        finally:
            if training:
                model.train()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep([])

    def _keep(self, rows: Sequence[int]) -> None:
        """Let reader row j be session row `rows[j]`."""
        if rows == self._rows.tolist():
            return
        place = {row: j for j, row in enumerate(self._rows.tolist())}
        self._reader.keep(np.array([place[row] for row in rows], dtype=np.int64))
        self._rows = np.array(rows, dtype=np.int64)

    def _sample(self, allowed: Sequence[Sequence[TokenIds]] | None) -> list[Reply]:
        stops = self._engine.tokenizer.stop_ids
        tries = [TokenTrie(replies, stops[0]) for replies in allowed] if allowed is not None else None
        turn = Turn(len(self._rows), self._sampling.max_reply_tokens, tries)
        logits = self._reader.prefill()
        live = np.arange(len(self._rows))
        while True:
            admissible = turn.admissible(live)
            if admissible is not None:
                logits = admit(logits, admissible)
            tokens = turn.record(live, draw(logits, self._uniforms.next(self._rows[live]), self._sampling))
            self._reader.append(live, tokens)
            live = live[~np.isin(tokens, stops)]
            if turn.full or not len(live):
                return turn.replies(self._engine.version, stops)
            logits = self._reader.feed(live)
