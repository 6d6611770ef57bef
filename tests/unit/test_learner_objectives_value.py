"""The critic's loss against a loop, hand-worked numbers, and the shape of its gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_rows import Bigram, episode, generator, group, objective, random_groups, scores_of, update_of

from learner.batch import pack
from learner.core import Rows, Scores
from learner.objectives import policy_gradient, value
from protos.errors import ConfigError
from protos.telemetry import reduce_metrics


def critic_scores(values: list[float], old: list[float], targets: list[float]) -> Scores:
    v, o, t = (torch.tensor(x, dtype=torch.float64) for x in (values, old, targets))
    return replace(scores_of([0.0] * len(values)), values=v.requires_grad_(), old_values=o, value_targets=t)


def test_by_hand():
    """Old value 0, target 1, clip 0.2: inside; beyond the clip towards the target; away from it; and past the target."""
    scores = critic_scores([0.1, 0.5, -0.5, 1.5], [0.0, 0.0, 0.0, 1.4], [1.0, 1.0, 1.0, 1.0])
    loss, metrics = objective("value", coefficient=1).loss(scores, torch.full((4,), 0.25, dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx((0.81 + 0.64 + 2.25 + 0.25) / 4)
    loss.backward()
    assert scores.values is not None
    assert scores.values.grad is not None
    assert scores.values.grad.tolist() == pytest.approx([-0.45, 0, -0.75, 0.25])
    assert reduce_metrics([metrics])["value/clip_fraction"] == 0.25
    plain, _ = objective("value", coefficient=1, clip=None).loss(scores, torch.full((4,), 0.25, dtype=torch.float64))
    assert float(plain.detach()) == pytest.approx((0.81 + 0.25 + 2.25 + 0.25) / 4)


def naive_value(model: Bigram, rows: Rows, coefficient: float, clip: float | None) -> torch.Tensor:
    assert rows.values is not None
    assert rows.value_targets is not None
    terms = []
    for start, stop in rows.action:
        for n in range(start, stop):
            target, before = float(rows.value_targets[n]), int(rows.token_ids[n - 1])
            if np.isnan(target):
                continue
            now, old = model.value[before], float(rows.values[n - 1])
            term = (now - target) ** 2
            if clip is not None:
                near = min(max(float(now.detach()), old - clip), old + clip)
                if (near - target) ** 2 > float(term.detach()):
                    term = torch.tensor((near - target) ** 2, dtype=torch.float64)
            terms.append(term)
    return coefficient * sum(terms, torch.zeros((), dtype=torch.float64)) / len(terms)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["append", "window"])
@pytest.mark.parametrize("clip", [None, 0.2, 2.0])
def test_equals_the_definition(seed: int, form: str, clip: float | None):
    model = Bigram(seed)
    rows = update_of(seed, advantages={"name": "gae", "lam": 0.9}, form=form)["fresh"]
    rows.value_targets[slice(*rows.action[0])] = np.nan  # as where the return of an episode is unknown
    term = objective("value", clip=clip, coefficient=0.25)
    (stream,), _ = term.weigh({"fresh": rows}, generator())
    loss, _ = model.loss(term, [stream])
    right = naive_value(model, rows, 0.25, clip)
    assert float(loss.detach()) == pytest.approx(float(right.detach()), abs=1e-6)
    assert torch.allclose(model.gradient(loss, model.value), model.gradient(right, model.value), atol=1e-6)
    assert not model.gradient(loss).any()  # of the policy
    assert stream.weights.sum() == pytest.approx(0.25)


def test_it_reads_no_log_probability():
    scores = critic_scores([0.1], [0.0], [1.0])
    unknown = replace(scores, log_probs=None, behaviour=None, advantages=None, transition=None)
    weights = torch.ones(1, dtype=torch.float64)
    assert torch.equal(objective("value").loss(unknown, weights)[0], objective("value").loss(scores, weights)[0])


def test_explained_variance_by_hand():
    """Targets 0, 0, 1, 1: exact values explain all, a constant nothing, the wrong way round less than nothing."""
    rng = generator()
    rows = pack([group([episode([{}], 0.0, rng), episode([{}], 1.0, rng)])])
    targets = np.zeros(rows.tokens, np.float32)
    targets[slice(*rows.action[1])] = 1
    before = np.zeros(rows.tokens, bool)
    before[rows.action[1, 0] - 1 : rows.action[1, 1] - 1] = True
    for values, right in ((before, 1.0), (np.full_like(before, True), 0.0), (~before, -3.0)):
        own = replace(rows, values=values.astype(np.float32), value_targets=targets)
        _, metrics = objective("value").weigh({"fresh": own}, rng)
        assert metrics["value/explained_variance"].value == pytest.approx(right)
    flat = replace(rows, values=targets, value_targets=np.zeros_like(targets))
    assert "value/explained_variance" not in reduce_metrics([objective("value").weigh({"fresh": flat}, rng)[1]])


def test_an_estimator_without_targets_is_named():
    with pytest.raises(ConfigError, match='name = "gae"'):
        objective("value").weigh({"fresh": pack(random_groups(0))}, generator())


def test_with_the_policy_term_it_shares_rows_and_leaves_its_gradient_alone():
    """The value term needs rows that the policy skips: both stand on the same `rows` object, one forward pass."""
    model = Bigram(0)
    rows = update_of(0, advantages={"name": "gae"})["fresh"]
    policy, critic = policy_gradient.build(policy_gradient.Config()), value.build(value.Config())
    streams = [term.weigh({"fresh": rows}, generator())[0][0] for term in (policy, critic)]
    assert streams[0].rows is streams[1].rows is rows
    alone, _ = model.loss(policy, streams[:1])
    both = alone + model.loss(critic, streams[1:])[0]
    assert torch.allclose(model.gradient(both), model.gradient(alone))
    assert model.gradient(both, model.value).abs().sum() > 0
