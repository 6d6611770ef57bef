"""Records for the learner's tests, and a model whose losses can be written by hand: a token given the one before."""

import numpy as np
import torch

from learner.batch import Part, micro_batches, minibatches
from learner.core import Rows, Scores
from protos.records import Episode, Group, GroupKey, Kind, Sequence, Span, Transition, Version

VOCABULARY = 11


def transition(action: Span, observation: Span, log_probs=None, **fields) -> Transition:
    count = action.length
    values = {
        "action_text": "go",
        "observation_text": "arrive",
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "entropy": 0.5,
        "log_probs": np.full(count, -0.5, np.float32) if log_probs is None else np.asarray(log_probs, np.float32),
        "versions": ((count, Version(0, 0)),) if count else (),
        "state_key": "s",
    }
    return Transition(action=action, observation=observation, **{**values, **fields})


def episode(turns: list[dict], task_return: float, rng: np.random.Generator, prefix: int = 3) -> Episode:
    """One sequence: a prefix, then a turn: a scaffold token, `action` tokens, `observation` tokens (counts)."""
    at, transitions = prefix, []
    for turn in turns:
        settings = {"action": 2, "observation": 3} | turn
        a, o = settings.pop("action"), settings.pop("observation")
        action = Span(at + 1, at + 1 + a)
        at = action.stop + o
        settings.setdefault("log_probs", -rng.random(a))
        transitions.append(transition(action, Span(action.stop, at), **settings))
    tokens = rng.integers(0, VOCABULARY, at).astype(np.int32)
    return Episode(
        "household", "task", "pick", 0, (Sequence(tokens, tuple(transitions)),), task_return, task_return > 0
    )


def group(episodes: list[Episode], lam: float = 0.5, repeat: int = 0) -> Group:
    return Group(GroupKey("run", "task", repeat), tuple(episodes), lam)


def returns_group(returns: list[float], rng: np.random.Generator, repeat: int = 0) -> Group:
    return group([episode([{}], value, rng) for value in returns], repeat=repeat)


def random_groups(seed: int, groups: int = 4, size: int = 3, turns: int = 4) -> list[Group]:
    """Ragged in every way: numbers of turns, lengths, empty observations, queries, refused actions, repeated states."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        episodes = []
        for _ in range(size):
            won = bool(rng.integers(2))
            count = int(rng.integers(1, turns + 1))
            made_turns = [
                {
                    "action": int(rng.integers(1, 4)),
                    "observation": int(rng.integers(0, 5)),
                    "entropy": float(rng.integers(0, 6)) / 4,  # with ties
                    "kind": Kind.QUERY if rng.random() < 0.15 else Kind.STEP,
                    "valid": bool(rng.random() < 0.8),
                    "reward": float(won and t == count - 1),
                    "state_key": f"s{rng.integers(3)}",
                }
                for t in range(count)
            ]
            episodes.append(episode(made_turns, float(won), rng))
        made.append(group(episodes, float(rng.random()), repeat=g))
    return made


class Bigram:
    """p(token n | token n - 1) from a table of logits: a model whose loss can be written as a double loop."""

    def __init__(self, seed: int) -> None:
        table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.table = (table * 2).requires_grad_()
        self.reference = torch.log_softmax(table, -1)

    def log_prob(self, before: int, token: int) -> torch.Tensor:
        return torch.log_softmax(self.table[before], -1)[token]

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        if not loss.requires_grad:
            return torch.zeros_like(self.table)
        (gradient,) = torch.autograd.grad(loss, self.table, retain_graph=True, allow_unused=True)
        return torch.zeros_like(self.table) if gradient is None else gradient

    def scores(
        self, rows: Rows, weights: np.ndarray, positions: np.ndarray, source: str
    ) -> tuple[Scores, torch.Tensor]:
        """Of the tokens at `positions` those with a weight, as the learner scores them."""
        positions = positions[weights[positions] != 0]
        before, token = rows.token_ids[positions - 1], rows.token_ids[positions]
        logits = torch.log_softmax(self.table[torch.as_tensor(before.astype(np.int64))], -1)
        picked = torch.arange(len(positions)), torch.as_tensor(token.astype(np.int64))
        made = Scores(
            log_probs=logits[picked],
            entropy=-(logits.exp() * logits).sum(-1),
            behaviour=torch.as_tensor(rows.log_probs[positions].astype(np.float64)),
            advantages=torch.as_tensor(rows.advantages[positions].astype(np.float64)),
            reference=self.reference[torch.as_tensor(before.astype(np.int64))][picked],
            source=source,
        )
        return made, torch.as_tensor(weights[positions].astype(np.float64))

    def loss(self, objective, streams, parts: list[Part] | None = None, respect_keep: bool = False):
        """The objective's summed loss over `parts` (all rows if None), and the metrics of each call."""
        total_loss, calls = torch.zeros((), dtype=torch.float64), []
        for stream in streams:
            for part in parts if parts is not None else [Part(stream.rows, np.arange(len(stream.rows.row_start) - 1))]:
                if part.rows is not stream.rows:
                    continue
                spans = [np.arange(stream.rows.row_start[r], stream.rows.row_start[r + 1]) for r in part.row_ids]
                scores, weights = self.scores(stream.rows, stream.weights, np.concatenate(spans), stream.source)
                if respect_keep:
                    scores = drop(objective, scores)
                loss, metrics = objective.loss(scores, weights)
                total_loss = total_loss + loss
                calls.append(metrics)
        return total_loss, calls


def drop(objective, scores: Scores) -> Scores:
    """Detach what `keep` rules out, as the learner does to save the vocabulary's backward pass."""
    kept = objective.keep(scores.log_probs)
    if kept is None:
        return scores
    log_probs = torch.where(kept, scores.log_probs, scores.log_probs.detach())
    return Scores(log_probs, scores.entropy, scores.behaviour, scores.advantages, scores.reference, scores.source)


def split(streams, count: int, budget: int, rng: np.random.Generator) -> list[Part]:
    """All micro-batches of all minibatches."""
    return [
        Part(part.rows, ids)
        for minibatch in minibatches(streams, count, rng)
        for part in minibatch
        for ids in micro_batches(part.rows, part.row_ids, budget)
    ]
