"""Fresh games, played side by side in ALFWorld's own engine (alfworld on textworld) and in ours: nothing may differ.

Beside ordinary games, altered ones reach the rules that ALFWorld's own games seldom or never touch: places with several
receptacles, objects inside objects, lamps that can be carried, hands that are full at the start.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from actors.envs import household
from actors.envs.household.game import Game, compile_game
from actors.envs.household.library import GOALS
from actors.envs.household.pddl import Problem
from actors.envs.household.world import World

alfworld = pytest.importorskip("alfworld")
textworld = pytest.importorskip("textworld")
alfred = pytest.importorskip("alfworld.agents.environment.alfred_tw_env")

pytestmark = [
    pytest.mark.alfworld,
    pytest.mark.filterwarnings("ignore"),  # the engine's own, of its dependencies
]
NONSENSE = (
    "",
    "go to",
    "TAKE",
    "examine",
    "go to nowhere 1",
    "  look  ",
    "look\n",
    "take apple 1",
    "move 1 to 1",
    "\u00e9" * 40,
)
CHANGES = frozenset(["take", "move", "clean", "heat", "cool", "use", "open", "close", "slice"])


class RealEngine:
    """ALFWorld's text environment for one game file, with its names and without its registry."""

    def __init__(self, folder: Path, game: Game) -> None:
        data = Path(alfworld.__file__).parent / "data"
        household.write_game(folder, game, (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text())
        self._env = alfred.AlfredDemangler(
            textworld.envs.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        )
        self._env.load(str(folder / "game.tw-pddl"))

    def reset(self) -> tuple[str, list[str], bool]:
        state = self._env.reset()
        return state.feedback.strip(), state.admissible_commands, bool(state.won)

    def act(self, command: str) -> tuple[str, list[str], bool]:
        state, _, _ = self._env.step(command)
        return state.feedback.strip(), state.admissible_commands, bool(state.won)


def play_both(real: RealEngine, game: Game, rng: random.Random, steps: int) -> int:
    """Play random commands in both engines, past the win too; returns the number of steps compared."""
    ours = World(game)
    assert (ours.reset().strip(), ours.admissible, ours.won) == real.reset()
    plan = household.solve(game, 50) or []
    for step in range(steps):
        command = choose(ours, plan, step, rng)
        expected = real.act(command)
        observation, _ = ours.act(command)
        got = (observation.strip(), ours.admissible, ours.won)
        if command == "help":  # its text need not match
            got, expected = got[1:], expected[1:]
        assert got == expected, command
    return steps


def choose(world: World, plan: list[str], step: int, rng: random.Random) -> str:
    """Every other game follows its solution at first; then mostly commands that change something."""
    if step < len(plan) and rng.random() < 0.7 and plan[step] in world.admissible:
        return plan[step]
    if rng.random() < 0.08:
        return rng.choice(NONSENSE)
    changing = [command for command in world.admissible if command.split()[0] in CHANGES]
    return rng.choice(changing) if changing and rng.random() < 0.6 else rng.choice(world.admissible)


def altered(game: Game, rng: random.Random) -> Game:
    """The game with facts changed at random, still to be won: the real engine fails on goals that it proves unreachable."""
    while True:
        variant = shaken(game, rng)
        if household.solve(variant, 20) is not None:
            return variant


def shaken(game: Game, rng: random.Random) -> Game:
    facts = {predicate: list(rows) for predicate, rows in game.problem.facts.items()}
    objects = [o for o, _ in facts["objecttype"]]
    places = [place for _, place in facts["receptacleatlocation"]]
    where = {place: rng.choice(places) for place in places} if rng.random() < 0.8 else {}
    facts["receptacleatlocation"] = [(r, where.get(place, place)) for r, place in facts["receptacleatlocation"]]
    facts["objectatlocation"] = [(o, where.get(place, place)) for o, place in facts["objectatlocation"]]
    if rng.random() < 0.5:
        facts["atlocation"] = [("agent1", rng.choice([place for _, place in facts["receptacleatlocation"]]))]
    facts["opened"] = [row for row in facts["openable"] if rng.random() < 0.3]
    wanted = {o for o, kind in facts["objecttype"] if kind in (f"{game.task.object}type", f"{game.task.lamp}type")}
    facts["pickupable"] = [(o,) for o in objects if o in wanted or rng.random() < 0.9]
    outer, *inner = rng.sample(objects, min(3, len(objects)))
    facts["isreceptacleobject"] = [(outer,)]
    facts["inreceptacleobject"] = [(o, outer) for o in inner]
    for ability in ("cleanable", "heatable", "coolable", "sliceable", "toggleable"):
        facts[ability] = [(o,) for o in objects if o in wanted or rng.random() < 0.5]
    for state in ("isclean", "ishot", "iscool", "issliced", "istoggled"):
        facts[state] = [(o,) for o in objects if rng.random() < 0.1]
    knife = rng.choice([o for o in objects if o not in wanted] or [""])
    facts["objecttype"] = [(o, "knifetype" if o == knife else kind) for o, kind in facts["objecttype"]]
    declared = {**game.problem.objects, "knifetype": "otype"}
    facts["cancontain"] = sorted({*facts["cancontain"], *((kind, "knifetype") for _, kind in facts["receptacletype"])})
    if rng.random() < 0.3:
        held = rng.choice(objects)
        facts["holds"], facts["holdsany"] = [("agent1", held)], [("agent1",)]
        for predicate in ("inreceptacle", "objectatlocation"):
            facts[predicate] = [row for row in facts[predicate] if row[0] != held]
    if rng.random() < 0.3:
        lost = facts["receptacleatlocation"].pop()[0]
        assert lost
    problem = Problem(declared, {p: rows for p, rows in facts.items() if rows}, game.problem.goal)
    return compile_game(problem, replace(game.task, sentence="do as you like"))


def games(rooms: str, task: str, count: int, seed: int) -> list[Game]:
    config = household.Config.model_validate({"tasks": (task,), "rooms": rooms, "max_steps": 50})
    return [household.game_of(config, i) for i in household.task_ids(config, "train", seed, 0, count)]


def compare(tmp_path: Path, rooms: str, task: str, count: int, steps: int, seed: int = 11) -> int:
    compared = 0
    for number, game in enumerate(games(rooms, task, count, seed)):
        rng = random.Random(1000 * seed + number)
        for kind, variant in (("plain", game), ("altered", altered(game, rng))):
            compared += play_both(RealEngine(tmp_path / f"{kind}{number}", variant), variant, rng, steps)
    return compared


@pytest.mark.parametrize("task", GOALS)
@pytest.mark.parametrize("rooms", ["small", "full"])
def test_fresh_games_agree_with_the_real_engine(tmp_path: Path, rooms: str, task: str) -> None:
    assert compare(tmp_path, rooms, task, count=1, steps=20) == 40


@pytest.mark.slow
@pytest.mark.parametrize("task", GOALS)
@pytest.mark.parametrize("rooms", ["small", "full"])
def test_many_fresh_games_agree_with_the_real_engine(tmp_path: Path, rooms: str, task: str) -> None:
    assert compare(tmp_path, rooms, task, count=5, steps=50, seed=12) == 500
