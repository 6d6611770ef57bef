"""GRPO (arXiv 2402.03300, section 4.1.2): the return of an episode against its group's, on all its action tokens."""

from dataclasses import replace

from pydantic import Field

from learner.baselines import Float64Array, Normalise, broadcast, check_group_size, relative
from learner.core import Algorithm, Rows
from learner.rewards import RewardConfig, added_rewards, episode_returns


class Config(RewardConfig):
    normalise: Normalise = "sample"
    """What is divided by: the sample (n - 1) or the population (n) standard deviation of the group, or nothing (the
    advantage of Dr.GRPO, arXiv 2503.20783)."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class Grpo:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = config.reward_needs

    def check(self, group_size: int) -> None:
        check_group_size("grpo", group_size)

    def compute(self, rows: Rows) -> Rows:
        """An episode whose return is NaN gets advantage 0 and does not enter its group's statistics."""
        config = self.config
        episode = episode_advantages(rows, added_rewards(rows, config), config.normalise, config.epsilon)
        return replace(rows, advantages=broadcast(rows, episode[rows.episode]))


def build(config: Config) -> Algorithm:
    return Grpo(config)


def episode_advantages(rows: Rows, added: Float64Array, normalise: Normalise, epsilon: float) -> Float64Array:
    """(E,) of the task returns and what was `added` (K,) to them."""
    return relative(episode_returns(rows, added), rows.episode_group, normalise, epsilon)
