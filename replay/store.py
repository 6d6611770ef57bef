"""One stored copy of each record, counted by the items that refer to it, and its bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from protos.records import Demonstration, Episode

Record = Episode | Demonstration
R = TypeVar("R", bound=Record)

RECORD_BYTES = 400  # Python objects, spans, scalars of one transition or row: measured, and the same on every machine


@dataclass(slots=True, eq=False)
class Copy(Generic[R]):
    """A stored record. Items hold the copy itself; the store counts them and forgets a copy that none holds."""

    number: int
    record: R
    nbytes: int
    references: int = 0


class Store:
    """All copies of all tables. A new copy starts with one reference: its maker's."""

    def __init__(self) -> None:
        self._copies: dict[int, Copy] = {}
        self.next_number = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._copies)

    def __iter__(self) -> Iterator[Copy]:
        """Copies in the order in which they were stored."""
        return iter(self._copies.values())

    def put(self, record: R, number: int | None = None) -> Copy[R]:
        """Store a record under the next number, or under the `number` that it had before a restart."""
        copy = Copy(self.next_number if number is None else number, record, record_bytes(record), references=1)
        self.next_number = max(self.next_number, copy.number + 1)
        self._copies[copy.number] = copy
        self.nbytes += copy.nbytes
        return copy

    def retain(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.references += 1

    def release(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.references -= 1
            assert copy.references >= 0, f"copy {copy.number} was released more often than retained"
            if copy.references == 0:
                del self._copies[copy.number]
                self.nbytes -= copy.nbytes


def record_bytes(record: Record) -> int:
    """Bytes that `record` is charged with: its arrays and texts, and a fixed charge for the objects around them."""
    if isinstance(record, Demonstration):
        return record.token_ids.nbytes + RECORD_BYTES
    total = RECORD_BYTES
    for sequence in record.sequences:
        total += sequence.token_ids.nbytes
        for transition in sequence.transitions:
            total += RECORD_BYTES + transition.log_probs.nbytes
            total += len(transition.action_text) + len(transition.observation_text) + len(transition.state_key)
            if transition.allowed is not None:
                total += sum(ids.nbytes for ids in transition.allowed)
    return total
