"""Imitation: cross-entropy on the action tokens of demonstrations."""

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from learner.batch import token_weights
from learner.core import Need, Objective, Rows, Scores, Stream, Update
from learner.selection import without_empty
from protos.telemetry import Metrics, mean, total

if TYPE_CHECKING:
    import torch


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    coefficient: float = Field(1.0, ge=0)
    """Weight of the term."""


class Supervised:
    name = "supervised"
    needs: frozenset[Need] = frozenset()
    world_model = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """The mean over all action tokens of `update["demos"]`, stop tokens included."""
        streams = []
        if "demos" in update:
            rows = update["demos"]
            tokens = int((rows.action[:, 1] - rows.action[:, 0]).sum())
            per_token = np.full(len(rows.row), self.config.coefficient / max(1, tokens))
            streams.append(Stream(rows, "demos", token_weights(rows, rows.action, per_token)))
        return without_empty(self.name, streams)

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        return None

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """sum of weights x -log p."""
        loss = -(weights * scores.log_probs).sum()
        tokens = len(scores.log_probs)
        log_prob = float(scores.log_probs.detach().mean()) if tokens else 0.0
        return loss, {
            f"{self.name}/loss": total(float(loss.detach())),
            f"{self.name}/log_prob": mean(log_prob, tokens),
        }


def build(config: Config) -> Objective:
    return Supervised(config)
