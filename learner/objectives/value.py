"""The critic's loss: clipped squared error to the value targets (PPO), before every action token.

    loss = coefficient x mean over action tokens of max((V - T)^2, (clip(V, V_old - clip, V_old + clip) - T)^2)

V: the critic's value of the prefix before the token, V_old the one that the advantages were made from, T the estimator's
value target (`learner/advantages/gae.py`). A critic that is a model of its own is scored and trained alone: this term reads
no log-probability.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from learner.batch import span_tokens
from learner.core import FloatArray, Need, Objective, Rows, Scores, Stream, Update
from learner.selection import without_empty
from protos.errors import ConfigError
from protos.telemetry import Metric, Metrics, mean, total

if TYPE_CHECKING:
    from torch import Tensor


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    coefficient: float = Field(0.5, ge=0)
    """Weight of the term (c_1 of arXiv 1707.06347, eq. 9); matters where a critic's head shares the policy's trunk."""
    clip: float | None = Field(0.2, gt=0)
    """How far from its old value V may move and still have a gradient that takes it further; None: plain squared error.
    In units of the return: raise it with the reward."""


class Value:
    name = "value"
    needs: frozenset[Need] = frozenset({"values"})
    world_model = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """The mean over all action tokens of the update that have a target: those of episodes with a return.

        Raises ConfigError where the advantage estimator made no targets.
        """
        rows = update["fresh"]
        if rows.value_targets is None or rows.values is None:
            raise ConfigError('the value objective learns the targets of a critic: set [advantages] name = "gae"')
        _, positions = span_tokens(rows.action)
        positions = positions[np.isfinite(rows.value_targets[positions])]
        weights = np.zeros(rows.tokens, np.float32)
        weights[positions] = self.config.coefficient / max(1, len(positions))
        streams, metrics = without_empty(self.name, [Stream(rows, "fresh", weights)])
        shown = {
            "explained_variance": _explained_variance(rows.values[positions - 1], rows.value_targets[positions]),
            "target": mean(rows.value_targets[positions].mean() if len(positions) else 0.0, len(positions)),
            "old_value": mean(rows.values[positions - 1].mean() if len(positions) else 0.0, len(positions)),
        }
        return streams, metrics | {f"{self.name}/{key}": value for key, value in shown.items()}

    def keep(self, log_probs: "Tensor") -> "Tensor | None":
        return None

    def loss(self, scores: Scores, weights: "Tensor") -> "tuple[Tensor, Metrics]":
        """Sum of weights x max((V - T)^2, (clip(V) - T)^2)."""
        values, old, targets = scores.values, scores.old_values, scores.value_targets
        assert values is not None, "the value objective needs scores.values"
        assert old is not None, "the value objective needs scores.old_values"
        assert targets is not None, "the value objective needs scores.value_targets"
        error = (values - targets).square()
        terms = error
        if self.config.clip is not None:
            near = old + (values - old).clamp(-self.config.clip, self.config.clip)
            terms = error.maximum((near - targets).square())
        loss = (weights * terms).sum()
        clipped = (terms > error).detach()
        return loss, {
            f"{self.name}/loss": total(float(loss.detach())),
            f"{self.name}/clip_fraction": mean(float(clipped.double().mean()) if len(clipped) else 0.0, len(clipped)),
        }


def build(config: Config) -> Objective:
    return Value(config)


def _explained_variance(values: FloatArray, targets: FloatArray) -> Metric:
    """1 - Var(T - V_old) / Var(T), over the update; left out where all targets are equal: there is nothing to explain."""
    spread = float(np.var(targets.astype(np.float64))) if len(targets) else 0.0
    residual: NDArray[np.float64] = targets.astype(np.float64) - values
    return mean(1 - float(np.var(residual)) / spread if spread > 0 else 0.0, spread > 0)
