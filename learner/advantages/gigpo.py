"""GiGPO (arXiv 2505.10978): GRPO's episode advantage plus omega times a step advantage among equal states of a group.

The anchor is `rows.state_key`, the state in which the action was taken, within one group: never an observation's text
alone, which merges unlike states, nor the step's number. A state met twice in one episode counts twice.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from learner.advantages import grpo
from learner.core import Algorithm, FloatArray, IntArray, Rows


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    omega: float = Field(1.0, ge=0)
    """Weight of the step advantage."""
    gamma: float = Field(0.95, ge=0, le=1)
    """Discount a turn of the step returns; the episode part is not discounted."""
    normalise: grpo.Normalise = "sample"
    """What both parts divide by: the sample (n - 1) or the population (n) standard deviation, or nothing."""
    epsilon: float = Field(1e-3, ge=0)
    """Added to the standard deviation; large enough that returns which hardly differ do not weigh like a success."""
    invalid_penalty: float = Field(0.0, ge=0)
    """Taken off the reward of each refused action. Off: with it success collapsed in the household games."""


class Gigpo:
    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self, group_size: int) -> None:
        grpo.check_group_size("gigpo", group_size)

    def compute(self, rows: Rows) -> FloatArray:
        """(N,) advantages: the sum of both parts. A state that the group met once has step advantage 0."""
        config = self.config
        part = grpo.Config(normalise=config.normalise, epsilon=config.epsilon, invalid_penalty=config.invalid_penalty)
        episode = grpo.episode_advantages(rows, part)[rows.episode]
        reward = rows.reward - config.invalid_penalty * ~rows.valid
        returns = np.where(np.isnan(rows.task_return)[rows.episode], np.nan, step_returns(rows, reward, config.gamma))
        step = grpo.relative(returns, anchor_groups(rows), config.normalise, config.epsilon)
        return grpo.broadcast(rows, episode + config.omega * step)


def build(config: Config) -> Algorithm:
    return Gigpo(config)


def step_returns(rows: Rows, reward: NDArray[np.floating], gamma: float) -> NDArray[np.float64]:
    """(K,) discounted return to go of each turn, R_t = r_t + gamma R_{t+1}: each reward counts once."""
    returns = np.zeros(len(reward))
    later, episode_after = 0.0, -1
    for k, (value, episode) in enumerate(zip(reward[::-1].tolist(), rows.episode[::-1].tolist(), strict=True)):
        later = value + gamma * later if episode == episode_after else value
        episode_after = episode
        returns[k] = later
    return returns[::-1]


def anchor_groups(rows: Rows) -> IntArray:
    """(K,) an id for each pair of group and state key."""
    ids: dict[tuple[int, str], int] = {}
    keys = zip(rows.group.tolist(), rows.state_key, strict=True)
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)
