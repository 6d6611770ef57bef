"""What an episode's replies earn, the same for every advantage estimator: the task's reward and what is taken off it.

    token_rewards       (N,) at the last token of a reply what it earned, at every action token its KL: token-level estimators
    added_rewards       (K,) what a transition's reward is changed by, the KL of its reply summed: step-level estimators
    episode_returns     (E,) the task return with any of these summed: episode-level estimators
    returns_to_go       discounted sums from each entry to the end of its episode

The config of each estimator extends `RewardConfig`. A reply has at least one token, its stop token or the one it was cut at.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from learner.batch import span_tokens
from learner.core import IntArray, Need, Rows

KlEstimator = Literal["k1", "k2", "k3"]
Float64Array = NDArray[np.float64]


class RewardConfig(BaseModel):
    """What is taken off the task reward before advantages are made of it. All of it is off by default."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    invalid_penalty: float = Field(0.0, ge=0)
    """Taken off the reward of each refused action. Off: with it success collapsed in the household games."""
    overlong_limit: int | None = Field(None, ge=1)
    """Tokens of a reply, its stop token included, that lose `overlong_penalty` in full (L_max of DAPO's soft overlong
    punishment, arXiv 2503.14476, eq. 13): the actors' reply limit, or less. None: no length is punished."""
    overlong_buffer: int = Field(0, ge=0)
    """The last tokens below `overlong_limit` (L_cache, eq. 13), over which the penalty rises linearly from 0."""
    overlong_penalty: float = Field(1.0, ge=0)
    """What a reply of the full length loses; 1 is eq. 13, for rewards of 1 and -1. **[default]** Of each reply, where
    the paper has one reply an episode."""
    kl: float = Field(0.0, ge=0)
    """beta: each action token's reward is reduced by beta times its KL from the reference policy (the one that the phase
    began with), estimated on the sampled token; summed over the episode where the estimator is episode-level. Mind
    group-normalised estimators: in a group of equal task returns the KL alone then ranks the episodes."""
    kl_estimator: KlEstimator = "k1"
    """With d = log(behaviour / reference): k1 = d, unbiased, and as a reward its gradient is that of the KL (the usual
    choice); k2 = d^2 / 2; k3 = exp(-d) - 1 + d, never negative (joschu.net/blog/kl-approx)."""

    @model_validator(mode="after")
    def _buffer_within_limit(self) -> "RewardConfig":
        if self.overlong_buffer > (self.overlong_limit or 0):
            raise ValueError(
                f"overlong_buffer {self.overlong_buffer} is the end of the length up to overlong_limit "
                f"{self.overlong_limit}: set overlong_limit to at least as much"
            )
        return self

    @property
    def reward_needs(self) -> frozenset[Need]:
        """The fields of `Rows` that these rewards read."""
        return frozenset({"reference"}) if self.kl > 0 else frozenset()


def token_rewards(rows: Rows, config: RewardConfig) -> Float64Array:
    """(N,) minus the KL at each action token; a transition's reward at the last token of its action; 0 elsewhere."""
    rewards = -token_kl(rows, config)
    rewards[rows.action[:, 1] - 1] += rows.reward + shaping(rows, config)
    return rewards


def added_rewards(rows: Rows, config: RewardConfig) -> Float64Array:
    """(K,) what comes to the task reward of each transition: its shaping, less the KL of its reply."""
    owner, positions = span_tokens(rows.action)
    return shaping(rows, config) - np.bincount(owner, token_kl(rows, config)[positions], len(rows.row))


def episode_returns(rows: Rows, added: Float64Array) -> Float64Array:
    """(E,) the task return, plus what was `added` (K,) over the episode; NaN where the task return is."""
    return rows.task_return.astype(np.float64) + np.bincount(rows.episode, added, len(rows.task_return))


def shaping(rows: Rows, config: RewardConfig) -> Float64Array:
    """(K,) penalties, at most 0: for a refused action, and for the length of a reply (arXiv 2503.14476, eq. 13)."""
    penalty = config.invalid_penalty * ~rows.valid
    if config.overlong_limit is not None:
        length = rows.action[:, 1] - rows.action[:, 0]
        excess = length - (config.overlong_limit - config.overlong_buffer)
        # Without a buffer eq. 13 is a step: nothing below the limit, all of it from there on.
        share = excess / config.overlong_buffer if config.overlong_buffer else (excess >= 0).astype(np.float64)
        penalty = penalty + config.overlong_penalty * np.clip(share, 0.0, 1.0)
    return -penalty.astype(np.float64)


def token_kl(rows: Rows, config: RewardConfig) -> Float64Array:
    """(N,) beta times the estimated KL(behaviour || reference) at action tokens, 0 elsewhere."""
    penalty = np.zeros(rows.tokens)
    if config.kl > 0:
        assert rows.reference is not None, "KL in the reward reads rows.reference: Learner.look_up fills it"
        _, positions = span_tokens(rows.action)
        distance = rows.log_probs[positions].astype(np.float64) - rows.reference[positions]
        match config.kl_estimator:
            case "k1":
                estimate = distance
            case "k2":
                estimate = distance**2 / 2
            case "k3":
                estimate = np.expm1(-distance) + distance
        penalty[positions] = config.kl * estimate
    return penalty


def returns_to_go(reward: NDArray[np.floating], episode: IntArray, gamma: float) -> Float64Array:
    """(n,) R_i = reward_i + gamma R_{i+1} within each episode (ids (n,), each in one run, in order of time)."""
    returns = np.zeros(len(reward))
    later, episode_after = 0.0, -1
    for i, (value, own) in enumerate(zip(reward[::-1].tolist(), episode[::-1].tolist(), strict=True)):
        later = value + gamma * later if own == episode_after else value
        episode_after = own
        returns[i] = later
    return returns[::-1]
