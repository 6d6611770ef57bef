"""Snapshots: what survives a restart, what a full disk or a killed writer leaves behind, and what is refused."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_cases import Clock, episode, must_lease, play, service, transition

from protos.errors import DataError, StorageError
from protos.records import Demonstration, GroupKey, Span, Version
from protos.seeding import generator
from replay import snapshot
from replay.service import Replay

V = Version


def busy(clock: Clock | None = None, **settings: object) -> Replay:
    """A service with something in every place: each table, the learner's hands, an open lease, queued evaluations."""
    config = {"groups_per_update": 2, "group_size": 2, "max_staleness": 2, **settings}
    replay = service(clock=clock, **config)
    for _ in range(4):
        play(replay, must_lease(replay), entropy=0.5 + replay.dispatcher.issued)
    replay.sample_policy(2)
    replay.publish(V(0, 1))
    replay.request_evaluation(["e0", "e1"], 1, seed=3)
    evaluation = replay.lease("eval")
    assert evaluation is not None
    replay.append(evaluation.key, 0, episode())
    replay.seal(evaluation.key)
    replay.add_demonstrations(
        [Demonstration(np.arange(3, dtype=np.int32), (Span(0, 1),), (Span(1, 3),), "d", "expert", True)]
    )
    must_lease(replay)
    replay.append(must_lease(replay).key, 0, episode())
    return replay


def restored(folder: Path, version: Version = V(1, 1), **settings: object) -> Replay:  # noqa: B008
    replay = service(**{"groups_per_update": 2, "group_size": 2, "max_staleness": 2, **settings})
    replay.restore(folder, version)
    replay.check()
    return replay


def test_a_restored_service_goes_on_where_the_saved_one_stood(tmp_path):
    replay = busy()
    replay.check()
    replay.save(tmp_path)
    other = restored(tmp_path)
    before, after = replay.info(), other.info()
    assert after.version == V(1, 1)
    for name in ("wm", "demos", "eval"):
        assert after.tables[name] == before.tables[name]
    # The two groups of update 1 are in the learner's checkpoint.
    assert (before.tables["policy"].consumed, after.tables["policy"].consumed) == (0, 2)
    # Leases that were out are closed: none had two members, so both are tried again, before new tasks.
    assert before.leases == {"leased": 7, "sealed": 5, "open": 2}
    assert after.leases == {"leased": 7, "sealed": 5, "expired": 2, "open": 0}
    assert must_lease(other).key == GroupKey("run", "t4", 6, attempt=1)
    assert must_lease(other).key == GroupKey("run", "t5", 7, attempt=1)
    evaluation = other.lease("eval")
    assert evaluation is not None
    assert evaluation.key.task_id == "e1"
    other.check()


def test_a_restored_service_draws_the_same_numbers_now_and_later(tmp_path):
    """The order of a sampler that has lost items to its bound, and what it makes of new ones, outlive the restart."""
    world = {"max_items": 5, "remover": "lowest"}
    replay = busy(world=world)
    key = min(replay.dispatcher.open)  # no member of it has come back yet: leased again after the restart
    replay.save(tmp_path)
    other = restored(tmp_path, world=world)
    other_key = must_lease(other).key
    assert other_key == key._replace(attempt=1)
    for name in range(4):
        ours, theirs = (r.sample_world(50, generator(name, "same")) for r in (replay, other))
        assert [(i.item_id, i.importance, i.lam, i.index) for i in ours] == [
            (i.item_id, i.importance, i.lam, i.index) for i in theirs
        ]
        if name == 1:
            for r, k in ((replay, key), (other, other_key)):
                for member in range(2):
                    r.append(k, member, episode(transition(2.0), transition(0.1), transition(7.0)))
                assert r.seal(k)


def test_groups_of_a_later_update_are_given_out_again_in_order(tmp_path):
    replay = busy()
    taken = [group.key for group in replay.sample_policy(2)]
    replay.publish(V(0, 2))
    replay.save(tmp_path)
    other = restored(tmp_path, V(1, 1))  # the learner's last checkpoint holds update 1
    assert [group.key for group in other.sample_policy(5)] == taken
    assert other.admission.in_flight == 2
    other.check()


def test_a_group_that_hung_when_saved_is_closed_at_the_restart(tmp_path):
    """BC-14: the same batch must not stick again."""
    replay = service(groups_per_update=1, group_size=4)
    lease = must_lease(replay)
    for member in range(3):
        replay.append(lease.key, member, episode(seed=member))
    replay.save(tmp_path)
    other = service(groups_per_update=1, group_size=4)
    assert other.restore(tmp_path, V(0, 0)) == []
    (group,) = other.sample_policy(1)
    assert [e.seed for e in group.episodes] == [0, 1, 2]
    assert other.info().leases["short"] == 1
    other.check()


def test_new_settings_win_and_are_told(tmp_path):
    """BC-41: saved under a loose limit by a service whose learner never came; restarted under a tight one."""
    replay = service(groups_per_update=4, group_size=1, max_staleness=4)
    for _ in range(20):
        play(replay, must_lease(replay))
    assert replay.lease("rollout") is None
    replay.save(tmp_path)
    other = service(groups_per_update=1, group_size=1, max_staleness=0, leases={"seconds": 5.0})
    changes = other.restore(tmp_path, V(0, 0))
    assert changes == [
        "replay.groups_per_update: stored 4, now 1",
        "replay.max_staleness: stored 4, now 0",
        "replay.leases.seconds: stored 600.0, now 5.0",
    ]
    other.check()
    assert "admits 1 groups, 0 are acted, 20 wait" in other.waits_for("rollout")  # refused at once, and told why
    trained = 0
    for update in range(1, 101):  # the flow goes on: the backlog is trained or evicted, then 100 updates of one group
        if other.admission.open:
            play(other, must_lease(other))
        trained += len(other.sample_policy(1))
        other.publish(V(0, update))
        other.commit(V(0, update))
        other.check()
    policy = other.info().tables["policy"]
    assert policy.consumed == trained == 100
    assert policy.evicted == {"stale": 19}


def test_new_bounds_hold_at_once(tmp_path):
    replay = busy()
    replay.save(tmp_path)
    other = restored(tmp_path, world={"max_items": 3})
    assert other.info().tables["wm"].held == 3
    small = restored(tmp_path, max_policy_bytes=1)
    assert small.info().tables["policy"].evicted == {"bytes": 2}


@pytest.mark.parametrize("sampler", ["prioritised", "top_fraction", "uniform"])
def test_twenty_four_rows_of_a_hundred_keep_their_shares(tmp_path, sampler: str):
    world = {"max_items": 100, "sampler": sampler}
    replay = service(groups_per_update=24, group_size=1, world=world)
    for i in range(24):
        lease = must_lease(replay)
        replay.append(lease.key, 0, episode(transition(0.1 * i)))
        replay.seal(lease.key)
    replay.save(tmp_path)
    other = service(groups_per_update=24, group_size=1, world=world)
    other.restore(tmp_path, V(0, 0))
    assert other.info().tables["wm"].held == 24
    counts = [
        np.bincount([item.item_id for item in r.sample_world(20_000, generator(i, "shares"))], minlength=24) / 20_000
        for i, r in enumerate((replay, other))
    ]
    assert np.abs(counts[0] - counts[1]).max() < 0.02


def test_a_learner_cannot_come_back_as_its_own_past(tmp_path):
    busy().save(tmp_path)
    with pytest.raises(DataError, match="cannot follow"):
        service(group_size=2).restore(tmp_path, V(0, 0))


def test_a_used_service_is_not_filled(tmp_path):
    busy().save(tmp_path)
    with pytest.raises(AssertionError, match="new service"):
        busy().restore(tmp_path, V(1, 1))


# The file


class FullDisk:
    """A file that takes so many bytes and then refuses like a full disk."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return self.file.write(data)

    def __getattr__(self, name: str):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_a_full_disk_leaves_the_previous_snapshot(tmp_path, monkeypatch):
    busy().save(tmp_path)
    before = (tmp_path / snapshot.FILE).read_bytes()
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: FullDisk(real(self, *a, **k), 100))
    with pytest.raises(StorageError, match=r"replay\.zst: No space left on device.*intact"):
        busy().save(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / snapshot.FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [snapshot.FILE]
    restored(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        busy().save(tmp_path / "file" / "folder")


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test catches it."""


@pytest.mark.parametrize("where", [(os, "fsync"), (Path, "replace"), (zstandard, "ZstdCompressor")])
def test_a_writer_killed_at_any_step_leaves_the_previous_snapshot(tmp_path, monkeypatch, where):
    busy().save(tmp_path)
    before = (tmp_path / snapshot.FILE).read_bytes()

    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(*where, kill)
    with pytest.raises(Killed):
        busy().save(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / snapshot.FILE).read_bytes() == before
    restored(tmp_path)


def test_what_a_killed_writer_left_is_ignored_and_replaced(tmp_path):
    busy().save(tmp_path)
    (tmp_path / "replay.partial").write_bytes(b"half a snapsh")
    restored(tmp_path)
    busy().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [snapshot.FILE]
    restored(tmp_path)


def test_a_folder_without_a_snapshot_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a replay snapshot"):
        service().restore(tmp_path, V(0, 0))


def test_a_snapshot_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    busy().save(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        restored(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not zstandard at all"])
def test_a_file_of_another_kind_is_refused(tmp_path, content: bytes):
    (tmp_path / snapshot.FILE).write_bytes(content)
    with pytest.raises(DataError, match=r"replay\.zst"):
        service().restore(tmp_path, V(0, 0))


def test_a_header_of_another_format_is_refused(tmp_path):
    snapshot.write(tmp_path, b'{"format": 2}', [])
    with pytest.raises(DataError, match="another version of Tandem"):
        service().restore(tmp_path, V(0, 0))


@pytest.mark.parametrize("change", ["drop", "add"])
def test_a_snapshot_with_another_number_of_records_is_refused(tmp_path, change: str):
    busy().save(tmp_path)
    with snapshot.read(tmp_path) as (header, frames):
        records = list(frames)
    snapshot.write(tmp_path, header, records[:-1] if change == "drop" else [*records, records[-1]])
    with pytest.raises(DataError, match="another number of records"):
        restored(tmp_path)


def test_the_content_carries_a_checksum(tmp_path):
    busy().save(tmp_path)
    assert zstandard.get_frame_parameters((tmp_path / snapshot.FILE).read_bytes()).has_checksum


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused_and_never_half_used(tmp_path, data):
    busy().save(tmp_path)
    path = tmp_path / snapshot.FILE
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 5))])  # more than the checksum is missing
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :])
    replay = service(group_size=2)
    try:
        replay.restore(tmp_path, V(1, 1))
    except DataError:
        return
    replay.check()  # the flip hit a bit without meaning: the checksum vouches for the content
    assert replay.info().tables["wm"].held == busy().info().tables["wm"].held


@pytest.mark.parametrize("content", [(1 << 40).to_bytes(8, "little"), (50).to_bytes(8, "little") + b"short", b"\1\0"])
def test_a_record_longer_than_the_file_is_refused(tmp_path, content: bytes):
    (tmp_path / snapshot.FILE).write_bytes(zstandard.ZstdCompressor().compress(content))
    with pytest.raises(DataError, match=r"damaged|cut short"):
        service().restore(tmp_path, V(0, 0))
