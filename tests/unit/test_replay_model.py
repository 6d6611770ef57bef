"""The whole service against a brute-force model, under any order of leases, appends, faults, updates and restarts."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_cases import Clock, episode, service, transition

from protos.records import GroupKey, Version
from protos.seeding import generator

SECONDS = 10.0


class Model:
    """What should be true, kept the slow and obvious way: one list of groups, each with its state."""

    def __init__(self) -> None:
        self.groups: list[dict] = []  # key, deadline, members {index: update}, state, update, trains

    def in_state(self, *states: str) -> list[dict]:
        return [group for group in self.groups if group["state"] in states]

    def find(self, key: GroupKey) -> dict:
        return next(group for group in self.groups if group["key"] == key)


class ReplayModel(RuleBasedStateMachine):
    @initialize(
        batch=st.integers(1, 3),
        size=st.integers(1, 3),
        staleness=st.integers(0, 2),
        partial=st.sampled_from(["train", "drop"]),
        attempts=st.integers(1, 3),
    )
    def build(self, batch: int, size: int, staleness: int, partial: str, attempts: int) -> None:
        self.clock = Clock()
        self.batch, self.size, self.staleness, self.attempts = batch, size, staleness, attempts
        self.partial = partial
        self.settings = {
            "groups_per_update": batch,
            "group_size": size,
            "max_staleness": staleness,
            "leases": {"seconds": SECONDS, "partial": partial, "partial_minimum": 2, "max_attempts": attempts},
            "world": {"max_items": 20},
        }
        self.replay = service(clock=self.clock, **self.settings)
        self.model = Model()
        self.version = Version(0, 0)
        self.checkpoint = 0  # update of the learner's last checkpoint
        self.sealed = 0
        self.transitions = 0
        self.retries: list[GroupKey] = []
        self.next_task = 0

    # The model's own rules

    def close(self, group: dict) -> bool:
        count = len(group["members"])
        if count == self.size or (self.partial == "train" and count >= 2):
            group["state"], group["sealed"] = "waiting", self.sealed
            group["update"] = min(group["members"].values())
            self.sealed += 1
            self.transitions += count
            self.evict()
            return True
        group["state"] = "dropped"
        if group["key"].attempt + 1 < self.attempts:
            self.retries.append(group["key"]._replace(attempt=group["key"].attempt + 1))
        return False

    def expire(self) -> None:
        for group in self.model.in_state("open"):
            if group["deadline"] < self.clock.now:
                self.close(group)

    def evict(self) -> None:
        for group in self.model.in_state("waiting"):
            if group["dead"]:
                group["state"] = "orphan"
            elif self.version.update - group["update"] > self.staleness:
                group["state"] = "stale"

    def waiting(self) -> list[dict]:
        return sorted(self.model.in_state("waiting"), key=lambda group: group["sealed"])

    def in_flight(self) -> int:
        untrained = [g for g in self.model.in_state("sampled") if g["trains"] > self.version.update]
        return len(self.model.in_state("open", "waiting")) + len(untrained)

    # What actors do

    @rule()
    def lease(self) -> None:
        lease = self.replay.lease("rollout")
        self.expire()
        assert (lease is not None) == (self.in_flight() < (self.staleness + 1) * self.batch)
        if lease is None:
            assert "learner to publish" in self.replay.waits_for("rollout")
            return
        if self.retries:
            expected = self.retries.pop(0)
        else:
            expected = GroupKey("run", f"t{self.next_task}", self.next_task)
            self.next_task += 1
        assert lease.key == expected
        self.model.groups.append(
            {"key": lease.key, "deadline": self.clock.now + SECONDS, "members": {}, "state": "open", "dead": False}
        )

    @precondition(lambda self: self.model.groups)
    @rule(data=st.data(), lag=st.integers(0, 2), member=st.integers(0, 2))
    def append(self, data: st.DataObject, lag: int, member: int) -> None:
        group = data.draw(st.sampled_from(self.model.groups))
        member %= self.size
        update = max(0, self.version.update - lag)
        version = Version(self.version.incarnation, update)
        outcome = self.replay.append(group["key"], member, episode(transition(version=version)))
        self.expire()
        if group["state"] != "open":
            assert outcome == "late"
        elif member in group["members"]:
            assert outcome == "duplicate"
        else:
            assert outcome == "stored"
            group["members"][member] = update

    @precondition(lambda self: self.model.in_state("open"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.model.in_state("open")))
        for member in range(self.size):
            self.replay.append(group["key"], member, episode(transition(version=self.version)))
            self.expire()
            if group["state"] == "open":
                group["members"].setdefault(member, self.version.update)
        self.seal(group)

    @precondition(lambda self: self.model.groups)
    @rule(data=st.data())
    def seal_any(self, data: st.DataObject) -> None:
        self.seal(data.draw(st.sampled_from(self.model.groups)))

    def seal(self, group: dict) -> None:
        sealed = self.replay.seal(group["key"])
        self.expire()
        assert sealed == (group["state"] == "open" and self.close(group))

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    # What the learner does

    @rule(count=st.integers(1, 4))
    def sample(self, count: int) -> None:
        groups = self.replay.sample_policy(count)
        expected = self.waiting()[:count]
        assert [group.key for group in groups] == [group["key"] for group in expected]
        for group, mine in zip(groups, expected, strict=True):
            assert len(group.episodes) == len(mine["members"])
            mine["state"], mine["trains"] = "sampled", self.version.update + 1

    @rule()
    def publish(self) -> None:
        self.version = Version(self.version.incarnation, self.version.update + 1)
        self.replay.publish(self.version)
        self.evict()

    @rule()
    def commit(self) -> None:
        self.replay.commit(self.version)
        self.checkpoint = self.version.update
        for group in self.model.in_state("sampled"):
            if group["trains"] <= self.version.update:
                group["state"] = "consumed"

    @rule()
    def lose_the_learner(self) -> None:
        self.return_from_checkpoint()
        self.replay.publish(self.version)
        self.evict()

    @rule()
    def restart_everything(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.replay.save(Path(folder))
            self.replay = service(clock=self.clock, **self.settings)
            self.return_from_checkpoint()
            assert self.replay.restore(Path(folder), self.version) == []
        for group in self.model.in_state("open"):
            self.close(group)
        self.evict()

    def return_from_checkpoint(self) -> None:
        self.version = Version(self.version.incarnation + 1, self.checkpoint)
        for group in self.model.groups:
            group["dead"] = group["dead"] or max(group["members"].values(), default=0) > self.checkpoint
        for group in self.model.in_state("sampled"):
            group["state"] = "waiting" if group["trains"] > self.checkpoint else "consumed"

    @rule(count=st.integers(1, 5))
    def sample_world(self, count: int) -> None:
        items = self.replay.sample_world(count, generator(count, "model"))
        assert len(items) == (count if self.transitions else 0)
        assert all(0 < item.importance <= 1 for item in items)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "replay"):
            return
        self.replay.check()
        info = self.replay.info()
        policy, evicted = info.tables["policy"], info.tables["policy"].evicted
        assert policy.inserted == self.sealed
        assert policy.held == len(self.model.in_state("waiting", "sampled"))
        assert policy.consumed == len(self.model.in_state("consumed"))
        for reason in ("stale", "orphan"):
            assert evicted.get(reason, 0) == len(self.model.in_state(reason))
        assert info.in_flight == self.in_flight()
        assert info.leases["open"] == len(self.model.in_state("open"))
        assert info.leases.get("expired", 0) == len(self.model.in_state("dropped"))
        assert info.tables["wm"].inserted == self.transitions
        assert info.tables["wm"].held == min(20, self.transitions)


TestReplayModel = ReplayModel.TestCase
TestReplayModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
