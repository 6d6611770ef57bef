"""Token-level estimators, REINFORCE++ and GAE, against double loops and hand-worked numbers."""

from dataclasses import replace
from statistics import mean, pstdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import Bigram, episode, group, random_groups, windows

from learner.advantages import gae, reinforce_pp
from learner.batch import pack
from learner.core import Rows
from protos.errors import ConfigError
from protos.records import Group


def of_tokens(rows: Rows, values: np.ndarray | None = None) -> list[list[float]]:
    """The advantages (or `values`, (N,)) of each transition's action tokens, after a check that there are no others."""
    values = rows.advantages if values is None else values
    seen = np.zeros(rows.tokens, bool)
    for start, stop in rows.action:
        seen[start:stop] = True
    assert values.dtype == np.float32
    assert not values[~seen].any()
    return [values[start:stop].tolist() for start, stop in rows.action]


def chains(rows: Rows) -> list[list[tuple[int, float]]]:
    """For each episode: its action tokens in order, as (position, task reward); by loops over positions."""
    made: list[list[tuple[int, float]]] = [[] for _ in rows.task_return]
    for k in range(len(rows.row)):
        start, stop = rows.action[k].tolist()
        made[rows.episode[k]] += [(n, float(rows.reward[k]) if n == stop - 1 else 0.0) for n in range(start, stop)]
    return made


def flat(nested: list[list[float]]) -> list[float]:
    return [value for values in nested for value in values]


# --- REINFORCE++ ---


def test_reinforce_pp_by_hand():
    """Two episodes of two tokens, returns 1 and 0; KL 0.5 at every token, beta 1.

    To go: 1 - 1 = 0, 1 - 0.5 = 0.5 and -1, -0.5: mean -0.25, deviations 0.25, 0.75, -0.75, -0.25, population std sqrt(0.3125).
    """
    rng = np.random.default_rng(0)
    turn = {"action": 2, "log_probs": [-1.0, -1.0]}
    rows = pack([group([episode([{**turn, "reward": 1.0}], 1.0, rng), episode([turn], 0.0, rng)])])
    rows = replace(rows, reference=np.where(rows.log_probs < 0, -1.5, 0).astype(np.float32))
    found = reinforce_pp.build(reinforce_pp.Config(kl=1.0)).compute(rows)
    right = np.array([0.25, 0.75, -0.75, -0.25]) / np.sqrt(0.3125)
    assert flat(of_tokens(found)) == pytest.approx(right, abs=1e-6)
    assert found.value_targets is None


def naive_reinforce(rows: Rows, config: reinforce_pp.Config) -> list[float]:
    raw: dict[int, float] = {}
    assert rows.reference is not None
    for e, chain in enumerate(chains(rows)):
        if np.isnan(rows.task_return[e]):
            continue
        mates = [r for r, g in zip(rows.task_return, rows.episode_group, strict=True) if g == rows.episode_group[e]]
        centred = float(rows.task_return[e]) - mean(float(r) for r in mates if not np.isnan(r))
        for t, (position, _) in enumerate(chain):
            value = 0.0
            for u in range(t, len(chain)):
                n, reward = chain[u]
                kl = config.kl * (float(rows.log_probs[n]) - float(rows.reference[n]))
                value += config.gamma ** (u - t) * ((reward if config.baseline == "none" else 0.0) - kl)
            raw[position] = value + (centred if config.baseline == "group" else 0.0)
    centre, spread = mean(raw.values()), pstdev(raw.values())
    positions = [n for start, stop in rows.action for n in range(start, stop)]
    return [(raw[n] - centre) / spread if n in raw else 0.0 for n in positions]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("baseline", ["none", "group"])
@pytest.mark.parametrize(("gamma", "kl"), [(1.0, 0.0), (0.9, 0.1), (1.0, 0.3)])
def test_reinforce_pp_equals_the_definition(seed: int, baseline: str, gamma: float, kl: float):
    rows = Bigram(seed).look_up(pack(random_groups(seed)))
    lost = rows.task_return.copy()
    lost[seed] = np.nan
    rows = replace(rows, task_return=lost)
    config = reinforce_pp.Config.model_validate({"baseline": baseline, "gamma": gamma, "kl": kl})
    found = reinforce_pp.build(config).compute(rows)
    assert flat(of_tokens(found)) == pytest.approx(naive_reinforce(rows, config), abs=1e-4)


def test_reinforce_pp_of_equal_returns_is_zero():
    rng = np.random.default_rng(0)
    rows = pack([group([episode([{"reward": 0.35}], 0.35, rng) for _ in range(3)])])
    for config in (reinforce_pp.Config(), reinforce_pp.Config(baseline="group")):
        assert not reinforce_pp.build(config).compute(rows).advantages.any()


def test_only_the_baseline_of_a_group_needs_a_group():
    reinforce_pp.build(reinforce_pp.Config()).check(1)
    gae.build(gae.Config()).check(1)
    with pytest.raises(ConfigError, match="group_size = 1"):
        reinforce_pp.build(reinforce_pp.Config(baseline="group")).check(1)


# --- GAE ---


def estimate(rows: Rows, **config) -> Rows:
    return gae.build(gae.Config.model_validate({"whiten": False, **config})).compute(rows)


def with_values(rows: Rows, values: dict[int, float]) -> Rows:
    made = np.zeros(rows.tokens, np.float32)
    for position, value in values.items():
        made[position] = value
    return replace(rows, values=made)


class TestTheCases:
    """Reported faults (radixark/miles#1827, verl-project/verl#2337, ray-project/ray#57683, Toni-SM/skrl#449)."""

    def test_credit_does_not_fade_over_an_observation(self):
        """Mask [1, 1, 0, 0, 0], reward 1, values 0, gamma x lambda 0.9: [0.9, 1.0], not [0.656, 0.729]."""
        for gamma, lam in ((0.9, 1.0), (1.0, 0.9)):
            turn = {"action": 2, "observation": 3, "reward": 1.0, "terminated": True}
            rows = with_values(pack([group([episode([turn], 1.0, np.random.default_rng(0))])]), {})
            assert of_tokens(estimate(rows, gamma=gamma, lam=lam)) == [pytest.approx([0.9, 1.0])]

    def test_nor_between_turns(self):
        """The same two action tokens with the three observation tokens between them."""
        turns = [{"action": 1, "observation": 3}, {"action": 1, "reward": 1.0, "terminated": True}]
        rows = with_values(pack([group([episode(turns, 1.0, np.random.default_rng(0))])]), {})
        assert flat(of_tokens(estimate(rows, gamma=0.9))) == pytest.approx([0.9, 1.0])

    def test_the_last_state_has_its_target(self):
        """Values 0.5 and 0.95, reward 1, terminated, gamma 0.99, lambda 0: targets [0.9405, 1.0], not [0, 1]."""
        turns = [{"action": 1}, {"action": 1, "reward": 1.0, "terminated": True}]
        rows = pack([group([episode(turns, 1.0, np.random.default_rng(0))])])
        before = rows.action[:, 0] - 1
        found = estimate(with_values(rows, {before[0]: 0.5, before[1]: 0.95}), gamma=0.99, lam=0.0)
        assert found.value_targets is not None
        assert flat(of_tokens(found, found.value_targets)) == pytest.approx([0.9405, 1.0])

    @pytest.mark.parametrize("form", ["append", "window"])
    @pytest.mark.parametrize(
        ("settings", "terminated", "right"),
        [({}, False, [0.2, 0.1]), ({}, True, [-0.5, -0.6]), ({"truncation": "end"}, False, [-0.5, -0.6])],
    )
    def test_a_truncated_episode_is_worth_its_final_prefix(self, form, settings, terminated, right):
        """Rewards 0, values 0.5, 0.6 and 0.7 at the end: [0.2, 0.1]; as terminated [-0.5, -0.6].

        The end is the last token of the last row, after the last observation, in either form.
        """
        turns = [{"action": 1}, {"action": 1, "observation": 2, "terminated": terminated, "truncated": not terminated}]
        one = group(
            [episode(turns, 0.0, np.random.default_rng(0)), episode([{"action": 1}], 0.0, np.random.default_rng(0))]
        )
        rows = pack([windows(one) if form == "window" else one], observation_cap=1)
        before = rows.action[:, 0] - 1
        final = rows.row_start[rows.row[1] + 1] - 1
        assert rows.observation[1, 1] == final  # the cap of what is scored does not move the end
        found = estimate(with_values(rows, {before[0]: 0.5, before[1]: 0.6, final: 0.7}), **settings)
        assert flat(of_tokens(found))[:2] == pytest.approx(right)


def test_without_a_last_observation_the_final_prefix_ends_with_the_action():
    """A reply that was cut and not executed: the episode is worth what the critic says after its last token."""
    rows = pack([group([episode([{"action": 2, "observation": 0, "truncated": True}], 0.0, np.random.default_rng(0))])])
    found = estimate(with_values(rows, {rows.action[0, 1] - 1: 0.7}))
    assert flat(of_tokens(found)) == pytest.approx([0.7, 0.7])


def token_values(rows: Rows, config: gae.Config) -> list[tuple[list[int], list[float], list[float]]]:
    """For each episode: positions, rewards, and values before each token with the final one at the end."""
    assert rows.values is not None
    assert rows.reference is not None
    made = []
    for e, chain in enumerate(chains(rows)):
        own = [k for k in range(len(rows.row)) if rows.episode[k] == e]
        rewards = [r - config.kl * float(rows.log_probs[n] - rows.reference[n]) for n, r in chain]
        values = [float(rows.values[n - 1]) for n, _ in chain]
        over = rows.terminated[own[-1]] or config.truncation == "end"
        values.append(0.0 if over else float(rows.values[rows.row_start[rows.row[own[-1]] + 1] - 1]))
        made.append(([n for n, _ in chain], rewards, values))
    return made


def double_loop(rows: Rows, config: gae.Config) -> dict[int, float]:
    """Eq. 16: a sum of discounted temporal differences for each token."""
    found = {}
    for positions, rewards, values in token_values(rows, config):
        deltas = [r + config.gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
        for t, n in enumerate(positions):
            found[n] = sum((config.gamma * config.lam) ** (u - t) * deltas[u] for u in range(t, len(deltas)))
    return found


def mixture_of_returns(rows: Rows, config: gae.Config) -> dict[int, float]:
    """The other definition: the lambda-weighted mean of all n-step returns, less the value (Sutton & Barto, eq. 12.3)."""
    found = {}
    for positions, rewards, values in token_values(rows, config):
        last = len(rewards)
        for t, n in enumerate(positions):
            mixed = 0.0
            for steps in range(1, last - t + 1):
                earned = sum(config.gamma**i * rewards[t + i] for i in range(steps))
                earned += config.gamma**steps * values[t + steps]
                final = t + steps == last
                mixed += (1.0 if final else 1 - config.lam) * config.lam ** (steps - 1) * earned
            found[n] = mixed - values[t]
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["append", "window"])
@pytest.mark.parametrize("truncation", ["bootstrap", "end"])
@pytest.mark.parametrize(("gamma", "lam", "kl"), [(1.0, 1.0, 0.0), (0.9, 0.8, 0.0), (1.0, 0.95, 0.2), (0.99, 0.0, 0.0)])
def test_gae_equals_both_of_its_definitions(seed: int, form: str, truncation: str, gamma: float, lam: float, kl: float):
    groups = random_groups(seed)
    rows = Bigram(seed).look_up(pack([windows(one) for one in groups] if form == "window" else groups))
    config = gae.Config.model_validate(
        {"gamma": gamma, "lam": lam, "kl": kl, "truncation": truncation, "whiten": False}
    )
    assert gae.build(config).needs == ({"values", "reference"} if kl else {"values"})
    found = gae.build(config).compute(rows)
    advantages = flat(of_tokens(found))
    positions = [n for start, stop in rows.action for n in range(start, stop)]
    for right in (double_loop(rows, config), mixture_of_returns(rows, config)):
        assert advantages == pytest.approx([right[n] for n in positions], abs=1e-5)
    assert found.value_targets is not None
    assert rows.values is not None
    targets = [value + rows.values[n - 1] for value, n in zip(advantages, positions, strict=True)]
    assert flat(of_tokens(found, found.value_targets)) == pytest.approx(targets, abs=1e-5)
    white = gae.build(config.model_copy(update={"whiten": True})).compute(rows)
    scaled = (np.array(advantages) - np.mean(advantages)) / np.std(advantages)
    assert flat(of_tokens(white)) == pytest.approx(scaled, abs=1e-4)
    assert np.array_equal(white.value_targets, found.value_targets)


def test_an_episode_without_a_return_has_neither_advantage_nor_target():
    rng = np.random.default_rng(0)
    made: Group = group(
        [episode([{}], float("nan"), rng), episode([{"reward": 1.0}], 1.0, rng), episode([{}], 0.0, rng)]
    )
    rows = Bigram(0).look_up(pack([made]))
    for whiten in (False, True):
        found = estimate(rows, whiten=whiten)
        advantages = of_tokens(found)
        assert advantages[0] == [0, 0]
        assert all(flat(advantages[1:]))
        assert found.value_targets is not None
        targets = [found.value_targets[slice(*span)] for span in rows.action]
        assert np.isnan(targets[0]).all()
        assert np.isfinite(targets[1:]).all()
        assert mean(flat(advantages[1:])) == pytest.approx(0, abs=1e-6) or not whiten


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(-3, 3))
def test_with_lambda_one_the_target_is_the_return_whatever_the_critic_says(seed: int, shift: float):
    rows = Bigram(seed).look_up(pack(random_groups(seed)))
    assert rows.values is not None
    found = estimate(replace(rows, values=rows.values + np.float32(shift)), truncation="end")
    assert found.value_targets is not None
    for (start, stop), e in zip(rows.action, rows.episode, strict=True):
        assert found.value_targets[start:stop] == pytest.approx(rows.task_return[e], abs=1e-5)
