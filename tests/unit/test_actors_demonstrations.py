"""Demonstrations are laid out as the prompt lays out sampled episodes."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actors.core import Info, build_prompt
from actors.demonstrations import demonstrate
from actors.prompts.append import AppendPrompt
from protos.errors import ConfigError


@pytest.fixture
def taught(corridor: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The corridor with an expert that is right 7 times in 10."""

    def expert(config: Any, env: Any, rng: np.random.Generator) -> Any:
        def choose(observation: str, info: Info) -> str:
            if rng.random() < 0.3:
                return str(rng.choice(info["admissible_commands"]))
            place, door = map(int, info["state_key"].split("/"))
            return "open door" if place == door else "walk right" if place < door else "walk left"

        return choose

    monkeypatch.setattr(corridor, "expert", expert, raising=False)
    return corridor


def test_rows_read_as_played(taught: ModuleType, corridor_tokenizer: Any) -> None:
    prompt = AppendPrompt(corridor_tokenizer)
    tasks = [f"seed:{i}" for i in range(20)]
    rows = demonstrate(tasks, taught, taught.Config(), prompt, seed=3, source="expert noise=0.3")
    assert [row.task_id for row in rows] == tasks
    for seed, row in enumerate(rows):
        env = taught.build(taught.Config())
        observation, _ = env.reset(seed=seed)
        tokens, won = [*corridor_tokenizer.encode(observation).tolist(), corridor_tokenizer.act_id], False
        for action, span in zip(row.actions, row.observations, strict=True):
            ids = row.token_ids[action.start : action.stop]
            assert action.start == len(tokens)
            assert ids[-1] == corridor_tokenizer.eoa_id
            observation, _, won, truncated, _ = env.step(corridor_tokenizer.decode(ids))
            tokens += [*ids.tolist(), *corridor_tokenizer.encode(observation).tolist()]
            assert span.stop == len(tokens)
            tokens += [] if won or truncated else [corridor_tokenizer.act_id]
        assert row.token_ids.tolist() == tokens
        assert row.success == won
        assert row.source == "expert noise=0.3"


def test_the_seed_fixes_the_experts_choices(taught: ModuleType, corridor_tokenizer: Any) -> None:
    prompt, tasks = AppendPrompt(corridor_tokenizer), [f"seed:{i}" for i in range(30)]

    def rows(seed: int, chosen: list[str]) -> list[list[int]]:
        return [r.token_ids.tolist() for r in demonstrate(chosen, taught, taught.Config(), prompt, seed)]

    assert rows(0, tasks) == rows(0, tasks)
    assert rows(0, tasks)[::-1] == rows(0, tasks[::-1])
    assert rows(0, tasks) != rows(1, tasks)


def test_no_expert_is_said(corridor: ModuleType, corridor_tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="no expert"):
        demonstrate(["seed:1"], corridor, corridor.Config(), AppendPrompt(corridor_tokenizer), 0)


def test_prompts_of_one_turn_give_a_row_a_turn(taught: ModuleType, corridor_tokenizer: Any) -> None:
    """The same actions as under `append`, each once, in rows of their task."""
    tasks = [f"seed:{i}" for i in range(5)]
    whole = demonstrate(tasks, taught, taught.Config(), AppendPrompt(corridor_tokenizer), seed=3)
    turns = demonstrate(tasks, taught, taught.Config(), build_prompt({"name": "window"}, corridor_tokenizer), seed=3)
    assert [len(row.actions) for row in turns] == [1] * sum(len(row.actions) for row in whole)
    assert [row.task_id for row in turns] == [row.task_id for row in whole for _ in row.actions]
    assert [shown(row) for row in turns] == [[action] for row in whole for action in shown(row)]
    assert [row.success for row in turns] == [row.success for row in whole for _ in row.actions]


def shown(row: Any) -> list[list[int]]:
    return [row.token_ids[span.start : span.stop].tolist() for span in row.actions]
