"""Drawing tokens from logits: the distribution, one token of each row, and what the learner has to know about it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.sampling import Sampling
from protos.records import TokenIds
from protos.seeding import generator

BLOCK = 64  # uniforms drawn at a time


class Draw(NamedTuple):
    """One token for each of n rows."""

    token_ids: Tensor  # (n,) int64
    log_probs: Tensor  # (n,) float32, under the distribution that was sampled from
    entropies: Tensor  # (n,) float32 nats, of that distribution; finite and >= 0


class Uniforms:
    """One stream of uniform numbers a row, in [0, 1), which depends on the row's seed alone."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [generator(seed, "reply") for seed in seeds]
        self._block = np.empty((len(seeds), BLOCK))
        self._used = np.full(len(seeds), BLOCK)

    def next(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The next number of each of `rows`."""
        for row in rows[self._used[rows] == BLOCK].tolist():
            self._block[row] = self._streams[row].random(BLOCK)
            self._used[row] = 0
        numbers = self._block[rows, self._used[rows]]
        self._used[rows] += 1
        return numbers


def draw(logits: Tensor, uniforms: NDArray[np.float64], sampling: Sampling) -> Draw:
    """One token a row from `logits` (n, V), where -inf excludes a token, by inverting the distribution function."""
    logits = logits.float()
    if sampling.temperature == 0:
        best = logits.argmax(-1)
        return Draw(best, torch.zeros_like(logits[:, 0]), torch.zeros_like(logits[:, 0]))
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.truncates:
        logits = truncate(logits, sampling.top_k, sampling.top_p)
    log_probs = torch.log_softmax(logits, -1)
    probs = log_probs.exp()
    token_ids = invert(probs, torch.from_numpy(uniforms).to(logits.device))
    chosen = log_probs.gather(1, token_ids[:, None])[:, 0]
    return Draw(token_ids, chosen, entropy(probs))


def entropy(probs: Tensor) -> Tensor:
    """-sum p log p in nats over the last axis, 0 log 0 = 0; never NaN, never below 0."""
    return torch.special.entr(probs).sum(-1).clamp(min=0)


def invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(n,) the first token at which the running sum of (n, V) `probs` exceeds `uniforms` (n,) of its total."""
    cumulative = probs.double().cumsum(-1)
    total = cumulative[:, -1]
    # Rounding may lift u * total to total, which no token exceeds: stay below it, then the token has p > 0.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the `top_k` likeliest tokens (0: all), then the smallest set of the likeliest with mass >= `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        mass_before = probs.cumsum(-1) - probs
        cut = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, mass_before >= top_p)
        logits = logits.masked_fill(cut, -torch.inf)
    return logits


def admit(logits: Tensor, allowed: Sequence[TokenIds]) -> Tensor:
    """Exclude from row j of `logits` (n, V) all but the ids `allowed[j]`."""
    rows = np.repeat(np.arange(len(allowed)), [len(ids) for ids in allowed])
    mask = torch.ones_like(logits, dtype=torch.bool)
    mask[torch.from_numpy(rows), torch.from_numpy(np.concatenate(allowed).astype(np.int64))] = False
    return logits.masked_fill(mask, -torch.inf)
