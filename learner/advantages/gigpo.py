"""GiGPO (arXiv 2505.10978): GRPO's episode advantage plus omega times a step advantage among equal states of a group.

The anchor is `rows.state_key`, the state in which the action was taken, within one group: never an observation's text
alone, which merges unlike states, nor the step's number. A state met twice in one episode counts twice.
"""

from dataclasses import replace

import numpy as np
from pydantic import Field

from learner.advantages.grpo import episode_advantages
from learner.baselines import Normalise, broadcast, check_group_size, relative
from learner.core import Algorithm, IntArray, Rows
from learner.rewards import RewardConfig, added_rewards, returns_to_go


class Config(RewardConfig):
    omega: float = Field(1.0, ge=0)
    """Weight of the step advantage."""
    gamma: float = Field(0.95, ge=0, le=1)
    """Discount a turn of the step returns; the episode part is not discounted."""
    normalise: Normalise = "sample"
    """What both parts divide by: the sample (n - 1) or the population (n) standard deviation, or nothing."""
    epsilon: float = Field(1e-3, ge=0)
    """Added to the standard deviation; large enough that returns which hardly differ do not weigh like a success."""


class Gigpo:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = config.reward_needs

    def check(self, group_size: int) -> None:
        check_group_size("gigpo", group_size)

    def compute(self, rows: Rows) -> Rows:
        """The sum of both parts. A state that the group met once has step advantage 0."""
        config = self.config
        added = added_rewards(rows, config)
        episode = episode_advantages(rows, added, config.normalise, config.epsilon)[rows.episode]
        returns = returns_to_go(rows.reward + added, rows.episode, config.gamma)
        returns = np.where(np.isnan(rows.task_return)[rows.episode], np.nan, returns)
        step = relative(returns, anchor_groups(rows), config.normalise, config.epsilon)
        return replace(rows, advantages=broadcast(rows, episode + config.omega * step))


def build(config: Config) -> Algorithm:
    return Gigpo(config)


def anchor_groups(rows: Rows) -> IntArray:
    """(K,) an id for each pair of group and state key."""
    ids: dict[tuple[int, str], int] = {}
    keys = zip(rows.group.tolist(), rows.state_key, strict=True)
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)
