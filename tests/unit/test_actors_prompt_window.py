"""The window and search prompts: what is told again in each turn, and what gives way where there is no room."""

from pathlib import Path
from typing import Any

import chat_tokenizers
import numpy as np
import pytest

from actors.core import build_prompt
from actors.prompts.window import Config
from protos.tokens import TextTokenizer, bpe_tokenizer

INFO = {"admissible_commands": ["look", "open door"], "task": "put a mug in the fridge"}
COMPACT = bpe_tokenizer(["You see a mug"], size=300)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return chat_tokenizers.load(tmp_path_factory.mktemp("checkpoints"), "qwen2")


def contexts(prompt: Any, turns: int, info: dict[str, Any] = INFO, reply_tokens: int = 8) -> list[str]:
    """The texts of the contexts of `turns` turns, whose observations and commands are numbered."""
    layout, texts = prompt.open("obs-1", info), []
    for turn in range(1, turns + 1):
        context = layout.context(reply_tokens)
        if context is None:
            break
        texts.append(prompt.tokenizer.decode(context))
        layout.act(np.array([prompt.tokenizer.eoa_id], dtype=np.int32), f"act-{turn}" if turn != 2 else "")
        layout.observe(f"obs-{turn + 1}", info)
    return texts


def test_defaults_are_those_of_a_chat_model() -> None:
    config = Config()
    assert (config.max_tokens, config.history, config.on_cut_reply) == (3072, 2, "continue")
    assert config.max_tokens >= 2048 + 512


def test_a_turn_as_a_chat_model_is_shown_it(chat: TextTokenizer) -> None:
    prompt = build_prompt({"name": "window"}, chat)
    first, *_, fourth = contexts(prompt, 4)
    assert "Task: put a mug in the fridge" in first
    assert "step 1" in first
    assert "obs-1" in first
    assert "Admissible actions: [look, open door]" in first
    assert "act-" not in first
    assert "Steps taken so far: 3." in fourth
    assert "obs-1" not in fourth
    assert "[Observation 2: obs-2]\n[Action 2: none that could be executed]" in fourth
    assert "[Observation 3: obs-3]\n[Action 3: act-3]" in fourth
    assert fourth.index("act-3") < fourth.index("obs-4") < fourth.index("<action> </action>")


@pytest.mark.parametrize(("history", "told"), [(0, []), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4]), (-1, [1, 2, 3, 4])])
def test_how_much_is_told_again(chat: TextTokenizer, history: int, told: list[int]) -> None:
    fifth = contexts(build_prompt({"name": "window", "history": history}, chat), 5)[-1]
    assert [turn for turn in range(1, 5) if f"[Observation {turn}: obs-{turn}]" in fifth] == told


def test_options_of_the_text(chat: TextTokenizer, tmp_path: Path) -> None:
    assert "open door" not in contexts(build_prompt({"name": "window", "list_actions": False}, chat), 1)[0]
    without_task = contexts(build_prompt({"name": "window"}, chat), 1, {"admissible_commands": ["look"]})[0]
    assert without_task.count("obs-1") == 1, "the first observation is the task: told once"
    plain = contexts(build_prompt({"name": "window", "reply": "plain"}, chat), 1)[0]
    assert "<action>" not in plain
    (tmp_path / "mine.jinja").write_text("{{ step }}: {{ observation }} of {{ task }}")
    own = build_prompt({"name": "window", "template": str(tmp_path / "mine.jinja"), "system": "S-Y-S"}, chat)
    assert "1: obs-1 of put a mug in the fridge" in contexts(own, 1)[0]
    assert "S-Y-S" in contexts(own, 1)[0]


def test_a_compact_turn_is_the_games_own_words() -> None:
    third = contexts(build_prompt({"name": "window"}, COMPACT), 3)[-1]
    assert third == "put a mug in the fridge\nobs-1\nact-1\nobs-2\n\nobs-3\n[look, open door]"


def test_the_oldest_go_first_where_room_is_short() -> None:
    """And the reply and everything of the present stay whole; what was left out is counted."""
    wide = build_prompt({"name": "window", "history": -1, "list_actions": False}, COMPACT)
    whole = contexts(wide, 4)[-1]
    need = len(COMPACT.encode(whole)) + 1
    narrow = build_prompt({"name": "window", "history": -1, "list_actions": False, "max_tokens": need + 8 - 1}, COMPACT)
    layout = narrow.open("obs-1", INFO)
    for turn in range(1, 4):
        layout.context(8)
        layout.act(np.array([COMPACT.eoa_id], dtype=np.int32), f"act-{turn}" if turn != 2 else "")
        layout.observe(f"obs-{turn + 1}", INFO)
    assert layout.dropped == 0
    context = layout.context(8)
    assert context is not None
    assert COMPACT.decode(context) == whole.replace("obs-1\nact-1\n", "")
    assert layout.dropped == 1


def test_no_room_even_without_a_history() -> None:
    now = len(COMPACT.encode("put a mug in the fridge\nobs-1")) + 1
    spec = {"name": "window", "list_actions": False}
    assert contexts(build_prompt({**spec, "max_tokens": now + 8}, COMPACT), 1)
    assert contexts(build_prompt({**spec, "max_tokens": now + 7}, COMPACT), 1) == []


def test_the_search_form(chat: TextTokenizer) -> None:
    prompt = build_prompt({"name": "search"}, chat)
    info = {"admissible_commands": [], "task": "Who wrote it?"}
    layout = prompt.open("", info)
    for command, found in [("search[who [wrote] it]", "Doc 1: Ann."), ("", "Nothing was searched.")]:
        layout.context(8)
        made_up = chat.encode("<search>x</search><information>Bob</information>")
        layout.act(np.append(made_up, np.int32(chat.eoa_id)), command)
        layout.observe(found, info)
    context = layout.context(8)
    assert context is not None
    text = chat.decode(context)
    assert "Question: Who wrote it?" in text
    told = "<search>who [wrote] it</search>\n<information>Doc 1: Ann.</information>\n(a reply that could not be executed)\n"
    assert told + "<information>Nothing was searched.</information>" in text
    assert "Bob" not in text, "what the model made up is not told"


def test_what_was_left_out_stays_out() -> None:
    """Even where the present grows short again. What each context tells is read off its text."""
    spec = {"name": "window", "history": -1, "list_actions": False, "max_tokens": 64}
    layout = build_prompt(spec, COMPACT).open("obs-1", INFO)
    reply, oldest, lacking = np.array([COMPACT.eoa_id], dtype=np.int32), [], 0
    for turn, observation in enumerate(["x", "much more of what there is to see", "x", "x", "x"], start=1):
        layout.act(reply, f"#{turn}")
        layout.observe(observation, INFO)
        context = layout.context(8)
        assert context is not None
        assert len(context) + 8 <= 64
        told = [past for past in range(1, turn + 1) if f"#{past}" in COMPACT.decode(context)]
        oldest.append(min(told, default=turn + 1))
        assert told == list(range(oldest[-1], turn + 1)), "the latest, without a gap"
        lacking += turn - len(told)
        assert layout.dropped == lacking
    assert oldest == sorted(oldest)
    assert oldest[0] == 1 < oldest[1], "the long observation left no room"
