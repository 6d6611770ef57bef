"""RLOO, REINFORCE with the leave-one-out baseline (arXiv 2402.14740): an episode against the others of its group.

A_i = R_i - 1 / (G - 1) x sum over j != i of R_j,  on all action tokens of episode i
"""

from dataclasses import replace

from pydantic import Field

from learner.baselines import Normalise, broadcast, check_group_size, leave_one_out
from learner.core import Algorithm, Rows
from learner.rewards import RewardConfig, added_rewards, episode_returns


class Config(RewardConfig):
    normalise: Normalise = "none"
    """What is divided by: nothing (the paper), or the sample (n - 1) or population (n) standard deviation of the group."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class Rloo:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = config.reward_needs

    def check(self, group_size: int) -> None:
        check_group_size("rloo", group_size)

    def compute(self, rows: Rows) -> Rows:
        """An episode whose return is NaN gets advantage 0 and is none of the others' baseline."""
        config = self.config
        returns = episode_returns(rows, added_rewards(rows, config))
        episode = leave_one_out(returns, rows.episode_group, config.normalise, config.epsilon)
        return replace(rows, advantages=broadcast(rows, episode[rows.episode]))


def build(config: Config) -> Algorithm:
    return Rloo(config)
