"""Rewards that all estimators share, against hand-worked numbers and loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import Bigram, episode, group, random_groups
from pydantic import ValidationError

from learner import rewards
from learner.batch import pack
from learner.core import Rows
from learner.rewards import RewardConfig


def replies(lengths: list[int], **turn) -> Rows:
    rng = np.random.default_rng(0)
    return pack([group([episode([{"action": length, **turn} for length in lengths], 0.0, rng)])])


def dapo_penalty(length: int, limit: int, buffer: int) -> float:
    """Eq. 13 of arXiv 2503.14476, case by case."""
    if length <= limit - buffer:
        return 0.0
    if length <= limit:
        return ((limit - buffer) - length) / buffer
    return -1.0


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), limit=st.integers(1, 10), buffer=st.integers(1, 10)
)
def test_overlong_shaping_is_the_papers(lengths: list[int], limit: int, buffer: int):
    buffer = min(limit, buffer)
    config = RewardConfig(overlong_limit=limit, overlong_buffer=buffer, overlong_penalty=2.0)
    found = rewards.shaping(replies(lengths), config)
    assert found.tolist() == pytest.approx([2 * dapo_penalty(length, limit, buffer) for length in lengths])


def test_overlong_shaping_by_hand():
    """Limit 8, buffer 4: free to 4 tokens, a quarter for each more; without a buffer, all of it at the limit."""
    rows = replies([3, 4, 5, 6, 8, 9])
    config = RewardConfig(overlong_limit=8, overlong_buffer=4)
    assert rewards.shaping(rows, config).tolist() == [0, 0, -0.25, -0.5, -1, -1]
    assert rewards.shaping(rows, RewardConfig(overlong_limit=8)).tolist() == [0, 0, 0, 0, -1, -1]


def test_penalties_add_up_and_reach_every_form_of_the_reward():
    rng = np.random.default_rng(0)
    turns = [{"action": 3, "valid": False, "reward": 0.5}, {"action": 1, "reward": 2.0}]
    rows = pack([group([episode(turns, 2.5, rng), episode([{"action": 3}], 0.0, rng)])])
    config = RewardConfig(invalid_penalty=0.125, overlong_limit=4, overlong_buffer=2)
    assert rewards.shaping(rows, config).tolist() == [-0.625, 0, -0.5]
    added = rewards.added_rewards(rows, config)
    assert added.tolist() == [-0.625, 0, -0.5]
    assert rewards.episode_returns(rows, added).tolist() == [1.875, -0.5]
    tokens = rewards.token_rewards(rows, config)
    assert [tokens[slice(*span)].tolist() for span in rows.action] == [[0, 0, -0.125], [2], [0, 0, -0.5]]
    assert np.count_nonzero(tokens) == 3


def test_without_options_it_is_the_task_reward():
    rows = pack(random_groups(1))
    assert not rewards.added_rewards(rows, RewardConfig()).any()
    assert rewards.token_rewards(rows, RewardConfig()).sum() == pytest.approx(rows.task_return.sum())
    assert RewardConfig().reward_needs == set()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("seed", range(3))
def test_the_kl_of_each_token_and_its_sums(estimator: str, seed: int):
    rows = Bigram(seed).look_up(pack(random_groups(seed)))
    config = RewardConfig.model_validate({"kl": 0.5, "kl_estimator": estimator})
    assert config.reward_needs == {"reference"}
    assert rows.reference is not None
    right, per_reply, per_episode = np.zeros(rows.tokens), [], np.zeros(len(rows.task_return))
    for (start, stop), e in zip(rows.action, rows.episode, strict=True):
        for n in range(start, stop):
            ratio = math.exp(float(rows.reference[n]) - float(rows.log_probs[n]))  # reference / behaviour
            right[n] = (
                0.5
                * {"k1": -math.log(ratio), "k2": math.log(ratio) ** 2 / 2, "k3": ratio - 1 - math.log(ratio)}[estimator]
            )
        per_reply.append(-right[start:stop].sum())
        per_episode[e] += per_reply[-1]
    assert rewards.token_kl(rows, config) == pytest.approx(right, abs=1e-9)
    assert rewards.added_rewards(rows, config) == pytest.approx(per_reply)
    returns = rewards.episode_returns(rows, rewards.added_rewards(rows, config))
    assert returns == pytest.approx(rows.task_return + per_episode)
    totals = np.zeros(len(per_episode))
    tokens = rewards.token_rewards(rows, config)
    for (start, stop), e in zip(rows.action, rows.episode, strict=True):
        totals[e] += tokens[start:stop].sum()
    assert totals == pytest.approx(returns)


@pytest.mark.parametrize(("estimator", "unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_the_expected_kl_by_enumeration(estimator: str, unbiased: bool):
    """One-token replies, one of each outcome of a draw: weighted by their probabilities they give the KL."""
    rng = np.random.default_rng(2)
    policy, reference = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    rows = replies([1] * 5)
    places = rows.action[:, 0]
    log_probs, looked_up = np.zeros(rows.tokens, np.float32), np.zeros(rows.tokens, np.float32)
    log_probs[places], looked_up[places] = np.log(policy), np.log(reference)
    rows = replace(rows, log_probs=log_probs, reference=looked_up)
    found = policy @ rewards.token_kl(rows, RewardConfig.model_validate({"kl": 1, "kl_estimator": estimator}))[places]
    exact = policy @ np.log(policy / reference)
    assert (found == pytest.approx(exact, rel=1e-5)) == unbiased
    if estimator == "k2":
        assert found == pytest.approx(policy @ np.log(policy / reference) ** 2 / 2, rel=1e-5)


def test_a_return_that_is_nan_stays_nan():
    rng = np.random.default_rng(0)
    rows = pack(
        [
            group(
                [
                    episode([{"valid": False}], float("nan"), rng),
                    episode([{"valid": False}], 1.0, rng),
                    episode([], 0.5, rng),
                ]
            )
        ]
    )
    added = rewards.added_rewards(rows, RewardConfig(invalid_penalty=0.25))
    found = rewards.episode_returns(rows, added)
    assert math.isnan(found[0])
    assert found[1:].tolist() == [0.75, 0.5]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), max_size=4),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_returns_to_go_are_discounted_sums_within_an_episode(lengths: list[int], gamma: float, seed: int):
    rng = np.random.default_rng(seed)
    chains = [rng.normal(size=length) for length in lengths]
    right = [
        sum(gamma ** (u - t) * chain[u] for u in range(t, len(chain))) for chain in chains for t in range(len(chain))
    ]
    episode_of = np.repeat(np.arange(len(lengths)) * 3, lengths)
    found = rewards.returns_to_go(np.concatenate([*chains, np.zeros(0)]), episode_of, gamma)
    assert found == pytest.approx(np.array(right))


@pytest.mark.parametrize("config", [{"overlong_buffer": 3}, {"overlong_limit": 4, "overlong_buffer": 5}])
def test_a_buffer_beyond_its_limit_is_refused(config: dict):
    with pytest.raises(ValidationError, match="overlong_limit to at least as much"):
        RewardConfig.model_validate(config)
