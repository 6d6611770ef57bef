"""Task ids: which games a split has, in which order, and back from an id to its game.

Generated games:  household:<split>:<seed>:<index>, from which the game is drawn again.
Loaded games:     the path of their folder relative to `config.data`.
"""

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np

from actors.envs.household.config import Config
from actors.envs.household.folder import GameFolder
from actors.envs.household.game import Game
from actors.envs.household.generate import SPLITS, generate, split_of
from protos.errors import ConfigError, DataError
from protos.seeding import generator

_PREFIX = "household:"
_GENERATED = re.compile(rf"{_PREFIX}(?P<split>{'|'.join(SPLITS)}):(?P<seed>-?[0-9]+):(?P<index>[0-9]+)")
# ALFWorld's names of the splits, as folders.
_FOLDERS = {"train": "train", "valid_seen": "seen", "valid_unseen": "unseen"}


def task_ids(config: Config, split: str, seed: int, start: int = 0, count: int = 1) -> list[str]:
    """Tasks `start` .. `start + count` of a split, in an order fixed by `seed`.

    Generated games never end. Loaded ones are shuffled: for training again and again, each pass anew; the other splits
    hold each game once, so that fewer than `count` may come.
    """
    if split not in SPLITS:
        raise ConfigError(f"household: no split {split!r}; there are {', '.join(SPLITS)}")
    if config.data is None:
        return [f"{_PREFIX}{split}:{seed}:{index}" for index in range(start, start + count)]
    ids = _loaded_split(config, split)
    if not ids:
        raise DataError(f"household: {config.data} holds no game of the {split} split")
    end = start + count if split == "train" else min(start + count, len(ids))
    return [_shuffled(config, split, seed, index // len(ids))[index % len(ids)] for index in range(start, end)]


@lru_cache(maxsize=512)
def game_of(config: Config, task_id: str) -> Game:
    """The game of a task. Kept for a while: the plays of a group share it."""
    if not task_id.startswith(_PREFIX):
        if config.data is None:
            raise DataError(f"household: no task {task_id!r}; ids of generated games start with {_PREFIX}")
        try:
            return _folder(config.data, config.tasks)[task_id]
        except KeyError:
            raise DataError(f"household: no task {task_id!r} under {config.data}") from None
    found = _GENERATED.fullmatch(task_id)
    if found is None:
        raise DataError(f"household: {task_id!r} is not of the form {_PREFIX}<split>:<seed>:<index>")
    return generate(config, found["split"], int(found["seed"]), int(found["index"]))


def draw_task(config: Config, rng: np.random.Generator) -> str:
    """A training task."""
    if config.data is not None:
        ids = _loaded_split(config, "train")
        return ids[int(rng.integers(len(ids)))]
    return f"{_PREFIX}train:{int(rng.integers(2**31))}:0"


@lru_cache(maxsize=8)
def _folder(data: Path, tasks: tuple[str, ...]) -> GameFolder:
    return GameFolder(data, tasks)


@lru_cache(maxsize=32)
def _loaded_split(config: Config, split: str) -> tuple[str, ...]:
    """Sorted ids of a split: by ALFWorld's folder names where they tell, else by content as for generated games."""
    assert config.data is not None
    folder = _folder(config.data, config.tasks)
    own = _FOLDERS.get(config.data.name)
    return tuple(i for i in folder if (own or _named_split(i) or split_of(folder[i])) == split)


def _named_split(task_id: str) -> str | None:
    return next((_FOLDERS[part] for part in PurePosixPath(task_id).parts if part in _FOLDERS), None)


@lru_cache(maxsize=32)
def _shuffled(config: Config, split: str, seed: int, epoch: int) -> tuple[str, ...]:
    ids = _loaded_split(config, split)
    order = generator(seed, "household", split, "order", epoch).permutation(len(ids))
    return tuple(ids[i] for i in order)
