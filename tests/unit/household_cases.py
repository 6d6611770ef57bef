"""Small household problems for tests, and an independent search for their shortest solutions."""

import copy
import random
from collections import deque
from collections.abc import Sequence

from actors.envs.household.game import Game, compile_game
from actors.envs.household.library import GOALS, Task
from actors.envs.household.pddl import Problem, parse_formula
from actors.envs.household.world import World

ALL_TASKS = tuple(GOALS)
START = "loc_start"
_ABILITIES = {
    "apple": ("pickupable", "cleanable", "heatable", "coolable", "sliceable"),
    "mug": ("pickupable", "cleanable", "heatable", "coolable"),
    "knife": ("pickupable", "cleanable"),
    "desklamp": ("toggleable",),
}
OPENABLE = ("cabinet", "fridge", "microwave")


def small_problem(
    receptacles: Sequence[str], objects: Sequence[tuple[str, int]], goal: str, places: Sequence[int] | None = None
) -> Problem:
    """Receptacles by type, each at a place of its own unless `places` says otherwise; objects as (type, receptacle index).

    Everything may lie everywhere.
    """
    ids = [
        f"{kind}_bar_{n}" if kind != "sinkbasin" else f"sink_bar_{n}_bar_sinkbasin"
        for n, kind in enumerate(receptacles)
    ]
    at = [f"loc_bar_{place}" for place in (places or range(len(ids)))]
    things = [(f"{kind}_bar_{n}", kind, r) for n, (kind, r) in enumerate(objects)]
    facts: dict[str, list[tuple[str, ...]]] = {
        "atlocation": [("agent1", START)],
        "receptacletype": [(i, f"{kind}type") for i, kind in zip(ids, receptacles, strict=True)],
        "receptacleatlocation": list(zip(ids, at, strict=True)),
        "openable": [(i,) for i, kind in zip(ids, receptacles, strict=True) if kind in OPENABLE],
        "cancontain": [(f"{kind}type", f"{o}type") for kind in set(receptacles) for o in _ABILITIES],
        "objecttype": [(i, f"{kind}type") for i, kind, _ in things],
        "inreceptacle": [(i, ids[r]) for i, _, r in things],
        "objectatlocation": [(i, at[r]) for i, _, r in things],
    }
    for i, kind, _ in things:
        for ability in _ABILITIES[kind]:
            facts.setdefault(ability, []).append((i,))
    declared = {"agent1": "agent", **dict.fromkeys([*at, START], "location"), **dict.fromkeys(ids, "receptacle")}
    declared |= {i: "object" for i, _, _ in things}
    return Problem(declared, facts, parse_formula(goal))


def small_game(
    receptacles: Sequence[str],
    objects: Sequence[tuple[str, int]],
    goal: str = "(and (exists (?r - receptacle ?o - object) (and (objectType ?o appleType) (inReceptacle ?o ?r))))",
    places: Sequence[int] | None = None,
) -> Game:
    return compile_game(small_problem(receptacles, objects, goal, places), Task("pick_and_place_simple", "play"))


def random_problem(rng: random.Random, goal: str) -> Problem:
    """A fridge and two other receptacles at one to three places, two or three objects, sometimes a full hand at the start."""
    receptacles = ["fridge", *(rng.choice(("cabinet", "fridge", "microwave", "sinkbasin", "shelf")) for _ in range(2))]
    objects = [("apple", rng.randrange(3)), (rng.choice(tuple(_ABILITIES)), rng.randrange(3))]
    if rng.random() < 0.5:
        objects.append((rng.choice(("apple", "knife", "desklamp")), rng.randrange(3)))
    problem = small_problem(receptacles, objects, goal, [rng.randrange(3) for _ in range(3)])
    facts = {predicate: list(rows) for predicate, rows in problem.facts.items()}
    if rng.random() < 0.3:
        held = rng.choice([o for (o,) in facts["pickupable"]])
        facts["holds"], facts["holdsany"] = [("agent1", held)], [("agent1",)]
        for predicate in ("inreceptacle", "objectatlocation"):
            facts[predicate] = [row for row in facts[predicate] if row[0] != held]
    return Problem(problem.objects, facts, problem.goal)


def shortest(game: Game, limit: int) -> int | None:
    """Length of a shortest solution, by breadth-first search over the state machine itself."""
    start = World(game)
    queue, seen = deque([(start, 0)]), {start.state}
    while queue:
        world, depth = queue.popleft()
        if world.won:
            return depth
        if depth == limit:
            continue
        for command in world.admissible:
            child = copy.copy(world)
            child.contents = [list(objects) for objects in world.contents]
            child.act(command)
            if child.state not in seen:
                seen.add(child.state)
                queue.append((child, depth + 1))
    return None
