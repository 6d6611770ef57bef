"""Which action tokens count in the policy term, and how much: aggregations, masks, dropped groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import (
    AGGREGATIONS,
    Bigram,
    assert_same,
    episode,
    generator,
    group,
    objective,
    random_groups,
    scores_of,
)

from learner.advantages import gigpo
from learner.batch import pack
from learner.core import Rows
from protos.records import Stop


def two_groups(cut: tuple[int, ...] = ()) -> Rows:
    """Group A: an episode with replies of 1 and 3 tokens, one with a reply of 2; group B: an episode with a reply of 4.

    A's returns are 0 and 1. `cut`: which of the four replies were cut.
    """
    rng = generator()
    lengths = [[[1, 3], [2]], [[4]]]
    number, groups = 0, []
    for g, one in enumerate(lengths):
        episodes = []
        for e, replies in enumerate(one):
            turns = []
            for length in replies:
                turns.append({"action": length, "stop": Stop.LENGTH if number in cut else Stop.STOP})
                number += 1
            episodes.append(episode(turns, float(e), rng))
        groups.append(group(episodes, repeat=g))
    rows = pack(groups)
    return replace(rows, advantages=np.ones(rows.tokens, np.float32))


@pytest.mark.parametrize(
    ("config", "cut", "right"),
    [
        ({"aggregation": "token"}, (), [1 / 10] * 4),
        ({"aggregation": "group"}, (), [1 / 12, 1 / 12, 1 / 12, 1 / 8]),
        ({"aggregation": "sequence"}, (), [1 / 16, 1 / 16, 1 / 8, 1 / 8]),
        ({"aggregation": "reply"}, (), [1 / 6, 1 / 18, 1 / 12, 1 / 8]),
        ({"aggregation": "constant", "episode_tokens": 10}, (), [1 / 40, 1 / 40, 1 / 40, 1 / 20]),
        # The reply of 3 tokens is cut: it leaves its episode's and its group's denominators.
        ({"aggregation": "token"}, (1,), [1 / 7, 0, 1 / 7, 1 / 7]),
        ({"aggregation": "group"}, (1,), [1 / 6, 0, 1 / 6, 1 / 8]),
        ({"aggregation": "sequence"}, (1,), [1 / 4, 0, 1 / 8, 1 / 8]),
        ({"aggregation": "reply"}, (1,), [1 / 4, 0, 1 / 8, 1 / 8]),
        ({"aggregation": "constant", "episode_tokens": 10}, (1,), [1 / 40, 0, 1 / 40, 1 / 20]),
        # Nothing is left of the second group, then of A's second episode: a smaller mean, not zeros in it.
        ({"aggregation": "token"}, (3,), [1 / 6, 1 / 6, 1 / 6, 0]),
        ({"aggregation": "group"}, (3,), [1 / 6, 1 / 6, 1 / 6, 0]),
        ({"aggregation": "sequence"}, (2, 3), [1 / 4, 1 / 4, 0, 0]),
        ({"aggregation": "reply"}, (2, 3), [1 / 2, 1 / 6, 0, 0]),
        ({"aggregation": "constant", "episode_tokens": 10}, (2, 3), [1 / 10, 1 / 10, 0, 0]),
        # B's only episode has nothing to differ from.
        ({"aggregation": "token", "drop_uniform_groups": True}, (), [1 / 6, 1 / 6, 1 / 6, 0]),
        ({"aggregation": "group", "drop_uniform_groups": True}, (1,), [1 / 3, 0, 1 / 3, 0]),
        ({"aggregation": "sequence", "drop_uniform_groups": True}, (), [1 / 8, 1 / 8, 1 / 4, 0]),
    ],
)
def test_shares_by_hand(config: dict, cut: tuple[int, ...], right: list[float]):
    rows = two_groups(cut)
    (stream,), metrics = objective("policy_gradient", mask_cut_replies=True, **config).weigh(
        {"fresh": rows}, generator()
    )
    found = [set(stream.weights[start:stop].tolist()) for start, stop in rows.action]
    assert [len(values) for values in found] == [1] * 4
    assert [next(iter(values)) for values in found] == pytest.approx(right)
    assert metrics["policy_gradient/uniform_groups"].value == 0.5
    assert metrics["policy_gradient/masked_replies"].value == right.count(0) / 4


@pytest.mark.parametrize("config", [*AGGREGATIONS[:4], {"aggregation": "constant", "episode_tokens": 4}], ids=str)
def test_a_masked_reply_is_not_in_the_divisor(config: dict):
    """Two replies of 4 tokens with loss 1 each, one of them cut: 1.0, not 0.5 (huggingface/trl#6369)."""
    rng = generator()
    for turns in ([[{}], [{"stop": Stop.LENGTH}]], [[{}, {"stop": Stop.LENGTH}]]):
        made = [episode([{**turn, "action": 4, "log_probs": np.zeros(4)} for turn in one], 0.0, rng) for one in turns]
        rows = pack([group(made)])
        rows = replace(rows, advantages=np.where(rows.log_probs <= 0, -1, 0).astype(np.float32))
        term = objective("policy_gradient", mask_cut_replies=True, **config)
        (stream,), _ = term.weigh({"fresh": rows}, rng)
        weights = torch.as_tensor(stream.weights[stream.weights != 0], dtype=torch.float64)
        loss, _ = term.loss(scores_of([0.0] * 4, advantages=[-1.0] * 4), weights)
        assert float(loss.detach()) == 1.0


@pytest.mark.parametrize("config", AGGREGATIONS, ids=str)
def test_when_every_reply_is_cut_the_term_is_out_and_says_so(config: dict):
    rows = two_groups(cut=(0, 1, 2, 3))
    streams, metrics = objective("policy_gradient", mask_cut_replies=True, **config).weigh({"fresh": rows}, generator())
    assert streams == []
    assert metrics["policy_gradient/no_tokens"].value == 1
    (stream,), _ = objective("policy_gradient", **config).weigh({"fresh": rows}, generator())
    assert stream.weights.any()  # masking is off by default


def test_uniform_groups_leave_the_policy_term_alone():
    rng = generator()
    flat, mixed = [episode([{}], 0.0, rng)] * 2, [episode([{}], value, rng) for value in (0.0, 1.0)]
    unknown = [episode([{}], value, rng) for value in (float("nan"), 1.0)]
    rows = pack([group(flat), group(mixed, repeat=1), group(unknown, repeat=2), group([], repeat=3)])
    rows = replace(rows, advantages=np.ones(rows.tokens, np.float32))  # an estimator with a critic has them anywhere
    (stream,), metrics = objective("policy_gradient", drop_uniform_groups=True).weigh({"fresh": rows}, rng)
    sums = [stream.weights[slice(*span)].sum() for span in rows.action]
    assert sums == pytest.approx([0, 0, 0.5, 0.5, 0, 0])
    assert metrics["policy_gradient/uniform_groups"].value == 0.75
    (world,), _ = objective("next_observation").weigh({"fresh": rows}, rng)
    assert all(world.weights[slice(*span)].all() for span in rows.observation)


def test_rows_without_advantage_are_skipped_and_still_counted():
    rng = generator()
    flat, mixed = [episode([{}], 0.0, rng)] * 2, [episode([{}], value, rng) for value in (0.0, 1.0)]
    rows = gigpo.build(gigpo.Config(omega=0)).compute(pack([group(flat), group(mixed, repeat=1)]))
    (stream,), metrics = objective("policy_gradient").weigh({"fresh": rows}, rng)
    assert stream.weights[rows.action[0, 0]] == 0
    assert stream.weights[rows.action[2, 0]] == pytest.approx(1 / (4 * 2))
    assert metrics["policy_gradient/zero_advantage_rows"].value == 0.5
    (stream,), _ = objective("policy_gradient", skip_zero_advantage=False).weigh({"fresh": rows}, rng)
    assert stream.weights.sum() == pytest.approx(1)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)))
@pytest.mark.parametrize("config", [*AGGREGATIONS, {"drop_uniform_groups": True, "mask_cut_replies": True}], ids=str)
def test_the_order_of_groups_changes_nothing(config: dict, seed: int, order: list[int]):
    model, groups = Bigram(0), random_groups(seed)
    losses = []
    for made in (groups, [groups[i] for i in order]):
        rows = gigpo.build(gigpo.Config()).compute(pack(made))
        term = objective("policy_gradient", **config)
        losses.append(model.loss(term, term.weigh({"fresh": rows}, generator())[0])[0])
    assert_same(model, losses[1], losses[0])
