"""The update as a bare torch loop: what the learner is measured against.

The same micro-batches and losses (clipped policy gradient with entropy bonus, PaW's masked error) with logits at loss
tokens only, then clip and AdamW. What a trainer adds is left out: tensors are made beforehand, nothing is checked for
NaN or kept as a metric, and torch may use what algorithms it likes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from learner.batch import micro_batches
from learner.config import LearnerConfig
from learner.core import FloatArray, Objective
from learner.objectives import paw, policy_gradient
from learner.optim import build_optimizers
from learner.scoring import MicroBatch, pad
from learner.update import Plan
from protos.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Scored:
    """The M tokens of a micro-batch that one term scores; each (M,)."""

    slots: Tensor  # flat positions whose logits predict them
    targets: Tensor
    weights: Tensor
    behaviour: Tensor
    advantages: Tensor


class BareLoop:
    """One update of `model` by `plan`, whose streams are one each of `objectives`: policy_gradient, or that and paw."""

    def __init__(
        self, model: PreTrainedModel, config: LearnerConfig, plan: Plan, objectives: Sequence[Objective]
    ) -> None:
        self._model, self._limit = model, config.max_grad_norm
        self._head: nn.Module = model.get_output_embeddings()  # pyright: ignore[reportAttributeAccessIssue]
        self._losses = [_loss_of(objective) for objective in objectives]
        (self._optimizer,) = build_optimizers(model, config.optimizer).values()
        weights = [stream.weights for _, stream in plan.streams]
        self._minibatches = [
            [
                (micro.token_ids, [_scored(micro, weight) for weight in weights])
                for part in parts
                for ids in micro_batches(part.rows, part.row_ids, config.micro_batch_tokens)
                for micro in [pad(part.rows, ids)]
            ]
            for parts in plan.minibatches
        ]

    def __call__(self) -> None:
        """Train once."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        for micros in self._minibatches:
            self._optimizer.zero_grad()
            for token_ids, scored in micros:
                (self._loss(token_ids, scored) * len(self._minibatches)).backward()
            clip_grad_norm_(self._model.parameters(), self._limit)
            self._optimizer.step()
        torch.use_deterministic_algorithms(deterministic)

    def _loss(self, token_ids: Tensor, scored: list[Scored]) -> Tensor:
        hidden = self._model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state.flatten(0, 1)
        head = self._head
        losses = [loss(head(hidden[own.slots]), own) for loss, own in zip(self._losses, scored, strict=True)]
        return torch.stack(losses).sum()


def _loss_of(objective: Objective) -> Callable[[Tensor, Scored], Tensor]:
    match objective:
        case policy_gradient.PolicyGradient():
            return partial(_policy_loss, config=objective.config)
        case paw.Paw():
            return partial(_world_loss, config=objective.config)
    raise ConfigError(f"the bare loop has no loss for {objective.name}")


def _policy_loss(logits: Tensor, scored: Scored, config: policy_gradient.Config) -> Tensor:
    log_probs = F.log_softmax(logits, dim=-1)
    own = log_probs.gather(1, scored.targets[:, None])[:, 0]
    ratio = (own - scored.behaviour).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain = torch.minimum(ratio * scored.advantages, clipped * scored.advantages)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return -(scored.weights * (gain + config.entropy_bonus * entropy)).sum()


def _world_loss(logits: Tensor, scored: Scored, config: paw.Config) -> Tensor:
    probability = (-F.cross_entropy(logits, scored.targets, reduction="none")).exp()
    mask = probability.detach() <= config.rho
    return (scored.weights * mask * (1 - probability)).sum()


def _scored(micro: MicroBatch, weights: FloatArray) -> Scored:
    chosen = weights[micro.flat] != 0
    flat, slots = micro.flat[chosen], torch.from_numpy(micro.slots[chosen])
    return Scored(
        slots=slots - 1,
        targets=micro.token_ids.flatten()[slots],
        weights=torch.from_numpy(weights[flat]),
        behaviour=torch.from_numpy(micro.rows.log_probs[flat]),
        advantages=torch.from_numpy(micro.rows.advantages[flat]),
    )
