"""The placebo: another world-model term, unchanged, on rows [h_t, a_t, o'] with o' an observation of another group.

The model both reads and scores the donor's observation, so it gets the same number of tokens in the same places and
nothing to learn about its own actions. A gain that survives the placebo is not a gain of world modelling (arXiv
2607.21273, 2609.33335). Compare it with the same term under `rows = "transition"`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from learner import plugins
from learner.core import BoolArray, IntArray, Objective, Rows, Scores, Stream, Update
from learner.selection import Choice, Choices, Scale, WorldObjective, observation_streams
from protos.errors import ConfigError
from protos.telemetry import Metrics, mean, total

if TYPE_CHECKING:
    import torch


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    of: dict[str, Any] = {"name": "paw", "replay_ratio": 0.0}
    """The world-model term that is imitated, as it stands in the list of objectives: its `name` and settings.

    It must not replay: a replayed row does not tell which group it came from, so its donor could be of the same group.
    """

    @field_validator("of")
    @classmethod
    def _check(cls, of: dict[str, Any]) -> dict[str, Any]:
        if of.get("rows", "transition") != "transition":
            raise ValueError("a placebo feeds the donor's observation, each on a row of its own: leave out `rows`")
        if _world_term(of).config.model_dump().get("replay_ratio", 0.0) > 0:
            raise ValueError(
                "replayed rows do not tell their group, and a placebo needs observations of other groups: "
                "set of.replay_ratio = 0"
            )
        return of


class Placebo:
    name = "placebo"
    world_model = True

    def __init__(self, term: WorldObjective) -> None:
        self.term = term
        self.needs = term.needs

    def replay_rows(self, fresh: Rows) -> int:
        return self.term.replay_rows(fresh)

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """The term's own choice and denominators, with the observations permuted in between."""
        choices, chosen = self.term.choose(update, rng)
        scales = self.term.scales(choices)
        swapped = {source: _swap(choice, scales[source] != 0, rng) for source, choice in choices.items()}
        streams, weighed = observation_streams(self.name, swapped, self.term.scales(swapped))
        metrics = self._renamed(chosen) | weighed | self._budget(choices, scales, swapped, streams)
        return [replace(stream, source=self.name) for stream in streams], metrics

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        return self.term.keep(log_probs)

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """The term's own."""
        loss, metrics = self.term.loss(scores, weights)
        return loss, self._renamed(metrics)

    def _renamed(self, metrics: Metrics) -> Metrics:
        """The term's metrics under the placebo's name, so that both can stand in one run."""
        return {f"{self.name}/{key.removeprefix(self.term.name + '/')}": value for key, value in metrics.items()}

    def _budget(
        self, choices: Choices, scales: Mapping[str, Scale], swapped: Choices, streams: list[Stream]
    ) -> Metrics:
        """Tokens scored over those that the term would have scored: 1 unless one group holds most transitions."""
        own = sum(int(_lengths(choice.rows)[scales[source] != 0].sum()) for source, choice in choices.items())
        scored = sum(int(np.count_nonzero(stream.weights)) for stream in streams)
        lost = sum(int(choice.selected.sum()) - len(swapped[source].selected) for source, choice in choices.items())
        return {
            f"{self.name}/token_ratio": mean(scored / max(1, own), own),
            f"{self.name}/without_donor": total(lost),
        }


def build(config: Config) -> Objective:
    return Placebo(_world_term(config.of))


def _world_term(spec: dict[str, Any]) -> WorldObjective:
    term = plugins.load("objectives", spec)
    if not isinstance(term, WorldObjective):
        raise ConfigError(f"a placebo is one of a world-model term such as paw or next_observation, not {term.name!r}")
    return term


def donors_of(group: IntArray, rng: np.random.Generator) -> IntArray:
    """(n,) for each of n transitions with group ids (n,) another one, of another group, whose observation it gets.

    A random permutation whenever there is one, that is where no group holds more than half of the transitions: sorted
    by group and shifted by the size of the largest, every transition leaves its group. The excess of a larger group
    draws its donors from the other groups with replacement; -1 where there is no other group.
    """
    if not len(group):
        return np.zeros(0, np.int64)
    shuffled = rng.permutation(len(group))
    rank = rng.permutation(group.max() + 1)[group]
    order = shuffled[np.argsort(rank[shuffled], kind="stable")]
    donors = np.empty_like(order)
    donors[order] = np.roll(order, -np.bincount(group).max())
    (excess,) = np.nonzero(group[donors] == group)
    if len(excess):
        (others,) = np.nonzero(group != group[excess[0]])
        donors[excess] = rng.choice(others, len(excess)) if len(others) else -1
    return donors


def _swap(choice: Choice, trained: BoolArray, rng: np.random.Generator) -> Choice:
    """Rows of their own for the selected transitions; those that weigh anything get a donor among each other.

    The rest (lambda 0) costs nothing and keeps its place in the denominators; a transition without a donor is left out.
    """
    (ids,) = np.nonzero(trained)
    found = donors_of(choice.rows.group[ids], rng)
    donors = np.arange(len(trained))
    donors[ids] = np.where(found >= 0, ids[found], -1)
    selected = choice.selected & (donors >= 0)
    return Choice(choice.rows, selected).own_rows(donors[selected])


def _lengths(rows: Rows) -> IntArray:
    return rows.observation[:, 1] - rows.observation[:, 0]
