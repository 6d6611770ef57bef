"""The replay service: what an in-process job calls, and what a servicer calls for remote ones.

replay = Replay(config, run="demo", seed=0, tasks=lambda i: task_ids[i])
while lease := replay.lease("rollout"):                      # None: `replay.waits_for("rollout")` says for whom
    for member, episode in enumerate(play(lease)):
        replay.append(lease.key, member, episode)
    replay.seal(lease.key)
groups = replay.sample_policy(config.groups_per_update)      # held for the learner until `commit`
items = replay.sample_world(256, rng)
replay.publish(version)                                      # the update is done: admission opens
replay.save(folder); replay.commit(version)                  # before and after the checkpoint of `version` is durable

One caller at a time: nothing here waits, locks or starts a thread.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np

from protos.errors import DataError
from protos.records import (
    Demonstration,
    Episode,
    Group,
    GroupKey,
    Lease,
    LeaseKind,
    Version,
    WorldItem,
    group_lambda,
)
from protos.telemetry import Metrics
from replay import invariants, state
from replay.admission import Admission
from replay.config import Config
from replay.dispatcher import Dispatcher, OpenGroup, TaskSource
from replay.info import ReplayInfo, table_info, to_metrics
from replay.lineage import Lineage
from replay.store import Store
from replay.table import Item
from replay.tables import StoredGroup, Tables, stored_group


class Appended(StrEnum):
    """What became of an episode that was handed in. All but `stored` change nothing and are counted."""

    STORED = "stored"
    DUPLICATE = "duplicate"  # this member is there already: a retry
    LATE = "late"  # the group is not open: sealed, expired, or of another life of the service
    INVALID = "invalid"  # no sampled token or no finite return: as good as a member that never came back


class Replay:
    """Tables over one store, a dispatcher of leases, and the admission that couples actors to the learner."""

    def __init__(
        self,
        config: Config,
        *,
        run: str,
        seed: int,
        tasks: TaskSource,
        version: Version = Version(0, 0),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.lineage = Lineage(version)
        self.admission = Admission(config.groups_per_update, config.max_staleness)
        self.dispatcher = Dispatcher(config.leases, run, seed, config.group_size, tasks)
        self.store = Store()
        self.tables = Tables(config, self.store)
        self.sampled: dict[int, Version] = {}  # policy items in the learner's hands -> the version that they help make
        self.appends: Counter[str] = Counter()
        self._clock = clock

    # Work for actors

    def lease(self, kind: LeaseKind) -> Lease | None:
        """Work to do now; None where admission or the lack of tasks says no (`waits_for` tells which)."""
        self.expire()
        if kind == "rollout" and not self.admission.open:
            return None
        lease = self.dispatcher.lease(kind, self._clock())
        if lease is not None and kind == "rollout":
            self.admission.started += 1
        return lease

    def waits_for(self, kind: LeaseKind) -> str:
        """Who a `lease` that returned None waits for, in one line."""
        if kind == "eval":
            return "evaluation leases wait for an evaluation to be requested"
        if self.admission.open:
            return f"rollout leases wait for tasks: the source has no task {self.dispatcher.cursor}"
        acting = sum(group.lease.kind == "rollout" for group in self.dispatcher.open.values())
        waiting = len(self.tables.policy) - len(self.sampled)
        return (
            f"rollout leases wait for the learner to publish a version after {self.lineage.published}: "
            f"max_staleness = {self.config.max_staleness} admits {self.admission.bound} groups, {acting} are acted, "
            f"{waiting} wait for the learner and {self.admission.in_flight - acting - waiting} are in its hands"
        )

    def request_evaluation(self, task_ids: Sequence[str], group_size: int, seed: int) -> None:
        """Queue one evaluation lease a task. Equal seeds give equal samplings: evaluations can be compared in pairs."""
        self.dispatcher.request(task_ids, group_size, seed)

    # Episodes from actors

    def append(self, key: GroupKey, member: int, episode: Episode) -> Appended:
        """Hand in member 0 .. group_size - 1 of a lease. Idempotent: the same (key, member) is stored once."""
        self.expire()
        outcome = self._append(key, member, episode)
        self.appends[outcome.value] += 1
        return outcome

    def seal(self, key: GroupKey) -> bool:
        """No member will follow: make the group visible to samplers. True where it now is.

        A group that lacks members follows `leases.partial`. Sealing a group that is not open changes nothing.
        """
        self.expire()
        group = self.dispatcher.open.get(key)
        return group is not None and self._close(group)

    def append_group(self, group: Group) -> bool:
        """`append` each member of a finished group and `seal` it."""
        lam = group_lambda([episode.task_return for episode in group.episodes], self.config.reward_max)
        if math.isfinite(lam) and abs(lam - group.lam) > 1e-9:
            raise DataError(
                f"group {group.key} came with lambda {group.lam}, but its returns give {lam} "
                f"under reward_max = {self.config.reward_max}: set actors and replay to one reward_max"
            )
        for member, episode in enumerate(group.episodes):
            self.append(group.key, member, episode)
        return self.seal(group.key)

    def expire(self) -> None:
        """Close the leases whose deadline has passed, by the rule of `leases.partial`."""
        for group in self.dispatcher.expired(self._clock()):
            self._close(group)

    # Rows for the learner

    def sample_policy(self, count: int, trains: Version | None = None) -> list[Group]:
        """Up to `count` groups, oldest first, each given out once; held for the learner until `commit`.

        `trains` is the version that training on them will make, by default the one after that in service.
        """
        inc, update = self.lineage.published
        trains = Version(inc, update + 1) if trains is None else trains
        if trains <= self.lineage.published:
            raise DataError(f"version {trains} is made already: {self.lineage.published} is in service")
        keys = self.tables.policy.order()[:count]
        for key in keys:
            self.tables.policy.withdraw(key)
            self.sampled[key] = trains
        return [self.tables.policy[key].payload.record() for key in keys]

    def sample_world(self, count: int, rng: np.random.Generator) -> list[WorldItem]:
        """`count` independent draws from the wm table; none where it is empty."""
        keys, importance = self.tables.wm.sample(count, rng)
        wm = self.tables.wm
        return [wm[key].payload.record(weight, key) for key, weight in zip(keys, importance.tolist(), strict=True)]

    def update_priorities(self, item_ids: Sequence[int], priorities: Sequence[float]) -> int:
        """New priorities of wm items (`WorldItem.item_id`); see `Table.update_priorities`."""
        return self.tables.wm.update_priorities(item_ids, priorities)

    def add_demonstrations(self, rows: Iterable[Demonstration]) -> None:
        for row in rows:
            copy = self.store.put(row)
            self.tables.demos.insert(Item(copy, (copy,), self.lineage.published))
            self.store.release((copy,))

    def sample_demonstrations(self, count: int, rng: np.random.Generator) -> list[Demonstration]:
        """`count` independent, even draws."""
        keys, _ = self.tables.demos.sample(count, rng)
        return [self.tables.demos[key].payload.record for key in keys]

    def take_evaluations(self) -> list[Group]:
        """All finished evaluation groups, in the order in which they were sealed; they leave the table."""
        return [self.tables.eval.consume(key).payload.record() for key in self.tables.eval.order()]

    # Versions

    def publish(self, version: Version) -> None:
        """The learner put `version` in service: the groups that made it are trained on, stale ones are evicted.

        A new incarnation, restored from the checkpoint of `version.update`, gets the groups of later updates again.
        """
        previous = self.lineage.published
        if self.lineage.advance(version):
            self._rewind(previous)
        else:
            self.admission.trained += sum(previous < trains <= version for trains in self.sampled.values())
        self._evict_outdated()

    def commit(self, version: Version) -> None:
        """A checkpoint of `version` is durable: the groups that made it will never be needed again."""
        if version > self.lineage.published:
            raise DataError(
                f"version {version} cannot be committed before it is published: {self.lineage.published} is"
            )
        for key in [key for key, trains in self.sampled.items() if trains <= version]:
            self._consume(key)

    # Durability

    def save(self, folder: Path) -> None:
        """Write everything into `folder`, atomically. StorageError where the disk refuses: what was there is intact."""
        state.save(self, folder)

    def restore(self, folder: Path, version: Version) -> list[str]:
        """Fill this new, empty service from `folder`, for a learner restored as `version`.

        `version` is that of its checkpoint, in a new incarnation. Groups that a later update took are given out again,
        in order; leases that were out are closed as if expired. This service's settings win: returns one line for each
        that differs from the stored ones. DataError where the snapshot cannot be used.
        """
        changes = state.load(self, folder)
        previous = self.lineage.published
        if version != previous:
            self.lineage.advance(version)
        self._rewind(previous)
        for group in list(self.dispatcher.open.values()):
            self._close(group)
        for table in self.tables:
            lost = len(table.shrink())
            if table is self.tables.policy:
                self.admission.dropped += lost
        self._evict_outdated()
        return changes

    # Accounts

    def info(self) -> ReplayInfo:
        return ReplayInfo(
            version=self.lineage.published,
            tables={table.name: table_info(table) for table in self.tables},
            leases={**self.dispatcher.counts, "open": len(self.dispatcher.open)},
            appends=dict(self.appends),
            in_flight=self.admission.in_flight,
            sampled=len(self.sampled),
            copies=len(self.store),
            nbytes=self.store.nbytes,
        )

    def metrics(self) -> Metrics:
        return to_metrics(self.info())

    def check(self) -> None:
        """Assert every invariant: items, bytes, leases, episodes, flow control and references all add up."""
        invariants.check(self)

    def _append(self, key: GroupKey, member: int, episode: Episode) -> Appended:
        group = self.dispatcher.open.get(key)
        if group is None:
            return Appended.LATE
        if not 0 <= member < group.lease.group_size:
            raise DataError(f"member {member} of group {key}, whose lease asks for {group.lease.group_size} episodes")
        if member in group.members:
            return Appended.DUPLICATE
        if not (math.isfinite(episode.task_return) and any(t.versions for t in episode.transitions())):
            return Appended.INVALID
        group.members[member] = self.store.put(episode)
        return Appended.STORED

    def _close(self, group: OpenGroup) -> bool:
        """Seal a group, short or whole, or count its lease as expired; True where it was sealed."""
        members = tuple(group.members[i] for i in sorted(group.members))
        leases, rollout = self.config.leases, group.lease.kind == "rollout"
        # A short evaluation group would count its task with another weight: those are played again instead.
        may_train = rollout and leases.partial == "train" and len(members) >= leases.partial_minimum
        outcome = "sealed" if group.full else "short" if may_train else "expired"
        self.dispatcher.close(group, outcome)
        if outcome == "expired":
            self.appends["discarded"] += len(members)
            self.admission.dropped += rollout
        else:
            self.appends["grouped"] += len(members)
            lam = group_lambda([copy.record.task_return for copy in members], self.config.reward_max)
            self._insert(stored_group(group.lease.key, members, lam), group.lease.kind)
        self.store.release(members)
        return outcome != "expired"

    def _insert(self, item: Item[StoredGroup], kind: LeaseKind) -> None:
        if kind == "eval":
            self.tables.eval.insert(item)
            return
        self.admission.dropped += len(self.tables.policy.insert(item))
        self.tables.insert_world(item.payload)
        self._evict_outdated()

    def _consume(self, key: int) -> None:
        self.tables.policy.consume(key)
        del self.sampled[key]

    def _rewind(self, previous: Version) -> None:
        """The learner came back at the update in service: keep what it was given and its weights do not contain."""
        for key, trains in list(self.sampled.items()):
            counted = trains <= previous
            if trains.update <= self.lineage.published.update:
                self.admission.trained += not counted
                self._consume(key)
            else:
                self.admission.trained -= counted
                self.tables.policy.give_back(key)
                del self.sampled[key]

    def _evict_outdated(self) -> None:
        """Evict waiting groups of dead weights (`orphan`) or too far behind (`stale`), and wm items past their age."""
        policy, lineage = self.tables.policy, self.lineage
        for key in policy.order():
            group = policy[key]
            if not all(lineage.alive(version) for version in group.payload.versions):
                policy.evict(key, "orphan")
            elif lineage.age(group.version) > self.config.max_staleness:
                policy.evict(key, "stale")
            else:
                continue
            self.admission.dropped += 1
        if self.config.world.max_age is not None:
            self.tables.wm.evict_before(lineage.published.update - self.config.world.max_age, "age")
