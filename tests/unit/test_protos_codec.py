"""The codec: exact round trips of any record, refusal of anything else, and generated code that matches its source."""

import contextlib
import dataclasses
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import codec
from protos import records_pb2 as pb
from protos.errors import DataError
from protos.records import (
    Demonstration,
    Episode,
    Group,
    GroupKey,
    Kind,
    Lease,
    Sequence,
    Span,
    Stop,
    Transition,
    Version,
    WorldItem,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=12)
VERSION = st.builds(Version, COUNT, COUNT)


@st.composite
def spans(draw, length: int) -> Span:
    start = draw(st.integers(0, length))
    return Span(start, draw(st.integers(start, length)))


def array(values: list, dtype: type) -> np.ndarray:
    return np.array(values, dtype=dtype)


@st.composite
def transitions(draw, length: int) -> Transition:
    action = draw(spans(length))
    cut = draw(st.integers(0, action.length))
    log_probs = draw(st.lists(st.floats(width=32), min_size=action.length, max_size=action.length))
    sets = st.lists(INT32, max_size=3).map(lambda ids: array(ids, np.int32))
    allowed = st.lists(sets, min_size=action.length, max_size=action.length).map(tuple)
    return Transition(
        action=action,
        observation=draw(spans(length)),
        action_text=draw(TEXT),
        observation_text=draw(TEXT),
        reward=draw(st.floats()),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        entropy=draw(st.floats(0, 1e300)),
        log_probs=array(log_probs, np.float32),
        versions=((cut, draw(VERSION)), (action.length - cut, draw(VERSION))),
        state_key=draw(TEXT),
        stop=draw(st.sampled_from(Stop)),
        kind=draw(st.sampled_from(Kind)),
        valid=draw(st.booleans()),
        entropy_kind=draw(st.sampled_from(["full", "sampled"])),
        allowed=draw(st.none() | allowed),
    )


@st.composite
def sequences(draw, at_least: int = 0) -> Sequence:
    ids = draw(st.lists(INT32, max_size=8))
    count = draw(st.integers(at_least, 3))
    return Sequence(array(ids, np.int32), tuple(draw(transitions(len(ids))) for _ in range(count)))


EPISODE = st.builds(
    Episode,
    environment=TEXT,
    task_id=TEXT,
    task_type=TEXT,
    seed=st.integers(-(2**63), 2**63 - 1),
    sequences=st.lists(sequences(), max_size=2).map(tuple),
    task_return=st.floats(),
    success=st.booleans(),
    timings=st.dictionaries(TEXT, st.floats(), max_size=2),
)
KEY = st.builds(GroupKey, TEXT, TEXT, COUNT, COUNT)
GROUP = st.builds(Group, KEY, st.lists(EPISODE, max_size=2).map(tuple), st.floats())
LEASE = st.builds(
    Lease, KEY, st.sampled_from(["rollout", "eval"]), st.integers(0, 2**31 - 1), COUNT, st.floats(allow_nan=False)
)


@st.composite
def demonstrations(draw) -> Demonstration:
    ids = draw(st.lists(INT32, max_size=8))
    count = draw(st.integers(0, 3))
    actions, observations = (tuple(draw(spans(len(ids))) for _ in range(count)) for _ in range(2))
    return Demonstration(array(ids, np.int32), actions, observations, draw(TEXT), draw(TEXT), draw(st.booleans()))


@st.composite
def world_items(draw) -> WorldItem:
    sequence = draw(sequences(at_least=1))
    index = draw(st.integers(0, len(sequence.transitions) - 1))
    return WorldItem(sequence, index, draw(st.floats()), draw(st.floats()), draw(st.integers(-1, 2**62)))


RECORD = st.one_of(
    st.integers(0, 6).flatmap(transitions), sequences(), EPISODE, GROUP, demonstrations(), world_items(), LEASE
)


def exact(value):
    """`value` as plain Python in which equal means equal bit for bit, type for type."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value):
        return (type(value), [exact(getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, tuple):
        return (type(value), [exact(part) for part in value])
    if isinstance(value, dict):
        return {key: exact(part) for key, part in value.items()}
    if isinstance(value, float):
        return struct.pack("<d", value)
    return (type(value), value)


@given(RECORD)
def test_every_record_comes_back_bit_for_bit(record):
    assert exact(codec.decode(type(record), codec.encode(record))) == exact(record)


@given(RECORD, st.data())
def test_damaged_bytes_are_an_error_or_another_record_never_a_crash(record, data):
    whole = codec.encode(record)
    if not whole:
        return
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + 1 :]
    try:
        other = codec.decode(type(record), damaged)
    except DataError:
        return
    assert isinstance(other, type(record))


@given(st.sampled_from([Transition, Sequence, Episode, Group, Demonstration, WorldItem, Lease]), st.binary(max_size=80))
def test_random_bytes_never_crash(kind, data):
    with contextlib.suppress(DataError):
        assert isinstance(codec.decode(kind, data), kind)


def row(**changes: object) -> Transition:
    values: dict = {
        "action": Span(0, 2),
        "observation": Span(2, 3),
        "action_text": "look",
        "observation_text": "a mug",
        "reward": 0.5,
        "terminated": False,
        "truncated": False,
        "entropy": 0.25,
        "log_probs": np.zeros(2, np.float32),
        "versions": ((2, Version(0, 3)),),
        "state_key": "s",
    }
    return Transition(**{**values, **changes})


def test_the_bytes_are_little_endian_and_by_field_number():
    sequence = pb.Sequence.FromString(codec.encode(Sequence(np.array([1, 258], np.int32), (row(),))))
    assert sequence.token_ids == b"\x01\0\0\0\x02\x01\0\0"
    (transition,) = sequence.transitions
    assert (transition.action_stop, transition.observation_stop) == (2, 3)
    assert [(run.count, run.incarnation, run.update) for run in transition.versions] == [(2, 0, 3)]
    assert (transition.stop, transition.kind, transition.entropy_kind) == (1, 1, 1)


def message(**changes: object) -> pb.Transition:
    m = pb.Transition.FromString(codec.encode(row()))
    for name, value in changes.items():
        setattr(m, name, value)
    return m


def allowed_message(counts: list[int], ids: bytes) -> pb.Transition:
    m = message()
    m.allowed.counts, m.allowed.ids = np.array(counts, "<i4").tobytes(), ids
    return m


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (message(log_probs=b"\0" * 7), "whole"),
        (message(log_probs=b"\0" * 4), "2 action tokens but 1 log-probabilities"),
        (message(kind=9), "kind 9 is unknown"),
        (message(stop=0), "stop 0 is unknown"),
        (message(entropy_kind=7), "entropy kind 7"),
        (message(entropy=math.nan), "entropy nan"),
        (message(entropy=-1.0), "entropy -1.0"),
        (message(action_stop=1), "1 action tokens"),
        (allowed_message([1, -1], b""), "admissible sets"),
        (allowed_message([1, 2], b"\0" * 8), "admissible sets"),
        (allowed_message([1], b"\0" * 4), "1 admissible sets"),
    ],
)
def test_a_transition_that_breaks_its_rules_is_refused(bad: pb.Transition, says: str):
    with pytest.raises(DataError, match=says):
        codec.decode(Transition, bad.SerializeToString())


@pytest.mark.parametrize(
    "bad",
    [
        pb.Sequence(token_ids=b"\0" * 8, transitions=[message()]),  # observation (2, 3) of 2 tokens
        pb.Sequence(token_ids=b"\0" * 12, transitions=[message(observation_start=-1)]),
        pb.Sequence(token_ids=b"\0" * 12, transitions=[message(observation_start=3, observation_stop=2)]),
    ],
)
def test_spans_must_lie_within_their_sequence(bad: pb.Sequence):
    with pytest.raises(DataError, match="does not lie within"):
        codec.decode(Sequence, bad.SerializeToString())


@pytest.mark.parametrize(
    ("kind", "bad", "says"),
    [
        (Demonstration, pb.Demonstration(actions=[pb.Span()]), "1 actions but 0 observations"),
        (Demonstration, pb.Demonstration(actions=[pb.Span(stop=1)]), "does not lie within"),
        (WorldItem, pb.WorldItem(index=0), "transition 0 of a sequence that has 0"),
        (Lease, pb.Lease(), "lease kind 0"),
    ],
)
def test_records_that_do_not_fit_together_are_refused(kind: type, bad, says: str):
    with pytest.raises(DataError, match=says):
        codec.decode(kind, bad.SerializeToString())


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Sequence(np.zeros(3, np.int64), ()), "int64"),  # type: ignore[arg-type]
        (Sequence(np.zeros((1, 3), np.int32), ()), "shape"),
        (row(allowed=(np.zeros(1, np.int64), np.zeros(1, np.int32))), "int64"),
        (row(log_probs=np.zeros(2)), "float64"),
        (row(versions=((2, Version(0, 2**63)),)), "cannot be encoded"),
        (row(action_text="\ud800"), "cannot be encoded"),
        (row(reward="high"), "cannot be encoded"),
    ],
)
def test_what_cannot_come_back_the_same_is_refused_when_written(bad, says: str):
    with pytest.raises(DataError, match=says):
        codec.encode(bad)


def test_decoded_arrays_cannot_be_written_to():
    decoded = codec.decode(Sequence, codec.encode(Sequence(np.arange(3, dtype=np.int32), ())))
    with pytest.raises(ValueError, match="read-only"):
        decoded.token_ids[0] = 1


ROOT = Path(codec.__file__).parent.parent
PROTOC_PYTHON = os.environ.get("TANDEM_PROTOC_PYTHON", sys.executable)


def test_generated_code_is_what_its_source_generates(tmp_path):
    """grpcio-tools needs an older protobuf than Tandem: TANDEM_PROTOC_PYTHON names a Python of an environment with it."""
    ask = "import importlib.metadata as m; print(m.version('grpcio-tools'))"
    version = subprocess.run([PROTOC_PYTHON, "-c", ask], capture_output=True, text=True).stdout.strip()
    if version != "1.78.0":
        pytest.skip(f"needs grpcio-tools 1.78.0, {PROTOC_PYTHON} has {version or 'none'}: set TANDEM_PROTOC_PYTHON")
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([PROTOC_PYTHON, *command, "protos/records.proto"], cwd=ROOT, check=True)
    for name in ("records_pb2.py", "records_pb2.pyi"):
        assert (tmp_path / "protos" / name).read_text() == (ROOT / "protos" / name).read_text()


def test_generated_code_has_the_fields_of_its_source():
    """What can be told without the generator: names and numbers of every message and enum."""
    source = re.sub(r"//.*", "", (ROOT / "protos" / "records.proto").read_text())
    written = {
        name: {(field, int(number)) for field, number in re.findall(r"(\w+) = (\d+);", body)}
        for name, body in re.findall(r"(?:message|enum) (\w+) \{([^}]*)\}", source)
    }
    generated = {
        name: {(field.name, field.number) for field in descriptor.fields}
        for name, descriptor in pb.DESCRIPTOR.message_types_by_name.items()
    } | {
        name: {(value.name, value.number) for value in descriptor.values}
        for name, descriptor in pb.DESCRIPTOR.enum_types_by_name.items()
    }
    assert generated == written
