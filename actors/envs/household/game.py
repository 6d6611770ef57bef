"""A game, compiled from its PDDL problem and never changed: names, places, abilities, and the goal as bit masks.

The state of a play is one integer with a bit for each fact that can change (`layout`), so that equal states are equal
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
from actors.envs.household.layout import CLEAN, COOL, HOT, ON, PROPERTIES, SLICED, TOGGLED, Layout
from actors.envs.household.library import Task
from actors.envs.household.pddl import Facts, Problem
from protos.errors import DataError

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
    commands: Commands

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
        goal = sorted((option.need, option.forbid) for option in self.goal)
        parts = (self.receptacles, self.objects, self.stands, self.initial, goal)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    @cached_property
    def relevant(self) -> int:
        """The bits of a state that matter to the task from anywhere: where the agent is, what it holds, and everything about
        the objects of the types that the task names. Whether a receptacle is open matters where the agent stands."""
        layout, wish = self.layout, {self.task.object, self.task.lamp}
        bits = layout.holds_any | sum(layout.at(place) for place in range(len(self.stands)))
        for o, kind in enumerate(self.object_types):
            bits |= layout.holds(o)
            if kind in wish:
                bits |= sum(layout.inside(o, r) for r in range(len(self.receptacles)))
                bits |= sum(layout.has(o, which) for which in PROPERTIES.values())
        return bits

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
    abilities = {name: frozenset(objects[o] for (o,) in facts.get(name, ()) if o in objects) for name in ABILITIES}
    can_contain = set(facts.get("cancontain", ()))
    fits = frozenset(
        (objects[o], receptacles[r])
        for o, object_type in object_kind.items()
        for r, receptacle_type in receptacle_kind.items()
        if (receptacle_type, object_type) in can_contain
    )
    inside = _pairs(facts.get("inreceptacle", ()), objects, receptacles)
    nested = _pairs(facts.get("inreceptacleobject", ()), objects, objects)
    openable = frozenset(receptacles[r] for (r,) in facts.get("openable", ()) if r in receptacles)
    names_of_objects = tuple(named[o] for o in objects)
    names_of_receptacles = tuple(named[r] for r in receptacles)
    return Game(
        task=task,
        problem=problem,
        layout=layout,
        objects=names_of_objects,
        receptacles=names_of_receptacles,
        object_types=tuple(object_kind.get(o, "").removesuffix("type") for o in objects),
        receptacle_types=tuple(receptacle_kind.get(r, "").removesuffix("type") for r in receptacles),
        place=tuple(locations.get(place.get(r, ""), -1) for r in receptacles),
        stands=tuple(tuple(i for r, i in receptacles.items() if place.get(r) == location) for location in locations),
        openable=openable,
        abilities=abilities,
        fits=fits,
        nested={outer: tuple(sorted(o for o, around in nested if around == outer)) for _, outer in nested},
        contents=tuple(tuple(sorted(o for o, r in inside if r == i)) for i in receptacles.values()),
        initial=_initial(facts, layout),
        goal=_options(problem, layout, abilities, openable, fits | set(inside)),
        commands=Commands(names_of_objects, names_of_receptacles),
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


def _pairs(rows: Iterable[tuple[str, ...]], left: Mapping[str, int], right: Mapping[str, int]) -> list[tuple[int, int]]:
    """Facts of two arguments as indices; those about anything else are left out."""
    return [(left[a], right[b]) for a, b in rows if a in left and b in right]


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
    places = facts.get("receptacleatlocation", ())
    if len({r for r, _ in places}) != len(places):
        raise DataError("PDDL: a receptacle stands at two locations")
    started = [place for _, place in facts["atlocation"] if place in layout.locations]
    if len(started) != 1 or len(facts.get("holds", ())) > 1:
        raise DataError("PDDL: the agent must stand at one declared location and hold at most one object")
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
    movable = abilities["pickupable"] | {objects[o] for _, o in problem.facts.get("holds", ()) if o in objects}

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
        return o not in movable

    options = []
    for facts in Grounder(problem, frozen).ground(problem.goal, {}):
        need = sum(layout.bit(atom) for positive, atom in facts if positive)
        forbid = sum(layout.bit(atom) for positive, atom in facts if not positive)
        options.append(Option(need, forbid, facts))
    return tuple(options)
