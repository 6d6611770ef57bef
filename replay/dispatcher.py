"""Leases: who plays what, until when, and which members of a group have come back."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protos.records import Episode, GroupKey, Lease, LeaseKind
from protos.seeding import derive_seed
from replay.config import LeaseConfig
from replay.store import Copy

TaskSource = Callable[[int], str | None]  # task i of the run, the same at every call; None: there are no more


@dataclass(frozen=True, slots=True)
class Task:
    """What a lease is made of. A later attempt has the same seed: it replays the same sampling."""

    kind: LeaseKind
    task_id: str
    repeat: int
    attempt: int
    group_size: int
    seed: int


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A lease that is out, and its members that have arrived, by their index in the group."""

    lease: Lease
    members: dict[int, Copy[Episode]] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return len(self.members) == self.lease.group_size


class Dispatcher:
    """Gives out tasks in order: first those that came back undone, then the next of the run's source.

    `counts` says what became of every lease: leased == open + sealed + short + expired, where `short` groups lacked
    members when they were sealed and `expired` leases left no group. Each of those is tried again or `abandoned`.
    """

    def __init__(self, config: LeaseConfig, run: str, seed: int, group_size: int, source: TaskSource) -> None:
        self.open: dict[GroupKey, OpenGroup] = {}
        self.counts: Counter[str] = Counter()
        self.cursor = 0  # next index into the source
        self.issued = 0  # tasks made so far of both kinds: tells apart two leases of one task
        self.waiting: dict[LeaseKind, deque[Task]] = {"rollout": deque(), "eval": deque()}
        self._config = config
        self._run = run
        self._seed = seed
        self._group_size = group_size
        self._source = source

    def request(self, task_ids: Sequence[str], group_size: int, seed: int) -> None:
        """Queue one evaluation lease a task. Equal seeds give equal samplings: evaluations can be compared in pairs."""
        for i, task_id in enumerate(task_ids):
            task_seed = derive_seed(seed, "eval", i)
            self.waiting["eval"].append(Task("eval", task_id, self._issue(), 0, group_size, task_seed))

    def lease(self, kind: LeaseKind, now: float) -> Lease | None:
        """The next task of `kind`; None where there is none."""
        task = self.waiting[kind].popleft() if self.waiting[kind] else self._draw(kind)
        if task is None:
            return None
        key = GroupKey(self._run, task.task_id, task.repeat, task.attempt)
        lease = Lease(key, kind, task.group_size, task.seed, now + self._config.seconds)
        self.open[key] = OpenGroup(lease)
        self.counts["leased"] += 1
        return lease

    def expired(self, now: float) -> list[OpenGroup]:
        return [group for group in self.open.values() if group.lease.deadline < now]

    def close(self, group: OpenGroup, outcome: str) -> None:
        """Close an open group as `sealed`, `short` or `expired`; an expired one is queued again while attempts last."""
        lease = group.lease
        del self.open[lease.key]
        self.counts[outcome] += 1
        if outcome != "expired":
            return
        if lease.key.attempt + 1 >= self._config.max_attempts:
            self.counts["abandoned"] += 1
            return
        _, task_id, repeat, attempt = lease.key
        self.waiting[lease.kind].append(Task(lease.kind, task_id, repeat, attempt + 1, lease.group_size, lease.seed))

    def check(self) -> None:
        """Assert that every lease is accounted for."""
        closed = self.counts["sealed"] + self.counts["short"] + self.counts["expired"]
        assert self.counts["leased"] == len(self.open) + closed, f"leases: {self.counts} but {len(self.open)} are open"

    def _draw(self, kind: LeaseKind) -> Task | None:
        if kind == "eval":
            return None
        task_id = self._source(self.cursor)
        if task_id is None:
            return None
        seed = derive_seed(self._seed, "rollout", self.cursor)
        self.cursor += 1
        return Task(kind, task_id, self._issue(), 0, self._group_size, seed)

    def _issue(self) -> int:
        self.issued += 1
        return self.issued - 1
