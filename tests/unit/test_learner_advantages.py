from dataclasses import replace
from statistics import mean, pstdev, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import Bigram, episode, group, random_groups, returns_group, windows
from pydantic import ValidationError

from learner import plugins
from learner.advantages import gigpo, grpo, rloo
from learner.batch import pack
from learner.core import Rows
from learner.rewards import returns_to_go
from protos.errors import ConfigError


def per_transition(rows: Rows) -> list[float]:
    """The advantage of each transition, after a check that all of its action tokens and no other token carry it."""
    advantages = rows.advantages
    values, seen = [], np.zeros(rows.tokens, bool)
    for start, stop in rows.action:
        assert len(set(advantages[start:stop].tolist())) == 1
        values.append(float(advantages[start]))
        seen[start:stop] = True
    assert advantages.dtype == np.float32
    assert not advantages[~seen].any()
    return values


def of_returns(*groups: list[float], name: str = "grpo", **settings) -> list[float]:
    """One transition an episode: the advantage of each episode."""
    rng = np.random.default_rng(0)
    rows = pack([returns_group(returns, rng, repeat=g) for g, returns in enumerate(groups)])
    return per_transition(plugins.load("advantages", {"name": name, **settings}).compute(rows))


class TestGrpo:
    def test_groups_are_the_sampling_identity_not_the_text(self):
        """Both groups hold the same tokens and state keys (NVIDIA-NeMo/RL#3882, rllm-org/rllm#605)."""
        assert of_returns([0, 0, 0, 0], [1, 1, 1, 1]) == [0] * 8
        rng = np.random.default_rng(0)
        same = episode([{}], 0.0, rng)
        won = replace(same, task_return=1.0)
        rows = pack([group([same] * 4), group([won] * 4, repeat=1)])
        assert not grpo.build(grpo.Config()).compute(rows).advantages.any()

    @pytest.mark.parametrize(("normalise", "size"), [("sample", 0.8660254), ("population", 1.0), ("none", 0.5)])
    def test_one_of_two(self, normalise: str, size: float):
        found = of_returns([1, 0, 1, 0], normalise=normalise, epsilon=0)
        assert found == pytest.approx([size, -size, size, -size])

    @pytest.mark.parametrize(
        ("normalise", "right"), [("population", [-1, 0, 1]), ("sample", [-0.70710678, 0, 0.70710678])]
    )
    def test_a_return_that_is_nan_counts_nowhere(self, normalise: str, right: list[float]):
        """[1, NaN, 3] (huggingface/trl#5773)."""
        found = of_returns([1, float("nan"), 3], normalise=normalise, epsilon=0)
        assert found == pytest.approx([right[0], 0, right[2]])

    @pytest.mark.parametrize("normalise", ["sample", "population", "none"])
    @pytest.mark.parametrize("epsilon", [0, 1e-6])
    @pytest.mark.parametrize(
        "returns", [[1.0], [0.5] * 4, [0.35] * 7, [0.1] * 3, [float("nan")] * 2, [float("nan"), 2.0]]
    )
    def test_nothing_to_compare_is_exactly_zero(self, normalise: str, epsilon: float, returns: list[float]):
        """No residue of rounding is scaled up (NVIDIA-NeMo/RL#4161)."""
        assert of_returns(returns, normalise=normalise, epsilon=epsilon) == [0] * len(returns)

    def test_large_offsets_do_not_cancel(self):
        """E[x^2] - E[x]^2 would lose these digits even in double precision."""
        found = of_returns([1e7, 1e7 + 1, 1e7 + 2], normalise="population", epsilon=0)
        assert found == pytest.approx([-1.2247449, 0, 1.2247449])

    def test_the_lone_failure_among_seven_is_of_ordinary_size(self):
        found = of_returns([0.0] + [0.35] * 7)
        assert max(abs(value) for value in found) < 10
        assert of_returns([0.0] + [0.35] * 7, normalise="none")[0] == pytest.approx(-0.30625)

    def test_a_group_of_one_is_refused_at_start(self):
        for algorithm in (grpo.build(grpo.Config()), gigpo.build(gigpo.Config()), rloo.build(rloo.Config())):
            algorithm.check(2)
            with pytest.raises(ConfigError, match="group_size = 1"):
                algorithm.check(1)

    def test_the_penalty_for_refused_actions_is_optional(self):
        rng = np.random.default_rng(0)
        clean, refused = episode([{}, {}], 1.0, rng), episode([{"valid": False}, {"valid": False}], 1.0, rng)
        rows = pack([group([clean, refused])])
        assert not grpo.build(grpo.Config()).compute(rows).advantages.any()
        found = per_transition(grpo.build(grpo.Config(invalid_penalty=0.1, normalise="none")).compute(rows))
        assert found == pytest.approx([0.1, 0.1, -0.1, -0.1])

    @settings(deadline=None)
    @given(
        groups=st.lists(
            st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.5]), min_size=1, max_size=6), min_size=1, max_size=4
        ),
        normalise=st.sampled_from(["sample", "population", "none"]),
    )
    def test_equals_the_definition(self, groups: list[list[float]], normalise: str):
        right = []
        for returns in groups:
            spread = {"sample": stdev, "population": pstdev, "none": lambda _: 1 - 1e-6}[normalise]
            for value in returns:
                flat = len(set(returns)) == 1
                right.append(0.0 if flat else (value - mean(returns)) / (spread(returns) + 1e-6))
        assert of_returns(*groups, normalise=normalise) == pytest.approx(right, abs=1e-6)

    @settings(deadline=None)
    @given(
        returns=st.lists(st.integers(-5, 5), min_size=2, max_size=6), shift=st.integers(-9, 9), scale=st.integers(1, 9)
    )
    def test_shift_and_scale_of_the_returns_change_nothing(self, returns: list[int], shift: int, scale: int):
        moved = [scale * value + shift for value in returns]
        assert of_returns(moved, epsilon=0) == pytest.approx(of_returns(returns, epsilon=0), abs=1e-5)


class TestRloo:
    def test_one_of_two(self):
        """[1, 0, 1, 0]: each against the mean of the other three (NVIDIA-NeMo/RL#3882)."""
        assert of_returns([1, 0, 1, 0], name="rloo") == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])

    def test_groups_are_the_sampling_identity_not_the_text(self):
        """A key merged by text would give -4/7 and 4/7."""
        assert of_returns([0] * 4, [1] * 4, name="rloo") == [0] * 8
        same = episode([{}], 0.0, np.random.default_rng(0))
        rows = pack([group([same] * 4), group([replace(same, task_return=1.0)] * 4, repeat=1)])
        assert not rloo.build(rloo.Config()).compute(rows).advantages.any()

    def test_one_winner_of_four(self):
        assert of_returns([1, 0, 0, 0], name="rloo") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])

    @pytest.mark.parametrize("normalise", ["sample", "population"])
    @pytest.mark.parametrize("returns", [[1.0, 0, 0, 0], [0.0] + [0.35] * 7, [1.0, 1.0 + 1e-7]])
    def test_scaled_values_are_of_ordinary_size(self, normalise: str, returns: list[float]):
        """The others of a lone winner or loser agree: their own deviation would be 0 (NVIDIA-NeMo/RL#4161)."""
        found = of_returns(returns, name="rloo", normalise=normalise)
        assert 0 <= max(abs(value) for value in found) < 10
        factor = len(returns) / (len(returns) - 1)
        plain = of_returns(returns, normalise=normalise)
        assert found == pytest.approx([factor * value for value in plain], abs=1e-6)

    def test_the_lone_failure_among_seven(self):
        found = of_returns([0.0] + [0.35] * 7, name="rloo")
        assert found == pytest.approx([-0.35] + [0.05] * 7)

    def test_a_return_that_is_nan_counts_nowhere(self):
        assert of_returns([1, float("nan"), 3], name="rloo") == pytest.approx([-2, 0, 2])

    @pytest.mark.parametrize("normalise", ["sample", "population", "none"])
    @pytest.mark.parametrize("returns", [[1.0], [0.5] * 4, [0.1] * 3, [float("nan")] * 2, [float("nan"), 2.0]])
    def test_nothing_to_compare_is_exactly_zero(self, normalise: str, returns: list[float]):
        assert of_returns(returns, name="rloo", normalise=normalise, epsilon=0) == [0] * len(returns)

    @settings(deadline=None)
    @given(returns=st.lists(st.floats(-9, 9), min_size=2, max_size=6))
    def test_equals_the_definition(self, returns: list[float]):
        returns = [float(np.float32(value)) for value in returns]
        right = [value - mean(returns[:i] + returns[i + 1 :]) for i, value in enumerate(returns)]
        assert of_returns(returns, name="rloo") == pytest.approx(right, abs=1e-5)


def worked_example() -> Rows:
    """Run 1 visits s0, s1, s0 and wins, run 2 visits s0, s2 and fails."""
    rng = np.random.default_rng(0)
    first = episode([{"state_key": "s0"}, {"state_key": "s1"}, {"state_key": "s0", "reward": 1.0}], 1.0, rng)
    second = episode([{"state_key": "s0"}, {"state_key": "s2"}], 0.0, rng)
    return pack([group([first, second])])


class TestGigpo:
    def test_the_worked_example(self):
        """Rewards count once, steps are grouped by state, each run counts once in the episode part (Trinity-RFT#560)."""
        rows = worked_example()
        assert returns_to_go(rows.reward, rows.episode, 0.5).tolist() == [0.25, 0.5, 1, 0, 0]
        found = per_transition(gigpo.build(gigpo.Config(gamma=0.5, normalise="none")).compute(rows))
        assert found == pytest.approx([1 / 3, 0.5, 13 / 12, -11 / 12, -0.5])

    def test_without_the_step_part_it_is_grpo(self):
        rows = pack(random_groups(3))
        episodes = grpo.build(grpo.Config(epsilon=1e-3)).compute(rows).advantages
        assert gigpo.build(gigpo.Config(omega=0)).compute(rows).advantages == pytest.approx(episodes)

    def test_equal_states_of_other_groups_do_not_meet(self):
        rng = np.random.default_rng(0)
        lost, won = episode([{"state_key": "s"}], 0.0, rng), episode([{"state_key": "s", "reward": 1.0}], 1.0, rng)
        rows = pack([group([lost, lost]), group([won, won], repeat=1)])
        assert not gigpo.build(gigpo.Config()).compute(rows).advantages.any()

    def test_an_episode_without_a_return_counts_nowhere(self):
        rng = np.random.default_rng(0)
        unknown = episode([{"state_key": "s", "reward": 5.0}], float("nan"), rng)
        lost, won = episode([{"state_key": "s"}], 0.0, rng), episode([{"state_key": "s", "reward": 1.0}], 1.0, rng)
        rows = pack([group([unknown, lost, won])])
        found = per_transition(gigpo.build(gigpo.Config(normalise="population", epsilon=0)).compute(rows))
        assert found == pytest.approx([0, -2, 2])

    def test_the_penalty_for_refused_actions_is_part_of_both_returns(self):
        rng = np.random.default_rng(0)
        turns = [{"state_key": "s", "valid": False}], [{"state_key": "s"}]
        rows = pack([group([episode(turn, 0.0, rng) for turn in turns])])
        config = gigpo.Config(invalid_penalty=0.5, normalise="none")
        assert per_transition(gigpo.build(config).compute(rows)) == pytest.approx([-0.5, 0.5])

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("normalise", ["sample", "population", "none"])
    def test_equals_the_definition(self, seed: int, normalise: str):
        groups = random_groups(seed, groups=3, size=4)
        config = gigpo.Config(omega=0.5, gamma=0.9, normalise=normalise)
        found = per_transition(gigpo.build(config).compute(pack(groups)))
        assert found == pytest.approx(naive_gigpo(groups, config), abs=1e-5)

    def test_defaults_are_the_measured_ones(self):
        config = gigpo.Config()
        assert (config.omega, config.gamma, config.normalise, config.epsilon) == (1.0, 0.95, "sample", 1e-3)


def naive_gigpo(groups, config: gigpo.Config) -> list[float]:
    def relative(value: float, peers: list[float]) -> float:
        if len(peers) < 2 or max(peers) - min(peers) < 1e-9:
            return 0.0
        spread = {"sample": stdev, "population": pstdev, "none": lambda _: 1 - config.epsilon}[config.normalise]
        return (value - mean(peers)) / (spread(peers) + config.epsilon)

    advantages = []
    for one in groups:
        returns = [played.task_return for played in one.episodes]
        steps = []
        for played in one.episodes:
            turns = played.transitions()
            for t, turn in enumerate(turns):
                to_go = sum(config.gamma ** (u - t) * turns[u].reward for u in range(t, len(turns)))
                steps.append((turn.state_key, to_go, played.task_return))
        for key, to_go, total in steps:
            peers = [other for anchor, other, _ in steps if anchor == key]
            advantages.append(relative(total, returns) + config.omega * relative(to_go, peers))
    return advantages


# --- laws of all ---

EVERY = [
    {"name": "grpo"},
    {"name": "grpo", "normalise": "none", "kl": 0.1},
    {"name": "gigpo"},
    {"name": "gigpo", "kl": 0.1, "kl_estimator": "k3", "invalid_penalty": 0.1},
    {"name": "rloo"},
    {"name": "rloo", "normalise": "sample", "overlong_limit": 3, "overlong_buffer": 2},
    {"name": "reinforce_pp", "kl": 0.1},
    {"name": "reinforce_pp", "baseline": "group"},
    {"name": "gae", "lam": 0.9, "truncation": "end"},
    {"name": "gae", "kl": 0.1, "whiten": False, "truncation": "end"},
]


def action_advantages(spec: dict, rows: Rows) -> np.ndarray:
    rows = plugins.load("advantages", spec).compute(Bigram(0).look_up(rows))
    return np.concatenate([rows.advantages[start:stop] for start, stop in rows.action])


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_an_update_without_a_transition_has_no_advantages(spec: dict):
    for rows in (pack([]), pack([group([])])):
        looked_up = replace(rows, reference=rows.log_probs, values=rows.log_probs)
        assert plugins.load("advantages", spec).compute(looked_up).advantages.shape == (0,)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)), inner=st.permutations(range(3)))
@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_the_order_of_groups_and_episodes_changes_nothing(spec: dict, seed: int, order: list[int], inner: list[int]):
    groups = random_groups(seed)
    moved = [replace(groups[g], episodes=tuple(groups[g].episodes[i] for i in inner)) for g in order]
    found = {}
    for made in (groups, moved):
        advantages, at = action_advantages(spec, pack(made)), 0
        for one in made:
            for played in one.episodes:
                tokens = sum(t.action.length for t in played.transitions())
                own = advantages[at : at + tokens]
                assert own == pytest.approx(found.setdefault(id(played), own), abs=1e-5)
                at += tokens


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.integers(-5, 5))
@pytest.mark.parametrize("spec", [spec for spec in EVERY if spec["name"] in ("grpo", "rloo", "reinforce_pp")], ids=str)
def test_a_constant_added_to_every_return_changes_nothing(spec: dict, seed: int, shift: int):
    rows = pack(random_groups(seed))
    last = np.flatnonzero(np.diff(rows.episode, append=-1))
    reward = rows.reward.copy()
    reward[last] += shift
    moved = replace(rows, reward=reward, task_return=rows.task_return + np.float32(shift))
    assert action_advantages(spec, moved) == pytest.approx(action_advantages(spec, rows), abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_the_form_of_the_prompt_changes_nothing(spec: dict, seed: int):
    """One row an episode or one row a transition: credit runs across the rows of an episode."""
    groups = random_groups(seed)
    found = action_advantages(spec, pack([windows(one) for one in groups]))
    assert found == pytest.approx(action_advantages(spec, pack(groups)), abs=1e-6)
    assert found.any()


@pytest.mark.parametrize("spec", EVERY, ids=str)
def test_needs_are_what_is_read(spec: dict):
    algorithm = plugins.load("advantages", spec)
    rows = Bigram(0).look_up(pack(random_groups(0)))
    own = replace(
        rows,
        reference=rows.reference if "reference" in algorithm.needs else None,
        values=rows.values if "values" in algorithm.needs else None,
    )
    found = algorithm.compute(own)
    assert np.array_equal(found.advantages, algorithm.compute(rows).advantages)
    assert (found.value_targets is None) == ("values" not in algorithm.needs)
    for need in algorithm.needs:
        with pytest.raises(AssertionError, match="look_up"):
            algorithm.compute(replace(rows, **{need: None}))


def test_settings_are_checked():
    with pytest.raises(ValidationError):
        gigpo.Config(gamma=1.5)
    with pytest.raises(ValidationError):
        grpo.Config(normalise="std")
