"""The append prompt: how texts become ids, how sampled ids become commands, and which chat templates allow it."""

from pathlib import Path
from typing import Any

import chat_tokenizers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from actors.core import build_prompt
from actors.prompts.append import AppendPrompt, Config
from actors.prompts.replies import Plain
from protos.errors import ConfigError
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


def test_layout_of_a_compact_tokenizer(lossy: TextTokenizer) -> None:
    """The opening is the observation and <act>, a turn adds reply, observation and <act>; nothing else."""
    prompt = AppendPrompt(lossy)
    layout = prompt.open("You see a fridge 1.", INFO)
    opening = [*lossy.encode("you see a fridge").tolist(), lossy.act_id]
    reply = prompt.action("look")
    context = layout.context(8)
    assert context is not None
    assert context.tolist() == opening
    assert layout.act(reply, "look") == (len(opening), len(opening) + 2)
    assert layout.observe("a mug 1", INFO) == (len(opening) + 2, len(opening) + 4)
    played = [*opening, *reply.tolist(), *lossy.encode("a mug").tolist()]
    assert layout.sequences()[0][0].tolist() == played, "no <act> after the last observation"
    context = layout.context(8)
    assert context is not None
    assert context.tolist() == [*played, lossy.act_id]
    assert context.dtype == np.int32
    layout.act(reply, "look")
    assert layout.observe("", INFO).length == 0
    assert layout.sequences()[0][1] == 2


def test_room_for_a_reply(lossy: TextTokenizer) -> None:
    words = "see " * 11
    assert AppendPrompt(lossy, Config(max_tokens=20)).open(words, INFO).context(8) is not None
    assert AppendPrompt(lossy, Config(max_tokens=20)).open(words, INFO).context(9) is None


def test_after_an_observation_without_room_nothing_follows(lossy: TextTokenizer) -> None:
    layout = AppendPrompt(lossy, Config(max_tokens=20)).open("see " * 11, INFO)
    layout.context(4)
    action = layout.act(ids(4, lossy.eoa_id), "")
    assert layout.observe("see " * 7, INFO) == (action.stop, action.stop)
    assert layout.context(1) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_encodings_of_commands_come_back_as_commands(
    lossy: TextTokenizer, lossless: TextTokenizer, command: str
) -> None:
    for tokenizer in (lossy, lossless):
        prompt = AppendPrompt(tokenizer)
        assert prompt.parse(prompt.action(command), INFO) == (command, Plain.ADMISSIBLE)
        assert prompt.parse(prompt.action(command)[:-1], INFO) == (command, Plain.ADMISSIBLE)


def test_the_lossy_text_is_not_the_command(lossy: TextTokenizer) -> None:
    """Why ids are matched: the decoded text of a good reply would be refused."""
    prompt = AppendPrompt(lossy)
    assert lossy.decode(prompt.action("go to cabinet 1")) == "go cabinet"
    assert prompt.parse(prompt.action("go to fridge 1"), INFO) == ("go fridge", Plain.TEXT)


def test_a_lossless_text_in_an_unusual_split_is_still_its_text(lossless: TextTokenizer) -> None:
    prompt = AppendPrompt(lossless)
    characters = [lossless.encode(c)[0] for c in ("l", "o", "o", "k")]
    assert len(lossless.encode("look")) < 4
    assert prompt.parse(ids(*characters, lossless.eoa_id), INFO) == ("look", Plain.TEXT)


def test_replies_that_are_no_command(lossy: TextTokenizer, lossless: TextTokenizer) -> None:
    prompt = AppendPrompt(lossy)
    go, cabinet = lossy.encode("go cabinet").tolist()
    assert prompt.parse(ids(lossy.eoa_id), INFO) == ("", Plain.EMPTY)
    assert prompt.parse(ids(), INFO) == ("", Plain.EMPTY)
    for special in (lossy.act_id, lossy.pad_id, lossy.unk_id, lossy.eoa_id):
        assert prompt.parse(ids(go, special or 0, cabinet, lossy.eoa_id), INFO) == ("", Plain.MALFORMED)
    plain = AppendPrompt(lossless)
    assert plain.parse(plain.action("<action>look</action>"), INFO) == ("", Plain.MALFORMED)


@given(st.lists(st.integers(0, 399), max_size=30))
def test_whatever_is_sampled_is_admissible_or_clean_text(tokens: list[int]) -> None:
    prompt = AppendPrompt(_BPE)
    text, kind = prompt.parse(ids(*(t for t in tokens if t < _BPE.size)), INFO)
    assert kind is not Plain.ADMISSIBLE or text in COMMANDS
    assert "<" not in text
    assert ">" not in text


_BPE = bpe_tokenizer(COMMANDS, size=400)


def test_allowed_are_the_encodings(lossy: TextTokenizer) -> None:
    assert [a.tolist() for a in AppendPrompt(lossy).allowed(INFO)] == [lossy.encode(c).tolist() for c in COMMANDS]


def played(prompt: Any, replies: list[str]) -> list[int]:
    layout = prompt.open("You see a fridge 1.", INFO)
    for number, reply in enumerate(replies):
        assert layout.context(32) is not None
        text = np.append(prompt.tokenizer.encode(reply), prompt.tokenizer.eoa_id).astype(np.int32)
        layout.act(text, "look")
        layout.observe(f"You see a mug {number}.", INFO)
    context = layout.context(32)
    assert context is not None
    return context.tolist()


@pytest.mark.parametrize(("family", "said"), [("qwen2", ""), ("llama3", ""), ("smollm2", ""), ("opened", "<think>\n")])
def test_a_chat_episode_is_what_the_checkpoints_own_template_renders(tmp_path: Path, family: str, said: str) -> None:
    """Independent reference: AutoTokenizer.apply_chat_template over the whole episode."""
    prompt = build_prompt({"name": "append", "max_tokens": 2000}, chat_tokenizers.load(tmp_path, family))
    replies = ["<think>I look.</think><action>look</action>", "<action>look</action>"]
    reference = AutoTokenizer.from_pretrained(tmp_path / family)
    opening = prompt.tokenizer.decode(played(prompt, []))
    text = opening[opening.index("You are an agent") : opening.rindex("You see a fridge 1.") + 19]
    chat = [{"role": "user", "content": text}]
    for number, reply in enumerate(replies):
        chat += [
            {"role": "assistant", "content": said + reply},
            {"role": "user", "content": f"You see a mug {number}."},
        ]
    assert played(prompt, replies) == reference.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_templates_that_rewrite_earlier_turns_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """BC-11: Qwen3 strips <think> from all turns but the last, and does not repeat the empty one that it asked with."""
    tokenizer = chat_tokenizers.load(tmp_path, "qwen3")
    spec = {"name": "append", "chat_options": options}
    with pytest.raises(
        ConfigError, match=r"rewrites earlier turns: .*'<think>.* set prompt\.name = \"window\""
    ) as refused:
        build_prompt(spec, tokenizer)
    assert "\n" not in str(refused.value)
    build_prompt(spec | {"earlier_reasoning": "keep"}, tokenizer)


def test_a_template_that_frames_turns_unlike_is_refused(tmp_path: Path) -> None:
    """One that numbers its turns: an append prompt would have to know how many there were."""
    folder = chat_tokenizers.write(tmp_path / "numbered", "qwen2")
    numbered = chat_tokenizers.SMOLLM2.replace("message['role'] + ", "message['role'] + loop.index|string + ")
    (folder / "chat_template.jinja").write_text(numbered)
    with pytest.raises(ConfigError, match=r"frames a third turn otherwise .* prompt\.name = \"window\""):
        build_prompt({"name": "append", "earlier_reasoning": "keep"}, chat_tokenizers.load_tokenizer(folder))


def test_a_cut_reply_is_closed_before_the_observation(tmp_path: Path) -> None:
    """By a token outside the action: the next message must not read as the assistant's."""
    prompt = build_prompt({"name": "append"}, chat_tokenizers.load(tmp_path, "qwen2"))
    end, word = prompt.tokenizer.eoa_id, prompt.tokenizer.encode("look")[:1]
    glues = []
    for reply in (word, np.append(word, np.int32(end))):
        layout = prompt.open("You see a fridge 1.", INFO)
        layout.context(8)
        action, span = layout.act(reply, ""), layout.observe("Nothing.", INFO)
        glues.append(layout.sequences()[0][0][action.stop : span.start].tolist())
    assert glues[0] == [end, *glues[1]]
