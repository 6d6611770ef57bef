"""From hidden states to log-probabilities and entropies of scored tokens: the costly end of the policy.

Tokens that only terms with a `keep` score are probed first, without gradient; the differentiable output matrix then runs on
what is left. Whatever the model's precision, all that comes out is float32 at least.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learner.core import IntArray, Objective, Rows
from learner.network import at_least_float32

PROBE_TOKENS = 4096  # logits held at once where no gradient is wanted
RULED_OUT = -1e9  # logit of an inadmissible token: its probability is exactly 0, its p log p too (with -inf it is NaN)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The M scored tokens of a micro-batch, in order."""

    flat: IntArray  # (M,) positions in the flat arrays of the rows
    slots: Tensor  # (M,) r * T + t - 1: where the logits that score the token are, and the value before it
    targets: Tensor  # (M,) the token's id

    def subset(self, chosen: Tensor | slice) -> "Tokens":
        """Those where `chosen` (M,) is true, or of a slice."""
        flat = self.flat[chosen if isinstance(chosen, slice) else chosen.cpu().numpy()]
        return Tokens(flat, self.slots[chosen], self.targets[chosen])


def predict(
    output: nn.Module,
    rows: Rows,
    tokens: Tokens,
    hidden: Tensor,
    objectives: Sequence[Objective],
    places: Sequence[Tensor],
) -> list[tuple[Tensor, Tensor | None]]:
    """Log-probabilities (m,) and, where it needs them, entropies (m,) in nats of the tokens that each objective scores.

    `tokens` have the hidden states (M, H); `places[i]` (m,) are the indices of those that `objectives[i]` scores. Tokens
    that its `keep` rules out come detached.
    """
    keeps, known, needed = _prune(output, rows, tokens, hidden, objectives, places)
    entropic = torch.zeros_like(needed)
    for objective, place in zip(objectives, places, strict=True):
        if "entropy" in objective.needs:
            entropic[place] = True
    entropy = torch.zeros_like(known) if entropic.any() else None
    for chosen, asked in ((needed & entropic, True), (needed & ~entropic, False)):
        index = chosen.nonzero().squeeze(1)
        if len(index):
            own, own_entropy = _head(output, rows, tokens.subset(chosen), hidden.index_select(0, index), asked)
            known = known.index_copy(0, index, own)
            if entropy is not None and own_entropy is not None:
                entropy = entropy.index_copy(0, index, own_entropy)
    predictions: list[tuple[Tensor, Tensor | None]] = []
    for objective, place, keep in zip(objectives, places, keeps, strict=True):
        own = known.index_select(0, place)
        own_entropy = entropy.index_select(0, place) if entropy is not None and "entropy" in objective.needs else None
        predictions.append((own if keep is None else torch.where(keep, own, own.detach()), own_entropy))
    return predictions


def _prune(
    output: nn.Module,
    rows: Rows,
    tokens: Tokens,
    hidden: Tensor,
    objectives: Sequence[Objective],
    places: Sequence[Tensor],
) -> tuple[list[Tensor | None], Tensor, Tensor]:
    """Each objective's mask of own tokens to keep (None: all); log-probabilities (M,), 0 where they were not probed; and a
    mask (M,) of the tokens that some objective wants with a gradient."""
    prunes = [objective.keep(hidden.new_empty(0)) is not None for objective in objectives]
    needed = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    asked = torch.zeros_like(needed)
    for place, prunable in zip(places, prunes, strict=True):
        (asked if prunable else needed)[place] = True
    known = hidden.new_zeros(len(hidden), dtype=at_least_float32(hidden.dtype))
    keeps: list[Tensor | None] = [None] * len(objectives)
    if any(prunes):
        known[asked] = probe(output, rows, tokens.subset(asked), hidden.detach()[asked])
        keeps = [objective.keep(known[place]) for objective, place in zip(objectives, places, strict=True)]
        for place, keep in zip(places, keeps, strict=True):
            if keep is not None:
                needed[place[keep]] = True
    return keeps, known, needed


@torch.no_grad()
def probe(output: nn.Module, rows: Rows, tokens: Tokens, hidden: Tensor) -> Tensor:
    """(M,) log-probabilities without gradient, a few thousand tokens at a time."""
    parts = [hidden.new_empty(0, dtype=at_least_float32(hidden.dtype))]
    for i in range(0, len(hidden), PROBE_TOKENS):
        some = slice(i, i + PROBE_TOKENS)
        parts.append(_head(output, rows, tokens.subset(some), hidden[some], entropic=False)[0])
    return torch.cat(parts)


def entropies(log_probs: Tensor) -> Tensor:
    """(M,) nats, never below 0, of distributions given by their log-probabilities (M, V); one of -inf adds 0."""
    finite = log_probs.clamp(min=RULED_OUT)
    return -(finite.exp() * finite).sum(-1).clamp(max=0.0)


def _head(
    output: nn.Module, rows: Rows, tokens: Tokens, hidden: Tensor, entropic: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (m,) of `tokens` given hidden states (m, H), and entropies (m,) in nats if asked."""
    logits = output(hidden)
    logits = logits.to(at_least_float32(logits.dtype))
    forbidden = _forbidden(rows, tokens.flat, logits)
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, RULED_OUT)
    if not entropic:
        return -F.cross_entropy(logits, tokens.targets, reduction="none"), None
    all_log_probs = F.log_softmax(logits, dim=-1)
    return all_log_probs.gather(1, tokens.targets.unsqueeze(1)).squeeze(1), entropies(all_log_probs)


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
