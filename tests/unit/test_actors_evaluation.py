"""Evaluation statistics against scipy, enumeration and numbers worked by hand."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from actors.evaluation import pass_at, success_rate, summarise, wilson
from protos.errors import DataError
from protos.records import Episode, Group, GroupKey, Sequence, Span, Transition, Version


def turn(*, valid: bool = True, truncated: bool = False) -> Transition:
    return Transition(
        action=Span(3, 5),
        observation=Span(5, 6),
        action_text="look",
        observation_text="",
        reward=0.0,
        terminated=False,
        truncated=truncated,
        entropy=0.1,
        log_probs=np.zeros(2, dtype=np.float32),
        versions=((2, Version(0, 0)),),
        state_key="",
        valid=valid,
    )


def episode(won: bool, turns: list[Transition], *, kind: str = "pick", tokens: int = 10) -> Episode:
    sequence = Sequence(np.zeros(tokens, dtype=np.int32), tuple(turns))
    return Episode("household", "t", kind, 0, (sequence,), float(won), won)


def game(name: str, wins: list[bool], kind: str = "pick") -> Group:
    return Group(GroupKey("eval", name, 0), tuple(episode(won, [turn()], kind=kind) for won in wins), 0.0)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(successes_n: tuple[int, int]) -> None:
    successes, n = successes_n
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(("samples", "successes"), [(4, 0), (4, 1), (5, 3), (6, 6), (7, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_win(samples: int, successes: int) -> None:
    outcomes = [True] * successes + [False] * (samples - successes)
    for k in range(1, samples + 1):
        subsets = list(combinations(outcomes, k))
        assert pass_at(k, samples, successes) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="at least"):
        pass_at(samples + 1, samples, successes)


def test_a_summary_worked_by_hand() -> None:
    groups = [
        game("a", [True, True, False, False]),
        game("b", [False] * 4, kind="heat"),
        game("c", [True] * 4),
    ]
    summary = summarise(groups)
    assert summary["success"]["mean"] == pytest.approx(0.5)
    assert (summary["success"]["games"], summary["success"]["episodes"]) == (3, 12)
    assert {kind: rate["mean"] for kind, rate in summary["by_task_type"].items()} == {"heat": 0.0, "pick": 0.75}
    assert summary["pass_at"] == pytest.approx({"1": 0.5, "2": (5 / 6 + 0 + 1) / 3, "4": 2 / 3})
    assert summary["mean_return"] == 0.5
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_steps_invalid_truncated_tokens() -> None:
    won = episode(True, [turn(), turn(valid=False), turn()], tokens=20)
    lost = episode(False, [turn(valid=False), turn(truncated=True)], tokens=40)
    groups = [Group(GroupKey("e", name, 0), (member,), 0.0) for name, member in (("a", won), ("b", lost))]
    summary = summarise(groups)
    assert summary["steps_to_goal"] == 3
    assert summary["invalid"] == pytest.approx(2 / 5)
    assert summary["truncated"] == 0.5
    assert summary["tokens_per_episode"] == 30
    assert summarise(groups[1:])["steps_to_goal"] is None


def test_samples_of_one_game_do_not_narrow_the_interval() -> None:
    """Sixteen samples of two games, one always won and one never: as little is known as from one sample of each."""
    many = success_rate([game("a", [True] * 16), game("b", [False] * 16)])
    few = success_rate([game("a", [True]), game("b", [False])])
    assert (many["low"], many["high"]) == (few["low"], few["high"])


def test_each_game_exactly_once_and_none_lost() -> None:
    groups = [game(f"game {i}", [i % 2 == 0]) for i in range(9)]
    too_long = Group(GroupKey("eval", "long", 0), (episode(False, []),), 1.0)
    summary = summarise([*groups, too_long])
    assert summary["success"]["games"] == 10
    assert summary["success"]["mean"] == pytest.approx(0.5)
    assert summary["truncated"] == pytest.approx(0.1)
    with pytest.raises(DataError, match="'game 3' was played 2 times"):
        summarise([*groups, game("game 3", [True])])
    with pytest.raises(DataError, match="at least one game"):
        summarise([])
