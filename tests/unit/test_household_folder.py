"""ALFWorld's own files: which games a folder holds, in which order, and what their task sentence is."""

import json
from pathlib import Path

import pytest

from actors.envs import household
from actors.envs.household.folder import read_task
from protos.errors import DataError

CONFIG = household.Config()
NAMES = ["b-second", "a/first", "C", "a/Third", "d"]


def write(root: Path, names: list[str], split: str = "train") -> list[household.Game]:
    games = [household.game_of(CONFIG, i) for i in household.task_ids(CONFIG, split, 8, 0, len(names))]
    for name, game in zip(names, games, strict=True):
        household.write_game(root / name, game)
    return games


def test_the_order_is_that_of_names_whatever_the_file_system_says(tmp_path: Path) -> None:  # BC-28
    write(tmp_path / "one", NAMES)
    write(tmp_path / "two", NAMES[::-1])
    assert (
        list(household.load_folder(tmp_path / "one")) == sorted(NAMES) == list(household.load_folder(tmp_path / "two"))
    )


def test_written_games_play_as_before(tmp_path: Path) -> None:
    (game,) = write(tmp_path, ["x"])
    folder = household.load_folder(tmp_path)
    assert len(folder) == 1
    assert (folder["x"].identity, folder["x"].task) == (game.identity, game.task)
    data = json.loads((tmp_path / "x" / "game.tw-pddl").read_text())
    assert data["solvable"]
    assert data["walkthrough"] == household.solve(game, 50)


def test_each_game_once_and_training_again_and_again(tmp_path: Path) -> None:  # BC-28
    write(tmp_path / "train", ["a", "b", "c"])
    write(tmp_path / "valid_unseen", NAMES, "unseen")
    config = household.Config(data=tmp_path)
    unseen = household.task_ids(config, "unseen", 0, 0, 100)
    assert sorted(unseen) == sorted(f"valid_unseen/{name}" for name in NAMES)
    assert household.task_ids(config, "unseen", 0, 2, 2) == unseen[2:4]
    train = household.task_ids(config, "train", 0, 0, 9)
    assert [sorted(train[i : i + 3]) for i in (0, 3, 6)] == [["train/a", "train/b", "train/c"]] * 3
    with pytest.raises(DataError, match="no game of the seen split"):
        household.task_ids(config, "seen", 0, 0, 1)
    env = household.build(config)
    assert env.reset(options={"task_id": unseen[0]})[1]["task_id"] == unseen[0]
    assert env.reset(seed=1)[1]["task_id"].startswith("train/")


def test_without_split_folders_the_content_decides(tmp_path: Path) -> None:
    write(tmp_path / "x", ["1", "2"], "train")
    write(tmp_path / "y", ["1", "2"], "seen")
    config = household.Config(data=tmp_path)
    assert sorted(household.task_ids(config, "train", 0, 0, 2)) == ["x/1", "x/2"]
    assert sorted(household.task_ids(config, "seen", 0, 0, 9)) == ["y/1", "y/2"]


def test_games_that_alfworld_leaves_out_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, ["good", "movable-x", "AppleSliced", "unsolvable", "other"])
    path = tmp_path / "unsolvable" / "game.tw-pddl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "solvable": False}))
    path = tmp_path / "other" / "traj_data.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_type": "pick_two_obj_and_place"}))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "game.tw-pddl").write_text("{}")
    assert household.task_ids(household.Config(data=tmp_path), "train", 0, 0, 1) == ["good"]
    assert list(household.load_folder(tmp_path)) == ["good", "other"]


REAL = {
    "task_id": "trial_T2019",
    "task_type": "pick_heat_then_place_in_recep",
    "pddl_params": {
        "mrecep_target": "",
        "object_sliced": False,
        "object_target": "Mug",
        "parent_target": "CoffeeMachine",
    }
    | {"toggle_target": ""},
    "scene": {"floor_plan": "FloorPlan7", "random_seed": 1},
    "turk_annotations": {"anns": [{"task_desc": "Put a warm mug in the coffee maker.", "high_descs": []}]},
}


def test_a_real_trajectory_gets_a_template_of_the_goal_library() -> None:
    task = read_task(REAL)
    assert task.sentence in ("put a hot mug in coffeemachine", "heat some mug and put it in coffeemachine")
    assert (task.object, task.destination, task.room) == ("mug", "coffeemachine", "Kitchen")
    assert read_task(REAL) == task
    assert {read_task({**REAL, "task_id": i}).sentence for i in range(20)} > {task.sentence}


def test_the_grammar_of_the_game_file_has_the_last_word_on_the_sentence() -> None:
    grammar = 'grammar :: """ { "task": [ { "rhs": "Your task is to: heat a mug, at once." } ] } """'
    assert read_task({**REAL, "task_desc": "something else"}, grammar).sentence == "heat a mug, at once"
    assert read_task({**REAL, "task_desc": "something else"}).sentence == "something else"


def test_tasks_past_the_library_are_told_by_people() -> None:
    assert read_task({**REAL, "task_type": "stack"}).sentence == "Put a warm mug in the coffee maker"
    with pytest.raises(DataError, match="no sentence"):
        read_task({"task_type": "stack"})
    with pytest.raises(DataError, match="task_type"):
        read_task({})


def test_lamps_and_slices() -> None:
    lamp = {**REAL["pddl_params"], "toggle_target": "FloorLamp", "parent_target": "Sofa"}
    task = read_task({"task_type": "look_at_obj_in_light", "pddl_params": lamp})
    assert (task.lamp, task.destination) == ("floorlamp", "")
    assert "floorlamp" in task.sentence
    sliced = {**REAL["pddl_params"], "object_sliced": True}
    assert "slice" in read_task({"task_type": "pick_and_place_simple", "pddl_params": sliced}).sentence


def test_bad_folders_and_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        household.load_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no playable"):
        household.load_folder(tmp_path)
    write(tmp_path, ["x"])
    (tmp_path / "x" / "traj_data.json").write_text("[1]")
    with pytest.raises(DataError, match="no JSON object"):
        household.load_folder(tmp_path)["x"]
    (tmp_path / "x" / "traj_data.json").write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        household.load_folder(tmp_path)["x"]
    with pytest.raises(KeyError):
        household.load_folder(tmp_path)["y"]
