"""One table against a model of lists and dictionaries, under any order of operations."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replay_cases import episode

from protos.errors import DataError
from protos.records import Version
from protos.seeding import generator
from replay.samplers import Fifo, Lowest, Prioritised, TopFraction, Uniform
from replay.store import RECORD_BYTES, Copy, Store, record_bytes
from replay.table import Account, Item, Table

PRIORITY = st.floats(0, 5).map(lambda p: round(p, 3))


def table(store: Store, **bounds: int) -> Table[str]:
    return Table("test", store, Prioritised(1.0, 1.0, 0.01), Fifo(), **bounds)


def item(store: Store, priority: float = 1.0, version: Version = Version(0, 0)) -> Item[str]:  # noqa: B008
    return Item("payload", (store.put(episode()),), version, priority)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1, 1e7])
def test_a_bad_priority_is_refused_and_the_table_still_samples(bad: float):
    store = Store()
    t = table(store)
    t.insert(item(store, 1.0))
    t.insert(item(store, 3.0))
    with pytest.raises(DataError, match="refused"):
        t.insert(item(store, bad))
    with pytest.raises(DataError, match="refused"):
        t.update_priorities([0, 1], [2.0, bad])  # all or none: item 0 keeps its priority
    t.check()
    keys, _ = t.sample(20_000, generator(0, "after"))
    assert Counter(keys)[0] / 20_000 == pytest.approx(0.25, abs=0.01)


def test_updates_of_items_that_have_left_are_passed_over():
    store = Store()
    t = table(store, max_items=1)
    t.insert(item(store))
    t.insert(item(store))
    assert t.update_priorities([0, 1], [2.0, 2.0]) == 1
    assert 0 not in t
    assert t[1].priority == 2.0


def test_bytes_count_each_copy_once_and_bound_the_table():
    store = Store()
    copies = [store.put(episode()) for _ in range(3)]
    size = copies[0].nbytes
    t = table(store, max_bytes=2 * size)
    for copy in copies[:2]:
        for _ in range(3):
            t.insert(Item("payload", (copy,), Version(0, 0), 1.0))
    store.release(copies)
    assert t.nbytes == store.nbytes == 2 * size
    removed = t.insert(Item("payload", (store.put(episode()),), Version(0, 0), 1.0))
    assert [key for key, _ in removed] == [0, 1, 2]  # all three items of the oldest copy had to leave for it
    assert t.account.evicted == {"bytes": 3}
    t.check()


def test_an_item_larger_than_the_table_leaves_at_once():
    store = Store()
    t = table(store, max_bytes=1)
    assert [key for key, _ in t.insert(item(store))] == [0]
    assert len(t) == 0
    assert t.account == Account(inserted=1, evicted=Counter(bytes=1))
    t.check()


def test_bytes_of_a_record_are_its_arrays_and_texts():
    record = episode(tokens=6)
    texts = len("look") + len("you see a mug 1.") + len("s")
    assert record_bytes(record) == 6 * 4 + 2 * 4 + texts + 2 * RECORD_BYTES
    sets = (np.zeros(3, np.int32), np.zeros(2, np.int32))
    constrained = episode(replace(record.sequences[0].transitions[0], allowed=sets), tokens=6)
    assert record_bytes(constrained) == record_bytes(record) + 5 * 4


def test_releasing_a_copy_too_often_is_a_bug_that_shows():
    store = Store()
    copy = store.put(episode())
    store.release([copy])
    with pytest.raises(AssertionError, match="more often than retained"):
        store.release([copy])


class TableModel(RuleBasedStateMachine):
    """The model: item number -> (priority, update, copy number), numbers that are withdrawn, and counters."""

    @initialize(
        sampler=st.sampled_from(["uniform", "prioritised", "top", "fifo"]),
        remover=st.sampled_from(["fifo", "lowest"]),
        max_items=st.integers(1, 8),
        copies=st.integers(1, 5),
    )
    def build(self, sampler: str, remover: str, max_items: int, copies: int) -> None:
        self.kind = sampler
        self.by_priority = remover == "lowest"
        self.max_items, self.max_copies = max_items, copies
        self.store = Store()
        self.pool = [self.store.put(episode(seed=i)) for i in range(6)]
        self.table = self.make()
        self.model: dict[int, tuple[float, int, int]] = {}
        self.withdrawn: set[int] = set()
        self.inserted = self.consumed = 0
        self.evicted: Counter[str] = Counter()

    def make(self) -> Table[int]:
        samplers = {
            "uniform": Uniform,
            "prioritised": lambda: Prioritised(0.7, 0.5, 0.01),
            "top": lambda: TopFraction(0.5),
            "fifo": Fifo,
        }
        remover = Lowest() if self.by_priority else Fifo()
        max_bytes = self.max_copies * self.pool[0].nbytes
        return Table("model", self.store, samplers[self.kind](), remover, max_items=self.max_items, max_bytes=max_bytes)

    def free(self) -> list[int]:
        return sorted(self.model.keys() - self.withdrawn)

    def shrink_model(self) -> list[int]:
        removed = []
        while free := self.free():
            if len(self.model) > self.max_items:
                reason = "items"
            elif len({copy for _, _, copy in self.model.values()}) > self.max_copies:
                reason = "bytes"
            else:
                break
            removed.append(min(free, key=lambda key: (self.model[key][0], key)) if self.by_priority else free[0])
            self.evicted[reason] += 1
            del self.model[removed[-1]]
        return removed

    @rule(priority=PRIORITY, update=st.integers(0, 5), copy=st.integers(0, 5))
    def insert(self, priority: float, update: int, copy: int) -> None:
        removed = self.table.insert(Item(copy, (self.pool[copy],), Version(0, update), priority))
        self.model[self.inserted] = (priority, update, copy)
        self.inserted += 1
        assert [key for key, _ in removed] == self.shrink_model()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), priority=PRIORITY)
    def update_priority(self, data: st.DataObject, priority: float) -> None:
        key = data.draw(st.sampled_from([*self.model, self.inserted]))
        assert self.table.update_priorities([key], [priority]) == (key in self.model)
        if key in self.model:
            self.model[key] = (priority, *self.model[key][1:])

    @precondition(lambda self: self.free())
    @rule(data=st.data(), how=st.sampled_from(["consume", "evict", "withdraw"]))
    def take(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(self.free()))
        if how == "withdraw":
            self.table.withdraw(key)
            self.withdrawn.add(key)
            return
        self.leave(key, how)

    @precondition(lambda self: self.withdrawn)
    @rule(data=st.data(), how=st.sampled_from(["consume", "evict", "give back"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.withdrawn)))
        self.withdrawn.remove(key)
        if how == "give back":
            self.table.give_back(key)
        else:
            self.leave(key, how)

    def leave(self, key: int, how: str) -> None:
        del self.model[key]
        if how == "consume":
            self.table.consume(key)
            self.consumed += 1
        else:
            self.table.evict(key, "test")
            self.evicted["test"] += 1

    @rule(update=st.integers(0, 6))
    def evict_before(self, update: int) -> None:
        old = [key for key in self.free() if self.model[key][1] < update]
        assert [key for key, _ in self.table.evict_before(update, "age")] == old
        for key in old:
            del self.model[key]
        self.evicted["age"] += len(old)
        self.evicted += Counter()  # drops zero counts

    @rule()
    def save_and_restore(self) -> None:
        before = self.table.sample(5, generator(0, "draw"))
        saved, order, account = list(self.table.items()), self.table.order(), self.table.account
        restored = self.make()
        restored.restore(saved, order, account)
        for _, held in saved:
            self.store.release(held.copies)  # the old table is gone
        self.table = restored
        after = self.table.sample(5, generator(0, "draw"))
        assert before[0] == after[0]
        assert np.array_equal(before[1], after[1])

    @rule(count=st.integers(1, 20))
    def sample(self, count: int) -> None:
        keys, importance = self.table.sample(count, generator(count, "sample"))
        free = self.free()
        assert set(keys) <= set(free)
        assert len(keys) == len(importance) == (min(count, len(free)) if self.kind == "fifo" else count * bool(free))
        if self.kind == "fifo":
            assert keys == free[:count]
        if self.kind == "prioritised" and free:
            mass = {key: max(self.model[key][0], 0.01) ** 0.7 for key in free}
            lowest = min(mass.values())
            assert importance == pytest.approx([(lowest / mass[key]) ** 0.5 for key in keys])
        if self.kind == "top" and free:
            size = -(-len(free) // 2)
            assert set(keys) <= set(sorted(free, key=lambda key: (-self.model[key][0], key))[:size])

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        assert self.table.account == Account(self.inserted, self.consumed, self.evicted)
        assert {key: (i.priority, i.version.update, i.payload) for key, i in self.table.items()} == self.model
        held: Counter[int] = Counter(copy for _, _, copy in self.model.values())
        references = {copy.number: copy.references - 1 for copy in self.pool if copy.references > 1}
        assert references == held


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_copies_of_equal_records_are_not_merged():
    store = Store()
    record = episode()
    first, second = store.put(record), store.put(record)
    assert isinstance(first, Copy)
    assert first.number != second.number
    assert len(store) == 2
