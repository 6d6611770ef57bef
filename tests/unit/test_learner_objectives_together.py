"""World-model terms and their controls under every advantage estimator and every option of the policy term."""

import numpy as np
import pytest
from learner_rows import Bigram, generator, objective, split, update_of

from learner import plugins
from learner.advantages import grpo
from protos.telemetry import reduce_metrics

ESTIMATORS = [
    {"name": "grpo"},
    {"name": "grpo", "normalise": "none"},
    {"name": "grpo", "kl": 0.05},
    {"name": "gigpo"},
    {"name": "rloo"},
    {"name": "rloo", "overlong_limit": 3, "overlong_buffer": 2},
    {"name": "reinforce_pp", "kl": 0.05},
    {"name": "reinforce_pp", "baseline": "group"},
    {"name": "gae"},
    {"name": "gae", "truncation": "end", "lam": 0.9},
]
POLICIES = [
    {},
    {"aggregation": "token", "drop_uniform_groups": True, "mask_cut_replies": True},
    {"aggregation": "sequence", "kl": 0.04},
    {"aggregation": "constant", "episode_tokens": 8, "clip_high": 0.2},
    {"ratio": "sequence", "aggregation": "reply", "clip_low": 0.3, "clip_high": 0.4},
    {"kl": 0.1, "kl_estimator": "k2", "entropy_bonus": 0.01, "dual_clip": 3.0},
    {"proximal": "recomputed"},
    {"proximal": "recomputed", "importance": "truncate"},
    {"proximal": "recomputed", "importance": "mask", "importance_cap": 5.0, "ratio": "sequence"},
]
WORLDS = [
    {"name": "paw"},
    {"name": "paw", "selection": "random"},
    {"name": "paw", "rows": "transition", "loss": "cross_entropy"},
    {"name": "next_observation"},
    {"name": "placebo", "of": {"name": "paw", "replay_ratio": 0.0}},
    {"name": "placebo", "of": {"name": "next_observation"}},
]


def test_no_estimator_is_left_out():
    assert {spec["name"] for spec in ESTIMATORS} == set(plugins.names("advantages"))


@pytest.mark.parametrize("form", ["append", "window"])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_both_terms_have_weight_and_gradient(estimator: dict, policy: dict, form: str):
    """And the world-model terms are the same whatever stands beside them."""
    model, update = Bigram(2), update_of(2, advantages=estimator, form=form)
    plain = update_of(2, form=form)
    term = objective("policy_gradient", **policy)
    (stream,), _ = term.weigh(update, generator())
    loss, _ = model.loss(term, [stream])
    assert np.count_nonzero(stream.weights) > 0
    assert model.gradient(loss).abs().max() > 1e-4
    for spec in WORLDS:
        world = objective(**spec)
        streams, metrics = world.weigh(update, generator(1))
        expected, _ = world.weigh(plain, generator(1))
        assert [own.source for own in streams] == [own.source for own in expected]
        for own, other in zip(streams, expected, strict=True):
            assert np.count_nonzero(own.weights) > 0
            assert np.array_equal(own.weights, other.weights)
            assert model.gradient(model.loss(world, [own])[0]).abs().max() > 1e-6
            if own.source == "fresh" and spec.get("rows") != "transition":
                assert own.rows is stream.rows  # one forward pass serves both
        assert metrics[f"{world.name}/no_tokens"].value == 0


@pytest.mark.parametrize("form", ["append", "window"])
def test_a_minibatch_holds_all_terms_of_its_groups(form: str):
    """Cut in minibatches and micro-batches the terms together give the loss and gradient of the whole."""
    model, update = Bigram(3), update_of(3, advantages={"name": "gae"}, form=form)
    terms = [objective(**spec) for spec in ({"name": "policy_gradient"}, {"name": "value"}, *WORLDS)]
    streams = [(term, stream) for term in terms for stream in term.weigh(update, generator(1))[0]]
    parts = split([stream for _, stream in streams], 3, 60, generator(2))
    for term, stream in streams:
        whole, calls = model.loss(term, [stream])
        cut, part_calls = model.loss(term, [stream], parts)
        assert float(cut.detach()) == pytest.approx(float(whole.detach()), abs=1e-6)
        of = model.value if term.name == "value" else model.table
        assert np.allclose(model.gradient(cut, of), model.gradient(whole, of), atol=1e-6)
        assert reduce_metrics(part_calls) == pytest.approx(reduce_metrics(calls))


def test_groups_without_a_policy_gradient_still_train_the_world_model():
    """Where all fail, lambda is 1: the very groups that dynamic sampling drops."""
    update = update_of(4)
    rows = grpo.build(grpo.Config()).compute(update["fresh"])
    uniform = [g for g in range(rows.groups) if np.ptp(rows.task_return[rows.episode_group == g]) == 0]
    assert uniform
    (policy,), _ = objective("policy_gradient", drop_uniform_groups=True).weigh({"fresh": rows}, generator())
    (world,), _ = objective("paw", alpha=1.0, lam=1.0).weigh({"fresh": rows}, generator())
    for k in np.flatnonzero(np.isin(rows.group, uniform)):
        assert not policy.weights[slice(*rows.action[k])].any()
        assert world.weights[slice(*rows.observation[k])].any() == rows.world[k]
