"""The household environment in Gymnasium's form."""

from typing import Any

import gymnasium
from gymnasium.spaces import Text

from actors.core import Info
from actors.envs.household.config import Config
from actors.envs.household.game import Game
from actors.envs.household.tasks import draw_task, game_of
from actors.envs.household.texts import REFUSAL
from actors.envs.household.world import World
from protos.errors import EnvironmentFailure

_PRINTABLE = frozenset(chr(code) for code in range(32, 127)) | {"\n"}


class Household(gymnasium.Env[str, str]):
    """Plays one game at a time: of the task that `reset` names, or always the `game` that it was made with."""

    def __init__(self, config: Config, game: Game | None = None, task_id: str = "") -> None:
        self.config = config
        self.observation_space = Text(max_length=4096, charset=_PRINTABLE)
        self.action_space = Text(max_length=256, charset=_PRINTABLE)
        self._only = game
        self._task_id = task_id
        self._world: World | None = None
        self._steps = 0

    @property
    def game(self) -> Game:
        """The game that is being played."""
        return self._playing().game

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game of `options["task_id"]`; without one, a training game drawn by `seed` (the same for equal seeds)."""
        super().reset(seed=seed)
        game = self._only
        if game is None:
            named = (options or {}).get("task_id")
            self._task_id = named if named is not None else draw_task(self.config, self.np_random)
            game = game_of(self.config, self._task_id)
        if self._world is None or self._world.game is not game:
            self._world = World(game)
        self._steps = 0
        return self._world.reset(), self._info(self._world, True) | {"task": f"{game.task.sentence}."}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Terminated at the win alone; truncated after `max_steps` commands without one.

        A bad action is refused, and counts. A game that is over refuses everything.
        """
        world = self._playing()
        if world.won or self._steps >= self.config.max_steps:
            return REFUSAL, 0.0, world.won, not world.won, self._info(world, False)
        observation, valid = world.act(action if isinstance(action, str) else "")
        self._steps += 1
        truncated = not world.won and self._steps >= self.config.max_steps
        return observation, self.config.reward * world.won, world.won, truncated, self._info(world, valid)

    def _playing(self) -> World:
        if self._world is None:
            raise EnvironmentFailure("household: call reset before step")
        return self._world

    def _info(self, world: World, valid: bool) -> Info:
        return {
            "admissible_commands": list(world.admissible),
            "won": world.won,
            "state_key": world.key,
            "valid": valid,
            "task_id": self._task_id,
            "task_type": world.game.task.type,
            "game": world.game.fingerprint,
            "steps": self._steps,
        }
