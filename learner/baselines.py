"""What a return is measured against: its group, the others of its group, or all of the update. Numpy alone.

Groups are ids, never a text. Values that are NaN give 0 and count nowhere; groups of one and groups of equal values give
exactly 0: what rounding leaves of their deviations would otherwise be divided by itself.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from learner.batch import token_weights
from learner.core import FloatArray, IntArray, Rows
from protos.errors import ConfigError

Normalise = Literal["sample", "population", "none"]
Float64Array = NDArray[np.float64]


def relative(values: Float64Array, group: IntArray, normalise: Normalise, epsilon: float) -> Float64Array:
    """(n,) each value's distance to the mean of its group (ids, (n,)), over the group's standard deviation + `epsilon`.

    Two passes, never E[x^2] - E[x]^2.
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


def leave_one_out(values: Float64Array, group: IntArray, normalise: Normalise, epsilon: float) -> Float64Array:
    """(n,) each value's distance to the mean of the *others* of its group, over the standard deviation of the whole group.

    Of a group of n that is n / (n - 1) times the distance to the mean of all. The deviation is never that of the others
    alone, which is 0 where these agree.
    """
    count = np.bincount(group[~np.isnan(values)], minlength=int(group.max(initial=-1)) + 1)
    return (count / np.maximum(count - 1, 1))[group] * relative(values, group, normalise, epsilon)


def whiten(values: Float64Array, epsilon: float) -> Float64Array:
    """(n,) less the mean of all, over their population standard deviation + `epsilon`."""
    return relative(values, np.zeros(len(values), np.int64), "population", epsilon)


def broadcast(rows: Rows, per_transition: Float64Array) -> FloatArray:
    """(N,) the advantage (K,) of each transition on all its action tokens, 0 elsewhere."""
    return token_weights(rows, rows.action, per_transition)


def check_group_size(name: str, group_size: int) -> None:
    """Refuse groups in which every advantage is 0, at start and not after a run that learned nothing."""
    if group_size < 2:
        raise ConfigError(
            f"group_size = {group_size}: {name} compares the episodes of a group, so one alone teaches nothing; "
            "set group_size to 2 or more"
        )
