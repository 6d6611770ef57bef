"""The shortest solution of a game: A* over the facts that matter for its goal.

Every place is one command away from every other and the hands carry one object. A receptacle that neither holds a wanted
object, nor is wanted, nor treats objects could only serve to put something down on the way, which is never shorter than
to carry the objects one after the other: such places are left out. Where that argument does not hold (a knife must be put
down again, the hand is full at the start, the goal forbids a fact) the search takes every place into account.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from actors.envs.household.game import APPLIANCES, KNIVES, Game
from actors.envs.household.goals import Conjunction
from actors.envs.household.layout import CLEAN, COOL, HOT, ON, PROPERTIES, SLICED, TOGGLED

_TREATMENTS = {"clean": (CLEAN, None), "heat": (HOT, COOL), "cool": (COOL, HOT)}  # gained, lost


class Node(NamedTuple):
    """A situation: the state (`layout.Layout`), and of it the agent's place and the object in hand (-1: none)."""

    state: int
    place: int
    held: int


class Need(NamedTuple):
    """A fact that the goal asks for: its bit, its predicate and the indices of its arguments, the agent left out."""

    bit: int
    predicate: str
    first: int
    second: int


Step = tuple[str, int, int]  # verb and arguments, as in commands.Operation
Reached = dict[Node, tuple[int, Node | None, Step]]


def solve(game: Game, limit: int) -> list[str] | None:
    """A shortest list of commands that wins, or None where no list of at most `limit` commands does."""
    search = _Search(game)
    start = Node(game.initial, game.start, game.held)
    reached: Reached = {start: (0, None, ("", -1, -1))}
    order = count()
    queue = [(search.lower_bound(start), 0, next(order), start)]
    while queue:
        bound, minus_depth, _, node = heapq.heappop(queue)
        depth = -minus_depth
        if reached[node][0] < depth:
            continue
        if game.won(node.state):
            return _commands(game, reached, node)
        for step, child in search.successors(node):
            known = reached.get(child)
            if known is not None and known[0] <= depth + 1:
                continue
            bound = depth + 1 + search.lower_bound(child)
            if bound <= limit:
                reached[child] = (depth + 1, node, step)
                heapq.heappush(queue, (bound, -depth - 1, next(order), child))
    return None


def _commands(game: Game, reached: Reached, node: Node) -> list[str]:
    steps: list[str] = []
    while True:
        _, parent, (verb, first, second) = reached[node]
        if parent is None:
            return steps[::-1]
        table = game.commands
        steps.append(getattr(table, verb)[first] if second < 0 else table.pair(verb, first, second))
        node = parent


class _Search:
    """What of a game the search looks at, and how far a situation is from the goal at least."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.wants = [_needs(game, option.facts) for option in game.goal]
        needs = {need for want in self.wants for need in want}
        properties = {(need.first, PROPERTIES[need.predicate]) for need in needs if need.predicate in PROPERTIES}
        self.thorough = (
            game.held >= 0
            or any(option.forbid for option in game.goal)
            or any(need.predicate in ("holdsany", "objectatlocation") for need in needs)
            or any(which in (SLICED, ON) for _, which in properties)
        )
        self.treated = properties
        self.puts = {(need.first, need.second) for need in needs if need.predicate == "inreceptacle"}
        self.objects = self._objects(needs)
        self.places = self._places(needs)
        self.appliance_places = {
            kind: {game.place[r] for r, its in enumerate(game.receptacle_types) if its == kind} - {-1}
            for kind in APPLIANCES
        }

    def _objects(self, needs: set[Need]) -> list[int]:
        """The objects worth touching."""
        game = self.game
        if self.thorough:
            return list(range(len(game.objects)))
        placed_or_treated = {need.first for need in needs if need.predicate in ("inreceptacle", *PROPERTIES)}
        return sorted(placed_or_treated | {need.first for need in needs if need.predicate == "holds"})

    def _places(self, needs: set[Need]) -> list[int]:
        """The places worth going to."""
        game = self.game
        if self.thorough:
            return [place for place, here in enumerate(game.stands) if here]
        receptacles = {r for r, inside in enumerate(game.contents) if not set(inside).isdisjoint(self.objects)}
        receptacles |= {need.second for need in needs if need.predicate == "inreceptacle"}
        receptacles |= {need.first for need in needs if need.predicate == "opened"}
        verbs = {verb for verb, (gained, _) in _TREATMENTS.items() if any(gained == which for _, which in self.treated)}
        receptacles |= {
            r for r, kind in enumerate(game.receptacle_types) if kind in APPLIANCES and APPLIANCES[kind][0] in verbs
        }
        places = {game.place[r] for r in receptacles} | {need.first for need in needs if need.predicate == "atlocation"}
        return sorted(place for place in places if place >= 0 and game.stands[place])

    def successors(self, node: Node) -> Iterator[tuple[Step, Node]]:
        game, layout = self.game, self.game.layout
        state, place, held = node
        for there in self.places:
            if there != place:
                moved = state ^ layout.at(place) | layout.at(there)
                yield ("go", game.stands[there][0], -1), Node(moved, there, held)
        for r in game.stands[place]:
            is_open = r not in game.openable or bool(state & layout.opened(r))
            if not is_open:
                yield ("open", r, -1), Node(state | layout.opened(r), place, held)
            elif self.thorough and r in game.openable:
                yield ("close", r, -1), Node(state & ~layout.opened(r), place, held)
            if held >= 0:
                yield from self._use_hand(node, r, is_open)
            elif is_open:
                yield from self._take(node, r)
            yield from self._switch(node, r)
        if self.thorough and held >= 0 and game.object_types[held] in KNIVES:
            for o in game.abilities["sliceable"]:
                if state & layout.near(o, place):
                    yield ("slice", o, held), Node(state | layout.has(o, SLICED), place, held)

    def _take(self, node: Node, r: int) -> Iterator[tuple[Step, Node]]:
        layout = self.game.layout
        for o in self.objects:
            if node.state & layout.inside(o, r) and o in self.game.abilities["pickupable"]:
                left = node.state & ~(layout.inside(o, r) | layout.near(o, node.place))
                yield ("take", o, r), Node(left | layout.holds(o) | layout.holds_any, node.place, o)

    def _use_hand(self, node: Node, r: int, is_open: bool) -> Iterator[tuple[Step, Node]]:
        """Put the held object down, or have it treated."""
        game, layout = self.game, self.game.layout
        state, place, held = node
        if is_open and (held, r) in game.fits and (self.thorough or (held, r) in self.puts):
            free = state & ~(layout.holds(held) | layout.holds_any)
            yield ("move", held, r), Node(free | layout.inside(held, r) | layout.near(held, place), place, -1)
        verb, ability = APPLIANCES.get(game.receptacle_types[r], ("", ""))
        if verb and held in game.abilities[ability]:
            gained, lost = _TREATMENTS[verb]
            if self.thorough or (held, gained) in self.treated:
                kept = state if lost is None else state & ~layout.has(held, lost)
                yield (verb, held, r), Node(kept | layout.has(held, gained), place, held)

    def _switch(self, node: Node, r: int) -> Iterator[tuple[Step, Node]]:
        layout = self.game.layout
        for o in self.game.abilities["toggleable"]:
            if node.state & layout.inside(o, r) and (self.thorough or (o, TOGGLED) in self.treated):
                switched = (node.state | layout.has(o, TOGGLED)) ^ layout.has(o, ON)
                yield ("use", o, -1), node._replace(state=switched)

    def lower_bound(self, node: Node) -> int:
        """At least so many commands are missing: each one counted serves one fact or reaches one place that is needed."""
        return min((self._distance(node, want) for want in self.wants), default=10**9)

    def _distance(self, node: Node, want: list[Need]) -> int:
        game, layout = self.game, self.game.layout
        state, place, held = node
        commands = 0
        visit: set[int] = set()
        lift: set[int] = set()
        unlock: set[int] = set()
        hand_is_used = held < 0
        for bit, predicate, first, second in want:
            if state & bit:
                continue
            if predicate == "inreceptacle":
                commands += 1
                visit.add(game.place[second])
                unlock.add(second)
                if first != held:
                    lift.add(first)
                else:
                    hand_is_used = True
            elif predicate == "holds":
                lift.add(first)
            elif predicate == "atlocation":
                visit.add(first)
            elif predicate == "opened":
                unlock.add(first)
            elif predicate in PROPERTIES:
                commands += 1
                visit |= self._treatment_place(state, first, PROPERTIES[predicate])
                if PROPERTIES[predicate] in (CLEAN, HOT, COOL) and first != held:
                    lift.add(first)
        for o in lift:
            where = [r for r in range(len(game.receptacles)) if state & layout.inside(o, r)]
            if len(where) == 1:
                visit.add(game.place[where[0]])
                unlock.add(where[0])
        unlock = {r for r in unlock if r in game.openable and not state & layout.opened(r)}
        visit |= {game.place[r] for r in unlock}
        visit.discard(place)
        put_down = 1 if lift and not hand_is_used else 0
        return commands + len(lift) + put_down + len(unlock) + len(visit)

    def _treatment_place(self, state: int, o: int, which: int) -> set[int]:
        """The only place where an object can gain a property; empty where there are several, or it is not certain."""
        game = self.game
        if which in (TOGGLED, ON):
            places = {game.place[r] for r in range(len(game.receptacles)) if state & game.layout.inside(o, r)}
        else:
            verb = next((verb for verb, (gained, _) in _TREATMENTS.items() if gained == which), "")
            places = next(
                (self.appliance_places[kind] for kind, (does, _) in APPLIANCES.items() if does == verb), set()
            )
        return places if len(places) == 1 else set()


def _needs(game: Game, facts: Conjunction) -> list[Need]:
    layout = game.layout
    needs = []
    for positive, (predicate, arguments) in facts:
        if not positive:
            continue
        match predicate:
            case "inreceptacle":
                indices = (layout.objects[arguments[0]], layout.receptacles[arguments[1]])
            case "objectatlocation":
                indices = (layout.objects[arguments[0]], layout.locations[arguments[1]])
            case "holds":
                indices = (layout.objects[arguments[1]], -1)
            case "holdsany":
                indices = (-1, -1)
            case "atlocation":
                indices = (layout.locations[arguments[1]], -1)
            case "opened":
                indices = (layout.receptacles[arguments[0]], -1)
            case _:
                indices = (layout.objects[arguments[0]], -1)
        needs.append(Need(layout.bit((predicate, arguments)), predicate, *indices))
    return sorted(needs)
