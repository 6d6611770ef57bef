"""The gradient of one minibatch, and how much of it the world model may be.

Plain, the losses of all terms are summed and sent backward. Two things need the world-model (wm) and the policy (rl) side
apart. Both start from each side's gradient G with respect to the hidden states of the tokens that it scores and to the
output matrix, which takes no pass through the trunk:

- The safeguard (`max_ratio`). Where every group fails the policy has no gradient, the world-model term is the only one,
  and Adam scales whatever it is given to a full step: from a start that knew no dynamics the policy collapsed within 10
  updates. So the wm side of each optimizer step is multiplied by

      s = min(1, max_ratio / ratio)        ratio = max of |G_wm| / |G_rl| over the hidden states, and over the matrix

  for the whole minibatch, and one backward pass sends G_rl + s G_wm through the trunk. Where the policy side has no
  gradient at all, s = 0: the world model sits that step out. The ratio stands in for that of all parameters, within a
  factor of two to three where both were measured: hidden states count every token apart, and miss that the world
  model's tokens agree more than the policy's, which the matrix, summed over tokens, does not.
- The statistics: cos(g_wm, g_rl) and |g_wm| / |g_rl| over all parameters, before s, exact: a backward pass a side.

The bound needs the norms of the whole minibatch before the first backward pass. Micro-batches keep their graphs until then
where they fit the token budget together; else each trunk runs forward twice, which adds about a third to the step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from learner.core import FloatArray, IntArray, Rows
from learner.model import output_head
from learner.scoring import MicroBatch, Term, pad, score_terms, scored_tokens, trunk
from learner.timing import Stopwatch
from protos.telemetry import Metrics, mean, merge_metrics, total


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One micro-batch to do: some rows, and the terms that score them."""

    rows: Rows
    row_ids: IntArray
    terms: tuple[Term, ...]

    @property
    def source(self) -> str:
        return self.terms[0].stream.source

    @property
    def padded_tokens(self) -> int:
        return len(self.row_ids) * int(np.diff(self.rows.row_start)[self.row_ids].max())


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """How to make the gradient of one optimizer step."""

    token_budget: int
    scale: float = 1.0  # factor on every loss
    max_ratio: float | None = None  # bound on the wm side; None: plain sum
    statistics: bool = False  # measure cosine and ratio of the two sides
    references: Mapping[int, FloatArray] = field(default_factory=dict)  # id(rows) -> log-probabilities (N,)
    watch: Stopwatch = field(default_factory=Stopwatch)


def minibatch_gradient(model: PreTrainedModel, works: Sequence[Work], step: Step) -> Metrics:
    """Add the gradient of `step.scale` times all losses of `works` to the parameters' `grad`.

    Raises NonFiniteError, before any backward pass of the micro-batches concerned, for a loss that is no finite number.
    """
    sides = [{term.objective.world_model for term in work.terms} for work in works]
    both = len(set().union(*sides)) == 2 if sides else False
    bounded = step.max_ratio is not None and any(True in side for side in sides)
    if bounded or (step.statistics and both):
        return _SplitGradient(model, step).run(works)
    return merge_metrics(_plain(model, chunk, step) for chunk in _chunks(works, step.token_budget))


def _plain(model: PreTrainedModel, works: Sequence[Work], step: Step) -> Metrics:
    """One backward pass over the summed losses of `works`, which share a source."""
    losses, metrics = [], []
    for work in works:
        with step.watch("pack"):
            micro = pad(work.rows, work.row_ids, model.device)
            tokens = scored_tokens(micro, work.terms)
        with step.watch("forward", work.source):
            hidden = trunk(model, micro).index_select(0, tokens.slots)
            own, measured = score_terms(model, micro, tokens, hidden, work.terms, step.references.get(id(work.rows)))
        losses += own
        metrics += [measured, _cost(micro, work.source)]
    loss = torch.stack(losses).sum() * step.scale
    if loss.requires_grad:
        with step.watch("backward", works[0].source):
            loss.backward()
    return merge_metrics(metrics)


@dataclass(eq=False)
class _Side:
    """One side's part of a minibatch, as it adds up."""

    world_model: bool
    head: list[Tensor] = field(default_factory=list)  # gradient of the output matrix
    squared_norm: float = 0.0  # of the gradient with respect to the hidden states
    gradient: list[Tensor] = field(default_factory=list)  # of all parameters; for the statistics

    def norms(self) -> tuple[float, float]:
        """Over the hidden states, and over the output matrix."""
        return self.squared_norm**0.5, sum(float(part.square().sum()) for part in self.head) ** 0.5


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A micro-batch between its head's backward pass and its trunk's."""

    work: Work
    micro: MicroBatch
    hidden: Tensor | None  # (R * T, H) with the trunk's graph; None where it was not kept
    at_hidden: tuple[Tensor, Tensor]  # (R * T, H) of the rl side, and of the wm side


class _SplitGradient:
    """The gradient of a minibatch with its two sides apart until the trunk's backward pass."""

    def __init__(self, model: PreTrainedModel, step: Step) -> None:
        self._model, self._step = model, step
        self._head = [p for p in output_head(model).parameters() if p.requires_grad]
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._policy, self._world = _Side(world_model=False), _Side(world_model=True)

    def run(self, works: Sequence[Work]) -> Metrics:
        keep_graph = sum(work.padded_tokens for work in works) <= self._step.token_budget
        metrics, pending = [], []
        for work in works:
            one, measured = self._through_head(work, keep_graph)
            pending.append(one)
            metrics.append(measured)
        scale, measured = self._safeguard()
        metrics.append(measured)
        for one in pending:
            with self._step.watch("forward", one.work.source):
                hidden = trunk(self._model, one.micro) if one.hidden is None else one.hidden
            with self._step.watch("backward", one.work.source):
                self._through_trunk(hidden, one.at_hidden, scale)
        metrics.append(self._finish(scale))
        return merge_metrics(metrics)

    def _through_head(self, work: Work, keep_graph: bool) -> tuple[_Pending, Metrics]:
        """Losses of a micro-batch, and their gradients with respect to its hidden states and the output matrix."""
        with self._step.watch("pack"):
            micro = pad(work.rows, work.row_ids, self._model.device)
        with self._step.watch("forward", work.source), torch.set_grad_enabled(keep_graph):
            hidden = trunk(self._model, micro)
        at_hidden, metrics = [], [_cost(micro, work.source)]
        for side in (self._policy, self._world):
            terms = [term for term in work.terms if term.objective.world_model is side.world_model]
            gradient, measured = self._side_gradient(side, micro, hidden.detach(), terms)
            at_hidden.append(gradient)
            metrics.append(measured)
        pending = _Pending(work, micro, hidden if keep_graph else None, (at_hidden[0], at_hidden[1]))
        return pending, merge_metrics(metrics)

    def _side_gradient(
        self, side: _Side, micro: MicroBatch, hidden: Tensor, terms: Sequence[Term]
    ) -> tuple[Tensor, Metrics]:
        """(R * T, H) gradient of one side's losses with respect to the hidden states, 0 where it scores nothing."""
        at_hidden = torch.zeros_like(hidden)
        if not terms:
            return at_hidden, {}
        with self._step.watch("pack"):
            tokens = scored_tokens(micro, terms)
        source = terms[0].stream.source
        with self._step.watch("forward", source):
            leaf = hidden.index_select(0, tokens.slots).requires_grad_()
            losses, metrics = score_terms(
                self._model, micro, tokens, leaf, terms, self._step.references.get(id(micro.rows))
            )
        loss = torch.stack(losses).sum() * self._step.scale
        if loss.requires_grad:
            with self._step.watch("backward", source):
                gradient, *head = torch.autograd.grad(loss, [leaf, *self._head])
                side.squared_norm += float(gradient.square().sum())
                _add(side.head, head)
                at_hidden.index_copy_(0, tokens.slots, gradient)
        return at_hidden, metrics

    def _safeguard(self) -> tuple[float, Metrics]:
        """s of the module's docstring, and what it was made of."""
        if self._step.max_ratio is None:
            return 1.0, {}
        ratio = max(map(_ratio, self._world.norms(), self._policy.norms()))
        scale = 1.0 if ratio <= self._step.max_ratio else self._step.max_ratio / ratio
        metrics = {"safeguard/scale": mean(scale), "safeguard/active": mean(scale < 1.0)}
        return scale, metrics | ({"safeguard/ratio": mean(ratio)} if math.isfinite(ratio) else {})

    def _through_trunk(self, hidden: Tensor, at_hidden: tuple[Tensor, Tensor], scale: float) -> None:
        policy, world = at_hidden
        if not self._step.statistics:
            both = policy + scale * world
            if both.any():  # rows of the world model alone, which sits this step out, need no backward pass
                hidden.backward(both)
            return
        for side, gradient in ((self._policy, policy), (self._world, world)):
            parts = torch.autograd.grad(
                hidden, self._parameters, gradient, retain_graph=side is self._policy, allow_unused=True
            )
            _add(side.gradient, _dense(parts, self._parameters))

    def _finish(self, scale: float) -> Metrics:
        """Add what did not flow through the trunk's backward pass to the parameters' `grad`."""
        for side, factor in ((self._policy, 1.0), (self._world, scale)):
            for parameters, gradients in ((self._head, side.head), (self._parameters, side.gradient)):
                for parameter, gradient in zip(parameters, gradients, strict=False):
                    _accumulate(parameter, gradient, factor)
        return self._statistics() if self._step.statistics else {}

    def _statistics(self) -> Metrics:
        """grad/cosine and grad/ratio over all parameters; nothing where a side has no gradient."""
        policy, world = (self._flat(side) for side in (self._policy, self._world))
        norms = float(policy.norm()), float(world.norm())
        if not min(norms):
            return {}
        return {
            "grad/cosine": mean(float(policy @ world) / (norms[0] * norms[1])),
            "grad/ratio": mean(norms[1] / norms[0]),
        }

    def _flat(self, side: _Side) -> Tensor:
        """One side's whole gradient (P,): the trunk's, and the output matrix's own on top."""
        gradient = {id(p): g for p, g in zip(self._parameters, side.gradient, strict=True)}
        for parameter, own in zip(self._head, side.head, strict=False):
            gradient[id(parameter)] = gradient[id(parameter)] + own
        return torch.cat([g.flatten() for g in gradient.values()]).double()


def _chunks(works: Sequence[Work], token_budget: int) -> Iterator[list[Work]]:
    """Runs of `works` of one source whose activations fit the budget together."""
    chunk: list[Work] = []
    tokens = 0
    for work in works:
        if chunk and (work.source != chunk[0].source or tokens + work.padded_tokens > token_budget):
            yield chunk
            chunk, tokens = [], 0
        chunk.append(work)
        tokens += work.padded_tokens
    if chunk:
        yield chunk


def _cost(micro: MicroBatch, source: str) -> Metrics:
    return {
        "learner/tokens": total(len(micro.flat)),
        f"learner/tokens/{source}": total(len(micro.flat)),
        "learner/padding": mean(1.0 - len(micro.flat) / micro.padded_tokens, weight=micro.padded_tokens),
    }


def _ratio(world: float, policy: float) -> float:
    if world == 0.0:
        return 0.0
    return world / policy if policy > 0.0 else math.inf


def _add(sums: list[Tensor], parts: Sequence[Tensor]) -> None:
    if not sums:
        sums.extend(parts)
        return
    for value, part in zip(sums, parts, strict=True):
        value += part


def _accumulate(parameter: Tensor, gradient: Tensor, factor: float) -> None:
    if parameter.grad is None:
        parameter.grad = gradient * factor
    else:
        parameter.grad.add_(gradient, alpha=factor)


def _dense(parts: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(p) if part is None else part for part, p in zip(parts, parameters, strict=True)]
