"""A game, compiled from its PDDL problem and never changed: names, places, abilities, and the goal as bit masks.

The state of a play is one integer with a bit for each fact that can change (`Layout`), so that equal states are equal
integers and the goal is a few masks. Entities are indices: objects, receptacles and locations sorted by id.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from actors.envs.household import texts
from actors.envs.household.commands import Commands
from actors.envs.household.goals import FLUENTS, Atom, Conjunction, Grounder
from actors.envs.household.library import Task
from actors.envs.household.pddl import Facts, Problem
from protos.errors import DataError

CLEAN, HOT, COOL, SLICED, TOGGLED, ON = range(6)
PROPERTIES = {"isclean": CLEAN, "ishot": HOT, "iscool": COOL, "issliced": SLICED, "istoggled": TOGGLED, "ison": ON}
# Property -> the abilities one of which an object needs for the property ever to change.
CHANGED_BY = {
    CLEAN: ("cleanable",),
    HOT: ("heatable", "coolable"),
    COOL: ("heatable", "coolable"),
    SLICED: ("sliceable",),
    TOGGLED: ("toggleable",),
    ON: ("toggleable",),
}
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject")
# Receptacle type -> what it does to a held object: verb, ability needed.
APPLIANCES = {"sinkbasin": ("clean", "cleanable"), "microwave": ("heat", "heatable"), "fridge": ("cool", "coolable")}
KNIVES = frozenset(["knife", "butterknife"])


class Option(NamedTuple):
    """One way to satisfy the goal: the bits that must be set, those that must not, and the facts they stand for."""

    need: int
    forbid: int
    facts: Conjunction


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


@dataclass(frozen=True, eq=False)
class Game:
    """Everything about a game that no play changes. Shared by all plays of it."""

    task: Task
    problem: Problem
    layout: Layout
    objects: tuple[str, ...]  # names, as texts and commands say them
    receptacles: tuple[str, ...]
    object_types: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    place: tuple[int, ...]  # the location of each receptacle; -1 for one that cannot be reached
    stands: tuple[tuple[int, ...], ...]  # the receptacles at each location
    openable: frozenset[int]
    abilities: Mapping[str, frozenset[int]]
    fits: frozenset[tuple[int, int]]  # (object, receptacle): may be put there
    nested: Mapping[int, tuple[int, ...]]  # objects inside an object
    contents: tuple[tuple[int, ...], ...]  # of each receptacle at the start
    initial: int
    goal: tuple[Option, ...]

    @cached_property
    def start(self) -> int:
        """Where the agent stands at first."""
        at = self.initial >> self.layout.bases[4] & ((1 << len(self.stands)) - 1)
        return at.bit_length() - 1

    @cached_property
    def held(self) -> int:
        """The object in hand at first; -1: none."""
        return (self.initial >> self.layout.bases[3] & ((1 << len(self.objects)) - 1)).bit_length() - 1

    @cached_property
    def commands(self) -> Commands:
        return Commands(self.objects, self.receptacles)

    @cached_property
    def things(self) -> tuple[str, ...]:
        return tuple(f"a {name}" for name in self.objects)

    @cached_property
    def scene(self) -> str:
        """The room as seen from its middle."""
        standing = [f"a {name}" for name, place in zip(self.receptacles, self.place, strict=True) if place >= 0]
        return texts.ROOM.format(texts.enumerate_items(standing))

    @cached_property
    def _ways(self) -> dict[int, list[str]]:
        return {}

    def ways(self, place: int) -> list[str]:
        """The `go to` commands from a location, sorted; do not change the list."""
        ways = self._ways.get(place)
        if ways is None:
            away = [self.commands.go[r] for r, there in enumerate(self.place) if there not in (-1, place)]
            ways = self._ways[place] = sorted(away)
        return ways

    @cached_property
    def shared(self) -> bool:
        """Some location has several receptacles: `look` then tells what was taken from which."""
        return any(len(receptacles) > 1 for receptacles in self.stands)

    @cached_property
    def fingerprint(self) -> str:
        types = self.object_types
        return fingerprint(
            self.task,
            [(kind, [types[o] for o in self.contents[r]]) for r, kind in enumerate(self.receptacle_types)],
        )

    @cached_property
    def identity(self) -> bytes:
        """Equal for games that play alike, name by name: what a state key starts from."""
        parts = (self.receptacles, self.objects, self.stands, self.initial, self.goal)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def won(self, state: int) -> bool:
        return any(state & need == need and not state & forbid for need, forbid, _ in self.goal)


def fingerprint(task: Task, room: Iterable[tuple[str, list[str]]]) -> str:
    """Equal for games alike in all but coordinates, instance numbers and wording: the same task, and the same types of objects
    lying in the same types of receptacles. Two sets of games that share no fingerprint share no game.

    `room` lists the type of each receptacle and the types of the objects inside.
    """
    wish = (task.type, task.object, task.destination, task.lamp, task.sliced)
    things = sorted((kind, sorted(inside)) for kind, inside in room)
    return hashlib.sha256(repr((wish, things)).encode()).hexdigest()[:16]


def compile_game(problem: Problem, task: Task) -> Game:
    facts = problem.facts
    ids = sorted({argument for rows in facts.values() for arguments in rows for argument in arguments})
    named = names(ids)
    layout = Layout(*(_indices(problem, ids, kind) for kind in ("object", "receptacle", "location")))
    objects, receptacles, locations = layout.objects, layout.receptacles, layout.locations
    object_kind = {o: kind for o, kind in facts.get("objecttype", ()) if o in objects}
    receptacle_kind = {r: kind for r, kind in facts.get("receptacletype", ()) if r in receptacles}
    place = {r: location for r, location in facts.get("receptacleatlocation", ()) if r in receptacles}
    holds = set(facts.get("cancontain", ()))
    abilities = {name: frozenset(objects[o] for (o,) in facts.get(name, ()) if o in objects) for name in ABILITIES}
    fits = frozenset(
        (objects[o], receptacles[r])
        for o, object_type in object_kind.items()
        for r, receptacle_type in receptacle_kind.items()
        if (receptacle_type, object_type) in holds
    )
    inside = [(objects[o], receptacles[r]) for o, r in facts.get("inreceptacle", ()) if o in objects and r in receptacles]
    nested = [(objects[o], objects[outer]) for o, outer in facts.get("inreceptacleobject", ())]
    openable = frozenset(receptacles[r] for (r,) in facts.get("openable", ()) if r in receptacles)
    return Game(
        task=task,
        problem=problem,
        layout=layout,
        objects=tuple(named[o] for o in objects),
        receptacles=tuple(named[r] for r in receptacles),
        object_types=tuple(object_kind.get(o, "").removesuffix("type") for o in objects),
        receptacle_types=tuple(receptacle_kind.get(r, "").removesuffix("type") for r in receptacles),
        place=tuple(locations[place[r]] if r in place else -1 for r in receptacles),
        stands=tuple(tuple(i for r, i in receptacles.items() if place.get(r) == location) for location in locations),
        openable=openable,
        abilities=abilities,
        fits=fits,
        nested={outer: tuple(sorted(o for o, around in nested if around == outer)) for _, outer in nested},
        contents=tuple(tuple(sorted(o for o, r in inside if r == i)) for i in receptacles.values()),
        initial=_initial(facts, layout),
        goal=_options(problem, layout, abilities, openable, fits | set(inside)),
    )


def names(ids: Sequence[str]) -> dict[str, str]:
    """Id -> name, of all ids in facts, sorted. ALFWorld numbers the instances of a kind downwards in this order."""
    kinds = {i: i.split("_bar_", 1)[0] + ("basin" if "basin" in i else "") for i in ids if "_bar_" in i}
    left: dict[str, int] = {}
    for kind in kinds.values():
        left[kind] = left.get(kind, 0) + 1
    named: dict[str, str] = {}
    for i in ids:
        if i in kinds:
            named[i] = f"{kinds[i]} {left[kinds[i]]}"
            left[kinds[i]] -= 1
        else:
            named[i] = f"{i} "
    return named


def _indices(problem: Problem, ids: Sequence[str], wanted: str) -> dict[str, int]:
    """The entities of a PDDL type that facts speak of, by id."""
    kinds = problem.objects
    return {name: i for i, name in enumerate(name for name in ids if kinds.get(name) == wanted)}


def _initial(facts: Facts, layout: Layout) -> int:
    state = 0
    for predicate in FLUENTS & facts.keys():
        for arguments in facts[predicate]:
            try:
                state |= layout.bit((predicate, arguments))
            except KeyError:  # of an entity without a part in the game
                continue
    if len(facts.get("holds", ())) > 1 or len(facts["atlocation"]) != 1:
        raise DataError("PDDL: the agent must stand at one location and hold at most one object")
    if len({r for r, _ in facts.get("receptacleatlocation", ())}) != len(facts.get("receptacleatlocation", ())):
        raise DataError("PDDL: a receptacle stands at two locations")
    return state


def _options(
    problem: Problem,
    layout: Layout,
    abilities: Mapping[str, frozenset[int]],
    openable: frozenset[int],
    reachable: Iterable[tuple[int, int]],
) -> tuple[Option, ...]:
    """The goal as masks. Facts that no action of this problem can change are settled here."""
    objects, receptacles = layout.objects, layout.receptacles
    reached = set(reachable)

    def frozen(atom: Atom) -> bool:
        predicate, arguments = atom
        try:
            layout.bit(atom)
        except KeyError:
            return True
        if predicate in PROPERTIES:
            return not any(objects[arguments[0]] in abilities[ability] for ability in CHANGED_BY[PROPERTIES[predicate]])
        if predicate == "opened":
            return receptacles[arguments[0]] not in openable
        if predicate in ("atlocation", "holdsany"):
            return False
        o = objects[arguments[1] if predicate == "holds" else arguments[0]]
        if predicate == "inreceptacle" and (o, receptacles[arguments[1]]) not in reached:
            return True
        return o not in abilities["pickupable"]

    options = []
    for facts in Grounder(problem, frozen).ground(problem.goal, {}):
        need = sum(layout.bit(atom) for positive, atom in facts if positive)
        forbid = sum(layout.bit(atom) for positive, atom in facts if not positive)
        options.append(Option(need, forbid, facts))
    return tuple(options)
