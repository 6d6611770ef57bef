"""The append prompt: how texts become ids, and how sampled ids become commands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.prompt import AppendPrompt, Config, Parsed
from protos.tokens import TextTokenizer, bpe_tokenizer, word_tokenizer

COMMANDS = ["close fridge 1", "go to cabinet 1", "go to cabinet 2", "look", "take mug 1 from cabinet 1"]
INFO = {"admissible_commands": COMMANDS}


@pytest.fixture(scope="module")
def lossy() -> TextTokenizer:
    """Drops function words and instance 1: "go to cabinet 1" is [go, cabinet]."""
    words = ["go", "take", "close", "look", "cabinet", "fridge", "mug", "2", "you", "see", "a"]
    return word_tokenizer(words, pattern=r"[a-z]+|\d+", drop=[r"\b(to|from)\b", r"\b1\b"])


@pytest.fixture(scope="module")
def lossless() -> TextTokenizer:
    return bpe_tokenizer([*COMMANDS, "hello you see a fridge"], size=400)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_layout(lossy: TextTokenizer) -> None:
    prompt = AppendPrompt(lossy)
    tokens, length = prompt.follow("You see a fridge 1.")
    assert tokens.tolist() == [*lossy.encode("you see a fridge").tolist(), lossy.act_id]
    assert length == len(tokens) - 1
    assert prompt.start("You see a fridge 1.", INFO).tolist() == tokens.tolist()
    assert prompt.follow("") == (pytest.approx([lossy.act_id]), 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_encodings_of_commands_come_back_as_commands(
    lossy: TextTokenizer, lossless: TextTokenizer, command: str
) -> None:
    for tokenizer in (lossy, lossless):
        prompt = AppendPrompt(tokenizer)
        assert prompt.command(prompt.action(command), INFO) == (command, Parsed.ADMISSIBLE)
        assert prompt.command(prompt.action(command)[:-1], INFO) == (command, Parsed.ADMISSIBLE)


def test_the_lossy_text_is_not_the_command(lossy: TextTokenizer) -> None:
    """Why ids are matched: the decoded text of a good reply would be refused."""
    prompt = AppendPrompt(lossy)
    assert lossy.decode(prompt.action("go to cabinet 1")) == "go cabinet"
    assert prompt.command(prompt.action("go to fridge 1"), INFO) == ("go fridge", Parsed.TEXT)


def test_a_lossless_text_in_an_unusual_split_is_still_its_text(lossless: TextTokenizer) -> None:
    prompt = AppendPrompt(lossless)
    characters = [lossless.encode(c)[0] for c in ("l", "o", "o", "k")]
    assert len(lossless.encode("look")) < 4
    assert prompt.command(ids(*characters, lossless.eoa_id), INFO) == ("look", Parsed.TEXT)


def test_replies_that_are_no_command(lossy: TextTokenizer, lossless: TextTokenizer) -> None:
    prompt = AppendPrompt(lossy)
    go, cabinet = lossy.encode("go cabinet").tolist()
    assert prompt.command(ids(lossy.eoa_id), INFO) == ("", Parsed.EMPTY)
    assert prompt.command(ids(), INFO) == ("", Parsed.EMPTY)
    for special in (lossy.act_id, lossy.pad_id, lossy.unk_id, lossy.eoa_id):
        assert prompt.command(ids(go, special, cabinet, lossy.eoa_id), INFO) == ("", Parsed.MALFORMED)
    tagged = AppendPrompt(lossless)
    assert tagged.command(tagged.action("<action>look</action>"), INFO) == ("", Parsed.MALFORMED)


@given(st.lists(st.integers(0, 399), max_size=30))
def test_whatever_is_sampled_is_admissible_or_clean_text(tokens: list[int]) -> None:
    prompt = AppendPrompt(_BPE)
    text, kind = prompt.command(ids(*(t for t in tokens if t < _BPE.size)), INFO)
    assert kind is not Parsed.ADMISSIBLE or text in COMMANDS
    assert "<" not in text
    assert ">" not in text


_BPE = bpe_tokenizer(COMMANDS, size=400)


def test_room_for_a_reply(lossy: TextTokenizer) -> None:
    prompt = AppendPrompt(lossy, Config(max_tokens=20))
    assert prompt.fits(12, 8)
    assert not prompt.fits(13, 8)


def test_allowed_are_the_encodings(lossy: TextTokenizer) -> None:
    assert [a.tolist() for a in AppendPrompt(lossy).allowed(INFO)] == [lossy.encode(c).tolist() for c in COMMANDS]
