"""The planner against breadth-first search over the state machine."""

import random

import pytest
from household_cases import ALL_TASKS, random_problem, shortest, small_game

from actors.envs import household
from actors.envs.household.game import compile_game
from actors.envs.household.library import GOALS, Task
from actors.envs.household.pddl import Problem
from actors.envs.household.world import World

_IN = """(exists (?r - receptacle ?o - object) (and
    (objectType ?o appleType) (receptacleType ?r fridgeType) (inReceptacle ?o ?r) {}))"""
# Goals past the six task types: slices, forbidden facts, closed doors, everything of a kind, either this or that.
OTHER_GOALS = {
    "sliced": _IN.format("(sliceable ?o) (isSliced ?o)"),
    "closed": _IN.format("(not (opened ?r))"),
    "not cold": _IN.format("(not (isCool ?o)) (isClean ?o)"),
    "held and cold": "(exists (?o - object ?a - agent) (and (objectType ?o appleType) (holds ?a ?o) (isCool ?o)))",
    "all": """(exists (?r - receptacle) (and (receptacleType ?r shelfType)
              (forall (?o - object) (or (inReceptacle ?o ?r) (not (objectType ?o appleType))))))""",
    "either": f"(or {_IN.format('(isClean ?o)')} (exists (?r - receptacle) (and (opened ?r) (receptacleType ?r cabinetType))))",
    "empty hand": f"(and (forall (?a - agent) (not (holdsAny ?a))) {_IN.format('(isCool ?o)')})",
}


def replay(commands: list[str], world: World) -> bool:
    return all(world.act(command)[1] for command in commands) and world.won


@pytest.mark.parametrize("goal", [*ALL_TASKS, *OTHER_GOALS])
def test_solutions_are_shortest(goal: str) -> None:
    text = OTHER_GOALS.get(goal) or GOALS[goal].pddl.format(object="apple", destination="fridge", lamp="desklamp")
    rng = random.Random(goal)
    solved = 0
    for _ in range(15):
        game = compile_game(random_problem(rng, text), Task("any", "play"))
        expected = shortest(game, 8)
        commands = household.solve(game, 8)
        assert (None if commands is None else len(commands)) == expected
        if commands:
            solved += 1
            assert replay(commands, World(game))
    assert solved >= 3


def test_the_limit_is_kept() -> None:
    game = small_game(["fridge", "shelf"], [("apple", 1)], OTHER_GOALS["closed"])
    commands = household.solve(game, 10)
    assert commands == [
        *("go to shelf 1", "take apple 1 from shelf 1", "go to fridge 1", "open fridge 1", "move apple 1 to fridge 1"),
        "close fridge 1",
    ]
    assert household.solve(game, 5) is None


def test_what_cannot_be_won_has_no_solution() -> None:
    game = small_game(["cabinet", "shelf"], [("apple", 1)], OTHER_GOALS["closed"])  # no fridge
    assert household.solve(game, 50) is None


@pytest.mark.parametrize("rooms", ["small", "full"])
@pytest.mark.parametrize("task", ALL_TASKS)
def test_every_generated_game_is_won_within_its_steps(rooms: str, task: str) -> None:
    config = household.Config.model_validate({"tasks": (task,), "rooms": rooms})
    for split in ("train", "seen", "unseen"):
        for task_id in household.task_ids(config, split, 0, 0, 3):
            game = household.game_of(config, task_id)
            commands = household.solve(game, config.max_steps)
            assert commands is not None
            assert replay(commands, World(game))


def test_solving_leaves_the_problem_alone() -> None:
    problem = random_problem(
        random.Random(3), GOALS["pick_and_place_simple"].pddl.format(object="apple", destination="shelf")
    )
    copy = Problem(dict(problem.objects), {p: list(rows) for p, rows in problem.facts.items()}, problem.goal)
    household.solve(compile_game(problem, Task("any", "play")), 8)
    assert problem == copy
