"""What world-model terms share: which transitions they train on, and how a transition's weight becomes its tokens'.

A world-model term works in steps, so that another can come in between (`objectives/placebo.py` swaps the observations):

    choices, metrics = term.choose(update, rng)      # source -> Choice: rows, and the transitions selected
    scales = term.scales(choices)                    # source -> (K,) what the mean over one observation's tokens counts
    streams, metrics = observation_streams(term.name, choices, scales)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from learner.batch import token_weights, transition_rows
from learner.core import BoolArray, IntArray, Objective, Rows, Stream, Update
from protos.telemetry import Metrics, total

Method = Literal["entropy", "random", "all"]
RowForm = Literal["episode", "transition"]
Scale = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The transitions of one source that a world-model term trains on."""

    rows: Rows
    selected: BoolArray  # (K,)

    def own_rows(self, donors: IntArray | None = None) -> "Choice":
        """The same transitions, each on a row [h_t, a_t, o] of its own; o from `donors` (ids, one each) if given."""
        rows = transition_rows(self.rows, np.flatnonzero(self.selected), donors)
        return Choice(rows, np.ones(len(rows.row), np.bool_))


Choices = Mapping[str, Choice]


@runtime_checkable
class WorldObjective(Objective, Protocol):
    """An objective over observation tokens, in the steps above; `weigh` takes them all."""

    config: Any  # its module's Config

    def choose(self, update: Update, rng: np.random.Generator) -> tuple[dict[str, Choice], Metrics]: ...

    def scales(self, choices: Choices) -> dict[str, Scale]: ...


def selected_count(rows: Rows, method: Method, alpha: float) -> int:
    """How many transitions `select` takes: of the n that may train the world model ceil(alpha n), or all."""
    available = int(rows.world.sum())
    # 0.1 * 30 is a little more than 3 in floating point: that is not a fourth transition.
    return available if method == "all" else min(available, math.ceil(alpha * available - 1e-9))


def select(rows: Rows, method: Method, alpha: float, rng: np.random.Generator) -> BoolArray:
    """(K,) S_alpha of arXiv 2606.02388, eq. 4: the top `alpha` by action entropy of the whole update, not per group.

    `random` draws as many without replacement, `all` takes all. **[default]** The pool is the transitions that may
    train the world model at all (`rows.world`); of equal entropies the earlier transition is taken first.
    """
    pool = np.flatnonzero(rows.world)
    count = selected_count(rows, method, alpha)
    if method == "entropy":
        pool = pool[np.argsort(-rows.entropy[pool], kind="stable")]
    elif method == "random":
        pool = rng.permutation(pool)
    selected = np.zeros(len(rows.row), np.bool_)
    selected[pool[:count]] = True
    return selected


def group_mean(rows: Rows, selected: BoolArray) -> Scale:
    """(K,) weights of the mean over groups of the mean over a group's selected transitions (eqs. 9 and 11).

    The outer mean is over all groups of the update: one without a selected transition adds 0.
    """
    count = np.bincount(rows.group[selected], minlength=rows.groups)
    return selected / np.maximum(count[rows.group] * rows.groups, 1)


def observation_streams(name: str, choices: Choices, scales: Mapping[str, Scale]) -> tuple[list[Stream], Metrics]:
    """Each transition's weight (K,) spread evenly over its observation: sum over tokens / |o_{t+1}| (eq. 8)."""
    streams, metrics = [], {}
    for source, choice in choices.items():
        observation, scale = choice.rows.observation, scales[source]
        length = observation[:, 1] - observation[:, 0]
        streams.append(
            Stream(choice.rows, source, token_weights(choice.rows, observation, scale / np.maximum(length, 1)))
        )
        metrics[f"{name}/transitions/{source}"] = total(int(choice.selected.sum()))
    streams, empty = without_empty(name, streams)
    return streams, metrics | empty


def without_empty(name: str, streams: list[Stream]) -> tuple[list[Stream], Metrics]:
    """The streams that score any token, and the counter `<name>/no_tokens`: 1 for an update in which there is none."""
    kept = [stream for stream in streams if stream.weights.any()]
    return kept, {f"{name}/no_tokens": total(not kept)}
