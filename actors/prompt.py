"""The `append` prompt: a whole episode as one token sequence, in token ids alone.

    encode(opening) <act> | reply ... <eoa> | encode(observation) <act> | reply ... <eoa> | encode(observation)

Every text is encoded once, where it is born; replies stay the ids that were sampled and are never re-tokenised. The
KV cache is good for the whole episode, and in training each token is trained once.

**From ids to a command.** A compact tokenizer is lossy (it may drop function words, or write "cabinet 1" as "cabinet"),
so the decoded text of a reply need not be the command that it encodes. Therefore a reply is first compared, as ids,
with the encodings of the admissible commands: where they agree, that command is executed. Two commands that encode
alike cannot be told apart: the first in the environment's order is taken. Any other reply goes to the environment as
its decoded text, which the environment refuses or, where a lossless tokenizer split a good command in an unusual way,
accepts. A reply that holds special tokens or angle brackets is never executed: the environment gets an empty command,
which it refuses.

**Over-long episodes.** A turn is started only while everything so far, the new observation and a reply of full length
fit in `max_tokens`. Otherwise the episode ends there: truncated, `Stop.CONTEXT`, counted in `rollout/context_ended`.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from actors.core import Info
from protos.records import TokenIds
from protos.tokens import TextTokenizer


class Config(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """Settings of the `append` prompt."""

    max_tokens: int = Field(default=512, ge=16)
    """Tokens of the whole sequence, replies included; a turn that may not fit is not started and the episode ends."""

    on_cut_reply: Literal["end", "continue"] = "end"
    """What follows a reply that the limit cut; either way its turn is marked truncated and counted in
    `rollout/cut_replies`. `end`: it is not executed and the episode ends. `continue`: it goes to the environment like
    any other reply."""

    max_cut_replies: int = Field(default=3, ge=1)
    """Under `continue`, so many cut replies in a row end the episode: it must not spin to the step limit."""


class Parsed(StrEnum):
    """What a reply was taken for; each kind is counted as `rollout/reply_<kind>`."""

    ADMISSIBLE = "admissible"  # the encoding of an admissible command
    TEXT = "text"  # something else: the environment judges its text
    EMPTY = "empty"  # <eoa> alone
    MALFORMED = "malformed"  # special tokens or angle brackets within: never executed


class AppendPrompt:
    """Lays out episodes as token ids and reads commands back. Stateless: one instance serves any number of episodes."""

    def __init__(self, tokenizer: TextTokenizer, config: Config | None = None) -> None:
        self.tokenizer = tokenizer
        self.config = config or Config()
        self._act = np.array([tokenizer.act_id], dtype=np.int32)
        self._eoa = np.array([tokenizer.eoa_id], dtype=np.int32)
        self._special = {tokenizer.pad_id, tokenizer.act_id, tokenizer.eoa_id, tokenizer.unk_id}
        self._key = lru_cache(maxsize=200_000)(self._key_uncached)
        self._follow = lru_cache(maxsize=200_000)(self._follow_uncached)

    def start(self, observation: str, info: Info) -> TokenIds:
        """The opening of an episode (the environment's first text, task included), ready for the first reply."""
        return self.follow(observation)[0]

    def follow(self, observation: str) -> tuple[TokenIds, int]:
        """Ids that follow a reply, the trailing <act> included, and how many of them are the observation's."""
        return self._follow(observation)

    def action(self, command: str) -> TokenIds:
        """The reply that stands for `command`, <eoa> included: what a demonstration shows."""
        return np.concatenate([self.tokenizer.encode(command), self._eoa])

    def command(self, reply: TokenIds, info: Info) -> tuple[str, Parsed]:
        """The text to hand to the environment for the sampled ids `reply` ((n,), with or without the final <eoa>)."""
        ids = reply[:-1] if len(reply) and reply[-1] == self.tokenizer.eoa_id else reply
        key = np.asarray(ids, dtype=np.int32).tobytes()
        for command in info["admissible_commands"]:
            if self._key(command) == key:
                return command, Parsed.ADMISSIBLE
        if not len(ids):
            return "", Parsed.EMPTY
        text = self.tokenizer.decode(ids).strip()
        if not self._special.isdisjoint(ids.tolist()) or "<" in text or ">" in text:
            return "", Parsed.MALFORMED
        return text, Parsed.TEXT

    def allowed(self, info: Info) -> Sequence[TokenIds]:
        """The replies that constrained decoding admits, without <eoa>."""
        return [self.tokenizer.encode(command) for command in info["admissible_commands"]]

    def fits(self, tokens: int, max_reply_tokens: int) -> bool:
        """A sequence of `tokens`, the new observation included, has room for one more reply."""
        return tokens + max_reply_tokens <= self.config.max_tokens

    def _key_uncached(self, command: str) -> bytes:
        return self.tokenizer.encode(command).tobytes()

    def _follow_uncached(self, observation: str) -> tuple[TokenIds, int]:
        ids = self.tokenizer.encode(observation)
        joined = np.concatenate([ids, self._act])
        joined.flags.writeable = False
        return joined, len(ids)
