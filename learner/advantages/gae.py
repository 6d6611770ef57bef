"""Generalised advantage estimation (arXiv 1506.02438, eq. 16) over action tokens: the advantages of PPO with a critic.

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1},   value target of V_t = A_t + V_t

t counts the *action* tokens of an episode, across all its rows; observations and prompts are skipped, so that credit does
not fade over a long text that nobody chose. V_t is the value of the prefix before action token t: position n - 1 of its row.
A transition's reward comes at the last token of its action.

After an episode's last action token V is 0 where it terminated, and else (step limit, context, reply limit) the value of its
final prefix: the position of the last token of its last row, its last observation included. In `append` prompts that is the
context of the reply that was never sampled. In window prompts it is [prompt, action, observation] of the last transition:
the window that would have come next was never built.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from learner.baselines import Float64Array, whiten
from learner.batch import span_tokens
from learner.core import Algorithm, IntArray, Need, Rows
from learner.rewards import RewardConfig, token_rewards

VALUES: frozenset[Need] = frozenset({"values"})


class Config(RewardConfig):
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount an action token. **[default]** None: a reply's length is no reason to value its outcome less."""
    lam: float = Field(1.0, ge=0, le=1)
    """lambda of eq. 16: 0 trusts the critic one token ahead, 1 **[default]** trusts the rewards of the whole episode."""
    truncation: Literal["bootstrap", "end"] = "bootstrap"
    """bootstrap: a truncated episode goes on in the critic's eyes; end: it is worth 0 from there on, right where the limit
    is part of the task: where failure always is a truncation, bootstrapped targets never tell the critic of failure."""
    whiten: bool = True
    """Normalise the advantages over all action tokens of the update **[default]**; value targets never are. Where all
    episodes of an update fail, the critic's errors then count as much as a success would."""
    epsilon: float = Field(1e-8, ge=0)
    """Added to the standard deviation."""


class Gae:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.needs = config.reward_needs | VALUES

    def check(self, group_size: int) -> None:
        """The critic is the baseline: groups of any size will do."""

    def compute(self, rows: Rows) -> Rows:
        """Tokens of an episode whose return is NaN get advantage 0 and value target NaN: nothing to learn from."""
        assert rows.values is not None, "gae reads rows.values: Learner.look_up fills it"
        config = self.config
        owner, positions = span_tokens(rows.action)
        episode = rows.episode[owner]
        value = rows.values[positions - 1].astype(np.float64)
        advantage = generalised_advantages(
            token_rewards(rows, config)[positions], value, episode, self._final_values(rows), config.gamma, config.lam
        )
        advantage[np.isnan(rows.task_return)[episode]] = np.nan
        advantages, targets = np.zeros(rows.tokens, np.float32), np.zeros(rows.tokens, np.float32)
        targets[positions] = advantage + value
        advantages[positions] = whiten(advantage, config.epsilon) if config.whiten else np.nan_to_num(advantage)
        return replace(rows, advantages=advantages, value_targets=targets)

    def _final_values(self, rows: Rows) -> Float64Array:
        """(E,) what an episode is worth after its last action token."""
        assert rows.values is not None
        final = np.zeros(len(rows.task_return))
        if self.config.truncation == "bootstrap":
            last = np.flatnonzero(np.diff(rows.episode, append=-1))
            last = last[~rows.terminated[last]]
            final[rows.episode[last]] = rows.values[rows.row_start[rows.row[last] + 1] - 1]
        return final


def build(config: Config) -> Algorithm:
    return Gae(config)


def generalised_advantages(
    reward: Float64Array, value: Float64Array, episode: IntArray, final: Float64Array, gamma: float, lam: float
) -> Float64Array:
    """(n,) eq. 16 on the action tokens of all episodes.

    reward, value (before the token), episode: (n,), each episode's in one run and in order; final: (E,) the value after the
    last token of each.
    """
    advantages = np.zeros(len(reward))
    advantage = next_value = 0.0
    episode_after = -1
    backwards = zip(reward[::-1].tolist(), value[::-1].tolist(), episode[::-1].tolist(), strict=True)
    for i, (earned, before, own) in enumerate(backwards):
        if own != episode_after:
            episode_after, advantage, next_value = own, 0.0, float(final[own])
        advantage = earned + gamma * next_value - before + gamma * lam * advantage
        next_value = before
        advantages[i] = advantage
    return advantages[::-1]
