"""Prompts that show each turn anew: one sequence a turn, whatever happened before told again in its prompt.

    prompt (task, history, observation) | reply ... stop | glue | observation of the answer

The glue is what the chat template puts between a reply and the next message, so that the answer stands where a chat would
have it: what the world model predicts is what the environment said, after the action, and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from actors.core import Info
from actors.prompts.chat import NOTHING, Frame
from actors.prompts.replies import Replies
from actors.prompts.settings import TurnSettings
from protos.records import Span, TokenIds
from protos.tokens import TextTokenizer


@dataclass(frozen=True, slots=True)
class Past:
    """A turn as a template may tell it."""

    step: int  # from 1
    observation: str  # what the action was taken upon
    action: str  # the command that was executed; "" where there was none
    result: str = ""  # what the environment answered


@dataclass(frozen=True, slots=True)
class Now:
    """What a prompt is written from."""

    task: str  # info["task"], else the first observation
    step: int  # from 1
    history: Sequence[Past]
    observation: str
    actions: Sequence[str]


Write = Callable[[Now], str]


class TurnPrompt:
    """A prompt written by `write`, framed by `frame`, whose replies have the form `replies`."""

    def __init__(
        self, tokenizer: TextTokenizer, settings: TurnSettings, frame: Frame, replies: Replies, write: Write
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.kinds = replies.kinds
        self.parse, self.action, self.allowed = replies.parse, replies.action, replies.allowed
        self._frame, self._write = frame, write

    def open(self, observation: str, info: Info) -> "TurnLayout":
        return TurnLayout(self.tokenizer, self.settings, self._frame, self._write, observation, info)


class TurnLayout:
    """See `actors.core.Layout`. Sequences grow to `settings.max_tokens` at most."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        settings: TurnSettings,
        frame: Frame,
        write: Write,
        observation: str,
        info: Info,
    ) -> None:
        self._tokenizer, self._settings, self._frame, self._write = tokenizer, settings, frame, write
        self._now = Now(str(info.get("task") or observation), 1, (), observation, info["admissible_commands"])
        self._past: list[Past] = []
        self._first = 0  # the oldest turn that may still be told
        self._prompt = NOTHING
        self._reply = NOTHING
        self._sequences: list[TokenIds] = []
        self.dropped = 0

    def context(self, max_reply_tokens: int) -> TokenIds | None:
        """The latest turns of the history, without the oldest where there is no room; what was left out stays out."""
        wanted, turns = self._settings.history, len(self._past)
        oldest = turns - wanted if 0 <= wanted < turns else 0
        for first in range(max(oldest, self._first), turns + 1):
            self._prompt = self._frame.opening(self._write(replace(self._now, history=self._past[first:])))
            if len(self._prompt) + max_reply_tokens <= self._settings.max_tokens:
                self._first = first
                self.dropped += first - oldest
                return self._prompt
        return None

    def act(self, reply: TokenIds, command: str) -> Span:
        self._reply = reply
        self._past.append(Past(self._now.step, self._now.observation, command))
        self._sequences.append(np.concatenate([self._prompt, reply]))
        return Span(len(self._prompt), len(self._sequences[-1]))

    def observe(self, observation: str, info: Info) -> Span:
        self._past[-1] = replace(self._past[-1], result=observation)
        actions = info["admissible_commands"]
        self._now = replace(self._now, step=self._now.step + 1, observation=observation, actions=actions)
        ids, glue = self._tokenizer.encode(observation), self._frame.glue(self._reply)
        start = len(self._sequences[-1]) + len(glue)
        if start + len(ids) > self._settings.max_tokens:
            return Span(len(self._sequences[-1]), len(self._sequences[-1]))
        self._sequences[-1] = np.concatenate([self._sequences[-1], glue, ids])
        return Span(start, start + len(ids))

    def sequences(self) -> list[tuple[TokenIds, int]]:
        return [(ids, 1) for ids in self._sequences]
