"""The compact tokenizer: closed over all texts, and lossless where it matters."""

import random

import pytest
from household_cases import ALL_TASKS

from actors.envs import household
from actors.envs.household.texts import HELP, REFUSAL
from actors.envs.household.vocabulary import vocabulary

DEFAULT = household.Config()
EVERYTHING = household.Config.model_validate({"tasks": ALL_TASKS, "rooms": "full", "max_steps": 50})


def test_words_and_instances() -> None:
    tokenizer = household.tokenizer(DEFAULT)
    words = {
        text: tokenizer.decode(tokenizer.encode(text))
        for text in ("go to cabinet 2", "open cabinet 1", "put some mug on desk")
    }
    assert words == {
        "go to cabinet 2": "go cabinet 2",
        "open cabinet 1": "open cabinet",
        "put some mug on desk": "put mug desk",
    }
    full = household.tokenizer(EVERYTHING)
    assert len(full.encode("take apple 1 from drawer 4")) == 3
    assert full.encode("drawer 1")[0] == full.encode("put a mug in drawer")[-1]


def test_the_order_is_fixed_and_the_size_small() -> None:
    assert vocabulary(DEFAULT)[:4] == ["alarmclock", "alarmclock 2", "alarmclock 3", "apple"]
    assert household.tokenizer(DEFAULT).size == len(vocabulary(DEFAULT)) + 4 < 400
    assert len(set(vocabulary(EVERYTHING))) == len(vocabulary(EVERYTHING))


@pytest.mark.parametrize(("config", "count"), [(DEFAULT, 150), (EVERYTHING, 60)])
def test_every_text_is_known_and_admissible_commands_differ(config: household.Config, count: int) -> None:
    tokenizer, env, rng = household.tokenizer(config), household.build(config), random.Random(0)
    texts = {HELP, REFUSAL}
    for split in ("train", "unseen"):
        for task_id in household.task_ids(config, split, 3, 0, count):
            observation, info = env.reset(options={"task_id": task_id})
            texts.add(observation)
            for _ in range(12):
                commands = info["admissible_commands"]
                texts.update(commands)
                assert len({tuple(tokenizer.encode(command)) for command in commands}) == len(commands)
                useful = [c for c in commands if not c.startswith("go")]
                observation, *_, info = env.step(rng.choice(useful if rng.random() < 0.7 else commands))
                texts.add(observation)
    unknown = [text for text in texts if tokenizer.unk_id in tokenizer.encode(text)]
    assert not unknown


def test_loaded_games_get_a_wide_vocabulary(tmp_path: object) -> None:
    tokenizer = household.tokenizer(household.Config.model_validate({"data": str(tmp_path), "tasks": ALL_TASKS}))
    for text in ("go to cabinet 31", "take apple 7 from cart 1", "use floorlamp 1", "put two sliced apple in fridge"):
        assert tokenizer.unk_id not in tokenizer.encode(text)
