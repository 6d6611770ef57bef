"""Replies of every kind, by the documented rules (BC-32): what is executed, and what each is counted as."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.prompts.replies import Malformed, SearchReplies, Tagged, TaggedReplies
from actors.prompts.settings import ChatSettings
from protos.errors import ConfigError
from protos.tokens import bpe_tokenizer, word_tokenizer

COMMANDS = ["Go East", "go to cabinet 1", "look", "open door"]
INFO = {"admissible_commands": COMMANDS}
TOKENIZER = bpe_tokenizer(["<think>I look</think><action>go to cabinet 1</action>"], size=300)
REPLIES = TaggedReplies(TOKENIZER, ChatSettings())
STRICT = TaggedReplies(TOKENIZER, ChatSettings(require_reasoning=True))
SEARCH = SearchReplies(TOKENIZER, ChatSettings())


def ids(text: str) -> np.ndarray:
    return np.append(TOKENIZER.encode(text), TOKENIZER.eoa_id).astype(np.int32)


@pytest.mark.parametrize(
    ("reply", "command", "kind"),
    [
        ("<think>Dark here.</think><action>look</action>", "look", "admissible"),
        ("<action>look</action>", "look", "admissible"),
        ("<think></think>\n\n<action>look</action>\n", "look", "admissible"),
        ("<ACTION> Go East </ACTION>", "Go East", "admissible"),
        ("<Action>go east</aCTION>", "Go East", "admissible"),
        ("< action >look</ action >", "look", "admissible"),
        ("<action>go to\n  cabinet\t1</action>", "go to cabinet 1", "admissible"),
        ("Let me see. <action>look</action>", "look", "admissible"),
        ("<think>I could <action>open door</action>.</think><action>look</action>", "look", "admissible"),
        ("<think>a <action> b</think><action>look</action>", "look", "admissible"),
        ("<action>dance wildly</action>", "dance wildly", "inadmissible"),
        ("<think>x</think><action>lo ok</action>", "lo ok", "inadmissible"),
        ("<thinking>x</thinking><action>look</action>", "look", "admissible"),
        ("<action>look</action> You see a mug.", "look", "trailing"),
        ("<action>look</action><information>You won.</information>", "look", "trailing"),
        ("<action>dance</action> Nothing happens.", "dance", "trailing"),
        ("", "", "empty"),
        (" \n ", "", "empty"),
        ("<think>only this</think>", "", "only_think"),
        ("<think><action>look</action></think>", "", "only_think"),
        ("look", "", "no_action"),
        ("<think>x</think> look", "", "no_action"),
        ("&lt;action&gt;look&lt;/action&gt;", "", "no_action"),
        ("<think>x <action>look</action>", "", "unclosed_think"),
        ("<think>x</think><think>y <action>look</action>", "", "unclosed_think"),
        ("<think>a<think>b</think><action>look</action></think>", "", "misplaced_think"),
        ("<think>a</think><think>b</think><action>look</action>", "", "misplaced_think"),
        ("x</think><action>look</action>", "", "misplaced_think"),
        ("<action>look</action><think>x</think>", "", "misplaced_think"),
        ("<action>lo<think>x</think>ok</action>", "", "misplaced_think"),
        ("<action>look", "", "unclosed_action"),
        ("look</action>", "", "unclosed_action"),
        ("<action>look<action>look</action>", "", "unclosed_action"),
        ("<think>a<action>b</think>look</action>", "", "unclosed_action"),
        ("<action>look</action><action>open door</action>", "", "several_actions"),
        ("<action>look</action><action>look</action>", "", "several_actions"),
        ("<action></action>", "", "empty_action"),
        ("<action> \n </action>", "", "empty_action"),
        ("<action>open <b>door</b></action>", "", "markup"),
        ("<action>a < b</action>", "", "markup"),
        ("<action>" + "x" * 10_000 + "</action>", "", "too_long"),
        ("y" * 10_000, "", "no_action"),
    ],
)
def test_every_kind_of_reply(reply: str, command: str, kind: str) -> None:
    assert REPLIES.parse(ids(reply), INFO) == (command, kind)
    assert REPLIES.parse(ids(reply)[:-1], INFO) == (command, kind), "a cut reply is read by the same rules"
    assert kind in REPLIES.kinds


def test_every_kind_has_a_case() -> None:
    """The table above misses none, but for the two that need more than a text."""
    table = test_every_kind_of_reply.pytestmark[0].args[1]
    assert {kind for _, _, kind in table} == {*Tagged, *Malformed} - {"special", "no_think"}


def test_required_reasoning() -> None:
    assert STRICT.parse(ids("<action>look</action>"), INFO) == ("", "no_think")
    assert STRICT.parse(ids("hm <action>look</action>"), INFO) == ("", "no_think")
    assert STRICT.parse(ids("<think>hm</think><action>look</action>"), INFO) == ("look", "admissible")
    assert STRICT.parse(STRICT.action("look"), INFO) == ("look", "admissible")


def test_special_tokens_within_are_never_executed() -> None:
    whole = ids("<action>look</action>")
    for special in (TOKENIZER.pad_id, TOKENIZER.act_id, TOKENIZER.unk_id, TOKENIZER.eoa_id):
        for place in (0, 3, len(whole) - 1):
            assert REPLIES.parse(np.insert(whole, place, special), INFO) == ("", "special")


@pytest.mark.parametrize(
    ("said", "reply", "expected"),
    [
        ("<think>\n", "I look.</think><action>look</action>", ("look", "admissible")),
        ("<think>\n", "<action>look</action>", ("", "unclosed_think")),
        ("<think>\n", "<think>x</think><action>look</action>", ("", "unclosed_think")),
        ("<think>\n\n</think>\n\n", "<action>look</action>", ("look", "admissible")),
        ("<think>\n\n</think>\n\n", "", ("", "empty")),
    ],
)
def test_what_a_template_puts_into_the_models_mouth(said: str, reply: str, expected: tuple[str, str]) -> None:
    replies = TaggedReplies(TOKENIZER, ChatSettings(require_reasoning=True), said)
    assert replies.parse(ids(reply), INFO) == expected
    assert replies.parse(replies.action("look"), INFO) == ("look", "admissible")


def test_the_exact_command_comes_before_its_likes() -> None:
    info = {"admissible_commands": ["LOOK", "look"]}
    assert REPLIES.parse(ids("<action>look</action>"), info) == ("look", "admissible")
    assert REPLIES.parse(ids("<action>Look</action>"), info) == ("LOOK", "admissible")


@pytest.mark.parametrize(
    ("reply", "command", "kind"),
    [
        ("<think>Who?</think><search>who wrote it</search>", "search[who wrote it]", "search"),
        ("<Answer> The\nBeatles </Answer>", "answer[The Beatles]", "answer"),
        ("<think>maybe <answer>Paris</answer></think><search>capital</search>", "search[capital]", "search"),
        ("<search>capital</search><information>Paris is one.</information>", "search[capital]", "trailing"),
        ("<search>capital</search><information>Paris</information><answer>Paris</answer>", "", "several_actions"),
        ("<answer>London</answer><answer>Paris</answer>", "", "several_actions"),
        ("<search>capital</answer>", "", "unclosed_action"),
        ("<answer></answer>", "", "empty_action"),
        ("<think><answer>Paris</answer></think>", "", "only_think"),
        ("<action>look</action>", "", "no_action"),
    ],
)
def test_replies_of_the_search_form(reply: str, command: str, kind: str) -> None:
    assert SEARCH.parse(ids(reply), INFO) == (command, kind)
    assert kind in SEARCH.kinds


def test_the_search_form_shows_only_its_own_commands() -> None:
    with pytest.raises(ConfigError, match=r"search\[query\] and answer\[text\], not the command 'look'"):
        SEARCH.action("look")


def test_tags_need_a_tokenizer_that_can_write_them() -> None:
    with pytest.raises(ConfigError, match=r'prompt\.reply = "plain"'):
        TaggedReplies(word_tokenizer(["look"], "[a-z]+"), ChatSettings())


TAGS = ["<think>", "</think>", "<action>", "</action>", "<THINK >", "</ Think>", "<action", "<think/>", "<search>"]
WORDS = [">", "<", " ", "\n", "look", "open door", "secret", "\x00", "é"]
SOUP = st.lists(st.sampled_from(TAGS + WORDS), max_size=14).map("".join)


@given(SOUP)
def test_tag_soup(text: str) -> None:
    """Whatever the soup: a known kind, no angle bracket executed, and nothing that stands within <think>."""
    command, kind = REPLIES.parse(ids(text), INFO)
    assert kind in REPLIES.kinds
    assert (command == "") == (kind in list(Malformed))
    assert not {"<", ">"} & set(command)
    if command:
        outside = re.sub(r"(?is)<\s*think\b[^<>]*>.*?(<\s*/\s*think\b[^<>]*>|$)", "|", text)
        words = " ".join(outside.split())
        assert f">{command}<" in re.sub(r"> | <", lambda m: m[0].strip(), words).replace("Go East", "go east")
        assert len(re.findall(r"(?i)<\s*action\b[^<>]*>", outside)) == 1


@given(st.lists(st.integers(0, 299), max_size=40))
def test_whatever_is_sampled(tokens: list[int]) -> None:
    command, kind = REPLIES.parse(np.array([t for t in tokens if t < TOKENIZER.size], dtype=np.int32), INFO)
    assert kind in REPLIES.kinds
    assert not {"<", ">"} & set(command)
