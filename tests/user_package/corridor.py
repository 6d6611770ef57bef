"""A user's own environment, outside `actors/envs/`, without optional hooks: walk to the door of a corridor and open it."""

from typing import Any

from pydantic import BaseModel

from actors.core import Info
from protos.seeding import generator


class Config(BaseModel, extra="forbid", frozen=True):
    length: int = 5
    max_steps: int = 8


class Corridor:
    def __init__(self, config: Config) -> None:
        self.config = config

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        rng = generator(seed or 0, "corridor")
        self.place, self.door = (int(i) for i in rng.choice(self.config.length, size=2, replace=False))
        self.task_id, self.steps, self.won = f"seed:{seed or 0}", 0, False
        return f"You stand at place {self.place}. Your task is to: open the door at place {self.door}.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.steps += 1
        valid = action in self._commands()
        if not valid:
            text = "Nothing happens."
        elif action == "open door":
            self.won, text = True, "The door opens."
        else:
            self.place += 1 if action == "walk right" else -1
            text = f"You walk to place {self.place}."
        truncated = not self.won and self.steps >= self.config.max_steps
        return text, float(self.won), self.won, truncated, {**self._info(), "valid": valid}

    def close(self) -> None:
        pass

    def _commands(self) -> list[str]:
        commands = ["walk left"] if self.place > 0 else []
        commands += ["walk right"] if self.place < self.config.length - 1 else []
        return sorted([*commands, "open door"] if self.place == self.door else commands)

    def _info(self) -> Info:
        return {
            "admissible_commands": self._commands(),
            "won": self.won,
            "state_key": f"{self.place}/{self.door}",
            "task_id": self.task_id,
            "task_type": "corridor",
        }


def build(config: Config) -> Corridor:
    return Corridor(config)
