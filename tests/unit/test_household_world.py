"""The state machine against games recorded from ALFWorld's real engine, and rules that those games seldom reach."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from household_cases import small_game, small_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.envs import household
from actors.envs.household.game import compile_game
from actors.envs.household.library import Task
from actors.envs.household.pddl import Problem
from actors.envs.household.world import World
from protos.errors import DataError

TRACES = Path(__file__).parents[1] / "data" / "household.jsonl.gz"


def recorded() -> Iterator[dict[str, Any]]:
    with gzip.open(TRACES, "rt") as file:
        yield from map(json.loads, file)


def test_every_recorded_game_replays_word_for_word() -> None:
    steps = 0
    for record in recorded():
        game = household.load(record["pddl_problem"], record["traj_data"])
        observation, info = game.reset()
        reset = record["reset"]
        assert (observation.strip(), info["admissible_commands"]) == (reset["observation"].strip(), reset["admissible"])
        world = World(game.game)
        for step in record["steps"]:
            observation, valid = world.act(step["action"])
            if step["action"] != "help":
                assert observation.strip() == step["observation"].strip()
            assert world.admissible == step["admissible"]
            assert (int(world.won), world.won) == (step["score"], step["won"])
            assert valid == (step["observation"] != "Nothing happens.")
            steps += 1
    assert steps == 3292


def test_several_receptacles_at_one_place() -> None:
    # Texts as the real engine gives them; `look` tells of objects moved between receptacles of one place.
    world = World(small_game(["shelf", "fridge", "shelf"], [("apple", 0)], places=[0, 0, 1]))
    assert "a fridge 1, a shelf 2, and a shelf 1." in world.reset()
    assert world.act("go to shelf 2")[0] == "You arrive at shelf 2. On the shelf 2, you see a apple 1."
    assert "go to fridge 1" not in world.admissible
    assert "examine fridge 1" in world.admissible
    assert world.act("look")[0] == "You are facing the fridge 1, and shelf 2. Next to it, you see nothing."
    for command in ("take apple 1 from shelf 2", "open fridge 1", "move apple 1 to fridge 1"):
        assert world.act(command)[1]
    assert world.act("look")[0] == "You are facing the fridge 1, and shelf 2. Next to it, you see a apple 1."


def test_slicing_needs_a_knife_in_hand_and_the_thing_near() -> None:
    world = World(small_game(["shelf", "cabinet"], [("apple", 1), ("knife", 0)]))
    for command in ("go to shelf 1", "take knife 1 from shelf 1", "go to cabinet 1"):
        world.act(command)
    assert world.act("slice apple 1 with knife 1") == ("You sliced the apple 1 with the knife 1.", True)
    for command in ("open cabinet 1", "move knife 1 to cabinet 1", "take apple 1 from cabinet 1"):
        assert world.act(command)[1]
    assert world.act("examine apple 1")[0] == "This is a sliced apple 1."


def test_states_are_equal_where_their_keys_are() -> None:
    world = World(small_game(["shelf", "cabinet"], [("apple", 0), ("mug", 1)]))
    world.act("go to shelf 1")
    before = world.key
    for command in ("take apple 1 from shelf 1", "examine apple 1", "move apple 1 to shelf 1", "look", "nonsense"):
        world.act(command)
    assert world.key == before
    world.act("go to cabinet 1")
    closed = world.key
    assert closed != before
    world.act("open cabinet 1")
    opened = world.key
    world.act("close cabinet 1")
    assert opened != closed == world.key


def test_keys_of_different_games_differ() -> None:
    keys = {
        World(small_game(["shelf", "cabinet"], [("apple", 0), (other, 1)])).key for other in ("mug", "knife", "apple")
    }
    assert len(keys) == 3


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), words=st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=25))
def test_any_text_is_refused_or_admissible_and_the_restated_state_stays_true(
    seed: int, words: list[str | None]
) -> None:
    rng = random.Random(seed)
    world = World(
        small_game(["shelf", "cabinet", "fridge"], [("apple", 1), ("mug", 0), ("knife", 2)], places=[0, 1, 1])
    )
    for word in words:
        command = rng.choice(world.admissible) if word is None else word
        accepted = command.strip() in world.admissible
        observation, valid = world.act(command)
        assert valid == accepted == (observation != "Nothing happens.")
        assert world.admissible == sorted(set(world.admissible))
        layout, game = world.game.layout, world.game
        inside = [[o for o in range(3) if world.state & layout.inside(o, r)] for r in range(3)]
        assert inside == world.contents
        assert [o for o in range(3) if world.state & layout.holds(o)] == ([world.held] if world.held >= 0 else [])
        assert [p for p in range(len(game.stands)) if world.state & layout.at(p)] == [world.place]


@pytest.mark.parametrize(
    "bad", ["", " ", "\n", "go to", "GO TO SHELF 1", "go to shelf 1\nlook", "x" * 10**6, "\ud800", "\0", "é💥"]
)
def test_bad_actions_are_refused(bad: str) -> None:
    env = household.build(household.Config())
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(bad)
    assert (observation, reward, terminated, truncated, info["valid"]) == ("Nothing happens.", 0.0, False, False, False)


@pytest.mark.parametrize(
    ("predicate", "rows", "message"),
    [
        ("holds", [("agent1", "apple_bar_0"), ("agent1", "mug_bar_1")], "at most one object"),
        ("atlocation", [("agent1", "loc_nowhere")], "one declared location"),
        ("receptacleatlocation", [("shelf_bar_0", "loc_bar_0"), ("shelf_bar_0", "loc_bar_1")], "two locations"),
    ],
)
def test_problems_past_the_rules_are_clear_errors(predicate: str, rows: list[tuple[str, str]], message: str) -> None:
    problem = small_problem(["shelf", "cabinet"], [("apple", 0), ("mug", 1)], "(and (isClean apple_bar_0))")
    with pytest.raises(DataError, match=message):
        compile_game(Problem(problem.objects, {**problem.facts, predicate: rows}, problem.goal), Task("any", "play"))


def test_facts_about_things_without_a_part_are_ignored() -> None:
    problem = small_problem(
        ["shelf", "cabinet"], [("apple", 0)], "(and (isClean apple_bar_0) (not (opened shelf_bar_0)))"
    )
    facts = {**problem.facts, "objectatlocation": [("curtains", "loc_bar_0"), *problem.facts["objectatlocation"]]}
    facts["receptacleatlocation"] = [("cabinet_bar_1", "loc_bar_1")]  # the shelf cannot be reached
    world = World(compile_game(Problem(problem.objects, facts, problem.goal), Task("any", "play")))
    assert "you see a cabinet 1." in world.reset()
    assert world.admissible == ["go to cabinet 1", "help", "inventory", "look"]
