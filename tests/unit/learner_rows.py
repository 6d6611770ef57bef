"""Records for the learner's tests, and a model whose losses can be written by hand: a token given the one before."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from learner import plugins
from learner.batch import Part, micro_batches, minibatches, pack, pack_demonstrations, pack_world
from learner.core import Rows, Scores
from protos.records import (
    Demonstration,
    Episode,
    Group,
    GroupKey,
    Kind,
    Sequence,
    Span,
    Stop,
    Transition,
    Version,
    WorldItem,
)

VOCABULARY = 11
AGGREGATIONS = [
    {"aggregation": "group"},
    {"aggregation": "token"},
    {"aggregation": "sequence"},
    {"aggregation": "reply"},
    {"aggregation": "constant", "episode_tokens": 10},
]


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
                    "terminated": won and t == count - 1,
                    "stop": Stop.LENGTH if rng.random() < 0.2 else Stop.STOP,
                }
                for t in range(count)
            ]
            episodes.append(episode(made_turns, float(won), rng))
        made.append(group(episodes, float(rng.random()), repeat=g))
    return made


def windows(one: Group) -> Group:
    """The same episodes with window prompts: one Sequence a transition, [2 prompt tokens, action, glue, observation]."""
    return replace(one, episodes=tuple(replace(played, sequences=_windows(played)) for played in one.episodes))


def _windows(played: Episode) -> tuple[Sequence, ...]:
    made = []
    for sequence in played.sequences:
        for t in sequence.transitions:
            ids, start = sequence.token_ids, t.action.start - 2
            glue = ids[start : start + 1]
            tokens = np.concatenate([ids[start : t.action.stop], glue, ids[slice(*t.observation)]])
            action = Span(2, 2 + t.action.length)
            seen = Span(action.stop + 1, action.stop + 1 + t.observation.length)
            made.append(Sequence(tokens, (replace(t, action=action, observation=seen),)))
    return tuple(made)


class Bigram:
    """p(token n | token n - 1) from a table of logits: a model whose loss can be written as a double loop.

    Its critic is a table too: the value of a prefix is that of its last token.
    """

    def __init__(self, seed: int) -> None:
        table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.table = (table * 2).requires_grad_()
        self.reference = torch.log_softmax(table, -1)
        self.proximal = torch.log_softmax(table * 1.5, -1)
        self.value = table[0].clone().requires_grad_()
        self.old_value = table[1].clone()

    def log_prob(self, before: int, token: int) -> torch.Tensor:
        return torch.log_softmax(self.table[before], -1)[token]

    def gradient(self, loss: torch.Tensor, of: torch.Tensor | None = None) -> torch.Tensor:
        """With respect to the logits, or to another parameter."""
        parameter = self.table if of is None else of
        if not loss.requires_grad:
            return torch.zeros_like(parameter)
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True, allow_unused=True)
        return torch.zeros_like(parameter) if gradient is None else gradient

    def look_up(self, rows: Rows) -> Rows:
        """`rows` with the reference's log-probabilities of action tokens and the old critic's values."""
        reference = np.zeros(rows.tokens, np.float32)
        for start, stop in rows.action:
            for n in range(start, stop):
                reference[n] = self.reference[int(rows.token_ids[n - 1]), int(rows.token_ids[n])]
        values = self.old_value.numpy()[rows.token_ids].astype(np.float32)
        return replace(rows, reference=reference, values=values)

    def scores(
        self, rows: Rows, weights: np.ndarray, positions: np.ndarray, source: str
    ) -> tuple[Scores, torch.Tensor]:
        """Of the tokens at `positions` those with a weight, as the learner scores them."""
        positions = positions[weights[positions] != 0]
        before = torch.as_tensor(rows.token_ids[positions - 1].astype(np.int64))
        token = torch.as_tensor(rows.token_ids[positions].astype(np.int64))
        logits = torch.log_softmax(self.table[before], -1)
        picked = torch.arange(len(positions)), token
        made = Scores(
            log_probs=logits[picked],
            behaviour=torch.as_tensor(rows.log_probs[positions].astype(np.float64)),
            advantages=torch.as_tensor(rows.advantages[positions].astype(np.float64)),
            transition=torch.as_tensor(owner_of(rows)[positions]),
            entropy=-(logits.exp() * logits).sum(-1),
            reference=self.reference[before, token],
            proximal=self.proximal[before, token],
            values=self.value[before],
            old_values=None if rows.values is None else torch.as_tensor(rows.values[positions - 1].astype(np.float64)),
            value_targets=None
            if rows.value_targets is None
            else torch.as_tensor(rows.value_targets[positions].astype(np.float64)),
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
    return replace(scores, log_probs=log_probs)


def owner_of(rows: Rows) -> np.ndarray:
    """(N,) whose action each token belongs to, -1 outside actions."""
    owner = np.full(rows.tokens, -1)
    for k, (start, stop) in enumerate(rows.action):
        owner[start:stop] = k
    return owner


def split(streams, count: int, budget: int, rng: np.random.Generator) -> list[Part]:
    """All micro-batches of all minibatches."""
    return [
        Part(part.rows, ids)
        for minibatch in minibatches(streams, count, rng)
        for part in minibatch
        for ids in micro_batches(part.rows, part.row_ids, budget)
    ]


def objective(name: str, **config):
    return plugins.load("objectives", {"name": name, **config})


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def update_of(seed: int, groups: int = 4, advantages: dict | None = None, form: str = "append") -> dict[str, Rows]:
    """Fresh rows with the advantages of `advantages` (a spec; GiGPO if None), of either prompt's form, and replayed ones."""
    algorithm = plugins.load("advantages", advantages or {"name": "gigpo"})
    made = random_groups(seed, groups=groups)
    fresh = Bigram(seed).look_up(pack([windows(one) for one in made] if form == "window" else made))
    return {"fresh": algorithm.compute(fresh), "replay": replayed(seed + 50)}


def replayed(seed: int, count: int = 6) -> Rows:
    rng = np.random.default_rng(seed)
    items = []
    for one in random_groups(seed, groups=2):
        for played in one.episodes:
            (sequence,) = played.sequences
            items += [
                WorldItem(sequence, index, float(rng.random()), float(rng.random()))
                for index in range(len(sequence.transitions))
            ]
    return pack_world([items[i] for i in rng.choice(len(items), count)])


def demonstrations(seed: int) -> Rows:
    demos = []
    for one in random_groups(seed, groups=2):
        for played in one.episodes:
            sequence = played.sequences[0]
            spans = [(t.action, t.observation) for t in sequence.transitions]
            actions, observations = zip(*spans, strict=True)
            demos.append(Demonstration(sequence.token_ids, actions, observations, "task", "expert", True))
    return pack_demonstrations(demos)


def assert_same(model: Bigram, found: torch.Tensor, right: torch.Tensor) -> None:
    """Value and gradient."""
    assert float(found.detach()) == pytest.approx(float(right.detach()), abs=1e-6)
    assert torch.allclose(model.gradient(found), model.gradient(right), atol=1e-6)


def scores_of(log_probs: list[float], behaviour=None, advantages=None, entropy=None, reference=None) -> Scores:
    def tensor(values):
        return None if values is None else torch.tensor(values, dtype=torch.float64)

    zeros = [0.0] * len(log_probs)
    return Scores(
        log_probs=torch.tensor(log_probs, dtype=torch.float64, requires_grad=True),
        behaviour=torch.tensor(behaviour or zeros, dtype=torch.float64),
        advantages=torch.tensor(advantages or zeros, dtype=torch.float64),
        transition=torch.zeros(len(log_probs), dtype=torch.int64),
        entropy=tensor(entropy),
        reference=tensor(reference),
    )
