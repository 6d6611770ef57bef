"""Flow control between those who act and the one who learns."""

from dataclasses import dataclass


@dataclass(slots=True)
class Admission:
    """Admits new groups as long as, in groups,

        started - dropped - trained  <=  (max_staleness + 1) * B          B = groups per update

    started: leases given out; each counts as one group until it is dropped or trained on
    dropped: leases that expired without a group, and groups evicted before the learner took them: their room is free
    trained: groups whose update has been published, B at each update of a full batch. They are counted, not multiplied
             out: the bound then holds for short batches too, and across a restart with another B

    What is admitted at version v waits behind at most (max_staleness + 1) * B - 1 others, so that it trains the weights
    of version v + max_staleness at the latest. max_staleness = 0 is the on-policy loop: B groups, an update.
    """

    groups_per_update: int
    max_staleness: int
    started: int = 0
    dropped: int = 0
    trained: int = 0

    @property
    def bound(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_update

    @property
    def in_flight(self) -> int:
        """Groups that are being acted, wait for the learner, or are in its hands."""
        return self.started - self.dropped - self.trained

    @property
    def open(self) -> bool:
        return self.in_flight < self.bound
