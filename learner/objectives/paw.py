"""PaW, policy and world-model co-training (arXiv 2606.02388): a masked error on selected observations.

    L = mean over groups of  lambda_g x mean over selected transitions of g of  sum_i 1[p_i <= rho] (1 - p_i) / |o|

(eqs. 7 to 11; the policy term stands beside it in the list of objectives.) Selection (eq. 4) is
`learner.selection.select`. Rows drawn from the wm table are a second source, with the importance weights of its sampler
and the lambda that they were stored with.
"""

import math
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from learner.core import BoolArray, Need, Rows, Scores, Stream, Update
from learner.selection import (
    Choice,
    Choices,
    Method,
    RowForm,
    Scale,
    WorldObjective,
    group_mean,
    observation_streams,
    select,
    selected_count,
)
from protos.telemetry import Metrics, last, mean, total

if TYPE_CHECKING:
    import torch


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    selection: Method = "entropy"
    """entropy: the transitions with the highest action entropy of the whole update (the paper); random: as many at
    random, the control; all."""
    alpha: float = Field(0.75, ge=0, le=1)
    """Share of the update's transitions selected (eq. 4)."""
    rho: float = Field(0.2, ge=0, le=1)
    """Tokens predicted with a probability above this have no loss (eq. 7)."""
    loss: Literal["cmae", "cross_entropy"] = "cmae"
    """cmae: eq. 8; cross_entropy: -log p on every observation token, without the mask, the paper's ablation."""
    lam: Literal["adaptive"] | Annotated[float, Field(ge=0)] = "adaptive"
    """adaptive: lambda_g = 1 - mean return / R_max (eq. 10), 0 where a group always wins; a number: for all groups."""
    rows: RowForm = "episode"
    """episode: score the observations in the policy's own forward pass; transition: each on a row [h_t, a_t, o] of its
    own, the form in which a placebo can be compared."""
    replay_ratio: float = Field(0.125, ge=0)
    """Transitions drawn from the wm table for each fresh one selected; 0 is the paper. They cost a forward pass."""
    combine: Literal["rows", "sum"] = "rows"
    """How the losses of the two sources meet. rows: weighted by their numbers of transitions, so that a row of either
    counts alike and the term keeps its size whatever the replay ratio; sum: both in full."""


class Paw:
    name = "paw"
    needs: frozenset[Need] = frozenset()
    world_model = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def replay_rows(self, fresh: Rows) -> int:
        chosen = selected_count(fresh, self.config.selection, self.config.alpha)
        return round(self.config.replay_ratio * chosen)

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        choices, chosen = self.choose(update, rng)
        if self.config.rows == "transition" and "fresh" in choices:
            choices["fresh"] = choices["fresh"].own_rows()
        streams, weighed = observation_streams(self.name, choices, self.scales(choices))
        return streams, chosen | weighed

    def choose(self, update: Update, rng: np.random.Generator) -> tuple[dict[str, Choice], Metrics]:
        """S_alpha of the fresh rows, and of the replayed rows all: these were selected by their sampler."""
        choices, metrics = {}, {}
        if "fresh" in update:
            rows = update["fresh"]
            selected = select(rows, self.config.selection, self.config.alpha, rng)
            choices["fresh"] = Choice(rows, selected)
            metrics = self._selection_metrics(rows, selected)
        if "replay" in update:
            choices["replay"] = Choice(update["replay"], update["replay"].world)
        return choices, metrics

    def scales(self, choices: Choices) -> dict[str, Scale]:
        """Eq. 11 over the fresh rows, an importance-weighted mean over the replayed ones, combined as configured."""
        counts = {source: int(choice.selected.sum()) for source, choice in choices.items()}
        scales = {
            source: self._lambda(choice.rows)[choice.rows.group] * _mean_weights(source, choice)
            for source, choice in choices.items()
        }
        if self.config.combine == "sum":
            return scales
        return {source: scale * counts[source] / max(1, sum(counts.values())) for source, scale in scales.items()}

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        """m_i of eq. 7."""
        return None if self.config.loss == "cross_entropy" else log_probs.detach().exp() <= self.config.rho

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """Eq. 8: sum of weights x m_i (1 - p_i); the mask is a constant."""
        probability = scores.log_probs.exp()
        mask = probability.detach() <= self.config.rho
        terms = mask * (1 - probability) if self.config.loss == "cmae" else -scores.log_probs
        loss = (weights * terms).sum()
        value, tokens = float(loss.detach()), len(mask)
        metrics = {
            f"{self.name}/loss": total(value),
            f"{self.name}/mask_rate": mean(float(mask.to(probability.dtype).mean()) if tokens else 0.0, tokens),
            f"{self.name}/probability": mean(float(probability.detach().mean()) if tokens else 0.0, tokens),
        }
        if scores.source:
            metrics[f"{self.name}/loss/{scores.source}"] = total(value)
        return loss, metrics

    def _lambda(self, rows: Rows) -> Scale:
        """(G,)"""
        lam = self.config.lam
        return rows.lam.astype(np.float64) if lam == "adaptive" else np.full(rows.groups, lam)

    def _selection_metrics(self, rows: Rows, selected: BoolArray) -> Metrics:
        metrics = {
            f"{self.name}/lambda": mean(self._lambda(rows).mean() if rows.groups else 0.0, rows.groups),
            f"{self.name}/selected_share": mean(selected.sum() / max(1, rows.world.sum()), rows.world.sum()),
        }
        threshold = rows.entropy[selected].min(initial=math.inf)
        if math.isfinite(threshold):
            metrics[f"{self.name}/entropy_threshold"] = last(threshold)
        return metrics


def build(config: Config) -> WorldObjective:
    return Paw(config)


def _mean_weights(source: str, choice: Choice) -> Scale:
    """(K,) weights of a mean over the selected transitions of one source, summing to 1 unless a group has none."""
    if source == "fresh":
        return group_mean(choice.rows, choice.selected)
    importance = choice.rows.importance * choice.selected.astype(np.float64)
    return importance / (importance.sum() or 1.0)
