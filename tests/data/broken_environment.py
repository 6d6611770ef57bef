"""A user's environment that raises in the middle of a game."""

import gymnasium
from pydantic import BaseModel


class Config(BaseModel, extra="forbid"):
    pass


class Broken(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return "You stand in a kitchen.", {
            "admissible_commands": ["look"],
            "won": False,
            "state_key": "0",
            "task_id": "0",
        }

    def step(self, action):
        raise RuntimeError("the stove is on fire")


def build(config: Config) -> Broken:
    return Broken()
