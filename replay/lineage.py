"""Which weights are ancestors of those in service: what staleness and orphans are judged by."""

from protos.errors import DataError
from protos.records import Version


class Lineage:
    """The line of surviving weights.

    A learner restored from the checkpoint of update u begins a new incarnation at u: what earlier incarnations made
    after u is dead. `update` keeps counting along the line, so the age of a version is a difference of updates.
    """

    def __init__(self, published: Version, starts: dict[int, int] | None = None) -> None:
        self.published = published
        self.starts = {published.incarnation: published.update} if starts is None else dict(starts)

    def advance(self, version: Version) -> bool:
        """Put `version` in service; True where it begins a new incarnation. DataError where it would go backwards."""
        if version.incarnation == self.published.incarnation and version.update > self.published.update:
            self.published = version
            return False
        if version.incarnation > self.published.incarnation:
            self.published = version
            self.starts[version.incarnation] = version.update
            return True
        raise DataError(f"version {version} cannot follow {self.published}: a version is published once, in order")

    def alive(self, version: Version) -> bool:
        """No later incarnation began before it was made."""
        return all(
            version.update <= start for incarnation, start in self.starts.items() if incarnation > version.incarnation
        )

    def age(self, version: Version) -> int:
        """Updates between `version` and the weights in service; 0 for weights that are ahead of them."""
        return max(0, self.published.update - version.update)
