"""From rows to scores: the trunk runs on padded micro-batches, the layers on it on scored tokens alone.

    micro = pad(rows, row_ids)                                   # (R, T) token ids, padded right
    hidden = trunk(network, micro)                               # (R * T, H)
    tokens = scored_tokens(micro, terms)                         # M of them: where the weight of any term is not 0
    losses, metrics = score_terms(network, micro, tokens, hidden[tokens.slots], terms)

Logits exist for scored tokens only, never as an (R, T, V) tensor. Padding is told by length: rows are causal and padded on
the right, so no real token attends to it and no mask is needed, whatever its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from learner.batch import micro_batches, rows_with
from learner.core import BoolArray, FloatArray, IntArray, Need, Objective, Rows, Scores, Stream
from learner.network import Network
from learner.vocabulary import Tokens, predict, probe
from protos.errors import NonFiniteError
from protos.telemetry import Metrics, merge_metrics


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One objective on one set of rows."""

    objective: Objective
    stream: Stream

    @property
    def critic(self) -> bool:
        """It trains the critic: it reads values, and no log-probability (those of its scores are NaN)."""
        return "values" in self.objective.needs


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Log-probabilities (N,) of one set of rows that stand still during an update, where a term reads them."""

    reference: FloatArray | None = None  # of the reference policy
    proximal: FloatArray | None = None  # of the model as the update began


NOTHING_FIXED = Fixed()


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """R rows of one `Rows`, padded on the right to T tokens; n real tokens."""

    rows: Rows
    token_ids: Tensor  # (R, T)
    flat: IntArray  # (n,) position of each real token in the flat arrays of `rows`
    slots: IntArray  # (n,) its position r * T + t in the padded batch

    @property
    def padded_tokens(self) -> int:
        return self.token_ids.numel()


def pad(rows: Rows, row_ids: IntArray, device: torch.device | str = "cpu") -> MicroBatch:
    """The rows `row_ids` as one padded batch on `device`."""
    start = rows.row_start[row_ids]
    length = rows.row_start[row_ids + 1] - start
    row = np.repeat(np.arange(len(row_ids)), length)
    column = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    flat = start[row] + column
    width = int(length.max(initial=1))
    token_ids = np.zeros((len(row_ids), width), np.int64)
    token_ids[row, column] = rows.token_ids[flat]
    return MicroBatch(rows, torch.from_numpy(token_ids).to(device), flat, row * width + column)


def trunk(network: Network, micro: MicroBatch) -> Tensor:
    """(R * T, H) last hidden states."""
    return network.hidden(micro.token_ids)


def scored_tokens(micro: MicroBatch, terms: Sequence[Term]) -> Tokens:
    """The tokens on which any of the `terms` has a weight."""
    scored = np.zeros(len(micro.flat), np.bool_)
    for term in terms:
        scored |= term.stream.weights[micro.flat] != 0
    return _select(micro, scored)


def score_terms(
    network: Network,
    micro: MicroBatch,
    tokens: Tokens,
    hidden: Tensor,
    terms: Sequence[Term],
    fixed: Fixed = NOTHING_FIXED,
) -> tuple[list[Tensor], Metrics]:
    """Loss of each of the `terms` (scalars, differentiable in `hidden` (M, H) and the layers on it), and their metrics.

    Terms of the critic read values alone; the vocabulary is not asked about tokens that only they score. Raises
    NonFiniteError naming the rows of a loss that is not a finite number.
    """
    device = hidden.device
    weights = [term.stream.weights[tokens.flat] for term in terms]
    places = [torch.from_numpy(np.flatnonzero(weight)).to(device) for weight in weights]
    predictions = iter(_predict(network, micro.rows, tokens, hidden, terms, places))
    losses, metrics = [], []
    for term, weight, place in zip(terms, weights, places, strict=True):
        flat = tokens.flat[weight != 0]
        scores = _columns(term, flat, fixed, device)
        if term.critic:
            assert network.value is not None, "a term that needs values is scored by a network with a value layer"
            scores = replace(scores, values=network.value(hidden.index_select(0, place)))
        else:
            log_probs, entropy = next(predictions)
            scores = replace(scores, log_probs=log_probs, entropy=entropy)
        own_weight = torch.from_numpy(weight[weight != 0]).to(device)
        loss, measured = term.objective.loss(scores, own_weight)
        if not torch.isfinite(loss):
            raise _non_finite(term, scores, own_weight, flat)
        losses.append(loss)
        metrics.append(measured)
    return losses, merge_metrics(metrics)


@torch.no_grad()
def score(network: Network, rows: Rows, wanted: BoolArray, token_budget: int) -> FloatArray:
    """(N,) log-probabilities of the `wanted` (N,) tokens, 0 elsewhere. No gradient; rows without a wanted token are skipped.

    The first token of a row has nothing before it to be predicted from: it cannot be wanted.
    """
    assert network.vocabulary is not None, "a network without a vocabulary gives no log-probabilities"
    log_probs = np.zeros(rows.tokens, np.float32)
    for ids in micro_batches(rows, np.flatnonzero(rows_with(rows, wanted)), token_budget):
        micro = pad(rows, ids, network.device)
        tokens = _select(micro, wanted[micro.flat])
        own = probe(network.vocabulary, rows, tokens, trunk(network, micro)[tokens.slots])
        log_probs[tokens.flat] = own.float().cpu().numpy()
    return log_probs


@torch.no_grad()
def prefix_values(network: Network, rows: Rows, wanted: BoolArray, token_budget: int) -> FloatArray:
    """(N,) the critic's values of the prefixes that end with the `wanted` (N,) tokens, 0 elsewhere. No gradient."""
    assert network.value is not None, "a network without a value layer gives no values"
    values = np.zeros(rows.tokens, np.float32)
    for ids in micro_batches(rows, np.flatnonzero(rows_with(rows, wanted)), token_budget):
        micro = pad(rows, ids, network.device)
        chosen = wanted[micro.flat]
        slots = torch.from_numpy(micro.slots[chosen]).to(network.device)
        values[micro.flat[chosen]] = network.value(trunk(network, micro)[slots]).float().cpu().numpy()
    return values


def owners(rows: Rows, flat: IntArray) -> IntArray:
    """(M,) the transition whose action holds each of the tokens `flat`, -1 outside actions."""
    order = np.lexsort((rows.action[:, 1], rows.action[:, 0]))
    if not len(order):
        return np.full(len(flat), -1)
    owner = order[np.searchsorted(rows.action[order, 0], flat, side="right") - 1]
    inside = (rows.action[owner, 0] <= flat) & (flat < rows.action[owner, 1])
    return np.where(inside, owner, -1)


def _select(micro: MicroBatch, scored: BoolArray) -> Tokens:
    """The real tokens where `scored` (n,) is true."""
    slots = micro.slots[scored]
    if np.any(slots % micro.token_ids.shape[1] == 0):
        raise ValueError("the first token of a row cannot be scored: nothing comes before it")
    at = torch.from_numpy(slots).to(micro.token_ids.device)
    return Tokens(micro.flat[scored], at - 1, micro.token_ids.flatten()[at])


def _predict(
    network: Network, rows: Rows, tokens: Tokens, hidden: Tensor, terms: Sequence[Term], places: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor | None]]:
    """Log-probabilities and entropies for each of the terms that read them, in order."""
    own = [i for i, term in enumerate(terms) if not term.critic]
    if not own:
        return []
    assert network.vocabulary is not None, (
        "a term that reads log-probabilities is scored by a network with a vocabulary"
    )
    objectives, own_places = [terms[i].objective for i in own], [places[i] for i in own]
    return predict(network.vocabulary, rows, tokens, hidden, objectives, own_places)


def _columns(term: Term, flat: IntArray, fixed: Fixed, device: torch.device) -> Scores:
    """What is known of the tokens `flat` (M,) of a term before the model is asked; log-probabilities are NaN."""
    rows, needs = term.stream.rows, term.objective.needs

    def column(values: FloatArray | IntArray) -> Tensor:
        return torch.from_numpy(values).to(device)

    def optional(values: FloatArray | None, at: IntArray, need: Need) -> Tensor | None:
        return None if values is None or need not in needs else column(values[at])

    return Scores(
        log_probs=torch.full((len(flat),), torch.nan, device=device),
        behaviour=column(rows.log_probs[flat]),
        advantages=column(rows.advantages[flat]),
        transition=column(owners(rows, flat)),
        reference=optional(fixed.reference, flat, "reference"),
        proximal=optional(fixed.proximal, flat, "proximal"),
        old_values=optional(rows.values, flat - 1, "values"),
        value_targets=optional(rows.value_targets, flat, "values"),
        source=term.stream.source,
    )


def _non_finite(term: Term, scores: Scores, weights: Tensor, flat: IntArray) -> NonFiniteError:
    """Find the rows that make the loss non-finite by taking each one alone."""
    rows = term.stream.rows
    row = np.searchsorted(rows.row_start, flat, side="right") - 1
    culprits = []
    for candidate in np.unique(row):
        own = torch.from_numpy(row == candidate).to(weights.device)
        if not torch.isfinite(term.objective.loss(_only(scores, own), weights[own])[0]):
            culprits.append(int(candidate))
    groups = sorted({int(group) for group in rows.group[np.isin(rows.row, culprits)]})
    return NonFiniteError(
        f"the loss of {term.objective.name} is not finite on {term.stream.source} rows {culprits[:8]} of groups {groups[:8]}"
    )


def _only(scores: Scores, chosen: Tensor) -> Scores:
    """The scores of the tokens where `chosen` (M,) is true: every column, whichever there are."""
    columns = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return replace(scores, **{name: value[chosen] for name, value in columns.items() if isinstance(value, Tensor)})
