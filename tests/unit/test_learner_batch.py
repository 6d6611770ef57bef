from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import episode, group, random_groups, transition, windows

from learner.batch import (
    micro_batches,
    minibatches,
    pack,
    pack_demonstrations,
    pack_world,
    span_tokens,
    token_weights,
    transition_rows,
)
from learner.core import Stream
from protos.errors import DataError
from protos.records import Demonstration, Episode, Kind, Sequence, Span, Stop, WorldItem


def test_pack_of_the_worked_example_in_the_records():
    """Two turns: `... <act> | go cabinet <eoa> | arrive cabinet closed | <act> | open cabinet <eoa> |`."""
    tokens = np.arange(100, 119, dtype=np.int32)
    turns = (
        transition(Span(8, 11), Span(11, 14), [-0.1, -0.2, -0.3], entropy=0.25, state_key="hall"),
        transition(Span(15, 18), Span(18, 18), [-0.4, -0.5, -0.6], reward=1.0, valid=False, state_key="cabinet"),
    )
    first = Episode("household", "t", "pick", 0, (Sequence(tokens, turns),), 1.0, True)
    rows = pack([group([], lam=0.9), group([first, first], lam=0.25)])
    assert rows.row_start.tolist() == [0, 19, 38]
    assert rows.action.tolist() == [[8, 11], [15, 18], [27, 30], [34, 37]]
    assert rows.observation.tolist() == [[11, 14], [18, 18], [30, 33], [37, 37]]
    assert rows.world.tolist() == [True, False, True, False]
    assert rows.log_probs[8:11] == pytest.approx([-0.1, -0.2, -0.3])
    assert np.flatnonzero(rows.log_probs).tolist() == [8, 9, 10, 15, 16, 17, 27, 28, 29, 34, 35, 36]
    assert (rows.row.tolist(), rows.episode.tolist(), rows.group.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1], [1] * 4)
    assert (rows.groups, rows.tokens, rows.lam.tolist()) == (2, 38, pytest.approx([0.9, 0.25]))
    assert rows.state_key == ("hall", "cabinet") * 2
    assert rows.valid.tolist() == [True, False] * 2
    assert rows.reward.tolist() == [0, 1, 0, 1]
    assert rows.allowed_start is None


@pytest.mark.parametrize("seed", range(5))
def test_pack_puts_every_field_where_a_plain_loop_finds_it(seed: int):
    groups = random_groups(seed)
    rows = pack(groups, observation_cap=3)
    k = row = offset = number = 0
    for g, one in enumerate(groups):
        for played in one.episodes:
            assert rows.task_return[number] == played.task_return
            assert rows.episode_group[number] == g
            for sequence in played.sequences:
                assert (
                    rows.token_ids[rows.row_start[row] : rows.row_start[row + 1]].tolist()
                    == sequence.token_ids.tolist()
                )
                for t in sequence.transitions:
                    assert (rows.row[k], rows.episode[k], rows.group[k]) == (row, number, g)
                    assert rows.action[k].tolist() == [offset + t.action.start, offset + t.action.stop]
                    length = min(3, t.observation.length)
                    start = offset + t.observation.start
                    assert rows.observation[k].tolist() == [start, start + length]
                    assert rows.world[k] == (t.kind is Kind.STEP and length > 0)
                    assert rows.log_probs[slice(*rows.action[k])].tolist() == t.log_probs.tolist()
                    assert (rows.entropy[k], rows.valid[k], rows.reward[k]) == (
                        np.float32(t.entropy),
                        t.valid,
                        t.reward,
                    )
                    assert rows.state_key[k] == t.state_key
                    k += 1
                offset += len(sequence.token_ids)
                row += 1
            number += 1
    assert (k, row, number) == (len(rows.row), len(rows.row_start) - 1, len(rows.task_return))
    assert rows.importance.tolist() == [1.0] * k
    assert not rows.advantages.any()


def test_window_sequences_of_one_episode_become_rows_of_one_episode():
    turns = [Sequence(np.arange(6, dtype=np.int32), (transition(Span(2, 4), Span(4, 6)),)) for _ in range(3)]
    rows = pack([group([Episode("household", "t", "pick", 0, tuple(turns), 1.0, True)])])
    assert rows.row.tolist() == [0, 1, 2]
    assert rows.episode.tolist() == [0, 0, 0]


def test_how_a_turn_ended_is_told_apart():
    """Ended by itself, cut by the reply limit, cut by the context (which is no fault of the reply)."""
    ends = [
        {"terminated": True},
        {"truncated": True, "stop": Stop.LENGTH},
        {"truncated": True, "stop": Stop.CONTEXT},
        {},
    ]
    rng = np.random.default_rng(0)
    made = [episode([{}, end], 0.0, rng) for end in ends]
    rows = pack([group(made)])
    assert rows.terminated.tolist() == [False, True] + [False] * 6
    assert rows.cut.tolist() == [False] * 3 + [True] + [False] * 4
    items = pack_world([WorldItem(played.sequences[0], 1, 1.0, 1.0) for played in made])
    assert items.terminated.tolist() == [True, False, False, False]
    assert items.cut.tolist() == [False, True, False, False]
    own = transition_rows(rows, np.array([3, 1]))
    assert (own.terminated.tolist(), own.cut.tolist()) == ([False, True], [True, False])
    demo = Demonstration(np.arange(5, dtype=np.int32), (Span(1, 3),), (Span(3, 5),), "t", "x", True)
    shown = pack_demonstrations([demo])
    assert (shown.terminated.tolist(), shown.cut.tolist()) == ([False], [False])


@pytest.mark.parametrize("seed", range(3))
def test_window_rows_hold_the_same_turns_as_append_rows(seed: int):
    groups = random_groups(seed)
    appended, rows = pack(groups), pack([windows(one) for one in groups])
    assert len(rows.row_start) - 1 == len(rows.row) == len(appended.row)
    for k in range(len(rows.row)):
        for found, right in ((rows.action, appended.action), (rows.observation, appended.observation)):
            assert rows.token_ids[slice(*found[k])].tolist() == appended.token_ids[slice(*right[k])].tolist()
        assert rows.row_start[rows.row[k]] < rows.action[k, 0]
        assert rows.observation[k, 1] <= rows.row_start[rows.row[k] + 1]
    for column in ("episode", "group", "reward", "terminated", "cut", "valid", "world", "task_return", "episode_group"):
        assert getattr(rows, column).tolist() == getattr(appended, column).tolist()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 4))
def test_minibatches_of_window_rows_keep_groups_whole(seed: int, count: int):
    rows = pack([windows(one) for one in random_groups(seed)])
    stream = Stream(rows, "fresh", token_weights(rows, rows.action, np.ones(len(rows.row))))
    parts = [part for minibatch in minibatches([stream], count, np.random.default_rng(seed)) for part in minibatch]
    assert sorted(r for part in parts for r in part.row_ids.tolist()) == list(range(len(rows.row)))
    groups = [set(rows.group[np.isin(rows.row, part.row_ids)].tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_tokens_are_told_by_position_even_where_padding_and_end_of_action_share_an_id():
    """Ids [5, 6, 0, 7, 8, 0]: both zeros are real, each the end of an action (huggingface/trl#4974)."""
    tokens = np.array([5, 6, 0, 7, 8, 0], np.int32)
    turns = (transition(Span(1, 3), Span(3, 4)), transition(Span(4, 6), Span(6, 6)))
    rows = pack([group([Episode("household", "t", "pick", 0, (Sequence(tokens, turns),), 0.0, False)])])
    assert rows.row_start.tolist() == [0, 6]
    assert span_tokens(rows.action)[1].tolist() == [1, 2, 4, 5]


def test_admissible_sets_are_kept_for_each_action_token():
    sets = (np.array([1, 4], np.int32), np.array([2], np.int32))
    turns = (
        transition(Span(1, 3), Span(3, 4), allowed=sets),
        transition(Span(4, 5), Span(5, 5)),
    )
    sequence = Sequence(np.arange(5, dtype=np.int32), turns)
    rows = pack([group([Episode("household", "t", "pick", 0, (sequence, sequence), 0.0, False)])])
    assert rows.allowed_start is not None
    assert rows.allowed_ids is not None
    found = [rows.allowed_ids[rows.allowed_start[n] : rows.allowed_start[n + 1]].tolist() for n in range(rows.tokens)]
    assert found == [[], [1, 4], [2], [], []] * 2


def test_pack_of_nothing_is_empty():
    for rows in (pack([]), pack_world([]), pack_demonstrations([])):
        assert (rows.tokens, len(rows.row), rows.row_start.tolist(), rows.groups) == (0, 0, [0], 0)


def test_entropies_of_two_kinds_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match=r"full.*sampled"):
        pack([group([episode([{}, {"entropy_kind": "sampled"}], 0.0, rng)])])


def test_pack_world_cuts_the_sequence_after_the_observation():
    sequence = Sequence(
        np.arange(20, dtype=np.int32),
        (
            transition(Span(3, 5), Span(5, 9), [-1, -2]),
            transition(Span(10, 12), Span(12, 16), [-3, -4]),
            transition(Span(17, 20), Span(20, 20)),
        ),
    )
    items = [WorldItem(sequence, 1, 0.25, 0.5), WorldItem(sequence, 0, 1.0, 1.0), WorldItem(sequence, 2, 1.0, 1.0)]
    rows = pack_world(items, observation_cap=3)
    assert rows.row_start.tolist() == [0, 15, 23, 43]
    assert rows.observation.tolist() == [[12, 15], [20, 23], [43, 43]]
    assert rows.action.tolist() == [[10, 12], [18, 20], [40, 43]]
    assert rows.token_ids.tolist() == [*range(15), *range(8), *range(20)]
    assert rows.lam.tolist() == [0.25, 1, 1]
    assert rows.importance.tolist() == [0.5, 1, 1]
    assert rows.world.tolist() == [True, True, False]
    assert rows.group.tolist() == rows.episode.tolist() == rows.row.tolist() == [0, 1, 2]
    assert rows.log_probs[[10, 11, 18, 19]].tolist() == [-3, -4, -1, -2]
    assert np.count_nonzero(rows.log_probs) == 7
    assert np.isnan(rows.task_return).all()


def test_pack_demonstrations():
    one = Demonstration(
        np.arange(9, dtype=np.int32), (Span(2, 4), Span(7, 9)), (Span(4, 6), Span(9, 9)), "t", "x", True
    )
    two = Demonstration(np.arange(5, dtype=np.int32), (Span(1, 3),), (Span(3, 5),), "t", "x", False)
    rows = pack_demonstrations([one, two], observation_cap=1)
    assert rows.row_start.tolist() == [0, 9, 14]
    assert rows.action.tolist() == [[2, 4], [7, 9], [10, 12]]
    assert rows.observation.tolist() == [[4, 5], [9, 9], [12, 13]]
    assert rows.world.tolist() == [True, False, True]
    assert rows.group.tolist() == [0, 0, 1]
    assert rows.lam.tolist() == [1, 1]
    assert rows.task_return.tolist() == [1, 0]
    assert not rows.log_probs.any()


@pytest.mark.parametrize("seed", range(3))
def test_transition_rows_hold_the_prefix_and_the_donors_observation(seed: int):
    rng = np.random.default_rng(seed)
    rows = pack(random_groups(seed))
    ids = rng.permutation(np.flatnonzero(rows.world))[:7]
    donors = rng.choice(np.flatnonzero(rows.world), len(ids))
    made = transition_rows(rows, ids, donors)
    for i, (k, donor) in enumerate(zip(ids, donors, strict=True)):
        prefix = rows.token_ids[rows.row_start[rows.row[k]] : rows.observation[k, 0]].tolist()
        tail = rows.token_ids[slice(*rows.observation[donor])].tolist()
        assert made.token_ids[made.row_start[i] : made.row_start[i + 1]].tolist() == prefix + tail
        assert made.token_ids[slice(*made.observation[i])].tolist() == tail
        assert made.observation[i, 1] == made.row_start[i + 1]
        assert made.token_ids[slice(*made.action[i])].tolist() == rows.token_ids[slice(*rows.action[k])].tolist()
        assert (made.group[i], made.entropy[i], made.state_key[i]) == (
            rows.group[k],
            rows.entropy[k],
            rows.state_key[k],
        )
    assert made.groups == rows.groups
    own = transition_rows(rows, ids)
    assert [own.token_ids[slice(*span)].tolist() for span in own.observation] == [
        rows.token_ids[slice(*rows.observation[k])].tolist() for k in ids
    ]


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 6), share=st.floats(0, 1))
def test_minibatches_cover_each_weighted_row_once_in_near_equal_parts(seed: int, count: int, share: float):
    rng = np.random.default_rng(seed)
    sources = [pack(random_groups(seed + i, groups=5, size=3)) for i in range(2)]
    streams = []
    for rows in sources:
        # Two streams over the same rows: a row counts where either is not 0.
        for _ in range(2):
            on = rng.random(len(rows.row_start) - 1) < share
            streams.append(Stream(rows, "fresh", np.repeat(on, np.diff(rows.row_start)).astype(np.float32)))
    parts = minibatches(streams, count, rng)
    assert len(parts) <= count
    assert all(parts)
    for i, rows in enumerate(sources):
        weighted = {
            r
            for r in range(len(rows.row_start) - 1)
            if any(s.weights[rows.row_start[r] : rows.row_start[r + 1]].any() for s in streams[2 * i : 2 * i + 2])
        }
        found = [p.row_ids for minibatch in parts for p in minibatch if p.rows is rows]
        assert sorted(r for ids in found for r in ids.tolist()) == sorted(weighted)
        turns = np.bincount(rows.row, minlength=len(rows.row_start) - 1)
        group = dict(zip(rows.row.tolist(), rows.group.tolist(), strict=True))
        of_group = Counter()
        for r in weighted:
            of_group[group[r]] += turns[r]
        ideal = sum(of_group.values()) / count
        assert all(abs(turns[ids].sum() - ideal) <= max(of_group.values()) for ids in found)
        groups_found = [{group[r] for r in ids.tolist()} for ids in found]
        assert sum(map(len, groups_found)) == len(set().union(*groups_found))  # no group is split


def test_minibatches_are_shuffled_by_the_generator_alone():
    rows = pack(random_groups(0, groups=6))
    streams = [Stream(rows, "fresh", np.ones(rows.tokens, np.float32))]
    drawn = [
        [part.row_ids.tolist() for minibatch in minibatches(streams, 2, np.random.default_rng(s)) for part in minibatch]
        for s in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_minibatches_of_nothing():
    rows = pack(random_groups(0))
    assert minibatches([], 2, np.random.default_rng(0)) == []
    nothing = [Stream(rows, "fresh", np.zeros(rows.tokens, np.float32))]
    assert minibatches(nothing, 2, np.random.default_rng(0)) == []


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 120))
def test_micro_batches_keep_to_the_token_budget(seed: int, budget: int):
    rng = np.random.default_rng(seed)
    rows = pack(random_groups(seed, groups=3))
    length = np.diff(rows.row_start)
    row_ids = rng.permutation(len(length))[: rng.integers(0, len(length) + 1)]
    batches = micro_batches(rows, row_ids, budget)
    assert sorted(np.concatenate([*batches, np.empty(0, np.int64)]).tolist()) == sorted(row_ids.tolist())
    for ids in batches:
        assert len(ids) == 1 or len(ids) * length[ids].max() <= budget
    longest = [length[ids].max() for ids in batches]
    assert longest == sorted(longest, reverse=True)
