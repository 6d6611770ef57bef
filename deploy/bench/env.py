"""`tandem bench env`: household steps a second, beside ALFWorld's own engine.

Play is random among the admissible commands, from prepared games of all six task types, resets included; every step
builds the admissible list. The real engine plays the very same commands in the same games. Generating and loading games
is not counted in either.
"""

import random
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from actors.core import Environment
from actors.envs import household
from actors.envs.household.library import TaskType
from deploy.bench.figures import Figures
from deploy.bench.measure import interleave, median, ratio
from deploy.console import Console
from protos.errors import TandemError

EPISODE = 50
"""Steps of an episode at most, as in ALFWorld's own evaluation."""
INSTALL = "pip install 'tandem-rl[alfworld]'"


def run(
    console: Console,
    *,
    games: int = 64,
    steps: int = 20_000,
    real_games: int = 3,
    real_steps: int = 60,
    rounds: int = 7,
) -> Figures:
    """Steps/s of `steps` steps in `games` games; the real engine's are None where the `alfworld` extra is missing."""
    small, full = _config("small"), _config("full")
    fresh = count()
    seconds = interleave(
        {
            "small rooms": _player(small, _tasks(small, games), steps),
            "full rooms": _player(full, _tasks(full, games), steps),
            "generation": lambda: [household.game_of(full, i) for i in _tasks(full, games, seed=1 + next(fresh))],
        },
        rounds,
        console,
    )
    rates = {name: steps / median(seconds[name]) for name in ("small rooms", "full rooms")}
    result: Figures = {
        "household_steps_per_s": min(rates.values()),
        "household_small_steps_per_s": rates["small rooms"],
        "household_full_steps_per_s": rates["full rooms"],
        "household_games_per_s": games / median(seconds["generation"]),
        "real_engine_steps_per_s": None,
        "vs_real_engine": None,
    }
    if find_spec("alfworld") is None:
        console.note(f"the real engine is not installed, its figures are left out; to have them: {INSTALL}")
        return result
    return result | _beside_the_real_engine(console, full, _tasks(full, real_games), real_steps)


def play(env: Environment, tasks: Sequence[str], steps: int) -> str:
    """Take `steps` random steps through the games of `tasks`, one after the other; the last observation."""
    draw = random.Random(0).random
    observation, taken, number = "", 0, 0
    while taken < steps:
        observation, info = env.reset(options={"task_id": tasks[number % len(tasks)]})
        number += 1
        over = False
        while not over and taken < steps:
            commands = info["admissible_commands"]
            observation, _, terminated, truncated, info = env.step(commands[int(draw() * len(commands))])
            over = terminated or truncated
            taken += 1
    return observation


def _beside_the_real_engine(console: Console, config: household.Config, tasks: Sequence[str], steps: int) -> Figures:
    from deploy.bench.real_engine import RealEngine

    ours = household.build(config)
    with tempfile.TemporaryDirectory() as folder:
        real = RealEngine(config, tasks, Path(folder))
        if play(ours, tasks, steps) != play(real, tasks, steps):
            raise TandemError("the household environment and ALFWorld's engine disagree: their rates do not compare")
        many = 100  # rounds of ours, so that its time can be told from the clock's grain
        arms = {
            "household": lambda: [play(ours, tasks, steps) for _ in range(many)],
            "real engine": lambda: play(real, tasks, steps),
        }
        seconds = interleave(arms, 3, console)
    return {
        "real_engine_steps_per_s": steps / median(seconds["real engine"]),
        "vs_real_engine": ratio(seconds["real engine"] * many, seconds["household"]),
    }


def _player(config: household.Config, tasks: Sequence[str], steps: int):
    env = household.build(config)
    return lambda: play(env, tasks, steps)


def _config(rooms: Literal["small", "full"]) -> household.Config:
    return household.Config(tasks=get_args(TaskType), rooms=rooms, max_steps=EPISODE)


def _tasks(config: household.Config, games: int, seed: int = 0) -> list[str]:
    return household.task_ids(config, "train", seed, 0, games)
