"""Frames: how texts and replies alternate as token ids, for chat models and for compact tokenizers.

    opening(text) | reply | glue(reply) | text | request | reply | glue(reply) | text | request | ...

`ChatFrame` renders the checkpoint's own chat template once, with marks in place of the contents, and cuts the result
at the marks: what stands between them is scaffolding, encoded with its special tokens; contents are encoded apart, as
plain text. For ordinary contents the ids are those of `AutoTokenizer.apply_chat_template(tokenize=True)`. They differ,
on purpose, in that

- a special token's name within a content stays text (a game cannot end a turn);
- contents are not trimmed: an observation's span is its raw text, while some templates strip white space around it;
- a template that looks into a content (Qwen3: "<tool_response>" in a user's) sees a mark in its place;
- a content that begins or ends with white space is split apart from the scaffolding's own, and SentencePiece
  vocabularies put their word boundary before each content.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from actors.prompts.settings import ChatSettings
from protos.errors import ConfigError
from protos.records import TokenIds
from protos.tokens import TextTokenizer

PLAIN = Path(__file__).parent / "templates" / "plain_chat.jinja"
FIXED = {"date_string": "26 Jul 2024"}  # what Llama 3's template prints where it knows no date
Message = tuple[str, str]  # role, content
NOTHING: TokenIds = np.array([], dtype=np.int32)


class Frame(Protocol):
    """What stands around texts and replies."""

    request: TokenIds  # after a text: asks for the next reply
    said: str  # what `request` puts into the model's mouth, such as "<think>": read as the beginning of the reply

    def opening(self, text: str) -> TokenIds:
        """The beginning of a sequence, up to where the first reply starts."""
        ...

    def glue(self, reply: TokenIds) -> TokenIds:
        """What stands between a reply and the text that answers it."""
        ...


class CompactFrame:
    """`encode(text) <act>`: nothing but the token that asks for an action."""

    said = ""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.request = np.array([tokenizer.act_id], dtype=np.int32)

    def opening(self, text: str) -> TokenIds:
        return np.concatenate([self._tokenizer.encode(text), self.request])

    def glue(self, reply: TokenIds) -> TokenIds:
        return NOTHING


class ChatFrame:
    """User and assistant in turn, as the chat template writes them."""

    def __init__(self, tokenizer: TextTokenizer, settings: ChatSettings) -> None:
        self._tokenizer = tokenizer
        system = [("system", mark(9))] if settings.system is not None else []
        turns = [("user", mark(0)), ("assistant", mark(1)), ("user", mark(2))]
        before, after = cut(render(tokenizer, [*system, turns[0]], settings.chat_options), mark(0))
        whole = render(tokenizer, [*system, *turns], settings.chat_options)
        glue, request = cut(cut(whole, mark(1))[1], mark(2))
        self._before, self._after = self._around_system(before, settings.system), tokenizer.scaffold(after)
        self._glue, self.request = _after_stop(tokenizer.scaffold(glue), tokenizer), tokenizer.scaffold(request)
        self.said = after[after.rindex("<think>") :] if "<think>" in after else ""
        self._end = np.array([tokenizer.eoa_id], dtype=np.int32)

    def opening(self, text: str) -> TokenIds:
        return np.concatenate([self._before, self._tokenizer.encode(text), self._after])

    def glue(self, reply: TokenIds) -> TokenIds:
        """A reply that the limit cut is closed here, by a token that is not its own."""
        ended = len(reply) > 0 and int(reply[-1]) in self._tokenizer.stop_ids
        return self._glue if ended else np.concatenate([self._end, self._glue])

    def _around_system(self, before: str, system: str | None) -> TokenIds:
        if system is None:
            return self._tokenizer.scaffold(before)
        head, rest = map(self._tokenizer.scaffold, cut(before, mark(9)))
        return np.concatenate([head, self._tokenizer.encode(system), rest])


def frame(tokenizer: TextTokenizer, settings: ChatSettings) -> Frame:
    """The frame of a tokenizer: `<act>` where it has one, else its chat template, else the plain one that is shipped.

    Raises ConfigError where the settings ask for what the tokenizer does not have.
    """
    if tokenizer.act_id is None:
        return ChatFrame(tokenizer, settings)
    for name, value in (("system", settings.system), ("chat_options", settings.chat_options)):
        if value:
            raise ConfigError(
                f"prompt.{name} is for chat models: a compact tokenizer has no chat template, leave it out"
            )
    return CompactFrame(tokenizer)


def render(tokenizer: TextTokenizer, chat: Sequence[Message], options: Mapping[str, Any], *, ask: bool = True) -> str:
    """The chat as the template writes it; `ask` for the assistant's next words at the end.

    Raises ConfigError with the template's own complaint where it refuses.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": role, "content": content} for role, content in chat]
    template = tokenizer.chat_template or _plain()
    given = {**tokenizer.special_tokens, "begin": tokenizer.begin, **FIXED, **options}
    try:
        texts, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=ask, **given)
    except (TemplateError, TypeError) as error:
        roles = ", ".join(role for role, _ in chat)
        raise ConfigError(f"the checkpoint's chat template refuses a chat of {roles}: {error}") from error
    return texts[0]


def reply_end(tokenizer: TextTokenizer) -> str | None:
    """The special token that the chat template puts after an assistant's words; None where it puts none."""
    chat = [("user", mark(0)), ("assistant", mark(1))]
    after = tokenizer.scaffold(cut(render(tokenizer, chat, {}, ask=False), mark(1))[1])
    ends = [index for index in after.tolist() if index in tokenizer.special_ids]
    return tokenizer.token(ends[0]) if ends else None


def mark(number: int) -> str:
    """Stands in place of a content while a template is rendered."""
    return f"[#content {number}#]"


def cut(text: str, at: str) -> tuple[str, str]:
    """What stands before and after `at`. Raises ConfigError where the template left it out."""
    before, found, after = text.rpartition(at)
    if not found:
        raise ConfigError(
            "the checkpoint's chat template leaves out the content of a message: it cannot frame an episode"
        )
    return before, after


def _after_stop(glue: TokenIds, tokenizer: TextTokenizer) -> TokenIds:
    """The glue without what ends the reply: that is sampled, or stands for what was."""
    places = np.flatnonzero(glue == tokenizer.eoa_id)
    return glue[places[0] + 1 :] if len(places) else glue


@lru_cache(maxsize=1)
def _plain() -> str:
    return PLAIN.read_text()
