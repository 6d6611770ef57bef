"""Records <-> bytes. Protobuf stays at this edge: nothing else but the servicers imports the generated code.

data = encode(episode)
episode = decode(Episode, data)        # DataError where the bytes are not an episode that could have been encoded

Decoded arrays are read-only views of the message.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from protos import records_pb2 as pb
from protos.errors import DataError
from protos.records import (
    Demonstration,
    EntropyKind,
    Episode,
    Group,
    GroupKey,
    Kind,
    Lease,
    LeaseKind,
    Sequence,
    Span,
    Stop,
    TokenIds,
    Transition,
    Version,
    WorldItem,
)

R = TypeVar("R", Transition, Sequence, Episode, Group, Demonstration, WorldItem, Lease)

_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")

_KIND = {Kind.STEP: pb.KIND_STEP, Kind.QUERY: pb.KIND_QUERY, Kind.REJECTED: pb.KIND_REJECTED}
_STOP = {Stop.STOP: pb.STOP_STOP, Stop.LENGTH: pb.STOP_LENGTH, Stop.CONTEXT: pb.STOP_CONTEXT}
_ENTROPY: dict[EntropyKind, pb.EntropyKind] = {"full": pb.ENTROPY_KIND_FULL, "sampled": pb.ENTROPY_KIND_SAMPLED}
_LEASE: dict[LeaseKind, pb.LeaseKind] = {"rollout": pb.LEASE_KIND_ROLLOUT, "eval": pb.LEASE_KIND_EVAL}
_KIND_BACK = {int(number): kind for kind, number in _KIND.items()}
_STOP_BACK = {int(number): stop for stop, number in _STOP.items()}
_ENTROPY_BACK = {int(number): kind for kind, number in _ENTROPY.items()}
_LEASE_BACK = {int(number): kind for kind, number in _LEASE.items()}


def encode(record: R) -> bytes:
    """The bytes of `record`. DataError where an array has another type, a number is too large, a text not Unicode."""
    _, write, _ = _CODECS[type(record)]
    try:
        return write(record).SerializeToString()
    except DataError:
        raise
    except (ValueError, TypeError) as error:  # protobuf's: out of range, lone surrogates, a value of another type
        raise DataError(f"this {type(record).__name__} cannot be encoded: {error}") from error


def decode(kind: type[R], data: bytes) -> R:
    """The record that `data` encodes. DataError where it is malformed or breaks the record's rules."""
    make, _, read = _CODECS[kind]
    message = make()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise DataError(f"{len(data)} bytes are not a {kind.__name__}: {error}") from error
    return cast(R, read(message))


def _write_array(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    if array.dtype != dtype or array.ndim != 1:
        raise DataError(f"an array of {array.dtype} and shape {array.shape} where one row of {dtype} is stored")
    return array.astype(dtype, copy=False).tobytes()


def _read_array(data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise DataError(f"{len(data)} bytes do not hold whole {dtype} numbers")
    return np.frombuffer(data, dtype=dtype)


def _read_enum(numbers: dict[int, Any], number: int, field: str) -> Any:
    if number not in numbers:
        raise DataError(f"{field} {number} is unknown: the message is damaged, or of a newer Tandem")
    return numbers[number]


def _write_allowed(allowed: tuple[TokenIds, ...]) -> pb.Allowed:
    counts = np.asarray([len(ids) for ids in allowed], dtype=_INT32)
    for ids in allowed:
        _write_array(ids, _INT32)
    return pb.Allowed(counts=counts.tobytes(), ids=b"".join(ids.tobytes() for ids in allowed))


def _read_allowed(message: pb.Allowed) -> tuple[TokenIds, ...]:
    counts, ids = _read_array(message.counts, _INT32), _read_array(message.ids, _INT32)
    if (counts < 0).any() or counts.sum(dtype=np.int64) != len(ids):
        raise DataError(f"admissible sets of {counts.tolist()} ids do not make the {len(ids)} that came")
    edges = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()
    return tuple(ids[start:stop] for start, stop in pairwise(edges))


def _write_transition(t: Transition) -> pb.Transition:
    message = pb.Transition(
        action_start=t.action.start,
        action_stop=t.action.stop,
        observation_start=t.observation.start,
        observation_stop=t.observation.stop,
        action_text=t.action_text,
        observation_text=t.observation_text,
        reward=t.reward,
        terminated=t.terminated,
        truncated=t.truncated,
        entropy=t.entropy,
        log_probs=_write_array(t.log_probs, _FLOAT32),
        state_key=t.state_key,
        stop=_STOP[t.stop],
        kind=_KIND[t.kind],
        valid=t.valid,
        entropy_kind=_ENTROPY[t.entropy_kind],
    )
    for count, (incarnation, update) in t.versions:
        message.versions.add(count=count, incarnation=incarnation, update=update)
    if t.allowed is not None:
        message.allowed.CopyFrom(_write_allowed(t.allowed))
    return message


def _read_transition(m: pb.Transition) -> Transition:
    return Transition(
        action=Span(m.action_start, m.action_stop),
        observation=Span(m.observation_start, m.observation_stop),
        action_text=m.action_text,
        observation_text=m.observation_text,
        reward=m.reward,
        terminated=m.terminated,
        truncated=m.truncated,
        entropy=m.entropy,
        log_probs=_read_array(m.log_probs, _FLOAT32),
        versions=tuple((run.count, Version(run.incarnation, run.update)) for run in m.versions),
        state_key=m.state_key,
        stop=_read_enum(_STOP_BACK, m.stop, "stop"),
        kind=_read_enum(_KIND_BACK, m.kind, "kind"),
        valid=m.valid,
        entropy_kind=_read_enum(_ENTROPY_BACK, m.entropy_kind, "entropy kind"),
        allowed=_read_allowed(m.allowed) if m.HasField("allowed") else None,
    )


def _write_sequence(sequence: Sequence) -> pb.Sequence:
    return pb.Sequence(
        token_ids=_write_array(sequence.token_ids, _INT32),
        transitions=[_write_transition(transition) for transition in sequence.transitions],
    )


def _read_sequence(message: pb.Sequence) -> Sequence:
    token_ids = _read_array(message.token_ids, _INT32)
    transitions = tuple(_read_transition(transition) for transition in message.transitions)
    for transition in transitions:
        _check_span(transition.action, len(token_ids))
        _check_span(transition.observation, len(token_ids))
    return Sequence(token_ids, transitions)


def _check_span(span: Span, length: int) -> None:
    if not 0 <= span.start <= span.stop <= length:
        raise DataError(f"span ({span.start}, {span.stop}) does not lie within {length} tokens")


def _write_episode(episode: Episode) -> pb.Episode:
    return pb.Episode(
        environment=episode.environment,
        task_id=episode.task_id,
        task_type=episode.task_type,
        seed=episode.seed,
        sequences=[_write_sequence(sequence) for sequence in episode.sequences],
        task_return=episode.task_return,
        success=episode.success,
        timings=episode.timings,
    )


def _read_episode(message: pb.Episode) -> Episode:
    return Episode(
        environment=message.environment,
        task_id=message.task_id,
        task_type=message.task_type,
        seed=message.seed,
        sequences=tuple(_read_sequence(sequence) for sequence in message.sequences),
        task_return=message.task_return,
        success=message.success,
        timings=dict(message.timings),
    )


def _write_key(key: GroupKey) -> pb.GroupKey:
    return pb.GroupKey(run=key.run, task_id=key.task_id, repeat=key.repeat, attempt=key.attempt)


def _read_key(message: pb.GroupKey) -> GroupKey:
    return GroupKey(message.run, message.task_id, message.repeat, message.attempt)


def _write_group(group: Group) -> pb.Group:
    return pb.Group(
        key=_write_key(group.key), episodes=[_write_episode(episode) for episode in group.episodes], lam=group.lam
    )


def _read_group(message: pb.Group) -> Group:
    return Group(_read_key(message.key), tuple(_read_episode(episode) for episode in message.episodes), message.lam)


def _write_spans(spans: SequenceOf[Span]) -> list[pb.Span]:
    return [pb.Span(start=start, stop=stop) for start, stop in spans]


def _read_spans(messages: SequenceOf[pb.Span], length: int) -> tuple[Span, ...]:
    spans = tuple(Span(message.start, message.stop) for message in messages)
    for span in spans:
        _check_span(span, length)
    return spans


def _write_demonstration(row: Demonstration) -> pb.Demonstration:
    return pb.Demonstration(
        token_ids=_write_array(row.token_ids, _INT32),
        actions=_write_spans(row.actions),
        observations=_write_spans(row.observations),
        task_id=row.task_id,
        source=row.source,
        success=row.success,
    )


def _read_demonstration(message: pb.Demonstration) -> Demonstration:
    token_ids = _read_array(message.token_ids, _INT32)
    actions = _read_spans(message.actions, len(token_ids))
    observations = _read_spans(message.observations, len(token_ids))
    if len(actions) != len(observations):
        raise DataError(f"{len(actions)} actions but {len(observations)} observations in a demonstration")
    return Demonstration(token_ids, actions, observations, message.task_id, message.source, message.success)


def _write_world_item(item: WorldItem) -> pb.WorldItem:
    return pb.WorldItem(
        sequence=_write_sequence(item.sequence),
        index=item.index,
        lam=item.lam,
        importance=item.importance,
        item_id=item.item_id,
    )


def _read_world_item(message: pb.WorldItem) -> WorldItem:
    sequence = _read_sequence(message.sequence)
    if not 0 <= message.index < len(sequence.transitions):
        raise DataError(f"transition {message.index} of a sequence that has {len(sequence.transitions)}")
    return WorldItem(sequence, message.index, message.lam, message.importance, message.item_id)


def _write_lease(lease: Lease) -> pb.Lease:
    return pb.Lease(
        key=_write_key(lease.key),
        kind=_LEASE[lease.kind],
        group_size=lease.group_size,
        seed=lease.seed,
        deadline=lease.deadline,
    )


def _read_lease(message: pb.Lease) -> Lease:
    kind = _read_enum(_LEASE_BACK, message.kind, "lease kind")
    return Lease(_read_key(message.key), kind, message.group_size, message.seed, message.deadline)


_Codec = tuple[type[Message], Callable[[Any], Message], Callable[[Any], Any]]

_CODECS: dict[type, _Codec] = {
    Transition: (pb.Transition, _write_transition, _read_transition),
    Sequence: (pb.Sequence, _write_sequence, _read_sequence),
    Episode: (pb.Episode, _write_episode, _read_episode),
    Group: (pb.Group, _write_group, _read_group),
    Demonstration: (pb.Demonstration, _write_demonstration, _read_demonstration),
    WorldItem: (pb.WorldItem, _write_world_item, _read_world_item),
    Lease: (pb.Lease, _write_lease, _read_lease),
}
