"""ALFWorld's own engine (alfworld on textworld, the `alfworld` extra) in the form of our environments."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from actors.core import Info
from actors.envs import household


class RealEngine:
    """Plays the games of `tasks`, which are written to `folder` in ALFWorld's format and loaded once, here."""

    def __init__(self, config: household.Config, tasks: Sequence[str], folder: Path) -> None:
        alfworld, textworld = import_module("alfworld"), import_module("textworld")
        demangler = import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        data = Path(str(alfworld.__file__)).parent / "data"
        rules = (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()
        self._max_steps, self._steps = config.max_steps, 0
        self._games: dict[str, Any] = {}
        for number, task in enumerate(tasks):
            home = folder / str(number)
            household.write_game(home, household.game_of(config, task), *rules)
            env = demangler(textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
            env.load(str(home / "game.tw-pddl"))
            self._games[task] = env
        self._env = next(iter(self._games.values()))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game of `options["task_id"]`."""
        self._env, self._steps = self._games[(options or {})["task_id"]], 0
        state = self._env.reset()
        return state.feedback.strip(), self._info(state)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        state, _, _ = self._env.step(action)
        self._steps += 1
        won = bool(state.won)
        return state.feedback.strip(), float(won), won, not won and self._steps >= self._max_steps, self._info(state)

    def close(self) -> None:
        for env in self._games.values():
            env.close()

    def _info(self, state: Any) -> Info:
        return {"admissible_commands": state.admissible_commands, "won": bool(state.won)}
