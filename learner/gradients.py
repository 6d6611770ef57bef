"""The gradient of one minibatch, and how much of it the world model may be.

Plain, the losses of all terms are summed and sent backward. Two things need the world-model (wm) and the policy (rl) side
apart, and beside them the critic's where its head is on this trunk, which is neither bounded nor measured against. Both
start from each side's gradient G with respect to the hidden states of the tokens that it scores and to the output matrix,
which takes no pass through the trunk:

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
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from learner.core import IntArray, Rows
from learner.network import Network
from learner.scoring import NOTHING_FIXED, Fixed, MicroBatch, Term, pad, score_terms, scored_tokens, trunk
from learner.timing import Stopwatch
from learner.vocabulary import Tokens
from protos.telemetry import Metrics, mean, merge_metrics, total

SideName = Literal["policy", "world", "critic"]


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
    share: float = 1.0  # factor on the totals among the terms' metrics: 1 / epochs
    max_ratio: float | None = None  # bound on the wm side; None: plain sum
    statistics: bool = False  # measure cosine and ratio of the two sides
    prefix: str = "learner"  # of the metrics that say what it cost
    fixed: Mapping[int, Fixed] = field(default_factory=dict)  # id(rows) -> what stands still during the update
    watch: Stopwatch = field(default_factory=Stopwatch)


def minibatch_gradient(network: Network, works: Sequence[Work], step: Step) -> Metrics:
    """Add the gradient of `step.scale` times all losses of `works` to the parameters' `grad`.

    Raises NonFiniteError, before any backward pass of the micro-batches concerned, for a loss that is no finite number.
    """
    sides = {_side_of(term) for work in works for term in work.terms}
    bounded = step.max_ratio is not None and "world" in sides
    if bounded or (step.statistics and {"policy", "world"} <= sides):
        return _SplitGradient(network, step).run(works)
    return merge_metrics(_plain(network, chunk, step) for chunk in _chunks(works, step.token_budget))


def _plain(network: Network, works: Sequence[Work], step: Step) -> Metrics:
    """One backward pass over the summed losses of `works`, which share a source."""
    losses, metrics = [], []
    for work in works:
        with step.watch("pack"):
            micro = pad(work.rows, work.row_ids, network.device)
            tokens = scored_tokens(micro, work.terms)
        with step.watch("forward", work.source):
            hidden = trunk(network, micro).index_select(0, tokens.slots)
            own, measured = _scored(network, micro, tokens, hidden, work.terms, step)
        losses += own
        metrics += [measured, _cost(micro, work.source, step)]
    loss = torch.stack(losses).sum() * step.scale
    if loss.requires_grad:
        with step.watch("backward", works[0].source):
            loss.backward()
    return merge_metrics(metrics)


@dataclass(eq=False)
class _Side:
    """One side's part of a minibatch, as it adds up."""

    name: SideName
    layer: list[nn.Parameter]  # trainable parameters of the layer that its terms read hidden states with
    at_layer: list[Tensor] = field(default_factory=list)  # their gradient
    squared_norm: float = 0.0  # of the gradient with respect to the hidden states
    gradient: list[Tensor] = field(default_factory=list)  # of all parameters; for the statistics

    def norms(self) -> tuple[float, float]:
        """Over the hidden states, and over the output matrix."""
        return self.squared_norm**0.5, sum(_squared(part) for part in self.at_layer) ** 0.5


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A micro-batch between its layers' backward pass and its trunk's."""

    work: Work
    micro: MicroBatch
    hidden: Tensor | None  # (R * T, H) with the trunk's graph; None where it was not kept
    at_hidden: dict[SideName, Tensor]  # (R * T, H) of each side that has a gradient


class _SplitGradient:
    """The gradient of a minibatch with its sides apart until the trunk's backward pass."""

    def __init__(self, network: Network, step: Step) -> None:
        self._network, self._step = network, step
        self._parameters = network.trainable()
        vocabulary, value = _trainable(network.vocabulary), _trainable(network.value)
        self._policy, self._world = _Side("policy", vocabulary), _Side("world", vocabulary)
        self._sides = (self._policy, self._world, _Side("critic", value))

    def run(self, works: Sequence[Work]) -> Metrics:
        keep_graph = sum(work.padded_tokens for work in works) <= self._step.token_budget
        metrics, pending = [], []
        for work in works:
            one, measured = self._through_layers(work, keep_graph)
            pending.append(one)
            metrics.append(measured)
        scale, measured = self._safeguard()
        metrics.append(measured)
        for one in pending:
            with self._step.watch("forward", one.work.source):
                hidden = trunk(self._network, one.micro) if one.hidden is None else one.hidden
            with self._step.watch("backward", one.work.source):
                self._through_trunk(hidden, one.at_hidden, scale)
        metrics.append(self._finish(scale))
        return merge_metrics(metrics)

    def _through_layers(self, work: Work, keep_graph: bool) -> tuple[_Pending, Metrics]:
        """Losses of a micro-batch, and their gradients with respect to its hidden states and the layers on them."""
        with self._step.watch("pack"):
            micro = pad(work.rows, work.row_ids, self._network.device)
        with self._step.watch("forward", work.source), torch.set_grad_enabled(keep_graph):
            hidden = trunk(self._network, micro)
        at_hidden: dict[SideName, Tensor] = {}
        metrics = [_cost(micro, work.source, self._step)]
        for side in self._sides:
            terms = [term for term in work.terms if _side_of(term) == side.name]
            if terms:
                gradient, measured = self._side_gradient(side, micro, hidden.detach(), terms)
                metrics.append(measured)
                if gradient is not None:
                    at_hidden[side.name] = gradient
        return _Pending(work, micro, hidden if keep_graph else None, at_hidden), merge_metrics(metrics)

    def _side_gradient(
        self, side: _Side, micro: MicroBatch, hidden: Tensor, terms: Sequence[Term]
    ) -> tuple[Tensor | None, Metrics]:
        """(R * T, H) gradient of one side's losses with respect to the hidden states; None where there is none."""
        with self._step.watch("pack"):
            tokens = scored_tokens(micro, terms)
        source = terms[0].stream.source
        with self._step.watch("forward", source):
            leaf = hidden.index_select(0, tokens.slots).requires_grad_()
            losses, metrics = _scored(self._network, micro, tokens, leaf, terms, self._step)
        loss = torch.stack(losses).sum() * self._step.scale
        if not loss.requires_grad:
            return None, metrics
        with self._step.watch("backward", source):
            gradient, *at_layer = torch.autograd.grad(loss, [leaf, *side.layer])
            side.squared_norm += _squared(gradient)
            _add(side.at_layer, at_layer)
            return torch.zeros_like(hidden).index_copy_(0, tokens.slots, gradient), metrics

    def _safeguard(self) -> tuple[float, Metrics]:
        """s of the module's docstring, and what it was made of."""
        if self._step.max_ratio is None:
            return 1.0, {}
        ratio = max(map(_ratio, self._world.norms(), self._policy.norms()))
        scale = 1.0 if ratio <= self._step.max_ratio else self._step.max_ratio / ratio
        metrics = {"safeguard/scale": mean(scale), "safeguard/active": mean(scale < 1.0)}
        return scale, metrics | ({"safeguard/ratio": mean(ratio)} if math.isfinite(ratio) else {})

    def _through_trunk(self, hidden: Tensor, at_hidden: Mapping[SideName, Tensor], scale: float) -> None:
        if not self._step.statistics:
            both = sum((g * scale if name == "world" else g for name, g in at_hidden.items()), torch.zeros_like(hidden))
            if both.any():  # rows of the world model alone, which sits this step out, need no backward pass
                hidden.backward(both)
            return
        present = [side for side in self._sides if side.name in at_hidden]
        for side in present:
            last = side is present[-1]
            gradient = at_hidden[side.name]
            parts = torch.autograd.grad(hidden, self._parameters, gradient, retain_graph=not last, allow_unused=True)
            _add(side.gradient, _dense(parts, self._parameters))

    def _finish(self, scale: float) -> Metrics:
        """Add what did not flow through the trunk's backward pass to the parameters' `grad`."""
        for side in self._sides:
            factor = scale if side is self._world else 1.0
            for parameters, gradients in ((side.layer, side.at_layer), (self._parameters, side.gradient)):
                for parameter, gradient in zip(parameters, gradients, strict=False):
                    _accumulate(parameter, gradient, factor)
        return self._statistics() if self._step.statistics else {}

    def _statistics(self) -> Metrics:
        """grad/cosine and grad/ratio over all parameters; nothing where a side has no gradient."""
        if not (self._policy.gradient and self._world.gradient):
            return {}
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
        for parameter, own in zip(side.layer, side.at_layer, strict=False):
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


def _side_of(term: Term) -> SideName:
    if term.critic:
        return "critic"
    return "world" if term.objective.world_model else "policy"


def _scored(
    network: Network, micro: MicroBatch, tokens: Tokens, hidden: Tensor, terms: Sequence[Term], step: Step
) -> tuple[list[Tensor], Metrics]:
    """Losses, and metrics whose totals are this step's share of the update."""
    fixed = step.fixed.get(id(micro.rows), NOTHING_FIXED)
    losses, metrics = score_terms(network, micro, tokens, hidden, terms, fixed)
    if step.share == 1.0:
        return losses, metrics
    totals = {name: replace(m, value=m.value * step.share) for name, m in metrics.items() if m.reduction == "total"}
    return losses, metrics | totals


def _cost(micro: MicroBatch, source: str, step: Step) -> Metrics:
    return {
        f"{step.prefix}/tokens": total(len(micro.flat)),
        f"{step.prefix}/tokens/{source}": total(len(micro.flat)),
        f"{step.prefix}/padding": mean(1.0 - len(micro.flat) / micro.padded_tokens, weight=micro.padded_tokens),
    }


def _ratio(world: float, policy: float) -> float:
    if world == 0.0:
        return 0.0
    return world / policy if policy > 0.0 else math.inf


def _squared(gradient: Tensor) -> float:
    return float(gradient.float().square().sum())


def _trainable(layer: nn.Module | None) -> list[nn.Parameter]:
    return [] if layer is None else [parameter for parameter in layer.parameters() if parameter.requires_grad]


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
