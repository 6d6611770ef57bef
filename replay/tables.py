"""The four tables of Tandem and what their items point at."""

from collections.abc import Iterator
from dataclasses import dataclass

from protos.records import Demonstration, Episode, Group, GroupKey, Kind, Transition, Version, WorldItem
from replay.config import Config, WorldConfig
from replay.samplers import Fifo, Lowest, Prioritised, Remover, Sampler, TopFraction, Uniform
from replay.store import Copy, Store
from replay.table import Item, Table


@dataclass(frozen=True, slots=True, eq=False)
class StoredGroup:
    key: GroupKey
    members: tuple[Copy[Episode], ...]
    lam: float
    versions: frozenset[Version]  # every version that sampled a token of it

    def record(self) -> Group:
        return Group(self.key, tuple(copy.record for copy in self.members), self.lam)


@dataclass(frozen=True, slots=True, eq=False)
class StoredTransition:
    episode: Copy[Episode]
    sequence: int  # episode.record.sequences[sequence].transitions[index]
    index: int
    lam: float

    def record(self, importance: float, item_id: int) -> WorldItem:
        return WorldItem(self.episode.record.sequences[self.sequence], self.index, self.lam, importance, item_id)


class Tables:
    """policy: groups, oldest first, each trained on once. wm: transitions, many reads. demos: supervised rows.
    eval: groups of evaluation leases, which never train."""

    def __init__(self, config: Config, store: Store) -> None:
        world = config.world
        self.policy: Table[StoredGroup] = Table("policy", store, Fifo(), Fifo(), max_bytes=config.max_policy_bytes)
        self.wm: Table[StoredTransition] = Table(
            "wm", store, _sampler(world), _remover(world), max_items=world.max_items, max_bytes=world.max_bytes
        )
        self.demos: Table[Copy[Demonstration]] = Table(
            "demos", store, Uniform(), Fifo(), max_items=config.max_demonstrations
        )
        self.eval: Table[StoredGroup] = Table("eval", store, Fifo(), Fifo(), max_items=config.max_eval_groups)

    def __iter__(self) -> Iterator[Table]:
        return iter((self.policy, self.wm, self.demos, self.eval))

    def insert_world(self, group: StoredGroup) -> None:
        """Put into the wm table what of the group a world model may train on: real steps with an observation."""
        for copy in group.members:
            for s, sequence in enumerate(copy.record.sequences):
                for i, transition in enumerate(sequence.transitions):
                    if transition.kind is Kind.STEP and transition.observation.length:
                        payload = StoredTransition(copy, s, i, group.lam)
                        self.wm.insert(Item(payload, (copy,), _oldest(transition), transition.entropy))


def stored_group(key: GroupKey, members: tuple[Copy[Episode], ...], lam: float) -> Item[StoredGroup]:
    """The item of a group; its version is the oldest that sampled any of its tokens."""
    versions = frozenset(version for copy in members for t in copy.record.transitions() for _, version in t.versions)
    return Item(StoredGroup(key, members, lam, versions), members, min(versions, key=_update))


def _update(version: Version) -> int:
    return version.update  # grows along the line of surviving weights, whatever the incarnation


def _oldest(transition: Transition) -> Version:
    runs = transition.versions
    return runs[0][1] if len(runs) == 1 else min((version for _, version in runs), key=_update)


def _sampler(config: WorldConfig) -> Sampler:
    match config.sampler:
        case "prioritised":
            return Prioritised(config.exponent, config.importance_exponent, config.priority_floor)
        case "top_fraction":
            return TopFraction(config.alpha)
        case "uniform":
            return Uniform()


def _remover(config: WorldConfig) -> Remover:
    return Fifo() if config.remover == "fifo" else Lowest()
