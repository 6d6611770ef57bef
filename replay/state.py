"""The replay service to and from a snapshot.

Records are stored once each, in the codec's form; items name them by number. Samplers are stored as the order of their
keys and rebuilt from priorities, so that a snapshot outlives a change of sampler, exponent or bound.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from protos import codec
from protos.errors import DataError
from protos.records import Demonstration, Episode, GroupKey, Lease, LeaseKind, Version
from replay import snapshot
from replay.dispatcher import OpenGroup, Task
from replay.lineage import Lineage
from replay.store import Copy
from replay.table import Account, Item, Table
from replay.tables import StoredGroup, StoredTransition

if TYPE_CHECKING:
    from replay.service import Replay


class TableState(BaseModel, extra="forbid", frozen=True):
    inserted: int
    consumed: int
    evicted: dict[str, int]
    order: list[int]


class GroupItem(BaseModel, extra="forbid", frozen=True):
    key: int
    group: GroupKey
    members: list[int]
    lam: float
    versions: list[Version]
    version: Version


class TransitionItem(NamedTuple):
    """A row of numbers: a snapshot may hold a hundred thousand."""

    key: int
    copy: int
    sequence: int
    position: int
    lam: float
    priority: float
    incarnation: int
    update: int


class OpenLease(BaseModel, extra="forbid", frozen=True):
    lease: Lease
    members: list[tuple[int, int]]  # index in the group, copy


class State(BaseModel, extra="forbid", frozen=True):
    """The header of a snapshot."""

    format: Literal[1] = 1
    settings: dict[str, Any]
    version: Version
    starts: dict[int, int]
    admission: tuple[int, int, int]  # started, dropped, trained
    cursor: int
    issued: int
    leases: dict[str, int]
    waiting: dict[LeaseKind, list[Task]]
    open: list[OpenLease]
    appends: dict[str, int]
    sampled: dict[int, Version]
    copies: list[tuple[int, Literal["episode", "demonstration"]]]  # in the order of the records
    next_copy: int
    tables: dict[str, TableState]
    policy: list[GroupItem]
    eval: list[GroupItem]
    wm: list[TransitionItem]
    demos: list[tuple[int, int]]  # key, copy


def save(replay: "Replay", folder: Path) -> None:
    copies = list(replay.store)
    header = _state(replay, copies).model_dump_json().encode()
    snapshot.write(folder, header, (codec.encode(copy.record) for copy in copies))


def load(replay: "Replay", folder: Path) -> list[str]:
    """Fill a new service; returns the settings that differ, one line each."""
    assert len(replay.store) == replay.dispatcher.issued == 0, "restore fills a new service only"
    with snapshot.read(folder) as (header, records):
        try:
            stored = State.model_validate_json(header)
        except ValidationError as error:
            raise DataError(f"the snapshot in {folder} is damaged or of another version of Tandem: {error}") from error
        copies = _load_copies(replay, stored, records, folder)
    _load_counters(replay, stored)
    _load_tables(replay, stored, copies)
    replay.store.release(copies.values())
    return _changes(stored.settings, replay.config.model_dump(mode="json"))


def _changes(stored: dict[str, Any], now: dict[str, Any], prefix: str = "replay.") -> list[str]:
    lines: list[str] = []
    for name, value in now.items():
        before = stored.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            lines += _changes(before, value, f"{prefix}{name}.")
        elif before != value:
            lines.append(f"{prefix}{name}: stored {before}, now {value}")
    return lines


def _state(replay: "Replay", copies: list[Copy]) -> State:
    tables, dispatcher, admission = replay.tables, replay.dispatcher, replay.admission
    return State(
        settings=replay.config.model_dump(mode="json"),
        version=replay.lineage.published,
        starts=replay.lineage.starts,
        admission=(admission.started, admission.dropped, admission.trained),
        cursor=dispatcher.cursor,
        issued=dispatcher.issued,
        leases=dispatcher.counts,
        waiting={kind: list(tasks) for kind, tasks in dispatcher.waiting.items()},
        open=[
            OpenLease(lease=group.lease, members=[(i, copy.number) for i, copy in group.members.items()])
            for group in dispatcher.open.values()
        ],
        appends=replay.appends,
        sampled=replay.sampled,
        copies=[(c.number, "episode" if isinstance(c.record, Episode) else "demonstration") for c in copies],
        next_copy=replay.store.next_number,
        tables={table.name: _table_state(table) for table in tables},
        policy=[_group_item(key, item) for key, item in tables.policy.items()],
        eval=[_group_item(key, item) for key, item in tables.eval.items()],
        wm=[_transition_item(key, item) for key, item in tables.wm.items()],
        demos=[(key, item.payload.number) for key, item in tables.demos.items()],
    )


def _table_state(table: Table) -> TableState:
    account = table.account
    return TableState(
        inserted=account.inserted, consumed=account.consumed, evicted=account.evicted, order=table.order()
    )


def _group_item(key: int, item: Item[StoredGroup]) -> GroupItem:
    group = item.payload
    return GroupItem(
        key=key,
        group=group.key,
        members=[copy.number for copy in group.members],
        lam=group.lam,
        versions=sorted(group.versions),
        version=item.version,
    )


def _transition_item(key: int, item: Item[StoredTransition]) -> TransitionItem:
    at = item.payload
    return TransitionItem(key, at.episode.number, at.sequence, at.index, at.lam, item.priority, *item.version)


def _load_copies(replay: "Replay", stored: State, records: Iterator[bytes], folder: Path) -> dict[int, Copy[Any]]:
    copies: dict[int, Copy[Any]] = {}
    for (number, kind), data in zip(stored.copies, records, strict=False):
        record = codec.decode(Episode, data) if kind == "episode" else codec.decode(Demonstration, data)
        copies[number] = replay.store.put(record, number)
    if len(copies) != len(stored.copies) or next(records, None) is not None:
        raise DataError(f"the snapshot in {folder} holds another number of records than its header says")
    replay.store.next_number = stored.next_copy
    return copies


def _load_counters(replay: "Replay", stored: State) -> None:
    dispatcher, admission = replay.dispatcher, replay.admission
    replay.lineage = Lineage(stored.version, stored.starts)
    admission.started, admission.dropped, admission.trained = stored.admission
    dispatcher.cursor, dispatcher.issued = stored.cursor, stored.issued
    dispatcher.counts = Counter(stored.leases)
    for kind, tasks in stored.waiting.items():
        dispatcher.waiting[kind].extend(tasks)
    replay.appends = Counter(stored.appends)
    replay.sampled = dict(stored.sampled)


def _load_tables(replay: "Replay", stored: State, copies: dict[int, Copy[Any]]) -> None:
    tables = replay.tables
    for lease in stored.open:
        members = {i: copies[number] for i, number in lease.members}
        replay.store.retain(members.values())
        replay.dispatcher.open[lease.lease.key] = OpenGroup(lease.lease, members)
    for table, groups in ((tables.policy, stored.policy), (tables.eval, stored.eval)):
        _load_table(table, ((row.key, _load_group(row, copies)) for row in groups), stored)
    _load_table(tables.wm, ((row.key, _load_transition(row, copies)) for row in stored.wm), stored)
    demos = ((key, Item(copies[n], (copies[n],), stored.version)) for key, n in stored.demos)
    _load_table(tables.demos, demos, stored)


def _load_table(table: Table, items: Iterator[tuple[int, Item]], stored: State) -> None:
    state = stored.tables[table.name]
    table.restore(items, state.order, Account(state.inserted, state.consumed, Counter(state.evicted)))


def _load_group(row: GroupItem, copies: dict[int, Copy[Any]]) -> Item[StoredGroup]:
    members = tuple(copies[number] for number in row.members)
    return Item(StoredGroup(row.group, members, row.lam, frozenset(row.versions)), members, row.version)


def _load_transition(row: TransitionItem, copies: dict[int, Copy[Any]]) -> Item[StoredTransition]:
    copy = copies[row.copy]
    payload = StoredTransition(copy, row.sequence, row.position, row.lam)
    return Item(payload, (copy,), Version(row.incarnation, row.update), row.priority)
