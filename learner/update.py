"""One update: its minibatches, each a gradient, a check, a clip and an optimizer step. Plain torch, no framework.

for minibatch in plan.minibatches:
    minibatch_gradient(model, works, step)      # micro-batches forward and backward
    norm = finite or NonFiniteError             # before the step: the weights are still those of the last one
    clip, optimizer.step()
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from learner.batch import Part, micro_batches
from learner.config import LearnerConfig
from learner.core import FloatArray, Objective, Stream
from learner.gradients import Step, Work, minibatch_gradient
from learner.optim import build_optimizers, rate_factor, set_rate
from learner.scoring import Term, score
from learner.timing import Stopwatch
from protos.errors import NonFiniteError
from protos.telemetry import Metrics, last, mean, merge_metrics, total


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A stretch of training with one set of objectives and one optimizer."""

    name: str
    config: LearnerConfig
    objectives: tuple[Objective, ...]
    total_updates: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All that a learner needs for one update: numpy arrays and numbers."""

    index: int  # of the update in its phase, from 0
    streams: tuple[tuple[int, Stream], ...]  # (number of the objective, where it scores)
    minibatches: tuple[tuple[Part, ...], ...]


class Updater:
    """The optimizers of a phase, and the model that they update."""

    def __init__(self, model: PreTrainedModel, phase: Phase) -> None:
        self.model = model
        self.phase = phase
        self.optimizers = build_optimizers(model, phase.config.optimizer)
        wants_reference = any(objective.uses_reference for objective in phase.objectives)
        self.reference = deepcopy(model).requires_grad_(False) if wants_reference else None

    def run(self, plan: Plan) -> Metrics:
        """Take one optimizer step a minibatch.

        Losses are multiplied by the number of minibatches: each step's gradient then estimates that of the whole update,
        so that clipping means the same however the update is split.

        Raises NonFiniteError for a loss or gradient that is NaN or infinite. The step that it belongs to is not taken:
        neither weights nor optimizer state have changed since the minibatch before.
        """
        config, watch = self.phase.config, Stopwatch()
        rate = config.optimizer.lr * rate_factor(config.optimizer, plan.index, self.phase.total_updates)
        set_rate(list(self.optimizers.values()), rate)
        with watch("reference"):
            references = self._references(plan)
        metrics = []
        for number, parts in enumerate(plan.minibatches):
            step = Step(
                token_budget=config.token_budget,
                scale=float(len(plan.minibatches)),
                max_ratio=self._max_ratio(),
                statistics=number == 0 and _due(config.gradient_statistics_every, plan.index),
                references=references,
                watch=watch,
            )
            metrics.append(self._minibatch(plan, number, parts, step))
        seconds = {f"learner/seconds/{name}": total(value) for name, value in watch.seconds.items()}
        return merge_metrics(metrics) | seconds | {"learner/lr": last(rate)}

    def _minibatch(self, plan: Plan, number: int, parts: Sequence[Part], step: Step) -> Metrics:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        try:
            metrics = minibatch_gradient(self.model, self._works(plan, parts), step)
        except NonFiniteError as error:
            raise NonFiniteError(f"update {plan.index}, minibatch {number}: {error}; the step was not taken") from None
        with step.watch("step"):
            return metrics | self._step(plan, number, parts)

    def _step(self, plan: Plan, number: int, parts: Sequence[Part]) -> Metrics:
        """Check, clip and step; a gradient that is exactly 0 is no step: momentum and decay would move the weights."""
        graded = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = get_total_norm([p.grad for p in graded if p.grad is not None])
        value = float(norm)
        if not np.isfinite(value):
            raise NonFiniteError(
                f"update {plan.index}, minibatch {number}: the gradient is not finite, on {_describe(parts)}; "
                "the step was not taken"
            )
        limit = self.phase.config.max_grad_norm
        if value > 0:
            clip_grads_with_norm_(graded, limit, norm)
            for optimizer in self.optimizers.values():
                optimizer.step()
        return {
            "learner/grad_norm": mean(value),
            "learner/clipped": mean(value > limit),
            "learner/steps": total(value > 0),
        }

    def _works(self, plan: Plan, parts: Sequence[Part]) -> list[Work]:
        terms = [Term(self.phase.objectives[number], stream) for number, stream in plan.streams]
        works: list[Work] = []
        for part in parts:
            own = [term for term in terms if term.stream.rows is part.rows]
            works += [
                Work(part.rows, ids, tuple(term for term in own if _scores_any(term.stream, ids)))
                for ids in micro_batches(part.rows, part.row_ids, self.phase.config.micro_batch_tokens)
            ]
        return works

    def _references(self, plan: Plan) -> dict[int, FloatArray]:
        """Log-probabilities under the reference policy, by the identity of the rows."""
        if self.reference is None:
            return {}
        wanted: dict[int, np.ndarray] = {}
        for number, stream in plan.streams:
            if self.phase.objectives[number].uses_reference:
                scored = stream.weights != 0
                wanted[id(stream.rows)] = wanted.get(id(stream.rows), False) | scored
        rows = {id(stream.rows): stream.rows for _, stream in plan.streams}
        budget = self.phase.config.micro_batch_tokens
        return {key: score(self.reference, rows[key], mask, budget) for key, mask in wanted.items()}

    def _max_ratio(self) -> float | None:
        """The safeguard's bound, in phases that have a policy term to be bounded by."""
        policy = any(not objective.world_model for objective in self.phase.objectives)
        return self.phase.config.wm_max_grad_ratio if policy else None


def _due(every: int, index: int) -> bool:
    return every > 0 and index % every == 0


def _scores_any(stream: Stream, row_ids: np.ndarray) -> bool:
    start = stream.rows.row_start
    return any(stream.weights[start[r] : start[r + 1]].any() for r in row_ids)


def _describe(parts: Sequence[Part]) -> str:
    """Rows and groups of a minibatch, for an error message: the first few of each set of rows."""
    texts = []
    for part in parts:
        groups = np.unique(part.rows.group[np.isin(part.rows.row, part.row_ids)])
        texts.append(f"{len(part.row_ids)} rows {part.row_ids[:8].tolist()} of groups {groups[:8].tolist()}")
    return "; ".join(texts)
