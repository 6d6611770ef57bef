"""What always holds of the replay service, whatever was done to it and whatever failed."""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.service import Replay


def check(replay: "Replay") -> None:
    """AssertionError where an item, a byte, a lease, an episode or a reference is not accounted for."""
    for table in replay.tables:
        table.check()
    replay.dispatcher.check()
    _check_episodes(replay)
    _check_flow(replay)
    _check_references(replay)


def _check_episodes(replay: "Replay") -> None:
    """stored == in open groups + grouped + discarded"""
    appends = replay.appends
    members = sum(len(group.members) for group in replay.dispatcher.open.values())
    assert appends["stored"] == members + appends["grouped"] + appends["discarded"], f"episodes: {appends}"


def _check_flow(replay: "Replay") -> None:
    """Admission's counters agree with the groups that exist: being acted, waiting, or sampled for an update to come."""
    acting = sum(group.lease.kind == "rollout" for group in replay.dispatcher.open.values())
    trained = sum(trains <= replay.lineage.published for trains in replay.sampled.values())
    expected = acting + len(replay.tables.policy) - trained
    assert replay.admission.in_flight == expected, f"{replay.admission} but {expected} groups are in flight"


def _check_references(replay: "Replay") -> None:
    """The store holds what open groups and items refer to, counts it right, and nothing else."""
    references: Counter[int] = Counter()
    for group in replay.dispatcher.open.values():
        references.update(copy.number for copy in group.members.values())
    for table in replay.tables:
        references.update(copy.number for _, item in table.items() for copy in item.copies)
    assert references == {copy.number: copy.references for copy in replay.store}, "references out of step"
    assert replay.store.nbytes == sum(copy.nbytes for copy in replay.store), "the store's bytes out of step"
