"""Generated games: splits without overlap, the same from the same id, alike in what should be alike."""

from collections import Counter

import pytest
from household_cases import ALL_TASKS

from actors.envs import household
from actors.envs.household import generate
from actors.envs.household.generate import held_out, split_of
from actors.envs.household.pddl import parse, render
from protos.errors import ConfigError, DataError

CONFIG = household.Config()


def games(config: household.Config, split: str, seed: int, count: int) -> list[household.Game]:
    return [household.game_of(config, task_id) for task_id in household.task_ids(config, split, seed, 0, count)]


def combination(game: household.Game) -> tuple[str, str, str, str]:
    task = game.task
    return task.room, task.type, task.object, task.destination or task.lamp


@pytest.mark.parametrize("tasks", [("pick_and_place_simple",), ALL_TASKS])
def test_splits_never_overlap(tasks: tuple[str, ...]) -> None:
    config = household.Config.model_validate({"tasks": tasks})
    train, seen, unseen = (games(config, split, seed, 150) for seed, split in enumerate(("train", "seen", "unseen")))
    fingerprints = [{game.fingerprint for game in split} for split in (train, seen, unseen)]
    assert not fingerprints[0] & fingerprints[1]
    assert not fingerprints[0] & fingerprints[2]
    assert not fingerprints[1] & fingerprints[2]
    known = {combination(game) for game in train + seen}
    assert not known & {combination(game) for game in unseen}
    assert all(held_out(*combination(game)) for game in unseen)
    assert {split_of(game) for game in seen} == {"seen"}
    assert Counter(game.task.room for game in unseen).keys() == Counter(game.task.room for game in train).keys()


def test_a_task_id_is_its_game() -> None:
    (task_id,) = household.task_ids(CONFIG, "seen", 4, 17, 1)
    assert task_id == "household:seen:4:17"
    first = household.game_of(CONFIG, task_id)
    household.game_of.cache_clear()
    again = household.game_of(CONFIG, task_id)
    assert again is not first
    assert (again.problem, again.task, again.identity) == (first.problem, first.task, first.identity)


def test_task_ids_are_a_window_on_one_order() -> None:
    assert household.task_ids(CONFIG, "train", 0, 3, 4) == household.task_ids(CONFIG, "train", 0, 0, 7)[3:]
    assert len({game.identity for game in games(CONFIG, "train", 0, 200)}) > 190


def test_fingerprints_see_past_coordinates_numbers_and_wording() -> None:
    game = games(CONFIG, "train", 2, 1)[0]
    moved = render(game.problem).replace("_plus_", "_swap_").replace("_minus_", "_plus_").replace("_swap_", "_minus_")
    task = game.task
    parameters = {"object_target": task.object, "parent_target": task.destination, "toggle_target": task.lamp}
    traj_data = {"task_type": task.type, "task_desc": "another wording", "room": task.room, "pddl_params": parameters}
    other = household.load(moved, traj_data)
    other.reset()
    assert other.game.fingerprint == game.fingerprint
    parameters["object_target"] = "Sock"
    changed = household.load(moved, traj_data)
    changed.reset()
    assert changed.game.fingerprint != game.fingerprint


def test_problems_survive_writing_and_reading() -> None:
    config = household.Config.model_validate({"tasks": ALL_TASKS, "rooms": "full", "max_steps": 50})
    for game in games(config, "train", 0, 12):
        assert parse(render(game.problem)) == game.problem


def test_the_target_never_starts_at_its_destination() -> None:
    for game in games(CONFIG, "train", 1, 60):
        for r, inside in enumerate(game.contents):
            if game.receptacle_types[r] == game.task.destination:
                assert game.task.object not in {game.object_types[o] for o in inside}


def test_impossible_wishes_are_clear_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "ATTEMPTS", 50)
    with pytest.raises(ConfigError, match="no split 'dev'"):
        household.task_ids(CONFIG, "dev", 0, 0, 1)
    hopeless = household.Config(tasks=("pick_two_obj_and_place",), max_steps=3)
    with pytest.raises(DataError, match="raise max_steps"):
        household.game_of(hopeless, "household:train:0:0")
    with pytest.raises(ValueError, match="at least 1"):
        household.Config(tasks=())
