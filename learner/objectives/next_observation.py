"""Next-observation prediction: cross-entropy on observation tokens.

Beside the policy term it is ECHO (arXiv 2605.24517); beside imitation, in a warm start, it teaches the dynamics first.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from learner import selection
from learner.core import Need, Rows, Scores, Stream, Update
from learner.selection import Choice, Choices, Scale, WorldObjective
from protos.telemetry import Metrics, mean, total

if TYPE_CHECKING:
    import torch

SOURCES = ("fresh", "demos")


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    coefficient: float = Field(0.05, ge=0)
    """Weight of the term; the paper finds 0.1 worse and 0.2 able to collapse policy training."""
    normalise: Literal["observation", "token"] = "observation"
    """observation: mean over an observation's tokens, then transitions (the paper); token: mean over all tokens."""
    rows: selection.RowForm = "episode"
    """episode: score observations in the forward pass of the rows as they are; transition: each on a row [h_t, a_t, o]
    of its own, the form in which a placebo can be compared."""


class NextObservation:
    name = "next_observation"
    needs: frozenset[Need] = frozenset()
    world_model = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        choices, chosen = self.choose(update, rng)
        if self.config.rows == "transition":
            choices = {source: choice.own_rows() for source, choice in choices.items()}
        streams, weighed = selection.observation_streams(self.name, choices, self.scales(choices))
        return streams, chosen | weighed

    def choose(self, update: Update, rng: np.random.Generator) -> tuple[dict[str, Choice], Metrics]:
        """Every transition with an observation, of the fresh rows and of the demonstrations, where there are any."""
        return {source: Choice(update[source], update[source].world) for source in SOURCES if source in update}, {}

    def scales(self, choices: Choices) -> dict[str, Scale]:
        """A mean for each source, times the coefficient."""
        return {source: self.config.coefficient * self._mean_weights(choice) for source, choice in choices.items()}

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        return None

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """sum of weights x -log p."""
        loss = -(weights * scores.log_probs).sum()
        value, tokens = float(loss.detach()), len(scores.log_probs)
        log_prob = float(scores.log_probs.detach().mean()) if tokens else 0.0
        metrics = {
            f"{self.name}/loss": total(value),
            f"{self.name}/log_prob": mean(log_prob, tokens),
        }
        if scores.source:
            metrics[f"{self.name}/loss/{scores.source}"] = total(value)
        return loss, metrics

    def _mean_weights(self, choice: Choice) -> Scale:
        """(K,)"""
        share = choice.selected.astype(np.float64)
        if self.config.normalise == "token":
            share = share * (choice.rows.observation[:, 1] - choice.rows.observation[:, 0])
        return share / (share.sum() or 1.0)


def build(config: Config) -> WorldObjective:
    return NextObservation(config)
