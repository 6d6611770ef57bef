"""ALFWorld's own engine as an environment: the same transcripts as household's, and games that share nothing."""

import json
import random

import pytest

from actors.envs import alfworld, household

pytest.importorskip("alfworld", reason="needs the alfworld extra: pip install -e '.[alfworld]'")
pytest.importorskip("textworld")

pytestmark = [
    pytest.mark.alfworld,
    pytest.mark.filterwarnings("ignore"),  # the engine's own, of its dependencies
]
SAME = ("admissible_commands", "won", "valid", "task_id", "task_type", "game", "steps")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> alfworld.Config:
    return alfworld.Config(max_steps=8, cache=tmp_path_factory.mktemp("games"))


@pytest.fixture(scope="module")
def task(config: alfworld.Config) -> str:
    return alfworld.task_ids(config, "train", 3, 0, 1)[0]


def shared(info: dict[str, object]) -> dict[str, object]:
    return {key: info[key] for key in SAME}


def test_random_play_reads_as_in_household(config: alfworld.Config) -> None:
    ours = household.build(household.Config(max_steps=config.max_steps))
    real = alfworld.build(config)
    for number, task_id in enumerate(alfworld.task_ids(config, "seen", 3, 0, 2)):
        rng = random.Random(number)
        expected, info = ours.reset(options={"task_id": task_id})
        observation, got = real.reset(options={"task_id": task_id})
        assert (observation, shared(got), got["task"]) == (expected.strip(), shared(info), info["task"])
        for _ in range(config.max_steps + 1):
            command = rng.choice([c for c in info["admissible_commands"] if c != "help"] + ["fly", ""])
            expected, *ends, info = ours.step(command)
            observation, *got_ends, got = real.step(command)
            assert (observation, got_ends, shared(got)) == (expected.strip(), ends, shared(info)), command
        json.dumps(got)
    real.close()
    real.close()


def test_only_the_win_is_a_success(config: alfworld.Config, task: str) -> None:  # BC-39
    env = alfworld.build(config)
    env.reset(options={"task_id": task})
    ends = [env.step("look") for _ in range(config.max_steps)]
    assert [end[1:4] for end in ends] == [(0.0, False, False)] * 7 + [(0.0, False, True)]
    assert not any(end[4]["won"] for end in ends)
    solution = household.solve(household.game_of(config, task), config.max_steps)
    assert solution
    env.reset(options={"task_id": task})
    ends = [env.step(command) for command in solution]
    assert ends[-1][1:4] == (1.0, True, False)
    assert ends[-1][4]["won"]
    env.close()


def test_one_win_is_nobody_elses(config: alfworld.Config, task: str) -> None:  # BC-34
    solution = household.solve(household.game_of(config, task), config.max_steps)
    assert solution
    envs = [alfworld.build(config) for _ in range(4)]
    keys = {env.reset(options={"task_id": task})[1]["state_key"] for env in envs}
    assert len(keys) == 1
    for command in solution:
        winner, *others = [env.step(command if number == 0 else "look") for number, env in enumerate(envs)]
        assert all(other[1:4] == (0.0, False, False) and not other[4]["won"] for other in others)
        assert {other[4]["state_key"] for other in others} == keys
    assert winner[4]["won"]
    for env in envs:
        env.close()
