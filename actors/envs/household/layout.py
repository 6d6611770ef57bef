"""The state of a play as one integer: which bit stands for which fact."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from actors.envs.household.goals import Atom
from protos.errors import DataError

CLEAN, HOT, COOL, SLICED, TOGGLED, ON = range(6)
PROPERTIES = {"isclean": CLEAN, "ishot": HOT, "iscool": COOL, "issliced": SLICED, "istoggled": TOGGLED, "ison": ON}


@dataclass(frozen=True)
class Layout:
    """Where each changing fact has its bit:

    inreceptacle o r, objectatlocation o l, opened r, six properties of o, holds o, holdsany, atlocation l, taken o r

    `taken` is the engine's "not in receptacle": o was once picked up from r and never put back.
    """

    objects: Mapping[str, int]
    receptacles: Mapping[str, int]
    locations: Mapping[str, int]

    @cached_property
    def bases(self) -> tuple[int, int, int, int, int, int]:
        """First bits of objectatlocation, opened, properties, holds, atlocation and taken."""
        o, r, places = len(self.objects), len(self.receptacles), len(self.locations)
        near = o * r
        opened = near + o * places
        properties = opened + r
        holds = properties + o * len(PROPERTIES)
        at = holds + o + 1
        return near, opened, properties, holds, at, at + places

    def inside(self, o: int, r: int) -> int:
        return 1 << (o * len(self.receptacles) + r)

    def has(self, o: int, which: int) -> int:
        return 1 << (self.bases[2] + o * len(PROPERTIES) + which)

    def opened(self, r: int) -> int:
        return 1 << (self.bases[1] + r)

    def holds(self, o: int) -> int:
        return 1 << (self.bases[3] + o)

    def at(self, place: int) -> int:
        return 1 << (self.bases[4] + place)

    def near(self, o: int, place: int) -> int:
        return 1 << (self.bases[0] + o * len(self.locations) + place)

    def taken(self, o: int, r: int) -> int:
        return 1 << (self.bases[5] + o * len(self.receptacles) + r)

    @property
    def holds_any(self) -> int:
        return 1 << (self.bases[4] - 1)

    def bit(self, atom: Atom) -> int:
        """The bit of a changing fact; KeyError where an argument is no entity of the game."""
        predicate, arguments = atom
        match predicate, arguments:
            case "inreceptacle", (o, r):
                return self.inside(self.objects[o], self.receptacles[r])
            case "objectatlocation", (o, place):
                return self.near(self.objects[o], self.locations[place])
            case "opened", (r,):
                return self.opened(self.receptacles[r])
            case "holds", (_, o):
                return self.holds(self.objects[o])
            case "holdsany", (_,):
                return self.holds_any
            case "atlocation", (_, place):
                return self.at(self.locations[place])
            case _, (o,) if predicate in PROPERTIES:
                return self.has(self.objects[o], PROPERTIES[predicate])
        raise DataError(f"PDDL: a fact that the rules do not know: ({' '.join([predicate, *arguments])})")
