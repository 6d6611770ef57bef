"""Ratios, importance weights and KL estimators of the policy term: hand-worked numbers, and expectations by enumeration."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import generator, objective, scores_of

from learner.core import Scores
from learner.ratios import reply_means, sequence_log_ratios
from protos.telemetry import reduce_metrics

# --- GSPO ---


def sequence_scores(
    log_probs: list[float], behaviour: list[float], transition: list[int], advantages: list[float]
) -> Scores:
    made = scores_of(log_probs, behaviour=behaviour, advantages=advantages)
    return replace(made, transition=torch.tensor(transition))


def test_sequence_ratios_by_hand():
    """Replies with token ratios (2, 1/2), (4, 1), (3): geometric means 1, 2, 3; tokens of a reply need not be neighbours."""
    ratios = torch.tensor([2, 4, 0.5, 1, 3], dtype=torch.float64)
    transition = torch.tensor([7, 2, 7, 2, 0])
    found = sequence_log_ratios(ratios.log(), transition).exp()
    assert found.tolist() == pytest.approx([1, 2, 1, 2, 3])
    assert reply_means(ratios, transition).tolist() == pytest.approx([1.25, 2.5, 1.25, 2.5, 3])
    assert len(reply_means(ratios[:0], transition[:0])) == 0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("shift", [0.0, 0.3, -0.3])
def test_with_equal_advantages_gspo_token_is_gspo(advantage: float, shift: float):
    """Its loss and gradient are those of mean over replies of min(s A, clip(s) A), s = exp(mean log-ratio) (GSPO, eq. 5)."""
    rng = generator(1)
    new, old = rng.normal(-1, 0.3, 6) + shift, rng.normal(-1, 0.3, 6)
    transition = [0, 0, 0, 1, 1, 2]
    scores = sequence_scores(new.tolist(), old.tolist(), transition, [advantage] * 6)
    length = np.bincount(transition)
    weights = torch.tensor(1 / (3 * length[transition]))
    loss, _ = objective("policy_gradient", ratio="sequence", clip_high=0.2).loss(scores, weights)
    (found,) = torch.autograd.grad(loss, scores.log_probs)
    direct = torch.zeros((), dtype=torch.float64)
    for reply in range(3):
        own = torch.tensor([k == reply for k in transition])
        s = torch.exp((scores.log_probs - scores.behaviour)[own].mean())
        direct = direct - torch.minimum(s * advantage, s.clamp(0.8, 1.2) * advantage) / 3
    (right,) = torch.autograd.grad(direct, scores.log_probs, allow_unused=True)
    assert float(loss.detach()) == pytest.approx(float(direct.detach()))
    assert found.tolist() == pytest.approx((torch.zeros(6) if right is None else right).tolist())


@settings(deadline=None)
@given(
    ratios=st.lists(st.floats(-1, 1), min_size=1, max_size=5),
    copies=st.integers(1, 4),
)
def test_a_reply_said_twice_over_has_the_same_ratio(ratios: list[float], copies: int):
    one = torch.tensor(ratios, dtype=torch.float64)
    short = sequence_log_ratios(one, torch.zeros(len(one), dtype=torch.int64))
    long = sequence_log_ratios(one.repeat(copies), torch.zeros(copies * len(one), dtype=torch.int64))
    assert long.tolist() == pytest.approx(short.repeat(copies).tolist(), abs=1e-12)


# --- KL in the loss ---


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_value_and_gradient_of_the_kl_estimators_by_enumeration(estimator: str):
    """All outcomes of one draw, weighted by their probability: what the estimator tells of the KL and of its gradient."""
    rng = generator(3)
    logits = torch.tensor(rng.normal(0, 1, 5), requires_grad=True)
    reference = torch.log_softmax(torch.tensor(rng.normal(0, 1, 5)), 0)
    policy = torch.log_softmax(logits, 0)
    reverse, forward = (policy.exp() * (policy - reference)).sum(), (reference.exp() * (reference - policy)).sum()
    term = objective("policy_gradient", kl=1.0, kl_estimator=estimator)
    scores = replace(scores_of([0.0] * 5), log_probs=policy, behaviour=policy.detach(), reference=reference)
    loss, _ = term.loss(scores, policy.exp().detach())  # advantages 0: the KL alone, on-policy
    expected = {"k1": reverse, "k2": (policy.exp() * (policy - reference) ** 2 / 2).sum(), "k3": reverse}[estimator]
    assert float(loss.detach()) == pytest.approx(float(expected.detach()))
    gradient, right, other = (
        torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (loss, reverse, forward)
    )
    target = {"k1": torch.zeros(5, dtype=torch.float64), "k2": right, "k3": other}[estimator]
    assert torch.allclose(gradient, target, atol=1e-9)


# --- decoupled PPO ---


@pytest.mark.parametrize("importance", ["full", "truncate", "mask", "none"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_decoupled_ppo_is_ppo_when_the_proximal_policy_is_the_behaviour(importance: str, ratio: str):
    rng = generator(5)
    scores = sequence_scores(
        rng.normal(-1, 0.5, 8).tolist(), rng.normal(-1, 0.5, 8).tolist(), [0] * 3 + [1] * 5, [1, -1] * 4
    )
    weights = torch.tensor(rng.random(8))
    plain, _ = objective("policy_gradient", ratio=ratio).loss(scores, weights)
    decoupled = objective("policy_gradient", ratio=ratio, proximal="recomputed", importance=importance)
    found, metrics = decoupled.loss(replace(scores, proximal=scores.behaviour), weights)
    assert float(found.detach()) == pytest.approx(float(plain.detach()))
    right, gradient = (torch.autograd.grad(value, scores.log_probs)[0] for value in (plain, found))
    assert torch.allclose(gradient, right)
    assert reduce_metrics([metrics])["policy_gradient/importance_mean"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("importance", "right"), [("full", [-3, 0.5]), ("truncate", [-2, 0.5]), ("mask", [0, 0.5]), ("none", [-1, 1])]
)
def test_importance_by_hand(importance: str, right: list[float]):
    """proximal / behaviour = 3 and 1/2, learner = proximal, advantages 1 and -1, cap 2."""
    scores = scores_of([-1.0, -2.0], behaviour=[-1 - math.log(3), -2 + math.log(2)], advantages=[1.0, -1.0])
    scores = replace(scores, proximal=scores.log_probs.detach())
    term = objective("policy_gradient", proximal="recomputed", importance=importance)
    loss, metrics = term.loss(scores, torch.ones(2, dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx(sum(right))
    loss.backward()
    assert scores.log_probs.grad is not None
    assert scores.log_probs.grad.tolist() == pytest.approx(right)  # the weight is a constant
    values = reduce_metrics([metrics])
    assert values["policy_gradient/importance_mean"] == pytest.approx(1.75)
    assert values["policy_gradient/importance_max"] == pytest.approx(3)
    assert values["policy_gradient/importance_capped"] == pytest.approx(0.5)
    assert values["policy_gradient/ratio_mean"] == pytest.approx(1)


def test_in_full_the_weight_makes_samples_of_an_old_policy_as_good_as_new():
    """By enumeration: at the proximal policy the expected gradient is that of the expected advantage, whatever sampled."""
    rng = generator(7)
    logits = torch.tensor(rng.normal(0, 1, 4), requires_grad=True)
    policy = torch.log_softmax(logits, 0)
    behaviour = torch.log_softmax(torch.tensor(rng.normal(0, 1, 4)), 0)
    advantages = torch.tensor(rng.normal(0, 1, 4))
    scores = Scores(policy, behaviour, advantages, torch.arange(4), proximal=policy.detach())
    loss, _ = objective("policy_gradient", proximal="recomputed").loss(scores, behaviour.exp())
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (right,) = torch.autograd.grad(-(policy.exp() * advantages).sum(), logits)
    assert torch.allclose(found, right)
