"""From sampled ids to a command: strict, documented rules, and a count for every kind of reply.

**Tagged replies** (`TaggedReplies`, `SearchReplies`) reason in <think>...</think> and act in one <action>...</action>:

    <think>The mug is dirty.</think> <action>go to sinkbasin 1</action>

1. Tags are found whatever their case, with or without white space and attributes within; all else is text.
2. What stands between <think> and </think> is reasoning, whatever it says: an action named there is never executed. A
   reply with one block of reasoning at most, before the action, is well-formed; any other use of these tags is not.
3. Exactly one action is executed. Two, even equal ones, are none: it is not guessed which was meant.
4. White space within the action, newlines included, becomes single blanks. An action that then equals an admissible
   command, whatever the case, is that command; any other goes to the environment as it is, which judges it.
5. Text before the action is reasoning without its tags and is ignored. So is text after it, counted as `trailing`: an
   observation or <information> that the model makes up there is no observation, and no part of the command.
6. An action never holds "<" or ">"; a reply never holds special tokens but the one that ends it.
7. Where the chat template itself opens the assistant's turn with <think>, that is read as the reply's beginning.

A reply that is not executed goes to the environment as an empty command: an invalid step, and the episode goes on. A
reply that the limit cut is read by the same rules where `prompt.on_cut_reply = "continue"`.

**Plain replies** (`PlainReplies`) are the command itself. A compact tokenizer is lossy (it may drop function words, or
write "cabinet 1" as "cabinet"), so the decoded text of a reply need not be the command that it encodes. Therefore a reply
is first compared, as ids, with the encodings of the admissible commands: where they agree, that command is executed. Two
commands that encode alike cannot be told apart: the first in the environment's order is taken. Any other reply goes to
the environment as its decoded text, which it refuses or, where a lossless tokenizer split a good command in an unusual
way, accepts. Special tokens or angle brackets make it malformed: never executed.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from actors.core import Info
from actors.prompts.settings import ChatSettings
from protos.errors import ConfigError
from protos.records import TokenIds
from protos.tokens import TextTokenizer


class Plain(StrEnum):
    """What a plain reply was taken for; each kind is counted as `rollout/reply_<kind>`."""

    ADMISSIBLE = "admissible"  # the encoding of an admissible command
    TEXT = "text"  # something else: the environment judges its text
    EMPTY = "empty"  # the stop token alone
    MALFORMED = "malformed"  # special tokens or angle brackets within: never executed


class Malformed(StrEnum):
    """Why a tagged reply was not executed; each kind is counted as `rollout/reply_<kind>`. The first that applies is taken."""

    EMPTY = "empty"  # nothing but white space and the stop token
    SPECIAL = "special"  # special tokens before the end
    UNCLOSED_THINK = "unclosed_think"  # <think> without </think>
    MISPLACED_THINK = "misplaced_think"  # nested, a second block, one after or within the action, </think> alone
    UNCLOSED_ACTION = "unclosed_action"  # <action> without </action>, or the other way round
    SEVERAL_ACTIONS = "several_actions"
    ONLY_THINK = "only_think"  # reasoning and nothing else
    NO_ACTION = "no_action"  # text without an action
    NO_THINK = "no_think"  # an action without reasoning, where reasoning is required
    EMPTY_ACTION = "empty_action"
    MARKUP = "markup"  # "<" or ">" within the action
    TOO_LONG = "too_long"  # more than `max_action_characters`


class Tagged(StrEnum):
    """What an executed reply was taken for."""

    ADMISSIBLE = "admissible"
    INADMISSIBLE = "inadmissible"  # well-formed, but none of the admissible commands: the environment judges it
    TRAILING = "trailing"  # admissible or not, and followed by text, which is ignored


class Searched(StrEnum):
    """What an executed reply of the search form was taken for."""

    SEARCH = "search"
    ANSWER = "answer"
    TRAILING = "trailing"


class Replies(Protocol):
    """A form of replies, read and written."""

    kinds: tuple[str, ...]

    def parse(self, reply: TokenIds, info: Info) -> tuple[str, str]: ...

    def action(self, command: str) -> TokenIds: ...

    def allowed(self, info: Info) -> Sequence[TokenIds]: ...


class PlainReplies:
    """The reply is the command."""

    kinds: tuple[str, ...] = tuple(Plain)

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._key = lru_cache(maxsize=200_000)(self._key_uncached)

    def parse(self, reply: TokenIds, info: Info) -> tuple[str, str]:
        ids = without_stop(reply, self._tokenizer)
        key = np.asarray(ids, dtype=np.int32).tobytes()
        for command in info["admissible_commands"]:
            if self._key(command) == key:
                return command, Plain.ADMISSIBLE
        if not len(ids):
            return "", Plain.EMPTY
        text = self._tokenizer.decode(ids).strip()
        if not self._tokenizer.special_ids.isdisjoint(ids.tolist()) or "<" in text or ">" in text:
            return "", Plain.MALFORMED
        return text, Plain.TEXT

    def action(self, command: str) -> TokenIds:
        return _ended(self._tokenizer.encode(command), self._tokenizer)

    def allowed(self, info: Info) -> Sequence[TokenIds]:
        return [self._tokenizer.encode(command) for command in info["admissible_commands"]]

    def _key_uncached(self, command: str) -> bytes:
        return self._tokenizer.encode(command).tobytes()


class TaggedReplies:
    """Reasoning, then one action in tags. `said` is what the frame puts into the model's mouth."""

    kinds: tuple[str, ...] = (*Tagged, *Malformed)

    def __init__(self, tokenizer: TextTokenizer, settings: ChatSettings, said: str = "") -> None:
        self._tokenizer, self._settings, self._said = tokenizer, settings, said
        _check_tags(tokenizer, "<think></think><action></action>")

    def parse(self, reply: TokenIds, info: Info) -> tuple[str, str]:
        try:
            action = self._read(reply, ("action",))
        except Unreadable as refused:
            return "", refused.kind
        exact = {command: command for command in info["admissible_commands"]}
        alike = {_folded(command): command for command in reversed(info["admissible_commands"])}
        command = exact.get(action.text) or alike.get(_folded(action.text))
        kind = Tagged.ADMISSIBLE if command is not None else Tagged.INADMISSIBLE
        return command or action.text, Tagged.TRAILING if action.trailing else kind

    def action(self, command: str) -> TokenIds:
        return _ended(self._of(command), self._tokenizer)

    def allowed(self, info: Info) -> Sequence[TokenIds]:
        return [self._of(command) for command in info["admissible_commands"]]

    def _of(self, command: str) -> TokenIds:
        """The reply that stands for `command`, without the stop token."""
        return self._written("action", command)

    def _read(self, reply: TokenIds, names: Sequence[str]) -> "Action":
        """The action of a reply. Raises Unreadable with the kind of its fault."""
        ids = without_stop(reply, self._tokenizer)
        text = self._tokenizer.decode(ids)
        if not self._tokenizer.special_ids.isdisjoint(ids.tolist()):
            raise Unreadable(Malformed.SPECIAL)
        if not text.strip():
            raise Unreadable(Malformed.EMPTY)
        action = read_action(self._said + text, names)
        if self._settings.require_reasoning and not action.reasoned:
            raise Unreadable(Malformed.NO_THINK)
        if not action.text:
            raise Unreadable(Malformed.EMPTY_ACTION)
        if "<" in action.text or ">" in action.text:
            raise Unreadable(Malformed.MARKUP)
        if len(action.text) > self._settings.max_action_characters:
            raise Unreadable(Malformed.TOO_LONG)
        return action

    def _written(self, tag: str, text: str) -> TokenIds:
        opened, closed = "<think>" in self._said, "</think>" in self._said
        think = "" if closed else "</think>\n" if opened else "<think></think>\n"
        reasoning = think if opened or self._settings.require_reasoning else ""
        return self._tokenizer.encode(f"{reasoning}<{tag}>{text}</{tag}>")


class SearchReplies(TaggedReplies):
    """Reasoning, then one <search>query</search> or <answer>text</answer>: the commands search[query] and answer[text]."""

    kinds: tuple[str, ...] = (*Searched, *Malformed)

    def parse(self, reply: TokenIds, info: Info) -> tuple[str, str]:
        try:
            action = self._read(reply, ("search", "answer"))
        except Unreadable as refused:
            return "", refused.kind
        return f"{action.tag}[{action.text}]", Searched.TRAILING if action.trailing else Searched(action.tag)

    def _of(self, command: str) -> TokenIds:
        found = re.fullmatch(r"(search|answer)\[(.*)\]", command, re.DOTALL)
        if found is None:
            raise ConfigError(f"the search prompt shows search[query] and answer[text], not the command {command!r}")
        return self._written(found[1], found[2])


class Action(NamedTuple):
    """The one action of a well-formed reply."""

    tag: str
    text: str  # white space collapsed
    reasoned: bool
    trailing: bool  # text follows it


class Unreadable(Exception):
    """A reply without an action to execute."""

    def __init__(self, kind: Malformed) -> None:
        super().__init__(kind)
        self.kind = kind


class Tag(NamedTuple):
    name: str
    closing: bool
    start: int
    stop: int


def read_action(text: str, names: Sequence[str]) -> Action:
    """The one action of `text`, in one of the tags `names`. Raises Unreadable where there is not exactly one."""
    tags = list(_tags(text, names))
    thoughts = _reasoning(tags)
    outside = [tag for tag in tags if tag.name != "think" and not any(a < tag.start < b for a, b in thoughts)]
    if not outside:
        rest = text[thoughts[0][1] :] if thoughts else text
        raise Unreadable(Malformed.NO_ACTION if rest.strip() or not thoughts else Malformed.ONLY_THINK)
    for first, second in zip(outside[::2], [*outside[1::2], None], strict=False):
        if second is None or first.closing or not second.closing or first.name != second.name:
            raise Unreadable(Malformed.UNCLOSED_ACTION)
    if len(outside) > 2:
        raise Unreadable(Malformed.SEVERAL_ACTIONS)
    opened, closed = outside
    if any(start > opened.start for start, _ in thoughts):
        raise Unreadable(Malformed.MISPLACED_THINK)
    words = " ".join(text[opened.stop : closed.start].split())
    return Action(opened.name, words, bool(thoughts), bool(text[closed.stop :].strip()))


def without_stop(reply: TokenIds, tokenizer: TextTokenizer) -> TokenIds:
    """The reply's ids without the stop token that ends it."""
    return reply[:-1] if len(reply) and int(reply[-1]) in tokenizer.stop_ids else reply


def _tags(text: str, names: Sequence[str]) -> Iterator[Tag]:
    pattern = rf"<\s*(/?)\s*(think|{'|'.join(names)})\b[^<>]*>"
    for found in re.finditer(pattern, text, re.IGNORECASE):
        yield Tag(found[2].lower(), bool(found[1]), *found.span())


def _reasoning(tags: Sequence[Tag]) -> list[tuple[int, int]]:
    """The one block of reasoning as (start, stop), or none. Raises Unreadable where its tags do not make one."""
    thinks = [tag for tag in tags if tag.name == "think"]
    closing = [tag.closing for tag in thinks]
    if closing in ([], [False, True]):
        return [(thinks[0].start, thinks[1].stop)] if thinks else []
    open_at_the_end = not closing[-1] or closing.count(False) > closing.count(True)
    raise Unreadable(Malformed.UNCLOSED_THINK if open_at_the_end else Malformed.MISPLACED_THINK)


def _folded(command: str) -> str:
    return " ".join(command.split()).casefold()


def _ended(ids: TokenIds, tokenizer: TextTokenizer) -> TokenIds:
    return np.append(ids, np.int32(tokenizer.eoa_id)).astype(np.int32, copy=False)


def _check_tags(tokenizer: TextTokenizer, tags: str) -> None:
    if tokenizer.decode(tokenizer.encode(tags)) != tags:
        raise ConfigError('this tokenizer cannot write tags such as <action>: set prompt.reply = "plain"')
