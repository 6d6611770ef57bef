"""How the action tokens of an update count in its policy term: the denominators, all taken over the whole update. Numpy alone.

What is masked is in no denominator: a masked reply leaves its episode's, an episode or group masked as a whole leaves the
means over episodes or groups.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from learner.core import BoolArray, Rows

Aggregation = Literal["group", "token", "sequence", "reply", "constant"]
Shares = NDArray[np.float64]


def token_shares(
    rows: Rows, aggregation: Aggregation, counted: BoolArray, groups: BoolArray, episode_tokens: int | None = None
) -> Shares:
    """(K,) the share of the whole that each action token of a transition has, 0 where it is not `counted` (K,).

    groups: (G,) those that the mean over groups is taken over. With n_g the counted tokens, E_g the episodes and K_g the
    replies of a group that have any, and G' groups, a token's share is

        token       1 / all counted tokens
        group       1 / (G' n_g)
        sequence    1 / (G' E_g n_e)      n_e: counted tokens of its episode
        reply       1 / (G' K_g n_k)      n_k: tokens of its reply
        constant    1 / (G' E_g `episode_tokens`)
    """
    tokens = (rows.action[:, 1] - rows.action[:, 0]) * counted.astype(np.float64)
    if aggregation == "token":
        return counted / max(1.0, tokens.sum())
    outer = max(1, int(groups.sum()))
    if aggregation == "group":
        return counted / np.maximum(outer * np.bincount(rows.group, tokens, rows.groups)[rows.group], 1)
    unit, unit_group = (rows.episode, rows.episode_group)
    if aggregation == "reply":
        unit, unit_group = np.arange(len(rows.row)), rows.group
    of_unit = np.bincount(unit, tokens, len(unit_group))
    units = np.bincount(unit_group, of_unit > 0, rows.groups)
    within = float(episode_tokens or 0) if aggregation == "constant" else of_unit[unit]
    return counted / np.maximum(outer * units[rows.group] * within, 1)


def spread_groups(rows: Rows) -> BoolArray:
    """(G,) whether a group's task returns differ; returns that are NaN do not count."""
    low, high = np.full(rows.groups, np.inf), np.full(rows.groups, -np.inf)
    np.fmin.at(low, rows.episode_group, rows.task_return)
    np.fmax.at(high, rows.episode_group, rows.task_return)
    return low < high
