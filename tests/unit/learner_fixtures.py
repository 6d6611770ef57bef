"""Small rows, a tiny model and plain objectives for the tests of the learner's machinery."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from learner.config import ModelConfig
from learner.core import Need, Rows, Scores, Stream, Update
from learner.model import build_model
from protos.telemetry import Metrics, mean, total

VOCABULARY = 24
TINY = ModelConfig(width=16, layers=2, heads=2, mlp=32, max_positions=64)


def tiny_model(seed: int = 0, double: bool = False):
    """A model with weights large enough that its log-probabilities differ from uniform."""
    model = build_model(TINY, vocab_size=VOCABULARY, pad_id=0, eoa_id=2, seed=seed)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20.0)
    return model.double() if double else model


def make_rows(seed: int = 0, count: int = 6, groups: int = 3, turns: int = 3) -> Rows:
    """`count` rows of 1 to `turns` turns: 2 task tokens, then actions of 1-3 tokens and observations of 0-3 tokens."""
    rng = np.random.default_rng(seed)
    lengths, row, action, observation = [], [], [], []
    start = 0
    for r in range(count):
        at = 2
        for _ in range(int(rng.integers(1, turns + 1))):
            middle = at + int(rng.integers(1, 4))
            stop = middle + int(rng.integers(0, 4))
            row.append(r)
            action.append((start + at, start + middle))
            observation.append((start + middle, start + stop))
            at = stop
        lengths.append(at)
        start += at
    tokens, transitions = start, len(row)
    in_action = spans_mask(tokens, action)
    rows = np.array(row)
    return Rows(
        token_ids=rng.integers(0, VOCABULARY, tokens).astype(np.int32),
        row_start=np.concatenate([[0], np.cumsum(lengths)]),
        log_probs=np.where(in_action, rng.normal(-3.0, 0.3, tokens), 0).astype(np.float32),
        advantages=np.where(in_action, rng.normal(0.0, 1.0, tokens), 0).astype(np.float32),
        row=rows,
        episode=rows,
        group=rows * groups // count,
        action=np.array(action),
        observation=np.array(observation),
        entropy=rng.random(transitions).astype(np.float32),
        world=np.array([stop > start for start, stop in observation]),
        valid=np.ones(transitions, bool),
        terminated=np.append(np.diff(rows) > 0, True),
        cut=np.zeros(transitions, bool),
        reward=np.zeros(transitions, np.float32),
        importance=np.ones(transitions, np.float32),
        state_key=("",) * transitions,
        task_return=np.zeros(count, np.float32),
        episode_group=np.arange(count) * groups // count,
        lam=np.full(groups, 0.5, np.float32),
    )


def spans_mask(tokens: int, spans) -> np.ndarray:
    mask = np.zeros(tokens, bool)
    for start, stop in spans:
        mask[start:stop] = True
    return mask


def without_advantages(rows: Rows) -> Rows:
    """The same rows as all-fail groups: the policy term has no gradient."""
    return replace(rows, advantages=np.zeros_like(rows.advantages))


@dataclass(eq=False)
class Reinforce:
    """-A log p on action tokens, mean over the update's action tokens; optionally an entropy bonus and a KL."""

    name: str = "reinforce"
    bonus: float = 0.0
    kl: float = 0.0
    world_model: bool = False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset(need for need, used in (("entropy", self.bonus), ("reference", self.kl)) if used > 0)

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        rows = update["fresh"]
        mask = spans_mask(rows.tokens, rows.action)
        return [Stream(rows, "fresh", (mask / mask.sum()).astype(np.float32))], {}

    def keep(self, log_probs):
        return None

    def loss(self, scores: Scores, weights):
        terms = -scores.advantages * scores.log_probs
        if self.bonus:
            terms = terms - self.bonus * scores.entropy
        if self.kl:
            terms = terms + self.kl * (scores.log_probs - scores.reference)
        loss = (weights * terms).sum()
        return loss, {"reinforce/loss": total(float(loss.detach()))}


@dataclass(eq=False)
class Observe:
    """1 - p on observation tokens that are predicted badly (p <= rho); rho None: cross-entropy on all."""

    name: str = "observe"
    rho: float | None = None
    coefficient: float = 1.0
    needs: frozenset[Need] = frozenset()
    world_model: bool = True

    def replay_rows(self, fresh: Rows) -> int:
        return 0

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        streams = []
        for source, rows in update.items():
            mask = spans_mask(rows.tokens, rows.observation)
            if mask.any():
                streams.append(Stream(rows, source, (self.coefficient * mask / mask.sum()).astype(np.float32)))
        return streams, {}

    def keep(self, log_probs):
        return None if self.rho is None else log_probs.exp() <= self.rho

    def loss(self, scores: Scores, weights):
        if self.rho is None:
            loss = -(weights * scores.log_probs).sum()
        else:
            probability = scores.log_probs.exp()
            loss = (weights * (probability.detach() <= self.rho) * (1 - probability)).sum()
        kept = mean(float(scores.log_probs.detach().exp().mean()), len(weights))
        return loss, {"observe/loss": total(float(loss.detach())), "observe/probability": kept}
