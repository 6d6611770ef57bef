"""`tandem bench`: what is compared is the same work, figures are named and finite. Nothing here asserts on time."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from deploy.bench import env, figures, learner, rollout
from deploy.bench.figures import FIGURES, Figure
from deploy.bench.generating import generate, generated, mean_turns, one_turn, turns_of
from deploy.bench.measure import added, interleave, median, ratio, standard_error
from deploy.bench.policy import QUICK, Policy, prepare
from deploy.config import RunConfig
from deploy.console import Console
from learner.config import ModelConfig, OptimizerConfig
from protos.errors import ConfigError
from protos.records import Episode

TINY = QUICK.model_copy(
    update={
        "model": ModelConfig(width=16, layers=1, heads=2, mlp=16),
        "replay": QUICK.replay.model_copy(update={"groups_per_update": 3, "group_size": 2}),
        "warm_start": QUICK.warm_start.model_copy(update={"demonstrations": 12, "updates": 30, "batch": 6}),
    }
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return prepare(QUIET, config=TINY)


@pytest.fixture(scope="module")
def batch(policy: Policy) -> learner.Batch:
    made = learner.make_batch(policy)
    rng = np.random.default_rng(0)  # so short a training never wins: its advantages would all be 0
    advantages = np.where(made.fresh.log_probs != 0, rng.normal(size=made.fresh.tokens), 0).astype(np.float32)
    return replace(made, fresh=replace(made.fresh, advantages=advantages))


@pytest.fixture(scope="module")
def games(policy: Policy) -> list[Episode]:
    player = rollout.Player(policy, 6)
    player()
    return player.latest


def check_figures(benchmark: str, result: figures.Figures, absent: frozenset[str] = frozenset()) -> None:
    assert set(result) == set(FIGURES[benchmark])
    for name, value in result.items():
        assert value is None if name in absent else value is not None and math.isfinite(value), name


# Measuring


def test_arms_are_interleaved_and_the_first_round_is_not_measured() -> None:
    ticks: Iterator[float] = iter([0, 100, 100, 200, 200, 203, 203, 204, 204, 209, 209, 211])
    order: list[str] = []
    arms = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = interleave(arms, 2, QUIET, clock=lambda: next(ticks))
    assert order == list("ababab")
    assert {name: values.tolist() for name, values in seconds.items()} == {"a": [3, 5], "b": [1, 2]}


def test_preparation_is_not_measured() -> None:
    class Arm:
        def prepare(self) -> None:
            next(ticks)

        def __call__(self) -> None:
            next(ticks)

    ticks = iter(range(100))  # prepare, start, arm, stop: 4 ticks a round, of which 2 are measured
    assert interleave({"a": Arm()}, 2, QUIET, clock=lambda: next(ticks))["a"].tolist() == [2, 2]


def test_ratios_are_paired_within_rounds() -> None:
    slow, fast = np.array([2.0, 30.0, 4.0]), np.array([1.0, 10.0, 4.0])
    assert ratio(slow, fast) == 2.0  # of 2, 3, 1; the ratio of the medians would be 1
    assert added(slow, fast) == 1.0
    assert added(slow, fast, np.array([1.0, 30.0, 4.0])) == 0.5  # of 1/2, 20/40, 0
    assert median(slow) == 4.0


def test_the_standard_error_is_that_of_a_median() -> None:
    rng = np.random.default_rng(0)
    samples = 1 + 0.05 * rng.normal(size=(4000, 25))
    stated = np.mean([standard_error(sample, np.ones(25)) for sample in samples])
    assert stated == pytest.approx(np.std(np.median(samples, axis=1)), rel=0.1)


# Figures


@pytest.mark.parametrize(
    ("figure", "value", "bar", "verdict"),
    [
        (Figure("", least=0.9), 0.9, ">= 0.9", "met"),
        (Figure("", least=50_000), 49_999.0, ">= 50,000", "missed"),
        (Figure("", most=0.02), -0.01, "<= 0.02", "met"),
        (Figure("", most=0.02), 0.03, "<= 0.02", "missed"),
        (Figure("", least=1), None, ">= 1", ""),
        (Figure(""), 1.0, "", ""),
    ],
)
def test_bars(figure: Figure, value: float | None, bar: str, verdict: str) -> None:
    assert (figure.bar(), figure.verdict(value)) == (bar, verdict)


def test_table_rows_follow_the_documented_order() -> None:
    rows = figures.rows("env", {"vs_real_engine": None, "household_steps_per_s": 6e4})
    assert [row[-1] for row in rows] == ["household_steps_per_s", "vs_real_engine"]
    assert [row[1:4] for row in rows] == [(6e4, ">= 50,000", "met"), ("-", "", "")]


# The work that is compared


def test_generate_gets_the_turns_of_the_games(policy: Policy, games: list[Episode]) -> None:
    turns = turns_of(games)
    assert generated(turns) == sum(t.action.length for episode in games for t in episode.transitions())
    alive = list(range(len(games)))
    for number, turn in enumerate(turns):
        alive = alive if turn.keep is None else [alive[i] for i in turn.keep.tolist()]
        for i, row in enumerate(alive):
            (sequence,) = games[row].sequences
            transition = sequence.transitions[number]
            read = turn.token_ids[i][turn.mask[i] == 1].tolist()
            assert read == sequence.token_ids[transition.action.start - len(read) : transition.action.start].tolist()
            assert turn.reply[i] == transition.action.length
    everything = sum(int(turn.mask.sum() + turn.reply.sum()) for turn in turns)
    assert everything == sum(episode.sequences[0].transitions[-1].action.stop for episode in games)
    for keep_cache in (True, False):
        generate(policy.learner.model, turns, policy.world.tokenizer.pad_id, keep_cache=keep_cache)


def test_the_full_batch_has_the_mean_lengths(games: list[Episode]) -> None:
    turns = mean_turns(games)
    assert all(turn.keep is None and bool(turn.mask.all()) for turn in turns)
    assert len(turns) == round(np.mean([len(list(episode.transitions())) for episode in games]))
    means = [np.mean([e.sequences[0].transitions[0].action[i] for e in games]) for i in (0, 1)]
    assert turns[0].token_ids.shape[1] == pytest.approx(means[0], abs=0.5)
    assert turns[0].reply[0] == pytest.approx(means[1] - means[0], abs=0.5)
    (opening,) = one_turn(turns)
    assert generated([opening]) == generated(turns)


@pytest.mark.parametrize("specs", [(learner.UNSKIPPED,), (learner.UNSKIPPED, learner.FRESH_PAW)])
def test_the_bare_loop_takes_the_learners_step(policy: Policy, batch: learner.Batch, specs: tuple) -> None:
    config = learner.EQUAL.model_copy(update={"optimizer": OptimizerConfig(lr=1e-2), "micro_batch_tokens": 256})
    arm = learner.Arm(policy, config, {"fresh": batch.fresh}, *specs)
    before = deepcopy(arm.learner.model.state_dict())
    bare = arm.bare()
    for group in bare._optimizer.param_groups:
        group["lr"] = 1e-2 / 8  # the learner's first of 8 warm-up updates
    arm()
    bare()
    for name, value in arm.learner.model.state_dict().items():
        torch.testing.assert_close(bare._model.state_dict()[name], value, atol=1e-6, rtol=1e-4)
    assert any(not torch.equal(before[name], value) for name, value in arm.learner.model.state_dict().items())


def test_the_bare_loop_knows_two_losses(policy: Policy, batch: learner.Batch) -> None:
    arm = learner.Arm(policy, learner.EQUAL, {"fresh": batch.fresh}, {"name": "next_observation"})
    with pytest.raises(ConfigError, match="next_observation"):
        arm.bare()


def test_peak_memory_is_that_of_the_tensors(policy: Policy, batch: learner.Batch) -> None:
    class Allocating(learner.Arm):
        def __call__(self) -> None:
            first = torch.empty(1_000_000)
            del first
            second = torch.empty(500_000)
            third = torch.empty(700_000)
            del second, third

    arm = Allocating(policy, learner.EQUAL, {"fresh": batch.fresh}, learner.POLICY)
    weights = sum(parameter.nbytes for parameter in arm.learner.model.parameters())
    assert learner.peak_bytes(arm) == 3 * weights + 4 * 1_200_000


# The benchmarks, tiny


def test_env() -> None:
    real = frozenset() if find_spec("alfworld") else frozenset({"real_engine_steps_per_s", "vs_real_engine"})
    result = env.run(QUIET, games=2, steps=40, real_games=1, real_steps=2, rounds=1)
    check_figures("env", result, real)


def test_rollout() -> None:
    check_figures("rollout", rollout.run(QUIET, config=TINY, batch=4, rounds=1))


def test_learner() -> None:
    check_figures("learner", learner.run(QUIET, config=TINY, rounds=1, side_rounds=1))


def test_a_checkpoint_can_be_measured(policy: Policy, tmp_path) -> None:
    from deploy.settings import dump

    saved = tmp_path / "checkpoints/step_1"
    saved.mkdir(parents=True)
    policy.learner.save(saved)
    policy.world.tokenizer.save(saved)
    (tmp_path / "config.toml").write_text(dump(RunConfig(model=TINY.model), comments=False))
    loaded = prepare(QUIET, saved)
    assert loaded.config.threads == 1
    for name, value in policy.learner.model.state_dict().items():
        assert torch.equal(loaded.learner.model.state_dict()[name], value)
