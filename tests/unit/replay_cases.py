"""Small records and services that the replay tests share."""

from collections.abc import Callable

import numpy as np

from protos.records import Episode, Kind, Lease, Sequence, Span, Transition, Version
from replay.config import Config
from replay.service import Replay

START = Version(0, 0)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def transition(
    entropy: float = 1.0,
    *,
    version: Version = START,
    kind: Kind = Kind.STEP,
    observed: bool = True,
    runs: tuple[tuple[int, Version], ...] | None = None,
) -> Transition:
    """Two action tokens at (1, 3) and, where `observed`, two observation tokens at (3, 5)."""
    return Transition(
        action=Span(1, 3),
        observation=Span(3, 5) if observed else Span(3, 3),
        action_text="look",
        observation_text="you see a mug 1." if observed else "",
        reward=0.0,
        terminated=False,
        truncated=False,
        entropy=entropy,
        log_probs=np.array([-0.5, -0.25], dtype=np.float32),
        versions=((2, version),) if runs is None else runs,
        state_key="s",
        kind=kind,
    )


def episode(*transitions: Transition, task_return: float = 0.0, seed: int = 0, tokens: int = 6) -> Episode:
    """One sequence holding `transitions` (one default step where none is given)."""
    steps = transitions or (transition(),)
    sequence = Sequence(np.arange(tokens, dtype=np.int32), steps)
    return Episode("toy", "task", "look", seed, (sequence,), task_return, task_return > 0)


def service(config: Config | None = None, clock: Callable[[], float] | None = None, **settings: object) -> Replay:
    """A service over the endless tasks t0, t1, ...; `settings` are fields of its config."""
    config = Config.model_validate(settings) if config is None else config
    return Replay(config, run="run", seed=7, tasks=lambda i: f"t{i}", clock=clock or Clock())


def must_lease(replay: Replay) -> Lease:
    lease = replay.lease("rollout")
    assert lease is not None, replay.waits_for("rollout")
    return lease


def play(replay: Replay, lease: Lease, *, version: Version | None = None, entropy: float = 1.0) -> None:
    """Hand in a whole group, every token sampled by `version` (that in service), and seal it."""
    version = replay.lineage.published if version is None else version
    for member in range(lease.group_size):
        replay.append(lease.key, member, episode(transition(entropy, version=version), task_return=float(member % 2)))
    assert replay.seal(lease.key)
