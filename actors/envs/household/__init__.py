"""Household games: ALFWorld's text game, reimplemented for speed, with its real texts and rules.

    env = build(Config())
    observation, info = env.reset(options={"task_id": task_ids(config, "train", seed=0, start=0, count=1)[0]})
    observation, reward, terminated, truncated, info = env.step(info["admissible_commands"][0])

Games are generated from a seed (`generate`), or ALFWorld's own files (`folder`). `solve` gives a shortest solution.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.envs.household.config import Config
from actors.envs.household.env import Household
from actors.envs.household.expert import expert
from actors.envs.household.folder import GameFolder, read_game, write_game
from actors.envs.household.game import Game
from actors.envs.household.planner import solve
from actors.envs.household.tasks import game_of, task_ids
from actors.envs.household.vocabulary import tokenizer

__all__ = [
    "Config",
    "Game",
    "Household",
    "build",
    "expert",
    "game_fingerprint",
    "game_of",
    "load",
    "load_folder",
    "solve",
    "task_ids",
    "tokenizer",
    "write_game",
]


def build(config: Config) -> Household:
    """An environment that plays the tasks of `task_ids`."""
    return Household(config)


def load(pddl_problem: str, traj_data: Mapping[str, Any], config: Config | None = None) -> Household:
    """An environment for one ALFWorld instance: the text of its PDDL problem and its `traj_data.json`."""
    task_id = str(traj_data.get("task_id", ""))
    return Household(config or Config(max_steps=50), read_game(pddl_problem, traj_data), task_id)


def load_folder(path: Path) -> GameFolder:
    """All playable games of a data folder by their relative path, read when asked for."""
    return GameFolder(Path(path))


def game_fingerprint(config: Config, task_id: str) -> str:
    """Equal for games alike in all but coordinates, instance numbers and wording (`Game.fingerprint`)."""
    return game_of(config, task_id).fingerprint
