"""Clipped policy gradient (PPO, arXiv 1707.06347, eq. 7; clip-higher: DAPO, arXiv 2503.14476, eq. 10) on action tokens.

Advantages come from `learner/advantages/`. The ratio is learner over behaviour policy, token by token.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from learner.batch import span_tokens, token_weights
from learner.core import Objective, Rows, Scores, Stream, Update
from learner.selection import without_empty
from protos.telemetry import Metrics, maximum, mean, total

if TYPE_CHECKING:
    import torch

LOG_RATIO_BOUND = 20.0  # keeps a ratio finite where the learner disowns a token; far outside any clip


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    coefficient: float = Field(1.0, ge=0)
    """Weight of the whole term."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """A ratio below 1 - clip_low has no gradient where it would fall further."""
    clip_high: float = Field(0.28, ge=0)
    """A ratio above 1 + clip_high has no gradient where it would rise further."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Coefficient of the entropy (nats), under the same weights as the policy term."""
    kl: float = Field(0.0, ge=0)
    """Coefficient of KL(learner || reference), k3 estimator; above 0 the learner keeps a frozen reference model."""
    aggregation: Literal["group", "token"] = "group"
    """group: mean over a group's action tokens, then over all groups; token: mean over all action tokens."""
    skip_zero_advantage: bool = True
    """Leave out rows whose advantages are all 0 (groups all failed or all won), which saves their forward pass. The
    denominators still count them; entropy bonus and KL then act on the other rows only."""


class PolicyGradient:
    name = "policy_gradient"
    world_model = False

    def __init__(self, config: Config) -> None:
        self.config = config
        self.uses_entropy = config.entropy_bonus > 0
        self.uses_reference = config.kl > 0

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """1 / (tokens of the group x groups), or 1 / tokens of the update, on every action token that counts."""
        rows = update["fresh"]
        per_token = self.config.coefficient * _mean_weights(rows, self.config.aggregation)
        weights = token_weights(rows, rows.action, per_token)
        live = _rows_with_advantage(rows)
        if self.config.skip_zero_advantage:
            weights *= np.repeat(live, np.diff(rows.row_start))
        streams, metrics = without_empty(self.name, [Stream(rows, "fresh", weights)])
        metrics[f"{self.name}/zero_advantage_rows"] = mean(1 - live.mean() if len(live) else 0, len(live))
        metrics[f"{self.name}/behaviour_entropy"] = mean(rows.entropy.mean() if len(rows.row) else 0, len(rows.row))
        return streams, metrics

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        return None

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """Sum of weights x [-min(r A, clip(r) A) - bonus x H + kl x (exp(d) - d - 1)], d = log(reference / learner)."""
        config, advantages = self.config, scores.advantages
        log_ratio = (scores.log_probs - scores.behaviour).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        terms = -(ratio * advantages).minimum(clipped * advantages)
        metrics = self._metrics(ratio.detach(), log_ratio.detach(), advantages)
        if self.uses_entropy:
            assert scores.entropy is not None, "the entropy bonus needs scores.entropy"
            terms = terms - config.entropy_bonus * scores.entropy
            metrics[f"{self.name}/entropy"] = _mean(scores.entropy.detach())
        if self.uses_reference:
            assert scores.reference is not None, "the KL term needs scores.reference"
            distance = (scores.reference - scores.log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
            divergence = distance.exp() - distance - 1
            terms = terms + config.kl * divergence
            metrics[f"{self.name}/kl_reference"] = _mean(divergence.detach())
        loss = (weights * terms).sum()
        metrics[f"{self.name}/loss"] = total(float(loss.detach()))
        return loss, metrics

    def _metrics(self, ratio: "torch.Tensor", log_ratio: "torch.Tensor", advantages: "torch.Tensor") -> Metrics:
        """`mismatch_kl` estimates KL(behaviour || learner) on the behaviour's own samples (k3)."""
        high = (ratio > 1 + self.config.clip_high) & (advantages > 0)
        low = (ratio < 1 - self.config.clip_low) & (advantages < 0)
        metrics = {
            f"{self.name}/clip_fraction": _mean((high | low).to(ratio.dtype)),
            f"{self.name}/ratio_mean": _mean(ratio),
            f"{self.name}/mismatch_kl": _mean(ratio - 1 - log_ratio),
        }
        if len(ratio):
            metrics[f"{self.name}/ratio_max"] = maximum(float(ratio.max()))
        return metrics


def build(config: Config) -> Objective:
    return PolicyGradient(config)


def _mean_weights(rows: Rows, aggregation: str) -> NDArray[np.float64]:
    """(K,) the weight of each action token of a transition in the mean."""
    tokens = (rows.action[:, 1] - rows.action[:, 0]).astype(np.float64)
    if aggregation == "token":
        return np.full(len(tokens), 1 / max(1.0, tokens.sum()))
    of_group = np.bincount(rows.group, tokens, rows.groups)[rows.group]
    return 1 / np.maximum(of_group * rows.groups, 1)


def _rows_with_advantage(rows: Rows) -> NDArray[np.bool_]:
    """(R,)"""
    token_row, _ = span_tokens(np.stack([rows.row_start[:-1], rows.row_start[1:]], axis=1))
    live = np.zeros(len(rows.row_start) - 1, np.bool_)
    live[token_row[rows.advantages != 0]] = True
    return live


def _mean(values: "torch.Tensor"):
    return mean(float(values.mean()) if len(values) else 0.0, len(values))
