"""From rows to log-probabilities: the trunk runs on padded micro-batches, the output matrix on scored tokens alone.

    micro = pad(rows, row_ids)                  # (R, T) token ids, padded right
    hidden = trunk(model, micro)                # (R * T, H)
    tokens = scored_tokens(micro, terms)        # M of them: where the weight of any term is not 0
    losses, metrics = score_terms(model, micro, tokens, hidden[tokens.slots], terms)

Logits exist for scored tokens only, never as an (R, T, V) tensor. Padding is told by length: rows are causal and padded on
the right, so no real token attends to it and no mask is needed, whatever its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from learner.batch import micro_batches
from learner.core import BoolArray, FloatArray, IntArray, Objective, Rows, Scores, Stream
from learner.model import output_head
from protos.errors import NonFiniteError
from protos.telemetry import Metrics, merge_metrics

PROBE_TOKENS = 4096  # logits held at once where no gradient is wanted
RULED_OUT = -1e9  # logit of an inadmissible token: its probability is exactly 0, its p log p too (with -inf it is NaN)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One objective on one set of rows."""

    objective: Objective
    stream: Stream


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


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The M scored tokens of a micro-batch, in order."""

    flat: IntArray  # (M,) positions in the flat arrays of the rows
    slots: Tensor  # (M,) r * T + t - 1: where the logits that score the token are
    targets: Tensor  # (M,) the token's id


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


def trunk(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """(R * T, H) last hidden states."""
    hidden = model.base_model(input_ids=micro.token_ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)


def scored_tokens(micro: MicroBatch, terms: Sequence[Term]) -> Tokens:
    """The tokens on which any of the `terms` has a weight."""
    scored = np.zeros(len(micro.flat), np.bool_)
    for term in terms:
        scored |= term.stream.weights[micro.flat] != 0
    return _select(micro, scored)


def score_terms(
    model: PreTrainedModel,
    micro: MicroBatch,
    tokens: Tokens,
    hidden: Tensor,
    terms: Sequence[Term],
    reference: FloatArray | None = None,
) -> tuple[list[Tensor], Metrics]:
    """Loss of each of the `terms` (scalars, differentiable in `hidden` (M, H) and the output matrix), and their metrics.

    `reference`: log-probabilities (N,) under the reference policy. Raises NonFiniteError naming the rows of a loss that is
    not a finite number.
    """
    device = hidden.device
    weights = [term.stream.weights[tokens.flat] for term in terms]
    places = [torch.from_numpy(np.flatnonzero(weight)).to(device) for weight in weights]
    keeps, log_probs, entropy = _log_probs(model, micro.rows, tokens, hidden, terms, places)
    losses, metrics = [], []
    for term, weight, place, keep in zip(terms, weights, places, keeps, strict=True):
        own = log_probs.index_select(0, place)
        flat = tokens.flat[weight != 0]
        scores = Scores(
            log_probs=own if keep is None else torch.where(keep, own, own.detach()),
            entropy=entropy.index_select(0, place) if entropy is not None and term.objective.uses_entropy else None,
            behaviour=torch.from_numpy(micro.rows.log_probs[flat]).to(device),
            advantages=torch.from_numpy(micro.rows.advantages[flat]).to(device),
            reference=_at(reference, flat, device) if term.objective.uses_reference else None,
            source=term.stream.source,
        )
        own_weight = torch.from_numpy(weight[weight != 0]).to(device)
        loss, measured = term.objective.loss(scores, own_weight)
        if not torch.isfinite(loss):
            raise _non_finite(term, scores, own_weight, flat)
        losses.append(loss)
        metrics.append(measured)
    return losses, merge_metrics(metrics)


@torch.no_grad()
def score(model: PreTrainedModel, rows: Rows, wanted: BoolArray, token_budget: int) -> FloatArray:
    """(N,) log-probabilities of the `wanted` (N,) tokens, 0 elsewhere. No gradient; rows without a wanted token are skipped.

    The first token of a row has nothing before it to be predicted from: it cannot be wanted.
    """
    log_probs = np.zeros(rows.tokens, np.float32)
    before = np.concatenate([[0], np.cumsum(wanted)])[rows.row_start]
    for ids in micro_batches(rows, np.flatnonzero(np.diff(before)), token_budget):
        micro = pad(rows, ids, model.device)
        tokens = _select(micro, wanted[micro.flat])
        log_probs[tokens.flat] = _probe(model, rows, tokens, trunk(model, micro)[tokens.slots]).cpu().numpy()
    return log_probs


def _select(micro: MicroBatch, scored: BoolArray) -> Tokens:
    """The real tokens where `scored` (n,) is true."""
    slots = micro.slots[scored]
    if np.any(slots % micro.token_ids.shape[1] == 0):
        raise ValueError("the first token of a row cannot be scored: nothing comes before it")
    at = torch.from_numpy(slots).to(micro.token_ids.device)
    return Tokens(micro.flat[scored], at - 1, micro.token_ids.flatten()[at])


def _log_probs(
    model: PreTrainedModel, rows: Rows, tokens: Tokens, hidden: Tensor, terms: Sequence[Term], places: Sequence[Tensor]
) -> tuple[list[Tensor | None], Tensor, Tensor | None]:
    """Each term's mask of tokens to keep (None: all), log-probabilities (M,), and entropies (M,) if any term reads them.

    Tokens that only terms with a `keep` score are probed first, without gradient. The differentiable head then runs on
    the tokens that are left; the others stay with the log-probability of the probe.
    """
    prunes = [term.objective.keep(hidden.new_empty(0)) is not None for term in terms]
    needed = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    with_entropy = torch.zeros_like(needed)
    for term, place, prunable in zip(terms, places, prunes, strict=True):
        needed[place] |= not prunable
        if term.objective.uses_entropy:
            with_entropy[place] = True
    values = hidden.new_zeros(len(hidden))
    keeps: list[Tensor | None] = [None] * len(terms)
    if any(prunes):
        asked = torch.zeros_like(needed)
        for place, prunable in zip(places, prunes, strict=True):
            asked[place] |= prunable
        values[asked] = _probe(model, rows, _subset(tokens, asked), hidden.detach()[asked])
        keeps = [term.objective.keep(values[place]) for term, place in zip(terms, places, strict=True)]
        for place, keep in zip(places, keeps, strict=True):
            if keep is not None:
                needed[place[keep]] = True
    entropy = hidden.new_zeros(len(hidden)) if with_entropy.any() else None
    for chosen, entropic in ((needed & with_entropy, True), (needed & ~with_entropy, False)):
        index = chosen.nonzero().squeeze(1)
        if len(index):
            own, own_entropy = _head(model, rows, _subset(tokens, chosen), hidden.index_select(0, index), entropic)
            values = values.index_copy(0, index, own)
            if entropy is not None and own_entropy is not None:
                entropy = entropy.index_copy(0, index, own_entropy)
    return keeps, values, entropy


def _probe(model: PreTrainedModel, rows: Rows, tokens: Tokens, hidden: Tensor) -> Tensor:
    """(M,) log-probabilities without gradient, a few thousand tokens at a time."""
    with torch.no_grad():
        parts = [
            _head(
                model, rows, _subset(tokens, slice(i, i + PROBE_TOKENS)), hidden[i : i + PROBE_TOKENS], entropic=False
            )[0]
            for i in range(0, len(hidden), PROBE_TOKENS)
        ]
    return torch.cat(parts) if parts else hidden.new_empty(0)


def _head(
    model: PreTrainedModel, rows: Rows, tokens: Tokens, hidden: Tensor, entropic: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (m,) of `tokens` given hidden states (m, H), and entropies (m,) in nats if asked."""
    logits = output_head(model)(hidden).float()
    forbidden = _forbidden(rows, tokens.flat, logits)
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, RULED_OUT)
    if not entropic:
        return -F.cross_entropy(logits, tokens.targets, reduction="none"), None
    all_log_probs = F.log_softmax(logits, dim=-1)
    own = all_log_probs.gather(1, tokens.targets.unsqueeze(1)).squeeze(1)
    return own, -(all_log_probs.exp() * all_log_probs).sum(-1)


def _forbidden(rows: Rows, flat: IntArray, logits: Tensor) -> Tensor | None:
    """(m, V) mask of the ids that constrained decoding did not admit; None where every token was free."""
    if rows.allowed_start is None or rows.allowed_ids is None:
        return None
    first, size = rows.allowed_start[flat], np.diff(rows.allowed_start)[flat]
    if not size.any():
        return None
    token = np.repeat(np.arange(len(flat)), size)
    entry = np.arange(len(token)) - np.repeat(np.cumsum(size) - size, size) + first[token]
    forbidden = np.broadcast_to((size > 0)[:, None], tuple(logits.shape)).copy()
    forbidden[token, rows.allowed_ids[entry]] = False
    return torch.from_numpy(forbidden).to(logits.device)


def _subset(tokens: Tokens, chosen: Tensor | slice) -> Tokens:
    flat = tokens.flat[chosen if isinstance(chosen, slice) else chosen.cpu().numpy()]
    return Tokens(flat, tokens.slots[chosen], tokens.targets[chosen])


def _at(values: FloatArray | None, flat: IntArray, device: torch.device) -> Tensor | None:
    return None if values is None else torch.from_numpy(values[flat]).to(device)


def _non_finite(term: Term, scores: Scores, weights: Tensor, flat: IntArray) -> NonFiniteError:
    """Find the rows that make the loss non-finite by taking each one alone."""
    rows = term.stream.rows
    row = np.searchsorted(rows.row_start, flat, side="right") - 1
    culprits = []
    for candidate in np.unique(row):
        own = torch.from_numpy(row == candidate).to(weights.device)
        alone = _only(scores, own)
        if not torch.isfinite(term.objective.loss(alone, weights[own])[0]):
            culprits.append(int(candidate))
    groups = sorted({int(group) for group in rows.group[np.isin(rows.row, culprits)]})
    return NonFiniteError(
        f"the loss of {term.objective.name} is not finite on {term.stream.source} rows {culprits[:8]} of groups {groups[:8]}"
    )


def _only(scores: Scores, chosen: Tensor) -> Scores:
    """The scores of the tokens where `chosen` (M,) is true."""
    return Scores(
        log_probs=scores.log_probs[chosen],
        entropy=None if scores.entropy is None else scores.entropy[chosen],
        behaviour=scores.behaviour[chosen],
        advantages=scores.advantages[chosen],
        reference=None if scores.reference is None else scores.reference[chosen],
        source=scores.source,
    )
