"""The replay service: the way of a group from lease to commit, and the cases that go wrong on it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from replay_cases import START, Clock, episode, must_lease, play, service, transition

from protos.errors import DataError
from protos.records import Demonstration, Group, GroupKey, Kind, Span, Version
from protos.seeding import derive_seed, generator
from protos.telemetry import last
from replay.config import Config
from replay.service import Appended, Replay

V = Version


def lease_all(replay: Replay) -> list[GroupKey]:
    keys = []
    while lease := replay.lease("rollout"):
        keys.append(lease.key)
    return keys


def repeats(groups: list[Group]) -> list[int]:
    return [group.key.repeat for group in groups]


# Leases and admission


def test_leases_name_their_work_and_never_share_a_seed():
    clock = Clock()
    replay = service(clock=clock, groups_per_update=2, group_size=3)
    first, second = must_lease(replay), must_lease(replay)
    assert (first.key, second.key) == (GroupKey("run", "t0", 0), GroupKey("run", "t1", 1))
    assert first.group_size == 3
    assert first.deadline == clock.now + 600
    assert (first.seed, second.seed) == (derive_seed(7, "rollout", 0), derive_seed(7, "rollout", 1))


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_admission_keeps_the_bound_of_groups_in_flight(max_staleness: int):
    replay = service(groups_per_update=2, group_size=1, max_staleness=max_staleness)
    bound = (max_staleness + 1) * 2
    started = 0
    for update in range(1, 6):
        keys = lease_all(replay)
        started += len(keys)
        assert started - 2 * (update - 1) == bound  # started - dropped - B * published, filled to the bound
        replay.check()
        for key in keys:
            replay.append(key, 0, episode(transition(version=replay.lineage.published)))
            assert replay.seal(key)
        ages = [update - 1 - group.oldest.update for group in replay.sample_policy(2)]
        assert max(ages) <= max_staleness
        replay.publish(V(0, update))
        replay.check()
    assert replay.info().tables["policy"].evicted == {}


def test_a_refused_lease_says_who_waits_for_what():
    replay = service(groups_per_update=3, group_size=1)
    keys = lease_all(replay)
    replay.append(keys[0], 0, episode())
    replay.seal(keys[0])
    replay.append(keys[1], 0, episode())
    replay.seal(keys[1])
    replay.sample_policy(1)
    text = replay.waits_for("rollout")
    assert "learner to publish a version after 0.0" in text
    assert "admits 3 groups, 1 are acted, 1 wait for the learner and 1 are in its hands" in text
    assert replay.lease("eval") is None
    assert "evaluation to be requested" in replay.waits_for("eval")


def test_an_exhausted_task_source_is_not_mistaken_for_admission():
    replay = Replay(Config(), run="run", seed=0, tasks=lambda i: "only" if i == 0 else None)
    assert lease_all(replay) == [GroupKey("run", "only", 0)]
    assert "the source has no task 1" in replay.waits_for("rollout")


# Partial groups (BC-14)


def hang(replay: Replay, finished: int) -> GroupKey:
    lease = must_lease(replay)
    for member in range(finished):
        replay.append(lease.key, member, episode(task_return=float(member == 0)))
    return lease.key


def test_a_group_that_lacks_a_member_is_sealed_short_at_its_deadline_and_counted():
    clock = Clock()
    replay = service(clock=clock, groups_per_update=1, group_size=4)
    key = hang(replay, 3)
    assert replay.sample_policy(1) == []
    clock.now += 601
    replay.expire()
    (group,) = replay.sample_policy(1)
    assert len(group.episodes) == 3
    assert group.lam == pytest.approx(1 - 1 / 3)  # from the 3 members, not 4
    assert replay.info().leases == {"leased": 1, "short": 1, "open": 0}
    assert replay.append(key, 3, episode()) is Appended.LATE  # member 3 comes back after all
    assert not replay.seal(key)
    assert replay.info().appends["late"] == 1
    replay.check()
    replay.publish(V(0, 1))
    assert replay.lease("rollout") is not None  # the next batch starts


@pytest.mark.parametrize(("settings", "finished"), [({"partial": "drop"}, 3), ({"partial": "train"}, 1)])
def test_a_group_that_may_not_train_short_is_dropped_and_tried_again(settings: dict[str, str], finished: int):
    clock = Clock()
    replay = service(clock=clock, groups_per_update=1, group_size=4, leases=settings)
    first = hang(replay, finished)
    clock.now += 601
    again = must_lease(replay)  # its room is free at once
    assert again.key == GroupKey("run", first.task_id, first.repeat, attempt=1)
    assert again.seed == derive_seed(7, "rollout", 0)
    info = replay.info()
    assert info.leases == {"leased": 2, "expired": 1, "open": 1}
    assert info.appends == {"stored": finished, "discarded": finished}
    assert info.copies == 0
    replay.check()


def test_a_task_that_never_comes_back_is_given_up():
    clock = Clock()
    replay = service(clock=clock, groups_per_update=1, group_size=1, leases={"max_attempts": 2})
    for attempt in range(2):
        assert must_lease(replay).key == GroupKey("run", "t0", 0, attempt)
        clock.now += 601
    assert must_lease(replay).key == GroupKey("run", "t1", 1)
    assert replay.info().leases == {"leased": 3, "expired": 2, "abandoned": 1, "open": 1}
    replay.check()


@pytest.mark.parametrize("bad", [episode(task_return=math.nan), replace(episode(), sequences=())])
def test_an_empty_or_unscored_episode_counts_as_a_member_that_never_came(bad):
    replay = service(groups_per_update=1, group_size=4)
    key = hang(replay, 3)
    assert replay.append(key, 3, bad) is Appended.INVALID
    assert replay.seal(key)
    assert len(replay.sample_policy(1)[0].episodes) == 3
    assert replay.info().leases["short"] == 1
    assert replay.info().appends["invalid"] == 1
    replay.check()


def test_members_may_arrive_in_any_order_and_twice():
    replay = service(groups_per_update=1, group_size=3)
    lease = must_lease(replay)
    for member in (2, 0, 2, 1, 0):
        replay.append(lease.key, member, episode(seed=member))
    assert replay.seal(lease.key)
    assert not replay.seal(lease.key)
    (group,) = replay.sample_policy(5)
    assert [e.seed for e in group.episodes] == [0, 1, 2]
    assert replay.info().appends == {"stored": 3, "duplicate": 2, "grouped": 3}
    assert replay.info().tables["policy"].inserted == 1
    replay.check()


def test_a_member_outside_the_lease_is_refused():
    replay = service(groups_per_update=1, group_size=2)
    with pytest.raises(DataError, match="asks for 2 episodes"):
        replay.append(must_lease(replay).key, 2, episode())


def test_a_finished_group_is_handed_in_whole_and_its_lambda_checked():
    replay = service(groups_per_update=2, group_size=2, reward_max=10.0)
    first, second = must_lease(replay), must_lease(replay)
    episodes = (episode(task_return=10.0), episode(task_return=0.0))
    assert replay.append_group(Group(first.key, episodes, lam=0.5))
    with pytest.raises(DataError, match="reward_max"):
        replay.append_group(Group(second.key, episodes, lam=0.95))
    assert replay.sample_policy(2)[0].lam == 0.5


# The policy table


def test_ten_groups_come_out_exactly_once_whatever_the_reads(tmp_path):
    """BC-33: ask for 4, 4 and 2, with a restart before each read after the first."""
    config = Config(groups_per_update=1, group_size=1, max_staleness=9)
    replay = service(config)
    for key in lease_all(replay):
        replay.append(key, 0, episode())
        replay.seal(key)
    out = repeats(replay.sample_policy(4))
    assert len(replay.tables.policy.order()) == 6
    for i, count in enumerate((4, 2)):
        replay.publish(V(i, replay.lineage.published.update + 1))
        replay.save(tmp_path / str(i))
        replay = service(config)
        replay.restore(tmp_path / str(i), V(i + 1, i + 1))
        out += repeats(replay.sample_policy(count))
    assert out == list(range(10))
    assert replay.sample_policy(1) == []
    replay.publish(V(2, 3))
    replay.commit(V(2, 3))
    policy = replay.info().tables["policy"]
    assert (policy.inserted, policy.consumed, policy.held, policy.evicted) == (10, 10, 0, {})
    replay.check()


def test_ten_groups_without_a_restart():
    replay = service(groups_per_update=10, group_size=1)
    for key in lease_all(replay):
        replay.append(key, 0, episode())
        replay.seal(key)
    assert [repeats(replay.sample_policy(n)) for n in (4, 4, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_age_of_a_group_is_that_of_its_oldest_token():
    """BC-16: begun under 5, gone on under 6; 7 was never in service."""
    replay = Replay(
        Config(groups_per_update=1, group_size=2, max_staleness=1), run="r", seed=0, tasks=str, version=V(0, 5)
    )
    lease = must_lease(replay)
    mixed = transition(runs=((1, V(0, 5)), (1, V(0, 6))))
    replay.publish(V(0, 6))
    replay.append(lease.key, 0, episode(transition(version=V(0, 6))))
    replay.append(lease.key, 1, episode(transition(version=V(0, 6)), mixed))
    assert replay.seal(lease.key)
    assert len(replay.tables.policy) == 1  # 6 - 5 = 1 is within the bound
    replay.publish(V(0, 7))
    assert replay.info().tables["policy"].evicted == {"stale": 1}
    assert replay.info().tables["wm"].held == 3  # the world has not changed: its transitions stay
    replay.check()
    assert replay.lease("rollout") is not None  # an evicted group leaves room


def test_a_group_that_is_stale_when_it_arrives_is_evicted():
    replay = service(groups_per_update=1, group_size=1)
    lease = must_lease(replay)
    replay.publish(V(0, 1))
    play(replay, lease, version=START)
    assert replay.sample_policy(1) == []
    assert replay.info().tables["policy"].evicted == {"stale": 1}
    replay.check()


def test_the_policy_table_gives_way_in_bytes_and_frees_admission():
    replay = service(groups_per_update=2, group_size=1, max_policy_bytes=1200)
    for key in lease_all(replay):
        replay.append(key, 0, episode())
        replay.seal(key)
    assert replay.info().tables["policy"].evicted == {"bytes": 1}
    assert replay.admission.dropped == 1
    replay.check()


def test_sampled_groups_stay_until_commit():
    replay = service(groups_per_update=1, group_size=1, max_staleness=1)
    for update in (1, 2):
        play(replay, must_lease(replay))
        assert len(replay.sample_policy(1)) == 1
        replay.publish(V(0, update))
    assert replay.info().sampled == 2
    replay.commit(V(0, 1))
    assert (replay.info().tables["policy"].consumed, replay.info().sampled) == (1, 1)
    with pytest.raises(DataError, match="before it is published"):
        replay.commit(V(0, 3))
    replay.check()


def test_groups_may_be_prefetched_for_a_later_update():
    replay = service(groups_per_update=1, group_size=1, max_staleness=1)
    for key in lease_all(replay):
        replay.append(key, 0, episode())
        replay.seal(key)
    assert repeats(replay.sample_policy(1)) == [0]
    assert repeats(replay.sample_policy(1, trains=V(0, 2))) == [1]
    replay.publish(V(0, 1))
    assert replay.admission.trained == 1
    replay.commit(V(0, 1))
    assert replay.info().sampled == 1
    with pytest.raises(DataError, match="made already"):
        replay.sample_policy(1, trains=V(0, 1))
    replay.check()


@pytest.mark.parametrize("version", [V(0, 0), V(0, 3), V(0, 2)])
def test_versions_are_published_once_and_in_order(version: Version):
    replay = service()
    replay.publish(V(0, 3))
    with pytest.raises(DataError, match="cannot follow"):
        replay.publish(version)


def test_a_new_incarnation_gets_its_groups_again_and_orphans_are_evicted():
    replay = service(groups_per_update=1, group_size=1, max_staleness=2)
    early = [must_lease(replay) for _ in range(3)]
    for lease in early:
        play(replay, lease)
    replay.sample_policy(1)
    replay.publish(V(0, 1))  # the last checkpoint
    replay.sample_policy(1)
    replay.publish(V(0, 2))
    play(replay, must_lease(replay), version=V(0, 2))  # by weights that the restored learner never had
    replay.check()
    replay.publish(V(1, 1))
    replay.check()
    info = replay.info()
    assert info.tables["policy"].consumed == 1  # it is in the checkpoint
    assert info.tables["policy"].evicted == {"orphan": 1}
    assert repeats(replay.sample_policy(5)) == [1, 2]  # 1 was trained on by the lost update: once more, and in order


def test_an_uncounted_update_in_the_checkpoint_is_counted_at_the_rewind():
    replay = service(groups_per_update=1, group_size=1)
    play(replay, must_lease(replay))
    replay.sample_policy(1)
    replay.publish(V(1, 1))  # the learner saved update 1 and was lost before it could publish it
    assert replay.info().tables["policy"].consumed == 1
    assert replay.admission.in_flight == 0
    replay.check()


# The other tables


def test_only_steps_with_an_observation_reach_the_world_model():
    replay = service(groups_per_update=1, group_size=1)
    lease = must_lease(replay)
    turns = (
        transition(1.0),
        transition(2.0, kind=Kind.QUERY),
        transition(3.0, kind=Kind.REJECTED),
        transition(4.0, observed=False),
        transition(5.0),
    )
    replay.append(lease.key, 0, episode(*turns, task_return=0.25))
    replay.seal(lease.key)
    items = replay.sample_world(200, generator(0, "wm"))
    assert {item.index for item in items} == {0, 4}
    assert {item.lam for item in items} == {0.75}
    assert {item.sequence.transitions[item.index].entropy for item in items} == {1.0, 5.0}
    assert max(item.importance for item in items) == 1.0


def test_world_priorities_can_be_written_anew():
    replay = service(groups_per_update=1, group_size=1, world={"exponent": 1.0})
    lease = must_lease(replay)
    replay.append(lease.key, 0, episode(transition(1.0), transition(1.0)))
    replay.seal(lease.key)
    names = {item.index: item.item_id for item in replay.sample_world(50, generator(0, "names"))}
    assert replay.update_priorities([names[0], names[1], 99], [3.0, 1.0, 1.0]) == 2
    draws = [item.index for item in replay.sample_world(20_000, generator(0, "draws"))]
    assert np.mean(np.array(draws) == 0) == pytest.approx(0.75, abs=0.01)
    with pytest.raises(DataError, match="refused"):
        replay.update_priorities([names[0]], [math.nan])


@pytest.mark.parametrize("sampler", ["prioritised", "top_fraction", "uniform"])
@pytest.mark.parametrize("remover", ["fifo", "lowest"])
def test_the_world_table_is_bounded_in_items(sampler: str, remover: str):
    world = {"sampler": sampler, "remover": remover, "max_items": 3}
    replay = service(groups_per_update=8, group_size=1, world=world)
    for i, key in enumerate(lease_all(replay)):
        replay.append(key, 0, episode(transition(float(8 - i))))
        replay.seal(key)
    held = {item.sequence.transitions[0].entropy for item in replay.sample_world(100, generator(0, "bounded"))}
    best = {8.0, 7.0, 6.0} if remover == "lowest" else {1.0, 2.0, 3.0}
    assert held <= best
    assert replay.info().tables["wm"].evicted == {"items": 5}
    replay.check()


def test_world_transitions_leave_at_their_age():
    replay = service(groups_per_update=1, group_size=1, world={"max_age": 1})
    for update in range(1, 4):
        play(replay, must_lease(replay))
        replay.sample_policy(1)
        replay.publish(V(0, update))
        replay.commit(V(0, update))
    wm = replay.info().tables["wm"]
    assert (wm.held, wm.evicted) == (1, {"age": 2})  # made by 2; those of 0 and 1 are gone
    assert replay.info().copies == 1
    replay.check()


def test_demonstrations_are_drawn_and_stay():
    replay = service(max_demonstrations=2)
    rows = [
        Demonstration(np.arange(4, dtype=np.int32), (Span(0, 2),), (Span(2, 4),), f"d{i}", "expert", True)
        for i in range(3)
    ]
    replay.add_demonstrations(rows)
    drawn = replay.sample_demonstrations(50, generator(0, "demos"))
    assert {row.task_id for row in drawn} == {"d1", "d2"}
    assert replay.info().tables["demos"].evicted == {"items": 1}
    assert replay.info().tables["demos"].held == 2
    replay.check()


def test_evaluation_is_leased_beside_training_and_never_trains():
    clock = Clock()
    replay = service(clock=clock, groups_per_update=1, group_size=1)
    must_lease(replay)  # admission is exhausted
    replay.request_evaluation(["e0", "e1"], group_size=2, seed=5)
    first, second = replay.lease("eval"), replay.lease("eval")
    assert first is not None
    assert second is not None
    assert replay.lease("eval") is None
    assert (first.key.task_id, first.group_size, first.seed) == ("e0", 2, derive_seed(5, "eval", 0))
    for member in range(2):
        replay.append(first.key, member, episode(task_return=1.0))
    assert replay.seal(first.key)
    replay.append(second.key, 0, episode())
    assert not replay.seal(second.key)  # a short evaluation group would weigh its task differently: played again
    again = replay.lease("eval")
    assert again is not None
    assert again.key == second.key._replace(attempt=1)
    assert [group.key for group in replay.take_evaluations()] == [first.key]
    assert replay.take_evaluations() == []
    info = replay.info()
    assert (info.tables["wm"].inserted, info.tables["policy"].inserted) == (0, 0)
    assert (info.tables["eval"].inserted, info.tables["eval"].consumed) == (1, 1)
    replay.check()


def test_metrics_show_the_account_of_every_table():
    replay = service(groups_per_update=1, group_size=2)
    play(replay, must_lease(replay))
    replay.publish(V(0, 1))
    metrics = replay.metrics()
    assert metrics["replay/policy/inserted"] == last(1)
    assert metrics["replay/policy/evicted/stale"] == last(1)
    assert metrics["replay/wm/held"] == last(2)
    assert metrics["replay/leases/sealed"] == last(1)
    assert metrics["replay/appends/stored"] == last(2)
    assert metrics["replay/in_flight"] == last(0)


def test_settings_that_can_never_work_are_refused():
    with pytest.raises(ValidationError, match="max_stale"):
        Config.model_validate({"max_stale": 2})
    with pytest.raises(ValidationError, match="priority_floor"):
        Config.model_validate({"world": {"priority_floor": 0.0}})
