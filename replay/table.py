"""A table: items that refer to stored copies, a sampler and a remover chosen apart, bounds, an account of each item."""

import math
from collections import Counter
from collections.abc import ItemsView, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from protos.errors import DataError
from protos.records import Version
from replay.samplers import Remover, Sampler
from replay.store import Copy, Store
from replay.sumtree import FloatArray

P = TypeVar("P")

MAX_PRIORITY = 1e6  # far above any entropy; its powers stay finite


@dataclass(slots=True, eq=False)
class Item(Generic[P]):
    """What a table holds: a payload that points into `copies`. `version` is the oldest that had a part in it."""

    payload: P
    copies: tuple[Copy, ...]
    version: Version
    priority: float = 0.0


@dataclass(slots=True)
class Account:
    """Where the items of a table went. Always: inserted == held + consumed + sum(evicted)."""

    inserted: int = 0
    consumed: int = 0
    evicted: Counter[str] = field(default_factory=Counter)

    @property
    def held(self) -> int:
        return self.inserted - self.consumed - self.evicted.total()


class Table(Generic[P]):
    """Items numbered in the order of arrival, bounded in number and in bytes of the distinct copies they keep alive."""

    def __init__(
        self,
        name: str,
        store: Store,
        sampler: Sampler,
        remover: Remover,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.account = Account()
        self.nbytes = 0
        self._store = store
        self._sampler = sampler
        self._remover = remover
        self._max_items = math.inf if max_items is None else max_items
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._items: dict[int, Item[P]] = {}
        self._withdrawn: set[int] = set()
        self._pins: Counter[int] = Counter()  # copy number -> items that refer to it
        self._versions: dict[Version, set[int]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: int) -> Item[P]:
        return self._items[key]

    def __contains__(self, key: int) -> bool:
        return key in self._items

    def items(self) -> ItemsView[int, Item[P]]:
        """Keys and items in the order of arrival."""
        return self._items.items()

    def insert(self, item: Item[P]) -> list[tuple[int, Item[P]]]:
        """Add an item. Returns what had to leave for it, removed `items` or `bytes`: perhaps the item itself."""
        check_priority(item.priority)
        self._add(self.account.inserted, item)
        self.account.inserted += 1
        return self.shrink()

    def shrink(self) -> list[tuple[int, Item[P]]]:
        """Let the remover's choices leave until the bounds hold. Withdrawn items stay: they are in a reader's hands."""
        removed: list[tuple[int, Item[P]]] = []
        while len(self._items) > len(self._withdrawn):
            reason = "items" if len(self._items) > self._max_items else "bytes"
            if reason == "bytes" and self.nbytes <= self._max_bytes:
                break
            key = self._remover.choose()
            removed.append((key, self.evict(key, reason)))
        return removed

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[int], FloatArray]:
        """Up to `count` keys by the sampler's rule, with importance weights; the items stay."""
        return self._sampler.sample(count, rng)

    def update_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> int:
        """Write new priorities, all or, where one is not a number from 0 to MAX_PRIORITY, none (DataError).

        Keys that have left in the meantime are passed over. Returns how many were written.
        """
        for priority in priorities:
            check_priority(priority)
        written = 0
        for key, priority in zip(keys, priorities, strict=True):
            if key not in self._items:
                continue
            self._items[key].priority = float(priority)
            if key not in self._withdrawn:
                self._sampler.update(key, float(priority))
                self._remover.update(key, float(priority))
            written += 1
        return written

    def withdraw(self, key: int) -> None:
        """Take an item out of the sampler's and the remover's sight; it is still held."""
        self._sampler.delete(key)
        self._remover.delete(key)
        self._withdrawn.add(key)

    def give_back(self, key: int) -> None:
        """Undo `withdraw`: the item takes its old place."""
        self._withdrawn.remove(key)
        self._sampler.insert(key, self._items[key].priority)
        self._remover.insert(key, self._items[key].priority)

    def consume(self, key: int) -> Item[P]:
        self.account.consumed += 1
        return self._remove(key)

    def evict(self, key: int, reason: str) -> Item[P]:
        self.account.evicted[reason] += 1
        return self._remove(key)

    def evict_before(self, update: int, reason: str) -> list[tuple[int, Item[P]]]:
        """Evict what was made by versions of an earlier `update`, except what is withdrawn."""
        keys = [
            k for version, held in self._versions.items() if version.update < update for k in held - self._withdrawn
        ]
        return [(key, self.evict(key, reason)) for key in sorted(keys)]

    def order(self) -> list[int]:
        """Keys as the sampler holds them, for a snapshot; withdrawn ones are left out."""
        return self._sampler.order()

    def restore(self, items: Iterable[tuple[int, Item[P]]], order: Sequence[int], account: Account) -> None:
        """Fill an empty table as it was saved; what is not in `order` comes back withdrawn. Its own bounds hold."""
        self.account = account
        listed = set(order)
        for key, item in items:
            self._hold(key, item)
            if key in listed:
                self._remover.insert(key, item.priority)
            else:
                self._withdrawn.add(key)
        self._sampler.arrange(order, [self._items[key].priority for key in order])

    def check(self) -> None:
        """Assert that every item is accounted for, and every byte."""
        assert self.account.held == len(self._items), f"{self.name}: {self.account} but {len(self._items)} are held"
        assert sorted(self.order()) == sorted(self._items.keys() - self._withdrawn), f"{self.name}: sampler out of step"
        copies = {copy.number: copy for item in self._items.values() for copy in item.copies}
        assert self.nbytes == sum(copy.nbytes for copy in copies.values()), f"{self.name}: bytes out of step"
        assert self._pins.keys() == copies.keys(), f"{self.name}: pins out of step"

    def _add(self, key: int, item: Item[P]) -> None:
        self._hold(key, item)
        self._sampler.insert(key, item.priority)
        self._remover.insert(key, item.priority)

    def _hold(self, key: int, item: Item[P]) -> None:
        self._items[key] = item
        self._versions.setdefault(item.version, set()).add(key)
        self._store.retain(item.copies)
        for copy in item.copies:
            if copy.number not in self._pins:
                self.nbytes += copy.nbytes
            self._pins[copy.number] += 1

    def _remove(self, key: int) -> Item[P]:
        item = self._items.pop(key)
        if key in self._withdrawn:
            self._withdrawn.remove(key)
        else:
            self._sampler.delete(key)
            self._remover.delete(key)
        same = self._versions[item.version]
        same.remove(key)
        if not same:
            del self._versions[item.version]
        for copy in item.copies:
            self._pins[copy.number] -= 1
            if self._pins[copy.number] == 0:
                del self._pins[copy.number]
                self.nbytes -= copy.nbytes
        self._store.release(item.copies)
        return item


def check_priority(priority: float) -> None:
    if not 0 <= priority <= MAX_PRIORITY:  # false for NaN
        raise DataError(f"priority {priority} refused: a priority is a number from 0 to {MAX_PRIORITY:g}")
