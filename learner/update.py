"""One update: its minibatches, each a gradient, a check, a clip and an optimizer step. Plain torch, no framework.

fixed = reference, proximal log-probabilities            # one pass each, before the first step, where a term reads them
for minibatch in plan.minibatches:
    minibatch_gradient(network, works, step)             # policy, then a critic of its own: forward and backward
    norms = finite or NonFiniteError                     # before any step: the weights are still those of the last one
    clip, optimizer.step()                               # policy and critic, each by its own norm
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from learner.batch import Part, micro_batches, rows_with
from learner.config import LearnerConfig
from learner.core import Need, Objective, Stream
from learner.critic import Critic
from learner.gradients import Step, Work, minibatch_gradient
from learner.lookups import LookUps
from learner.model import training
from learner.network import policy_network
from learner.optim import build_optimizers, rate_factor
from learner.reference import Reference
from learner.scoring import Term
from learner.stepper import Stepper
from learner.timing import Stopwatch
from protos.errors import NonFiniteError
from protos.telemetry import Metrics, merge_metrics, total


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A stretch of training with one set of objectives and one optimizer."""

    name: str
    config: LearnerConfig
    objectives: tuple[Objective, ...]
    total_updates: int
    looked_up: frozenset[Need] = frozenset()  # what the advantage estimator reads

    @property
    def needs(self) -> frozenset[Need]:
        """Of the estimator and all objectives."""
        return self.looked_up.union(*(objective.needs for objective in self.objectives))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All that a learner needs for one update: numpy arrays and numbers."""

    index: int  # of the update in its phase, from 0
    streams: tuple[tuple[int, Stream], ...]  # (number of the objective, where it scores)
    epochs: tuple[tuple[tuple[Part, ...], ...], ...]  # of each pass over the rows, its minibatches

    @property
    def minibatches(self) -> tuple[tuple[Part, ...], ...]:
        return tuple(chain.from_iterable(self.epochs))


class Updater:
    """What a phase trains, the model and, where values are asked for, its critic, with their optimizers."""

    def __init__(self, model: PreTrainedModel, phase: Phase) -> None:
        config = phase.config
        self.model, self.phase = model, phase
        self.reference = Reference(model) if "reference" in phase.needs else None
        self.critic = Critic(model, config.critic) if "values" in phase.needs else None
        own = None if self.critic is None else self.critic.network()
        self._critic_network = own
        self._policy = policy_network(model, self.critic.head if self.critic is not None and own is None else None)
        self.lookups = LookUps(self._policy, own or self._policy, self.reference, config.micro_batch_tokens)
        self.steppers = [
            Stepper(
                "learner",
                model.parameters(),
                build_optimizers(model, config.optimizer),
                lr=config.optimizer.lr,
                max_norm=config.max_grad_norm,
            )
        ]
        if self.critic is not None:
            self.steppers.append(self.critic.stepper(config.critic, config.optimizer))

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """All of them, by name."""
        return {name: optimizer for stepper in self.steppers for name, optimizer in stepper.optimizers.items()}

    def run(self, plan: Plan) -> Metrics:
        """Take one optimizer step a minibatch.

        Losses are multiplied by the number of minibatches of an epoch: each step's gradient then estimates that of the whole
        update, so that clipping means the same however the update is split. Totals of the terms' metrics are those of an epoch,
        the mean over epochs.

        Raises NonFiniteError for a loss or gradient that is NaN or infinite. The step that it belongs to is not taken, neither
        by the policy nor by the critic: nothing has changed since the minibatch before, whose step stays.
        """
        config, watch = self.phase.config, Stopwatch()
        factor = rate_factor(config.optimizer, plan.index, self.phase.total_updates)
        rates = [stepper.set_rate(factor) for stepper in self.steppers]
        terms = [Term(self.phase.objectives[number], stream) for number, stream in plan.streams]
        fixed = self.lookups.fixed(terms, watch)
        metrics = []
        for number, (parts, scale) in enumerate((parts, len(epoch)) for epoch in plan.epochs for parts in epoch):
            step = Step(
                token_budget=config.token_budget,
                scale=float(scale),
                share=1.0 / len(plan.epochs),
                max_ratio=self._max_ratio(),
                statistics=number == 0 and _due(config.gradient_statistics_every, plan.index),
                fixed=fixed,
                watch=watch,
            )
            try:
                metrics.append(self._minibatch(terms, parts, step))
            except NonFiniteError as error:
                before = f", the {number} before it {'was' if number == 1 else 'were'}" if number else ""
                raise NonFiniteError(
                    f"update {plan.index}, minibatch {number}: {error}; the step was not taken{before}"
                ) from None
        seconds = {f"learner/seconds/{name}": total(value) for name, value in watch.seconds.items()}
        return merge_metrics([*metrics, seconds, *rates])

    def _minibatch(self, terms: Sequence[Term], parts: Sequence[Part], step: Step) -> Metrics:
        """Gradients and their norms of all that is trained, and only then the steps."""
        for stepper in self.steppers:
            stepper.zero_grad()
        own = terms if self._critic_network is None else [term for term in terms if not term.critic]
        with training(self.model):
            metrics = [minibatch_gradient(self._policy, self._works(own, parts), step)]
        if self._critic_network is not None:
            metrics.append(self._critic_gradient(terms, parts, step))
        with step.watch("step"):
            norms = [self._norm(stepper, parts) for stepper in self.steppers]
            metrics += [stepper.step(norm) for stepper, norm in zip(self.steppers, norms, strict=True)]
        return merge_metrics(metrics)

    def _critic_gradient(self, terms: Sequence[Term], parts: Sequence[Part], step: Step) -> Metrics:
        """Of a critic with a trunk of its own: its terms alone."""
        assert self._critic_network is not None
        plain = replace(step, prefix="critic", max_ratio=None, statistics=False)
        works = self._works([term for term in terms if term.critic], parts)
        with step.watch("critic"), training(self._critic_network.trunk):
            return minibatch_gradient(self._critic_network, works, plain)

    def _works(self, terms: Sequence[Term], parts: Sequence[Part]) -> list[Work]:
        """Micro-batches of the rows that any of the `terms` scores, each with the terms that score it."""
        works: list[Work] = []
        for part in parts:
            own = [
                (term, rows_with(part.rows, term.stream.weights != 0))
                for term in terms
                if term.stream.rows is part.rows
            ]
            scored = part.row_ids[np.any([rows[part.row_ids] for _, rows in own], axis=0)] if own else part.row_ids[:0]
            works += [
                Work(part.rows, ids, tuple(term for term, rows in own if rows[ids].any()))
                for ids in micro_batches(part.rows, scored, self.phase.config.micro_batch_tokens)
            ]
        return works

    def _norm(self, stepper: Stepper, parts: Sequence[Part]) -> Tensor:
        try:
            return stepper.norm()
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}, on {_describe(parts)}") from None

    def _max_ratio(self) -> float | None:
        """The safeguard's bound, in phases that have a policy term to be bounded by."""
        policy = any(not (one.world_model or "values" in one.needs) for one in self.phase.objectives)
        return self.phase.config.wm_max_grad_ratio if policy else None


def _due(every: int, index: int) -> bool:
    return every > 0 and index % every == 0


def _describe(parts: Sequence[Part]) -> str:
    """Rows and groups of a minibatch, for an error message: the first few of each set of rows."""
    texts = []
    for part in parts:
        groups = np.unique(part.rows.group[np.isin(part.rows.row, part.row_ids)])
        texts.append(f"{len(part.row_ids)} rows {part.row_ids[:8].tolist()} of groups {groups[:8].tolist()}")
    return "; ".join(texts)
