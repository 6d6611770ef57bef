"""The policy gradient with each of its options, against nested means and ratios written from the papers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_rows import (
    AGGREGATIONS,
    Bigram,
    assert_same,
    generator,
    objective,
    random_groups,
    scores_of,
    split,
    update_of,
    windows,
)
from pydantic import ValidationError

from learner import plugins
from learner.batch import pack
from learner.core import Rows
from learner.objectives import policy_gradient
from protos.records import Group, Sequence, Stop, Transition
from protos.telemetry import reduce_metrics

DECOUPLED = {"proximal": "recomputed"}
OPTIONS = [
    {},
    *AGGREGATIONS[1:],
    {"entropy_bonus": 0.02},
    {"kl": 0.1},
    {"kl": 0.1, "kl_estimator": "k1"},
    {"kl": 0.1, "kl_estimator": "k2"},
    {"skip_zero_advantage": False, "entropy_bonus": 0.3, "kl": 0.2, "aggregation": "token"},
    {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 1.5},
    {"ratio": "sequence", "aggregation": "reply", "clip_low": 0.05, "clip_high": 0.1},
    {"ratio": "sequence", "dual_clip": 1.2, **DECOUPLED, "importance": "truncate", "importance_cap": 1.1},
    DECOUPLED,
    {**DECOUPLED, "importance": "truncate", "importance_cap": 0.9},
    {**DECOUPLED, "importance": "mask", "importance_cap": 0.9},
    {**DECOUPLED, "importance": "none"},
    *({**one, "drop_uniform_groups": True} for one in AGGREGATIONS),
    *({**one, "mask_cut_replies": True} for one in AGGREGATIONS),
    *(
        {**one, "drop_uniform_groups": True, "mask_cut_replies": True, "skip_zero_advantage": False}
        for one in AGGREGATIONS
    ),
]


def reply_terms(model: Bigram, sequence: Sequence, t: Transition, advantages: np.ndarray, config: dict) -> torch.Tensor:
    """(n,) of the tokens of one reply."""
    positions = range(*t.action)
    before = [int(sequence.token_ids[n - 1]) for n in positions]
    token = [int(sequence.token_ids[n]) for n in positions]
    new = torch.stack([model.log_prob(b, x) for b, x in zip(before, token, strict=True)])
    behaviour = torch.tensor(t.log_probs.astype(np.float64))
    old = behaviour if config.get("proximal") != "recomputed" else model.proximal[before, token]
    weight = torch.exp(old - behaviour)
    ratio = torch.exp(new - old)
    if config.get("ratio") == "sequence":
        n = len(new)
        whole = torch.prod(ratio.detach()) ** (1 / n)  # GSPO, eq. 7, in the space of probabilities
        ratio = whole * torch.exp(new) / torch.exp(new).detach()
        weight = (torch.prod(weight) ** (1 / n)).expand(n)
    cap, kind = config.get("importance_cap", 2.0), config.get("importance", "full")
    terms = []
    for r, w, value in zip(ratio, weight.tolist(), advantages.tolist(), strict=True):
        low, high = 1 - config.get("clip_low", 0.2), 1 + config.get("clip_high", 0.28)
        surrogate = min(r * value, min(max(r, torch.tensor(low)), torch.tensor(high)) * value)
        if config.get("dual_clip") and value < 0 and float(surrogate.detach()) < config["dual_clip"] * value:
            surrogate = torch.tensor(config["dual_clip"] * value)
        used = {"full": w, "truncate": min(w, cap), "mask": w if w <= cap else 0.0, "none": 1.0}[kind]
        terms.append(-used * surrogate)
    difference = new - model.reference[before, token]
    divergence = {"k1": difference, "k2": difference**2 / 2, "k3": torch.exp(-difference) - 1 + difference}
    logits = torch.log_softmax(model.table[before], -1)
    return (
        torch.stack([term.double() for term in terms])
        + config.get("kl", 0) * divergence[config.get("kl_estimator", "k3")]
        + config.get("entropy_bonus", 0) * (logits.exp() * logits).sum(-1)
    )


def naive_policy(model: Bigram, groups: list[Group], rows: Rows, config: dict) -> torch.Tensor:
    """Lists of lists: groups, their episodes, their replies, terms of tokens; masked replies are not in them."""
    tree, offset = [], 0
    for one in groups:
        episodes, cut = [], False
        for played in one.episodes:
            replies = []
            for sequence in played.sequences:
                advantages = rows.advantages[offset : offset + len(sequence.token_ids)]
                live = not config.get("skip_zero_advantage", True) or bool(advantages.any())
                for t in sequence.transitions:
                    if config.get("mask_cut_replies") and t.stop is Stop.LENGTH:
                        cut = True
                        continue
                    terms = reply_terms(model, sequence, t, advantages[slice(*t.action)], config)
                    replies.append(terms if live else torch.zeros_like(terms))
                offset += len(sequence.token_ids)
            if replies:
                episodes.append(replies)
        uniform = len({played.task_return for played in one.episodes}) < 2
        if not (config.get("drop_uniform_groups") and uniform) and not (cut and not episodes):
            tree.append(episodes)
    return nested_mean(tree, config)


def nested_mean(tree: list, config: dict) -> torch.Tensor:
    def mean(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(values).mean() if values else torch.zeros((), dtype=torch.float64)

    def tokens(replies: list) -> list[torch.Tensor]:
        return [term for reply in replies for term in reply]

    match config.get("aggregation", "group"):
        case "token":
            return mean([term for one in tree for replies in one for term in tokens(replies)])
        case "group":
            return mean([mean([term for replies in one for term in tokens(replies)]) for one in tree])
        case "sequence":
            return mean([mean([mean(tokens(replies)) for replies in one]) for one in tree])
        case "reply":
            return mean([mean([reply.mean() for replies in one for reply in replies]) for one in tree])
        case "constant":
            length = config["episode_tokens"]
            return mean([mean([torch.stack(tokens(replies)).sum() / length for replies in one]) for one in tree])
    raise AssertionError(config)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["append", "window"])
@pytest.mark.parametrize("config", OPTIONS, ids=str)
def test_equals_the_definition(seed: int, form: str, config: dict):
    groups, model = random_groups(seed), Bigram(seed)
    if form == "window":
        groups = [windows(one) for one in groups]
    # A step's tokens have one advantage from GiGPO, one each from GAE.
    estimator = {"name": "gae", "lam": 0.8} if seed == 1 else {"name": "gigpo"}
    rows = plugins.load("advantages", estimator).compute(model.look_up(pack(groups)))
    term = objective("policy_gradient", **config)
    streams, _ = term.weigh({"fresh": rows}, generator())
    loss, _ = model.loss(term, streams)
    assert_same(model, loss, naive_policy(model, groups, rows, config))
    asked = {"entropy": "entropy_bonus", "reference": "kl", "proximal": "proximal"}
    assert term.needs == {need for need, key in asked.items() if key in config}


def test_by_hand():
    """Ratios 2, 2, 0.5, 0.5, 1, advantages +1, -1, +1, -1, +1: clipped at 1.28, not, not, clipped at 0.8, inside."""
    log2 = math.log(2)
    scores = scores_of([log2, log2, -log2, -log2, 0.0], advantages=[1.0, -1.0, 1.0, -1.0, 1.0])
    loss, metrics = objective("policy_gradient").loss(scores, torch.full((5,), 0.2, dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx(0.2 * (-1.28 + 2 - 0.5 + 0.8 - 1))
    loss.backward()
    assert scores.log_probs.grad is not None
    assert scores.log_probs.grad.tolist() == pytest.approx([0, 0.4, -0.1, 0, -0.2])
    values = reduce_metrics([metrics])
    assert values["policy_gradient/clip_fraction"] == pytest.approx(0.4)
    assert values["policy_gradient/clip_fraction_high"] == pytest.approx(0.2)
    assert values["policy_gradient/clip_fraction_low"] == pytest.approx(0.2)
    assert values["policy_gradient/ratio_mean"] == pytest.approx(1.2)
    assert values["policy_gradient/ratio_max"] == pytest.approx(2)
    assert values["policy_gradient/mismatch_kl"] == pytest.approx(0.2)  # mean of r - 1 - log r


def test_dual_clip_by_hand():
    """Ratios 4, 2, 4 with advantages -1, -1, 1 and c = 3: bounded at 3, untouched, clipped above."""
    scores = scores_of([math.log(4), math.log(2), math.log(4)], advantages=[-1.0, -1.0, 1.0])
    loss, metrics = objective("policy_gradient", dual_clip=3).loss(scores, torch.ones(3, dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx(3 + 2 - 1.28)
    loss.backward()
    assert scores.log_probs.grad is not None
    assert scores.log_probs.grad.tolist() == pytest.approx([0, 2, 0])
    assert reduce_metrics([metrics])["policy_gradient/dual_clip_fraction"] == pytest.approx(1 / 3)


def test_a_ratio_beyond_all_measure_stays_finite():
    scores = scores_of([0.0, 0.0], behaviour=[-2000.0, -2000.0], advantages=[0.0, -1.0])
    for config in ({}, {"ratio": "sequence"}, DECOUPLED):
        proximal = replace(scores, proximal=torch.tensor([-1000.0, 1000.0], dtype=torch.float64))
        loss, metrics = objective("policy_gradient", **config).loss(proximal, torch.ones(2, dtype=torch.float64))
        assert torch.isfinite(loss)
        assert all(math.isfinite(value) for value in reduce_metrics([metrics]).values())


@pytest.mark.parametrize("form", ["append", "window"])
@pytest.mark.parametrize("config", OPTIONS, ids=str)
def test_no_split_changes_loss_or_gradient(config: dict, form: str):
    model, term = Bigram(0), objective("policy_gradient", **config)
    for seed in range(3):
        streams, _ = term.weigh(update_of(seed, form=form), generator())
        whole, calls = model.loss(term, streams)
        parts, part_calls = model.loss(term, streams, split(streams, 1 + seed, 30 + 40 * seed, generator(seed)))
        assert_same(model, parts, whole)
        assert reduce_metrics(part_calls) == pytest.approx(reduce_metrics(calls))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"aggregation": "constant"}, "set both or neither"),
        ({"episode_tokens": 5}, "set both or neither"),
        ({"importance": "truncate"}, 'set proximal = "recomputed"'),
        ({"importance": "none"}, 'set proximal = "recomputed"'),
        ({"dual_clip": 1.0}, "greater than 1"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(config: dict, message: str):
    with pytest.raises(ValidationError, match=message):
        policy_gradient.Config.model_validate(config)
