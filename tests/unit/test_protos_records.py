"""What records check of themselves, and what they derive."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.errors import DataError
from protos.records import Episode, Group, GroupKey, Kind, Sequence, Span, Transition, Version, group_lambda


def transition(**changes: object) -> Transition:
    values: dict = {
        "action": Span(0, 2),
        "observation": Span(2, 4),
        "action_text": "look",
        "observation_text": "a mug",
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "entropy": 0.25,
        "log_probs": np.zeros(2, np.float32),
        "versions": ((2, Version(0, 3)),),
        "state_key": "s",
    }
    return Transition(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"log_probs": np.zeros(3, np.float32)}, "2 action tokens but 3 log-probabilities"),
        ({"versions": ((1, Version(0, 3)),)}, "do not cover 2 action tokens"),
        ({"allowed": (np.zeros(1, np.int32),)}, "2 action tokens but 1 admissible sets"),
        ({"entropy": float("nan")}, "entropy nan"),
        ({"entropy": float("inf")}, "entropy inf"),
        ({"entropy": -0.1}, "entropy -0.1"),
    ],
)
def test_a_transition_that_contradicts_itself_is_refused(changes: dict, says: str):
    with pytest.raises(DataError, match=says):
        transition(**changes)


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        transition().reward = 1.0  # type: ignore[misc]


def test_a_transition_is_as_old_as_its_oldest_token():
    runs = ((1, Version(0, 6)), (1, Version(0, 5)))
    assert transition(versions=runs).oldest == Version(0, 5)


def test_an_episode_lists_its_turns_and_counts_real_steps():
    turns = (transition(), transition(kind=Kind.QUERY), transition(kind=Kind.REJECTED))
    tokens = np.zeros(4, np.int32)
    episode = Episode("toy", "t", "look", 0, (Sequence(tokens, turns[:2]), Sequence(tokens, turns[2:])), 0.0, False)
    assert list(episode.transitions()) == list(turns)
    assert episode.steps == 1
    older = dataclasses.replace(episode, sequences=(Sequence(tokens, (transition(versions=((2, Version(0, 1)),)),)),))
    assert Group(GroupKey("r", "t", 0), (episode, older), 0.5).oldest == Version(0, 1)


def test_names_read_well():
    assert str(Version(1, 20)) == "1.20"
    assert str(GroupKey("run", "task", 3, 1)) == "run/task#3.1"
    assert Span(2, 5).length == 3


@pytest.mark.parametrize(
    ("returns", "reward_max", "lam"),
    [([0, 0], 1, 1.0), ([1, 1], 1, 0.0), ([1, 0, 0, 0], 1, 0.75), ([10, 0], 10, 0.5), ([20], 10, 0.0), ([-5], 10, 1.0)],
)
def test_lambda_is_one_less_the_mean_return(returns: list[float], reward_max: float, lam: float):
    assert group_lambda(returns, reward_max) == lam


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.1, 100))
def test_lambda_stays_between_zero_and_one(returns: list[float], reward_max: float):
    assert 0.0 <= group_lambda(returns, reward_max) <= 1.0
