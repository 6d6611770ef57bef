"""Records to `Rows`, and rows to minibatches and micro-batches: numpy alone, ragged, without padding.

    pack(groups)               one row a Sequence, every transition of the update
    pack_world(items)          one row [h_t, a_t, o_{t+1}] an item drawn from the wm table
    pack_demonstrations(demos) one row a demonstration
    transition_rows(rows, k)   rows of their own for the transitions k, with their own or a donor's observation
    minibatches, micro_batches indices of rows; `learner.scoring` pads them, by length and never by a token's value

Transitions stand in order: by group, episode and time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learner.core import BoolArray, FloatArray, IntArray, Rows, Stream
from protos.errors import DataError
from protos.records import Demonstration, Group, Kind, Stop, TokenIds, Transition, WorldItem

OBSERVATION_CAP = 512


def pack(groups: Sequence[Group], observation_cap: int = OBSERVATION_CAP) -> Rows:
    """All episodes of `groups`, one row a `Sequence`; observations are scored up to `observation_cap` tokens.

    A group keeps its number when it holds no transition at all: the denominators of an update count every group.
    DataError where entropies of both kinds meet: one selection never mixes them.
    """
    episodes = [(g, episode) for g, group in enumerate(groups) for episode in group.episodes]
    sequences = [(e, sequence) for e, (_, episode) in enumerate(episodes) for sequence in episode.sequences]
    transitions = [t for _, sequence in sequences for t in sequence.transitions]
    kinds = {t.entropy_kind for t in transitions}
    if len(kinds) > 1:
        raise DataError(f"entropies of kinds {sorted(kinds)} in one update cannot be ranked together: use one engine")
    return _assemble(
        token_ids=[sequence.token_ids for _, sequence in sequences],
        transitions=transitions,
        row=[r for r, (_, sequence) in enumerate(sequences) for _ in sequence.transitions],
        episode=[e for e, sequence in sequences for _ in sequence.transitions],
        task_return=[episode.task_return for _, episode in episodes],
        episode_group=[g for g, _ in episodes],
        lam=[group.lam for group in groups],
        importance=None,
        observation_cap=observation_cap,
    )


def pack_world(items: Sequence[WorldItem], observation_cap: int = OBSERVATION_CAP) -> Rows:
    """One row [h_t, a_t, o_{t+1}] an item: the sequence up to the end of that observation.

    Each item is its own group and episode. Items do not carry the return of theirs: `task_return` is NaN, no advantage
    can be made of these rows.
    """
    transitions = [item.sequence.transitions[item.index] for item in items]
    stops = [max(t.action.stop, min(t.observation.stop, t.observation.start + observation_cap)) for t in transitions]
    one_each = list(range(len(items)))
    return _assemble(
        token_ids=[item.sequence.token_ids[:stop] for item, stop in zip(items, stops, strict=True)],
        transitions=transitions,
        row=one_each,
        episode=one_each,
        task_return=[np.nan] * len(items),
        episode_group=one_each,
        lam=[item.lam for item in items],
        importance=[item.importance for item in items],
        observation_cap=observation_cap,
    )


def pack_demonstrations(demonstrations: Sequence[Demonstration], observation_cap: int = OBSERVATION_CAP) -> Rows:
    """One row a demonstration, each its own group and episode with lambda 1; never sampled: log-probabilities are 0."""
    row_start = _starts([len(demo.token_ids) for demo in demonstrations])
    row = np.repeat(np.arange(len(demonstrations)), [len(demo.actions) for demo in demonstrations])
    observation = _spans([span for demo in demonstrations for span in demo.observations], observation_cap)
    transitions, tokens = len(row), int(row_start[-1])
    return Rows(
        token_ids=_join([demo.token_ids for demo in demonstrations], np.int32),
        row_start=row_start,
        log_probs=np.zeros(tokens, np.float32),
        advantages=np.zeros(tokens, np.float32),
        row=row,
        episode=row,
        group=row,
        action=_spans([span for demo in demonstrations for span in demo.actions]) + row_start[row, None],
        observation=observation + row_start[row, None],
        entropy=np.zeros(transitions, np.float32),
        world=observation[:, 1] > observation[:, 0],
        valid=np.ones(transitions, np.bool_),
        terminated=np.zeros(transitions, np.bool_),
        cut=np.zeros(transitions, np.bool_),
        reward=np.zeros(transitions, np.float32),
        importance=np.ones(transitions, np.float32),
        state_key=("",) * transitions,
        task_return=np.array([demo.success for demo in demonstrations], np.float32),
        episode_group=np.arange(len(demonstrations)),
        lam=np.ones(len(demonstrations), np.float32),
    )


def transition_rows(rows: Rows, transitions: IntArray, donors: IntArray | None = None) -> Rows:
    """One row [h_t, a_t, o] for each of the `transitions` (ids, (K',)) of `rows`; groups, episodes and lambdas stay.

    o is the observation of the transition, or that of its donor (`donors`, ids, (K',)): the model then reads and is
    scored on the donor's. Such rows are for world-model terms only: they carry no log-probabilities, advantages or
    admissible tokens.
    """
    donors = transitions if donors is None else donors
    head = np.stack([rows.row_start[rows.row[transitions]], rows.observation[transitions, 0]], axis=1)
    tail = rows.observation[donors]
    _, positions = span_tokens(np.stack([head, tail], axis=1).reshape(-1, 2))
    head_length, tail_length = head[:, 1] - head[:, 0], tail[:, 1] - tail[:, 0]
    row_start = _starts(head_length + tail_length)
    observation_start = row_start[:-1] + head_length
    return Rows(
        token_ids=rows.token_ids[positions],
        row_start=row_start,
        log_probs=np.zeros(len(positions), np.float32),
        advantages=np.zeros(len(positions), np.float32),
        row=np.arange(len(transitions)),
        episode=rows.episode[transitions],
        group=rows.group[transitions],
        action=rows.action[transitions] + (row_start[:-1] - head[:, 0])[:, None],
        observation=np.stack([observation_start, observation_start + tail_length], axis=1),
        entropy=rows.entropy[transitions],
        world=rows.world[transitions],
        valid=rows.valid[transitions],
        terminated=rows.terminated[transitions],
        cut=rows.cut[transitions],
        reward=rows.reward[transitions],
        importance=rows.importance[transitions],
        state_key=tuple(rows.state_key[k] for k in transitions),
        task_return=rows.task_return,
        episode_group=rows.episode_group,
        lam=rows.lam,
    )


def span_tokens(spans: IntArray) -> tuple[IntArray, IntArray]:
    """Of spans (S, 2), all tokens in order: the span of each (T,), and its position (T,)."""
    length = spans[:, 1] - spans[:, 0]
    owner = np.repeat(np.arange(len(spans)), length)
    first = _starts(length)[:-1]
    return owner, np.arange(len(owner)) + (spans[:, 0] - first)[owner]


def token_weights(rows: Rows, spans: IntArray, per_token: NDArray[np.floating]) -> FloatArray:
    """(N,) weights: `per_token[k]` (K,) on each token of `spans[k]` (K, 2), 0 elsewhere."""
    weights = np.zeros(rows.tokens, np.float32)
    owner, positions = span_tokens(spans)
    weights[positions] = per_token[owner]
    return weights


def rows_with(rows: Rows, wanted: BoolArray) -> BoolArray:
    """(R,) whether a row holds any of the `wanted` (N,) tokens."""
    return np.diff(np.concatenate([[0], np.cumsum(wanted)])[rows.row_start]) > 0


def action_tokens(rows: Rows) -> BoolArray:
    """(N,) whether a token belongs to an action."""
    mask = np.zeros(rows.tokens, np.bool_)
    mask[span_tokens(rows.action)[1]] = True
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The share that one minibatch has in one set of rows."""

    rows: Rows
    row_ids: IntArray


def minibatches(streams: Sequence[Stream], count: int, rng: np.random.Generator) -> list[list[Part]]:
    """At most `count` disjoint minibatches that cover every row on which a stream is not 0; each has one part a `Rows`.

    The groups of every set of rows are shuffled and cut in `count` by the number of transitions, so a minibatch holds its
    share of each source, to within the transitions of one group. **Groups stay whole**: their advantages sum to zero, and
    half a group would push up or down what all its episodes share. (On the household games the halves cost a third of
    the success after 30 updates.) Minibatches without a row are left out.
    """
    parts: list[list[Part]] = [[] for _ in range(count)]
    for rows in {id(stream.rows): stream.rows for stream in streams}.values():
        active = np.zeros(rows.tokens, np.bool_)
        for stream in streams:
            if stream.rows is rows:
                active |= stream.weights != 0
        row_ids = np.flatnonzero(rows_with(rows, active))
        for part, ids in zip(parts, _cut(rows, row_ids, count, rng), strict=True):
            if len(ids):
                part.append(Part(rows, ids))
    return [part for part in parts if part]


def micro_batches(rows: Rows, row_ids: IntArray, token_budget: int) -> list[IntArray]:
    """`row_ids` longest first, cut so that rows times longest row is at most `token_budget` tokens.

    A row that is longer than the budget makes a micro-batch of its own.
    """
    length = np.diff(rows.row_start)[row_ids]
    order = np.argsort(-length, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, token_budget // max(1, int(length[order[start]])))
        batches.append(row_ids[order[start : start + size]])
        start += size
    return batches


def _cut(rows: Rows, row_ids: IntArray, count: int, rng: np.random.Generator) -> list[IntArray]:
    """`row_ids` in `count` runs of shuffled groups: a group belongs to the run in which the middle of its transitions falls."""
    group_of = np.zeros(len(rows.row_start) - 1, np.int64)
    group_of[rows.row] = rows.group
    transitions = np.bincount(group_of[rows.row[np.isin(rows.row, row_ids)]], minlength=rows.groups)
    groups = rng.permutation(np.unique(group_of[row_ids]))
    middle = np.cumsum(transitions[groups]) - transitions[groups] / 2
    run = np.zeros(rows.groups, np.int64)
    run[groups] = (middle * count / max(1, transitions[groups].sum())).astype(np.int64)
    return [row_ids[run[group_of[row_ids]] == i] for i in range(count)]


def _assemble(
    *,
    token_ids: list[TokenIds],
    transitions: list[Transition],
    row: list[int],
    episode: list[int],
    task_return: list[float],
    episode_group: list[int],
    lam: list[float],
    importance: list[float] | None,
    observation_cap: int,
) -> Rows:
    """`Rows` of sampled transitions, column by column: attributes read in comprehensions, arrays written once."""
    row_start = _starts([len(ids) for ids in token_ids])
    tokens, count = int(row_start[-1]), len(transitions)
    row_of, episode_of, groups = (np.array(ids, np.int64) for ids in (row, episode, episode_group))
    offset = row_start[row_of, None]
    action = _spans([t.action for t in transitions]) + offset
    observation = _spans([t.observation for t in transitions], observation_cap) + offset
    _, action_tokens = span_tokens(action)
    log_probs = np.zeros(tokens, np.float32)
    log_probs[action_tokens] = _join([t.log_probs for t in transitions], np.float32)
    allowed_start, allowed_ids = _allowed(transitions, action, tokens)
    step = np.array([t.kind is Kind.STEP for t in transitions], np.bool_)
    return Rows(
        token_ids=_join(token_ids, np.int32),
        row_start=row_start,
        log_probs=log_probs,
        advantages=np.zeros(tokens, np.float32),
        row=row_of,
        episode=episode_of,
        group=groups[episode_of],
        action=action,
        observation=observation,
        entropy=np.array([t.entropy for t in transitions], np.float32),
        world=step & (observation[:, 1] > observation[:, 0]),
        valid=np.array([t.valid for t in transitions], np.bool_),
        terminated=np.array([t.terminated for t in transitions], np.bool_),
        cut=np.array([t.stop is Stop.LENGTH for t in transitions], np.bool_),
        reward=np.array([t.reward for t in transitions], np.float32),
        importance=np.ones(count, np.float32) if importance is None else np.array(importance, np.float32),
        state_key=tuple(t.state_key for t in transitions),
        task_return=np.array(task_return, np.float32),
        episode_group=groups,
        lam=np.array(lam, np.float32),
        allowed_start=allowed_start,
        allowed_ids=allowed_ids,
    )


def _allowed(
    transitions: list[Transition], action: IntArray, tokens: int
) -> tuple[IntArray, TokenIds] | tuple[None, None]:
    """The admissible sets in compressed form; empty for a token that was drawn from the whole vocabulary."""
    constrained = [k for k, t in enumerate(transitions) if t.allowed is not None]
    if not constrained:
        return None, None
    sets = list(chain.from_iterable(transitions[k].allowed or () for k in constrained))
    sizes = np.zeros(tokens, np.int64)
    _, positions = span_tokens(action[constrained])
    sizes[positions] = [len(ids) for ids in sets]
    return _starts(sizes), _join(sets, np.int32)


def _spans(spans: Sequence[tuple[int, int]], cap: int | None = None) -> IntArray:
    """(S, 2) of the spans, cut to `cap` tokens."""
    array = np.array(spans, np.int64).reshape(-1, 2)
    if cap is not None:
        array[:, 1] = np.minimum(array[:, 1], array[:, 0] + cap)
    return array


def _starts(lengths: ArrayLike) -> IntArray:
    """(S + 1,) of lengths (S,): where each begins, and the end of all."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])


def _join(arrays: Sequence[NDArray], dtype: type[np.generic]) -> NDArray:
    return np.concatenate([*arrays, np.empty(0, dtype)]).astype(dtype, copy=False)
