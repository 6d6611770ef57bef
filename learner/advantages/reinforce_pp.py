"""REINFORCE++ (arXiv 2501.03262): returns to go of single tokens, normalised over the whole update, without a critic.

    A_t = sum over u >= t of gamma^(u - t) (r_u - beta KL_u)      r_u: a transition's reward at its reply's last token
    then (A - mean) / standard deviation, over all action tokens of the update

With `baseline = "group"` (REINFORCE++-baseline) the reward's part is the episode's return less the mean of its group's,
on all its tokens, before the same normalisation; the KL's part stays a return to go.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from learner.baselines import Float64Array, check_group_size, relative, whiten
from learner.batch import span_tokens
from learner.core import Algorithm, IntArray, Rows
from learner.rewards import RewardConfig, episode_returns, returns_to_go, shaping, token_kl, token_rewards


class Config(RewardConfig):
    baseline: Literal["none", "group"] = "none"
    """none: REINFORCE++, for groups of any size; group: REINFORCE++-baseline, which the paper pairs with a k2 KL in the
    loss in place of one in the reward."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount a token of the returns to go."""
    epsilon: float = Field(1e-8, ge=0)
    """Added to the standard deviation, which is the population's (n) **[default]**."""


class ReinforcePlusPlus:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = config.reward_needs

    def check(self, group_size: int) -> None:
        if self.config.baseline == "group":
            check_group_size("reinforce_pp with baseline = 'group'", group_size)

    def compute(self, rows: Rows) -> Rows:
        """Tokens of an episode whose return is NaN get advantage 0 and do not enter the statistics."""
        owner, positions = span_tokens(rows.action)
        episode = rows.episode[owner]
        returns = self._returns(rows, positions, episode)
        returns[np.isnan(rows.task_return)[episode]] = np.nan
        advantages = np.zeros(rows.tokens, np.float32)
        advantages[positions] = whiten(returns, self.config.epsilon)
        return replace(rows, advantages=advantages)

    def _returns(self, rows: Rows, positions: IntArray, episode: IntArray) -> Float64Array:
        """(n,) before the normalisation, of the action tokens at `positions` (n,), of the episodes (ids, (n,))."""
        config = self.config
        if config.baseline == "none":
            return returns_to_go(token_rewards(rows, config)[positions], episode, config.gamma)
        outcome = episode_returns(rows, shaping(rows, config))
        kl = returns_to_go(-token_kl(rows, config)[positions], episode, config.gamma)
        return kl + relative(outcome, rows.episode_group, "none", 0.0)[episode]


def build(config: Config) -> Algorithm:
    return ReinforcePlusPlus(config)
