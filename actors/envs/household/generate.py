"""Seeded games: drawn, put into a split by what they are, and proven solvable.

A split is decided by content, so that splits cannot overlap whatever the seeds:

    unseen   the combination (room, task type, object, destination) hashes into the held-out share: no other split has it
    seen     a known combination in a game whose fingerprint hashes into the held-out share
    train    the rest
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

from actors.envs.household.config import Config
from actors.envs.household.game import Game, compile_game, fingerprint
from actors.envs.household.library import GOALS, Task
from actors.envs.household.pddl import Formula, Problem, parse_formula
from actors.envs.household.planner import solve
from actors.envs.household.rooms import (
    ABLE,
    HOLDS,
    LAMP,
    LAMP_STANDS,
    NO_DESTINATION,
    OPENABLE,
    ROOMS,
    TASK_ABILITY,
    TASK_ROOMS,
)
from protos.errors import DataError
from protos.seeding import derive_seed

Split = Literal["train", "seen", "unseen"]
SPLITS: tuple[str, ...] = get_args(Split)

UNSEEN_SHARE = 0.15  # of the combinations
SEEN_SHARE = 0.1  # of the games of the other combinations
MAX_INSTANCES = 3  # of one object type in a game: bounds the vocabulary
ATTEMPTS = 2000
START = "loc_bar_0_bar_0_bar_0_bar_15"
Placed = list[tuple[str, str]]  # (type, id)


def generate(config: Config, split: str, seed: int, index: int) -> Game:
    """Game number `index` of a split, the same for equal arguments; it can be won within `config.max_steps`."""
    rng = random.Random(derive_seed(seed, "household", split, index))
    for _ in range(ATTEMPTS):
        game = _draw(config, split, rng)
        if game is not None and solve(game, config.max_steps) is not None:
            return game
    raise DataError(
        f"no {split} game of {', '.join(config.tasks)} can be won in {config.max_steps} steps: raise max_steps or add tasks"
    )


def split_of(game: Game) -> str:
    """The split that a game belongs to, by its content alone."""
    return _split(game.task, game.fingerprint)


def _split(task: Task, content: str) -> str:
    if held_out(task.room, task.type, task.object, task.destination or task.lamp):
        return "unseen"
    return "seen" if _share(content) < SEEN_SHARE else "train"


@lru_cache(maxsize=4096)
def held_out(room: str, task_type: str, wanted: str, destination: str) -> bool:
    """Whether a combination is of the unseen split. Names in lower case."""
    return _share(f"{room.lower()}|{task_type}|{wanted}|{destination}") < UNSEEN_SHARE


def _share(text: str) -> float:
    """A number in [0, 1) that `text` hashes to."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _draw(config: Config, split: str, rng: random.Random) -> Game | None:
    """One game of the split, or None where the draw is of another."""
    task_type = rng.choice(config.tasks)
    rooms = ROOMS[config.rooms]
    room = rng.choice(TASK_ROOMS.get(task_type, tuple(rooms)))
    receptacles = [
        (kind, _receptacle(kind, rng))
        for kind, (few, many) in rooms[room].items()
        for _ in range(rng.randint(few, many))
    ]
    pairs = _combinations(task_type, frozenset(kind for kind, _ in receptacles))
    if not pairs:
        return None
    wanted, destination = rng.choice(pairs)
    if held_out(room, task_type, wanted.lower(), destination.lower()) != (split == "unseen"):
        return None
    objects = _furnish(task_type, wanted, destination, receptacles, rng)
    lamp = LAMP.lower() if destination == LAMP else ""
    filling = {"object": wanted.lower(), "destination": "" if lamp else destination.lower(), "lamp": lamp}
    sentence = rng.choice(GOALS[task_type].templates).format(**filling)
    task = Task(task_type, sentence, wanted.lower(), filling["destination"], lamp, room=room)
    lying = [(kind.lower(), [o.lower() for o, _, where in objects if where == i]) for kind, i in receptacles]
    if _split(task, fingerprint(task, lying)) != split:
        return None
    return compile_game(_problem(receptacles, objects, goal_formula(task_type, **filling)), task)


@lru_cache(maxsize=1024)
def _combinations(task_type: str, kinds: frozenset[str]) -> list[tuple[str, str]]:
    """(object, destination) types that a task can ask for where `kinds` of receptacles stand.

    An object counts once for each place that could hold it.
    """
    able = ABLE[TASK_ABILITY[task_type]] if task_type in TASK_ABILITY else None
    pairs = [
        (wanted, kind)
        for kind in sorted(kinds - NO_DESTINATION)
        for wanted in HOLDS.get(kind, ())
        if able is None or wanted in able
    ]
    if task_type == "look_at_obj_in_light":
        return [(wanted, LAMP) for wanted, _ in pairs] if kinds & set(LAMP_STANDS) else []
    return [(wanted, to) for wanted, to in pairs if any(wanted in HOLDS.get(kind, ()) for kind in kinds - {to})]


def _furnish(
    task_type: str, wanted: str, destination: str, receptacles: Placed, rng: random.Random
) -> list[tuple[str, str, str]]:
    """(type, id, receptacle id) of the wanted objects, never at the destination, then of others anywhere, then of the lamp."""
    sources = [i for kind, i in receptacles if kind != destination and wanted in HOLDS.get(kind, ())]
    copies = 2 if task_type == "pick_two_obj_and_place" else 1
    placed = [(wanted, _object(wanted, rng), rng.choice(sources)) for _ in range(copies)]
    count: Counter[str] = Counter()
    for kind, i in receptacles:
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            others = [o for o in HOLDS.get(kind, ()) if o != wanted and count[o] < MAX_INSTANCES]
            if others:
                other = rng.choice(others)
                count[other] += 1
                placed.append((other, _object(other, rng), i))
    if destination == LAMP:
        placed.append((LAMP, _object(LAMP, rng), rng.choice([i for kind, i in receptacles if kind in LAMP_STANDS])))
    return placed


def _problem(receptacles: Placed, objects: Sequence[tuple[str, str, str]], goal: Formula) -> Problem:
    places = {i: f"loc_bar_{n - 7}_bar_{n * 3 % 11}_bar_{n % 4}_bar_30" for n, (_, i) in enumerate(receptacles)}
    kinds = sorted({kind for kind, _ in receptacles})
    types = sorted({kind for kind, _, _ in objects})
    declared = {"agent1": "agent"}
    declared.update({f"{kind.lower()}type": "otype" for kind in types})
    declared.update({f"{kind.lower()}type": "rtype" for kind in kinds})
    declared.update({i: "object" for _, i, _ in objects})
    declared.update({i: "receptacle" for _, i in receptacles})
    declared.update(dict.fromkeys([*places.values(), START], "location"))
    facts: dict[str, list[tuple[str, ...]]] = {
        "atlocation": [("agent1", START)],
        "receptacletype": [(i, f"{kind.lower()}type") for kind, i in receptacles],
        "receptacleatlocation": list(places.items()),
        "openable": [(i,) for kind, i in receptacles if kind in OPENABLE],
        "cancontain": [
            (f"{kind.lower()}type", f"{o.lower()}type") for kind in kinds for o in types if o in HOLDS.get(kind, ())
        ],
        "objecttype": [(i, f"{kind.lower()}type") for kind, i, _ in objects],
        "inreceptacle": [(i, r) for _, i, r in objects],
        "objectatlocation": [(i, places[r]) for _, i, r in objects],
        "pickupable": [(i,) for kind, i, _ in objects if kind != LAMP],
    }
    for ability, able in ABLE.items():
        facts[ability] = [(i,) for kind, i, _ in objects if kind in able]
    return Problem(declared, {predicate: rows for predicate, rows in facts.items() if rows}, goal)


@lru_cache(maxsize=1024)
def goal_formula(task_type: str, **filling: str) -> Formula:
    """The PDDL goal of a task type over the given object, destination and lamp types."""
    return parse_formula(GOALS[task_type].pddl.format(**filling))


def _object(kind: str, rng: random.Random) -> str:
    return f"{kind.lower()}_bar_{_coordinates(rng)}"


def _receptacle(kind: str, rng: random.Random) -> str:
    """An id in ALFWorld's form: a basin is named after its sink or tub, with its own name at the end."""
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin').lower()}_bar_{_coordinates(rng)}_bar_{kind.lower()}"
    return f"{kind.lower()}_bar_{_coordinates(rng)}"


def _coordinates(rng: random.Random) -> str:
    """Three signed numbers below 10 with two decimals, as AI2-THOR's ids carry them."""
    bits = rng.getrandbits(60)
    parts = []
    for shift in (0, 20, 40):
        value = bits >> shift & 0xFFFFF
        whole, decimals = divmod((value >> 1) % 900, 100)
        parts.append(f"_{'plus' if value & 1 else 'minus'}_0{whole}_dot_{decimals:02d}")
    return "_bar_".join(parts)
