"""The records that actors, replay and learner exchange: frozen, numpy only.

A worked example, one `Sequence` of an `append` prompt (positions index `token_ids`):

    token_ids   task . . . intro . . <act> | go cabinet <eoa> | arrive cabinet closed | <act> | open cabinet <eoa> | ...
    transition 0                            action (8, 11)      observation (11, 14)
    transition 1                                                                                action (15, 18) ...

`action` covers every generated token, the stop token included: the tokens of the policy loss. `observation` covers the
raw text of the environment alone: what the world model is scored on; prompt scaffolding (`<act>`) lies outside both.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protos.errors import DataError

TokenIds = NDArray[np.int32]


class Version(NamedTuple):
    """Names one set of weights: grows by one `update` at each optimizer update; a restored learner starts a new incarnation."""

    incarnation: int
    update: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.update}"


class Span(NamedTuple):
    """Half-open range of token positions within a sequence."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Kind(StrEnum):
    """What a turn was. Only steps train the world model."""

    STEP = "step"
    QUERY = "query"
    REJECTED = "rejected"


class Stop(StrEnum):
    """Why a reply ended."""

    STOP = "stop"  # a stop token was sampled
    LENGTH = "length"  # the reply limit cut it: the turn is marked truncated
    CONTEXT = "context"  # the context had no room left for it


EntropyKind = Literal["full", "sampled"]


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """One turn: the reply that was sampled, what the environment answered, and how both came about."""

    action: Span
    observation: Span  # empty where the episode ended without a text
    action_text: str  # the command that was executed (or refused), as text
    observation_text: str
    reward: float
    terminated: bool
    truncated: bool  # the episode was cut here: step limit, context, reply limit
    entropy: float  # nats, mean over the action tokens; finite and >= 0
    log_probs: NDArray[np.float32]  # (action.length,) behaviour log-probabilities
    versions: tuple[tuple[int, Version], ...]  # runs of action tokens: (count, version), counts sum to action.length
    state_key: str  # the anchor: the state that the action was taken in
    stop: Stop = Stop.STOP
    kind: Kind = Kind.STEP
    valid: bool = True  # the environment accepted the action
    entropy_kind: EntropyKind = "full"
    allowed: tuple[TokenIds, ...] | None = None  # per action token, the admissible ids (sorted); None: unconstrained

    def __post_init__(self) -> None:
        if len(self.log_probs) != self.action.length:
            raise DataError(f"{self.action.length} action tokens but {len(self.log_probs)} log-probabilities")
        if sum(count for count, _ in self.versions) != self.action.length:
            raise DataError(f"version runs {self.versions} do not cover {self.action.length} action tokens")
        if self.allowed is not None and len(self.allowed) != self.action.length:
            raise DataError(f"{self.action.length} action tokens but {len(self.allowed)} admissible sets")
        if not (np.isfinite(self.entropy) and self.entropy >= 0):
            raise DataError(f"entropy {self.entropy} is not a finite number of nats >= 0")

    @property
    def oldest(self) -> Version:
        """The version that staleness is judged by."""
        return min(version for _, version in self.versions)


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """Token ids exactly as the engine saw and sampled them, and the transitions within."""

    token_ids: TokenIds
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    environment: str
    task_id: str
    task_type: str
    seed: int  # of the reply sampling: with the weights it gives the episode again
    sequences: tuple[Sequence, ...]
    task_return: float  # task reward only, without shaping or penalties
    success: bool
    timings: dict[str, float] = field(default_factory=dict)  # seconds by phase

    def transitions(self) -> SequenceOf[Transition]:
        return [transition for sequence in self.sequences for transition in sequence.transitions]

    @property
    def steps(self) -> int:
        return sum(t.kind is Kind.STEP for t in self.transitions())


class GroupKey(NamedTuple):
    """The sampling identity: never made from a text.

    `repeat` tells apart two leases of one task, `attempt` two tries of one lease.
    """

    run: str
    task_id: str
    repeat: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.run}/{self.task_id}#{self.repeat}.{self.attempt}"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The G episodes of one lease, and lambda = 1 - mean task return / R_max, in [0, 1] (arXiv 2606.02388, eq. 10)."""

    key: GroupKey
    episodes: tuple[Episode, ...]
    lam: float

    @property
    def oldest(self) -> Version:
        return min(t.oldest for episode in self.episodes for t in episode.transitions())


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """A supervised row: `actions` are the spans to imitate, stop tokens included; a world model may learn `observations`."""

    token_ids: TokenIds
    actions: tuple[Span, ...]
    observations: tuple[Span, ...]  # one an action, possibly empty
    task_id: str
    source: str  # who played: "expert noise=0.5"
    success: bool


@dataclass(frozen=True, slots=True, eq=False)
class WorldItem:
    """One transition drawn from the wm table: `sequence.transitions[index]`, trained on as the row [h_t, a_t, o_{t+1}]."""

    sequence: Sequence
    index: int
    lam: float  # of its group, as stored when it was appended
    importance: float  # weight against the sampling priority, maximum 1 over the table
    item_id: int = -1  # its name within the table: what replay's `update_priorities` takes


LeaseKind = Literal["rollout", "eval"]


@dataclass(frozen=True, slots=True)
class Lease:
    """Work for an actor: play `group_size` episodes of one task. Episode i samples its replies from `derive_seed(seed, i)`."""

    key: GroupKey
    kind: LeaseKind
    group_size: int
    seed: int
    deadline: float  # seconds of the dispatcher's clock; past it the lease counts as dropped


def group_lambda(returns: SequenceOf[float], reward_max: float) -> float:
    """lambda_g = 1 - mean return / R_max (arXiv 2606.02388, eq. 10), clamped to [0, 1] **[default]**."""
    return float(np.clip(1.0 - float(np.mean(np.asarray(returns, dtype=np.float64))) / reward_max, 0.0, 1.0))
