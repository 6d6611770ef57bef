"""The Gymnasium side: episodes, their ends, info, and that nothing is shared."""

import json
import os
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest

from actors.envs import household
from protos.errors import DataError, EnvironmentFailure

CONFIG = household.Config()
TASK = household.task_ids(CONFIG, "train", 5, 0, 1)[0]


def transcript(env: household.Household, commands: list[str], task_id: str = TASK) -> list[str]:
    observation, info = env.reset(options={"task_id": task_id})
    return [observation, json.dumps(info), *(json.dumps(env.step(command)) for command in commands)]


def solution(task_id: str = TASK) -> list[str]:
    commands = household.solve(household.game_of(CONFIG, task_id), CONFIG.max_steps)
    assert commands is not None
    return commands


def test_it_is_a_gymnasium_environment() -> None:
    env = household.build(CONFIG)
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert env.action_space.contains("go to shelf 1")


def test_the_walkthrough_wins_and_pays_once() -> None:  # BC-39
    env = household.build(household.Config(reward=2.5))
    env.reset(options={"task_id": TASK})
    ends = [env.step(command)[1:4] for command in solution()]
    assert ends[-1] == (2.5, True, False)
    assert all(end == (0.0, False, False) for end in ends[:-1])
    observation, reward, terminated, truncated, info = env.step("look")
    assert (observation, reward, terminated, truncated) == ("Nothing happens.", 0.0, True, False)
    assert info["won"]


def test_running_out_of_steps_is_no_success() -> None:  # BC-39
    env = household.build(CONFIG)
    env.reset(options={"task_id": TASK})
    ends = [env.step("look") for _ in range(CONFIG.max_steps)]
    assert [end[1:4] for end in ends] == [(0.0, False, False)] * 11 + [(0.0, False, True)]
    assert not ends[-1][4]["won"]


def test_a_win_at_the_last_step_terminates_and_is_not_truncated() -> None:
    commands = solution()
    env = household.load(*as_alfworld(TASK), household.Config(max_steps=len(commands)))
    env.reset()
    assert [env.step(command)[2:4] for command in commands][-1] == (True, False)


def as_alfworld(task_id: str) -> tuple[str, dict[str, object]]:
    from actors.envs.household.pddl import render

    game = household.game_of(CONFIG, task_id)
    return render(game.problem), {"task_type": game.task.type, "task_desc": game.task.sentence}


def test_the_instruction_stands_alone_after_reset() -> None:
    observation, info = household.build(CONFIG).reset(options={"task_id": TASK})
    assert info["task"].startswith("put ")
    assert info["task"].endswith(".")
    assert observation.endswith(f"Your task is to: {info['task']}")
    assert "\n" not in info["task"]


def test_info_holds_what_the_contract_says() -> None:
    env = household.build(CONFIG)
    _, info = env.reset(options={"task_id": TASK})
    assert set(info) >= {"admissible_commands", "won", "state_key", "valid", "task_id", "task_type", "game", "steps"}
    assert (info["task_id"], info["task_type"], info["steps"]) == (TASK, "pick_and_place_simple", 0)
    assert info["game"] == household.game_fingerprint(CONFIG, TASK)
    assert "task" not in env.step("look")[4]
    info["admissible_commands"].clear()  # the caller's own copy
    assert env.step("look")[4]["admissible_commands"]


def test_reset_by_seed_repeats_itself() -> None:
    first, second = household.build(CONFIG), household.build(CONFIG)
    assert first.reset(seed=7) == second.reset(seed=7)
    assert first.reset() == second.reset()  # the next games of the same stream
    assert len({household.build(CONFIG).reset(seed=seed)[1]["game"] for seed in range(20)}) > 15


def test_step_before_reset_and_unknown_tasks_are_clear_errors() -> None:
    env = household.build(CONFIG)
    with pytest.raises(EnvironmentFailure, match="reset before step"):
        env.step("look")
    for task_id in ("household:train:0", "household:dev:0:0", "somewhere/else", "household:train:0:-1"):
        with pytest.raises(DataError, match="household"):
            env.reset(options={"task_id": task_id})


def test_instances_in_threads_do_not_touch_each_other() -> None:  # BC-34
    look = ["look"] * len(solution())
    plans = [solution(), *[look] * 7]
    alone = [transcript(household.build(CONFIG), plan) for plan in plans]
    household.game_of.cache_clear()  # so that the threads make the game and its tables anew, together
    together: list[list[str]] = [[] for _ in plans]

    def play(i: int) -> None:
        together[i] = transcript(household.build(CONFIG), plans[i])

    threads = [threading.Thread(target=play, args=(i,)) for i in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert [json.loads(lines[-1])[4]["won"] for lines in together] == [True] + [False] * 7


def test_interleaved_episodes_of_one_game_are_independent() -> None:
    winner, looker = household.build(CONFIG), household.build(CONFIG)
    alone = transcript(household.build(CONFIG), ["look"] * len(solution()))
    winner.reset(options={"task_id": TASK})
    observation, info = looker.reset(options={"task_id": TASK})
    lines = [observation, json.dumps(info)]
    for command in solution():
        winner.step(command)
        lines.append(json.dumps(looker.step("look")))
    assert lines == alone


PLAY = """
import hashlib, json, numpy as np
from actors.envs import household
tasks = ("look_at_obj_in_light", "pick_two_obj_and_place", "pick_cool_then_place_in_recep")
config = household.Config(tasks=tasks, max_steps=16)
env, rng, lines = household.build(config), np.random.default_rng(0), household.tokenizer(config).fingerprint
for split in ("train", "seen", "unseen"):
    for task_id in household.task_ids(config, split, 1, 0, 4):
        observation, info = env.reset(options={"task_id": task_id})
        lines += str(household.solve(env.game, 16))
        expert = household.expert(config, env, rng)
        for _ in range(10):
            observation, *rest, info = env.step(expert(observation, info))
            lines += observation + json.dumps(info)
print(hashlib.sha256(lines.encode()).hexdigest())
"""


def test_nothing_depends_on_the_order_of_hashes() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", PLAY], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("1") == run("2")


def test_random_play_obeys_the_contract() -> None:
    config = household.Config(
        tasks=("pick_heat_then_place_in_recep", "look_at_obj_in_light"), rooms="full", max_steps=30
    )
    env, rng = household.build(config), np.random.default_rng(0)
    for task_id in household.task_ids(config, "seen", 0, 0, 10):
        _, info = env.reset(options={"task_id": task_id})
        over = False
        while not over:
            assert info["admissible_commands"] == sorted(set(info["admissible_commands"]))
            command = str(rng.choice(info["admissible_commands"]))
            _, reward, terminated, truncated, info = env.step(command)
            over = terminated or truncated
            assert info["valid"]
            assert not (terminated and truncated)
            assert terminated == info["won"] == (reward > 0)
            json.dumps(info)
