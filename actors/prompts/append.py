"""The `append` prompt: a whole episode as one token sequence, in token ids alone.

    opening | reply ... stop | glue | observation | request | reply ... stop | glue | observation | ...

Every text is encoded once, where it is born; replies stay the ids that were sampled and are never re-tokenised. The
KV cache is good for the whole episode, and in training each token is trained once.

**Compact tokenizers** have no scaffolding but `<act>`: the opening is the first observation, a reply is a command:

    encode(first observation) <act> | reply ... <eoa> | encode(observation) <act> | reply ... <eoa> | encode(observation)

**Chat models** get an instruction with the first observation (actors/prompts/templates/append.jinja), and then each
observation as a user's message, framed as the checkpoint's chat template does. That is only possible where the template
leaves earlier turns as they were sampled and shown. `build` renders three turns, with and without reasoning, and refuses a
template that rewrites one (Qwen3's strips <think> from all turns but the last), unless `earlier_reasoning = "keep"`
says that the agent shall see its reasoning all the same, which the checkpoint may never have seen in training.

**Over-long episodes.** A turn is started only while everything so far, the new observation and a reply of full length
fit in `max_tokens`. Otherwise the episode ends there: truncated, `Stop.CONTEXT`, counted in `rollout/context_ended`.

A template may print task, observation, actions, list_actions and tagged.
"""

from typing import Literal

import numpy as np

from actors.core import Info
from actors.prompts.chat import NOTHING, Frame, frame, mark, render
from actors.prompts.rendering import PromptTemplate
from actors.prompts.replies import PlainReplies, TaggedReplies
from actors.prompts.settings import CommandSettings
from protos.errors import ConfigError
from protos.records import Span, TokenIds
from protos.tokens import TextTokenizer

VARIABLES = ("task", "observation", "actions", "list_actions", "tagged")


class Config(CommandSettings, frozen=True):
    """Settings of the `append` prompt."""

    earlier_reasoning: Literal["as_template", "keep"] = "as_template"
    """Where a chat template strips the reasoning from earlier turns: `as_template` refuses it (no earlier token can be taken
    back), `keep` leaves it in."""


class AppendPrompt:
    """See `actors.core.Prompt`."""

    def __init__(self, tokenizer: TextTokenizer, config: Config | None = None) -> None:
        self.tokenizer = tokenizer
        self.settings = config = config or Config()
        compact = tokenizer.act_id is not None
        self._tagged = config.tagged(compact)
        self._frame = frame(tokenizer, config)
        if not compact:
            _refuse_rewriting(tokenizer, config, self._frame.said)
        raw = compact and not self._tagged and config.template is None
        self._template = None if raw else PromptTemplate(config.template or "append", VARIABLES)
        replies = TaggedReplies(tokenizer, config, self._frame.said) if self._tagged else PlainReplies(tokenizer)
        self.kinds = replies.kinds
        self.parse, self.action, self.allowed = replies.parse, replies.action, replies.allowed

    def open(self, observation: str, info: Info) -> "AppendLayout":
        opening = self._frame.opening(self._first(observation, info))
        return AppendLayout(self.tokenizer, self._frame, self.settings.max_tokens, opening)

    def _first(self, observation: str, info: Info) -> str:
        if self._template is None:
            return observation
        return self._template(
            task=str(info.get("task") or observation),
            observation=observation,
            actions=info["admissible_commands"],
            list_actions=self.settings.list_actions,
            tagged=self._tagged,
        )


class AppendLayout:
    """See `actors.core.Layout`: one sequence of `max_tokens` at most."""

    dropped = 0  # nothing is ever left out

    def __init__(self, tokenizer: TextTokenizer, frame: Frame, max_tokens: int, opening: TokenIds) -> None:
        self._tokenizer, self._frame, self._max_tokens = tokenizer, frame, max_tokens
        self._ids = opening
        self._request = NOTHING  # what the next reply is asked for with; the opening holds its own
        self._glue = NOTHING
        self._turns = 0
        self._full = False

    def context(self, max_reply_tokens: int) -> TokenIds | None:
        if self._full or len(self._ids) + len(self._request) + max_reply_tokens > self._max_tokens:
            return None
        return np.concatenate([self._ids, self._request])

    def act(self, reply: TokenIds, command: str) -> Span:
        start = len(self._ids) + len(self._request)
        self._ids = np.concatenate([self._ids, self._request, reply])
        self._glue, self._turns = self._frame.glue(reply), self._turns + 1
        return Span(start, len(self._ids))

    def observe(self, observation: str, info: Info) -> Span:
        ids, start = self._tokenizer.encode(observation), len(self._ids) + len(self._glue)
        if start + len(ids) > self._max_tokens:
            self._full = True
            return Span(len(self._ids), len(self._ids))
        self._ids, self._request = np.concatenate([self._ids, self._glue, ids]), self._frame.request
        return Span(start, start + len(ids))

    def sequences(self) -> list[tuple[TokenIds, int]]:
        return [(self._ids, self._turns)]


def build(config: Config, tokenizer: TextTokenizer) -> AppendPrompt:
    """See `actors.core.PromptModule`. Raises ConfigError where the chat template rewrites earlier turns."""
    return AppendPrompt(tokenizer, config)


def _refuse_rewriting(tokenizer: TextTokenizer, config: Config, said: str) -> None:
    """Render three turns: what was shown and sampled has to stay, and each turn has to be framed like the one before."""
    keep = config.earlier_reasoning == "keep"
    for sampled, told in [("", "")] if keep else _reasonings(said):
        chat = [("system", config.system)] if config.system is not None else []
        shown, framings = "", []
        for turn in range(3):
            chat.append(("user", mark(2 * turn)))
            text = render(tokenizer, chat, config.chat_options)
            if not text.startswith(shown) and not keep:
                raise ConfigError(_rewritten(shown, text))
            framings.append(text.rpartition(mark(2 * turn - 1))[2].replace(mark(2 * turn), ""))
            shown = text + sampled + mark(2 * turn + 1)
            chat.append(("assistant", told + mark(2 * turn + 1)))
        if framings[1] != framings[2]:
            raise ConfigError(
                f"the chat template frames a third turn otherwise than a second ({framings[2]!r}, {framings[1]!r}): "
                'set prompt.name = "window"'
            )


def _reasonings(said: str) -> list[tuple[str, str]]:
    """Ways to begin a reply: the reasoning as it is sampled, and as the message tells it. `said` stands before it."""
    rest = "why\n</think>\n\n"
    if not said:
        return [("", ""), (f"<think>\n{rest}", f"<think>\n{rest}")]
    return [("", "")] if "</think>" in said else [(rest, said + rest)]


def _rewritten(shown: str, text: str) -> str:
    """One line that shows the first difference."""
    at = next((i for i, (a, b) in enumerate(zip(shown, text, strict=False)) if a != b), min(len(shown), len(text)))
    return (
        f"the chat template rewrites earlier turns: what was {shown[at : at + 24]!r} when it was shown or sampled becomes "
        f"{text[at : at + 24]!r} a turn later, and an append prompt takes nothing back; "
        'set prompt.name = "window", or prompt.earlier_reasoning = "keep" to leave the reasoning in'
    )
