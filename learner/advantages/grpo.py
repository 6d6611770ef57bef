"""GRPO (arXiv 2402.03300, section 4.1.2): the return of an episode against its group's, on all its action tokens."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from learner.batch import token_weights
from learner.core import Algorithm, FloatArray, IntArray, Rows
from protos.errors import ConfigError

Normalise = Literal["sample", "population", "none"]


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    normalise: Normalise = "sample"
    """What is divided by: the sample (n - 1) or the population (n) standard deviation of the group, or nothing."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    invalid_penalty: float = Field(0.0, ge=0)
    """Taken off the return for each refused action. Off: with it success collapsed in the household games."""


class Grpo:
    def __init__(self, config: Config) -> None:
        self.config = config

    def check(self, group_size: int) -> None:
        check_group_size("grpo", group_size)

    def compute(self, rows: Rows) -> FloatArray:
        """(N,) advantages; an episode whose return is NaN gets 0 and does not enter its group's statistics."""
        return broadcast(rows, episode_advantages(rows, self.config)[rows.episode])


def build(config: Config) -> Algorithm:
    return Grpo(config)


def episode_advantages(rows: Rows, config: Config) -> NDArray[np.float64]:
    """(E,) of the task returns, less the penalties."""
    refused = np.bincount(rows.episode[~rows.valid], minlength=len(rows.task_return))
    returns = rows.task_return.astype(np.float64) - config.invalid_penalty * refused
    return relative(returns, rows.episode_group, config.normalise, config.epsilon)


def relative(values: NDArray[np.float64], group: IntArray, normalise: Normalise, epsilon: float) -> NDArray[np.float64]:
    """(n,) each value's distance to the mean of its group (ids, (n,)), over the group's standard deviation + `epsilon`.

    NaN values give 0 and do not count. Groups of one and groups of equal values give exactly 0: what rounding leaves of
    their deviations would otherwise be divided by itself. Two passes, never E[x^2] - E[x]^2.
    """
    finite = ~np.isnan(values)
    ids, values = group[finite], values[finite]
    groups = int(group.max(initial=-1)) + 1
    count = np.bincount(ids, minlength=groups)
    deviation = values - (np.bincount(ids, values, groups) / np.maximum(count, 1))[ids]
    size = np.zeros(groups)
    np.maximum.at(size, ids, np.abs(values))
    spread = np.zeros(groups)
    np.maximum.at(spread, ids, np.abs(deviation))
    equal = spread <= 1e-12 * size
    deviation[equal[ids]] = 0.0
    if normalise != "none":
        freedom = np.maximum(count - (normalise == "sample"), 1)
        deviation /= (np.sqrt(np.bincount(ids, deviation**2, groups) / freedom) + epsilon + equal)[ids]
    advantages = np.zeros(len(group))
    advantages[finite] = deviation
    return advantages


def broadcast(rows: Rows, per_transition: NDArray[np.float64]) -> FloatArray:
    """(N,) the advantage (K,) of each transition on all its action tokens, 0 elsewhere."""
    return token_weights(rows, rows.action, per_transition)


def check_group_size(name: str, group_size: int) -> None:
    """Refuse groups in which every advantage is 0, at start and not after a run that learned nothing."""
    if group_size < 2:
        raise ConfigError(
            f"group_size = {group_size}: {name} compares the episodes of a group, so one alone teaches nothing; "
            "set group_size to 2 or more"
        )
