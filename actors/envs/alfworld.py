"""ALFWorld's own engine (arXiv 2010.03768; alfworld on textworld) behind the interface of `household`.

The same settings, tasks, expert and tokenizer as household's, and by its tests the same texts. Household plays much faster;
this is the original to measure against. Needs the `alfworld` extra.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from actors.core import Info
from actors.envs import household
from actors.envs.household import game_fingerprint
from actors.envs.household.expert import expert
from actors.envs.household.folder import GAME
from actors.envs.household.tasks import draw_task, task_ids
from actors.envs.household.texts import REFUSAL
from actors.envs.household.vocabulary import tokenizer
from protos.errors import ConfigError, EnvironmentFailure

__all__ = ["Alfworld", "Config", "build", "expert", "game_fingerprint", "task_ids", "tokenizer"]


class Config(household.Config, frozen=True, use_attribute_docstrings=True):
    """Household's settings: games of `data`, or generated ones, which are written in ALFWorld's format to be played."""

    max_steps: int = 50
    """Commands in an episode; then it is truncated. 50 is ALFWorld's own limit."""

    cache: Path = Path("~/.cache/tandem/alfworld")
    """Where generated games are written to, once each."""


class Alfworld:
    """Plays one game at a time, in an engine of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._engine: Any = None
        self._task_id = ""
        self._game: household.Game | None = None
        self._state: Any = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game of `options["task_id"]`; without one, a training game drawn by `seed`."""
        task_id = (options or {}).get("task_id") or _drawn(self.config, seed)
        if self._engine is None or task_id != self._task_id:
            self._load(task_id)
        assert self._engine is not None
        assert self._game is not None
        self._state, self._steps = self._engine.reset(), 0
        return self._state.feedback.strip(), self._info(True) | {"task": f"{self._game.task.sentence}."}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Terminated at the win alone; truncated after `max_steps` commands without one.

        A bad action is refused, and counts. A game that is over refuses everything.
        """
        if self._engine is None:
            raise EnvironmentFailure("alfworld: call reset before step")
        won = bool(self._state.won)
        if won or self._steps >= self.config.max_steps:
            return REFUSAL, 0.0, won, not won, self._info(False)
        self._state, _, _ = self._engine.step(action if isinstance(action, str) else "")
        self._steps += 1
        won, observation = bool(self._state.won), self._state.feedback.strip()
        truncated = not won and self._steps >= self.config.max_steps
        return observation, self.config.reward * won, won, truncated, self._info(observation != REFUSAL)

    def close(self) -> None:
        """Let the engine go; safe to call again."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _load(self, task_id: str) -> None:
        self.close()
        self._game = household.game_of(self.config, task_id)
        path = _game_file(self.config, task_id, self._game)
        engine = _make_engine()()
        engine.load(str(path))
        self._engine, self._task_id = engine, task_id

    def _info(self, valid: bool) -> Info:
        assert self._game is not None
        state = self._state
        return {
            "admissible_commands": sorted(state.admissible_commands),
            "won": bool(state.won),
            "state_key": _key(state.facts),
            "valid": valid,
            "task_id": self._task_id,
            "task_type": self._game.task.type,
            "game": self._game.fingerprint,
            "steps": self._steps,
        }


def build(config: Config) -> Alfworld:
    """An environment that plays the tasks of `task_ids`. Raises ConfigError where the extra is missing."""
    _make_engine()
    return Alfworld(config)


@lru_cache(maxsize=1)
def _make_engine() -> Callable[[], Any]:
    """What makes an engine: ALFWorld's text environment with its names, without its registry."""
    try:
        textworld = import_module("textworld")
        demangler = import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
    except ModuleNotFoundError as error:
        raise ConfigError(f"alfworld needs the module {error.name!r}: pip install -e '.[alfworld]'") from error
    wanted = {"won": True, "admissible_commands": True, "facts": True}
    return lambda: demangler(textworld.envs.PddlEnv(textworld.EnvInfos(**wanted)))


def _key(facts: Iterable[Any]) -> str:
    """Equal where the world is: what was looked at, and what is merely denied, are left out."""
    stated = sorted(fact for fact in map(str, facts) if not fact.startswith(("checked(", "not_")))
    return hashlib.sha256("\n".join(stated).encode()).hexdigest()[:24]


def _drawn(config: Config, seed: int | None) -> str:
    return draw_task(config, np.random.default_rng(seed))


def _game_file(config: Config, task_id: str, game: household.Game) -> Path:
    """ALFWorld's own file of a loaded game; a generated one is written to the cache, whole or not at all."""
    if config.data is not None:
        return config.data / task_id / GAME
    data = Path(str(import_module("alfworld").__file__)).parent / "data"
    cache = config.cache.expanduser()
    folder = cache / hashlib.sha256(repr((game.problem, game.task)).encode()).hexdigest()[:32]
    if not (folder / GAME).exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            household.write_game(
                Path(scratch), game, (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()
            )
            folder.mkdir(exist_ok=True)
            for file in Path(scratch).iterdir():
                os.replace(file, folder / file.name)
    return folder / GAME
