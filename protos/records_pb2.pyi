from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_STEP: _ClassVar[Kind]
    KIND_QUERY: _ClassVar[Kind]
    KIND_REJECTED: _ClassVar[Kind]

class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_UNSPECIFIED: _ClassVar[Stop]
    STOP_STOP: _ClassVar[Stop]
    STOP_LENGTH: _ClassVar[Stop]
    STOP_CONTEXT: _ClassVar[Stop]

class EntropyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTROPY_KIND_UNSPECIFIED: _ClassVar[EntropyKind]
    ENTROPY_KIND_FULL: _ClassVar[EntropyKind]
    ENTROPY_KIND_SAMPLED: _ClassVar[EntropyKind]

class LeaseKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_KIND_UNSPECIFIED: _ClassVar[LeaseKind]
    LEASE_KIND_ROLLOUT: _ClassVar[LeaseKind]
    LEASE_KIND_EVAL: _ClassVar[LeaseKind]
KIND_UNSPECIFIED: Kind
KIND_STEP: Kind
KIND_QUERY: Kind
KIND_REJECTED: Kind
STOP_UNSPECIFIED: Stop
STOP_STOP: Stop
STOP_LENGTH: Stop
STOP_CONTEXT: Stop
ENTROPY_KIND_UNSPECIFIED: EntropyKind
ENTROPY_KIND_FULL: EntropyKind
ENTROPY_KIND_SAMPLED: EntropyKind
LEASE_KIND_UNSPECIFIED: LeaseKind
LEASE_KIND_ROLLOUT: LeaseKind
LEASE_KIND_EVAL: LeaseKind

class Span(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class VersionRun(_message.Message):
    __slots__ = ("count", "incarnation", "update")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    count: int
    incarnation: int
    update: int
    def __init__(self, count: _Optional[int] = ..., incarnation: _Optional[int] = ..., update: _Optional[int] = ...) -> None: ...

class Allowed(_message.Message):
    __slots__ = ("counts", "ids")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    ids: bytes
    def __init__(self, counts: _Optional[bytes] = ..., ids: _Optional[bytes] = ...) -> None: ...

class Transition(_message.Message):
    __slots__ = ("action_start", "action_stop", "observation_start", "observation_stop", "action_text", "observation_text", "reward", "terminated", "truncated", "entropy", "log_probs", "versions", "state_key", "stop", "kind", "valid", "entropy_kind", "allowed")
    ACTION_START_FIELD_NUMBER: _ClassVar[int]
    ACTION_STOP_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_START_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_STOP_FIELD_NUMBER: _ClassVar[int]
    ACTION_TEXT_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_TEXT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_KEY_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_KIND_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    action_start: int
    action_stop: int
    observation_start: int
    observation_stop: int
    action_text: str
    observation_text: str
    reward: float
    terminated: bool
    truncated: bool
    entropy: float
    log_probs: bytes
    versions: _containers.RepeatedCompositeFieldContainer[VersionRun]
    state_key: str
    stop: Stop
    kind: Kind
    valid: bool
    entropy_kind: EntropyKind
    allowed: Allowed
    def __init__(self, action_start: _Optional[int] = ..., action_stop: _Optional[int] = ..., observation_start: _Optional[int] = ..., observation_stop: _Optional[int] = ..., action_text: _Optional[str] = ..., observation_text: _Optional[str] = ..., reward: _Optional[float] = ..., terminated: bool = ..., truncated: bool = ..., entropy: _Optional[float] = ..., log_probs: _Optional[bytes] = ..., versions: _Optional[_Iterable[_Union[VersionRun, _Mapping]]] = ..., state_key: _Optional[str] = ..., stop: _Optional[_Union[Stop, str]] = ..., kind: _Optional[_Union[Kind, str]] = ..., valid: bool = ..., entropy_kind: _Optional[_Union[EntropyKind, str]] = ..., allowed: _Optional[_Union[Allowed, _Mapping]] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("token_ids", "transitions")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    transitions: _containers.RepeatedCompositeFieldContainer[Transition]
    def __init__(self, token_ids: _Optional[bytes] = ..., transitions: _Optional[_Iterable[_Union[Transition, _Mapping]]] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("environment", "task_id", "task_type", "seed", "sequences", "task_return", "success", "timings")
    class TimingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TASK_RETURN_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    environment: str
    task_id: str
    task_type: str
    seed: int
    sequences: _containers.RepeatedCompositeFieldContainer[Sequence]
    task_return: float
    success: bool
    timings: _containers.ScalarMap[str, float]
    def __init__(self, environment: _Optional[str] = ..., task_id: _Optional[str] = ..., task_type: _Optional[str] = ..., seed: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., task_return: _Optional[float] = ..., success: bool = ..., timings: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GroupKey(_message.Message):
    __slots__ = ("run", "task_id", "repeat", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    task_id: str
    repeat: int
    attempt: int
    def __init__(self, run: _Optional[str] = ..., task_id: _Optional[str] = ..., repeat: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("key", "episodes", "lam")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    LAM_FIELD_NUMBER: _ClassVar[int]
    key: GroupKey
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    lam: float
    def __init__(self, key: _Optional[_Union[GroupKey, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., lam: _Optional[float] = ...) -> None: ...

class Demonstration(_message.Message):
    __slots__ = ("token_ids", "actions", "observations", "task_id", "source", "success")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    actions: _containers.RepeatedCompositeFieldContainer[Span]
    observations: _containers.RepeatedCompositeFieldContainer[Span]
    task_id: str
    source: str
    success: bool
    def __init__(self, token_ids: _Optional[bytes] = ..., actions: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., observations: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., task_id: _Optional[str] = ..., source: _Optional[str] = ..., success: bool = ...) -> None: ...

class WorldItem(_message.Message):
    __slots__ = ("sequence", "index", "lam", "importance", "item_id")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAM_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    sequence: Sequence
    index: int
    lam: float
    importance: float
    item_id: int
    def __init__(self, sequence: _Optional[_Union[Sequence, _Mapping]] = ..., index: _Optional[int] = ..., lam: _Optional[float] = ..., importance: _Optional[float] = ..., item_id: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("key", "kind", "group_size", "seed", "deadline")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    key: GroupKey
    kind: LeaseKind
    group_size: int
    seed: int
    deadline: float
    def __init__(self, key: _Optional[_Union[GroupKey, _Mapping]] = ..., kind: _Optional[_Union[LeaseKind, str]] = ..., group_size: _Optional[int] = ..., seed: _Optional[int] = ..., deadline: _Optional[float] = ...) -> None: ...
