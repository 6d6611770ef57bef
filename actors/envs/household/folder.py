"""ALFWorld's own game files: folders that hold a `game.tw-pddl` beside a `traj_data.json`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actors.envs.household.game import Game, compile_game
from actors.envs.household.library import GOALS, Task
from actors.envs.household.pddl import parse, render
from actors.envs.household.planner import solve
from protos.errors import DataError

GAME, TRAJECTORY = "game.tw-pddl", "traj_data.json"
_SENTENCE = re.compile(r"Your task is to: (.*?)\.\s*\"")
_GRAMMAR = '"task": [{{"rhs": "Your task is to: {}."}}]'
# ALFRED numbers its floor plans by the kind of room.
_ROOMS = {0: "Kitchen", 2: "LivingRoom", 3: "Bedroom", 4: "Bathroom"}
_SOLUTION_LIMIT = 50  # ALFWorld's own episode limit


class GameFolder(Mapping[str, Game]):
    """The solvable games under a folder, by their path relative to it ('/' on every system), sorted. Read when asked for.

    As in ALFWorld, games known to be unsolvable are left out, and those with movable receptacles or sliced objects.
    """

    def __init__(self, root: Path, tasks: tuple[str, ...] | None = None) -> None:
        if not root.is_dir():
            raise DataError(f"household: no folder {root}")
        self._root = root
        files = (path for path in root.rglob(GAME) if (path.parent / TRAJECTORY).is_file())
        ids = sorted(path.parent.relative_to(root).as_posix() for path in files)
        self._ids = {i: None for i in ids if self._is_wanted(i, tasks)}
        if not self._ids:
            raise DataError(f"household: {root} holds no playable {GAME} beside a {TRAJECTORY} of the tasks asked for")

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, task_id: str) -> Game:
        if task_id not in self._ids:
            raise KeyError(task_id)
        folder = self._root / task_id
        data = _read_json(folder / GAME)
        return read_game(data.get("pddl_problem", ""), _read_json(folder / TRAJECTORY), data.get("grammar", ""))

    def _is_wanted(self, task_id: str, tasks: tuple[str, ...] | None) -> bool:
        if "movable" in task_id or "Sliced" in task_id:
            return False
        folder = self._root / task_id
        if tasks is not None:
            # ALFWorld names its folders after the task type, which saves reading thousands of files.
            kinds = [kind for kind in GOALS if any(part.startswith(f"{kind}-") for part in task_id.split("/"))]
            kind = kinds[0] if kinds else _read_json(folder / TRAJECTORY).get("task_type")
            if kind not in tasks:
                return False
        return not re.search(r'"solvable":\s*false', _read(folder / GAME))


def read_game(pddl_problem: str, traj_data: Mapping[str, Any], grammar: str = "") -> Game:
    """The game of one ALFWorld instance. The task sentence is the one in `grammar`, where that has one."""
    return compile_game(parse(pddl_problem), read_task(traj_data, grammar))


def read_task(traj_data: Mapping[str, Any], grammar: str = "") -> Task:
    """What a game asks for: ALFWorld's `traj_data.json`, with our `task_desc` and `room` where it has them."""
    if "task_type" not in traj_data:
        raise DataError(f"household: {TRAJECTORY} names no task_type")
    parameters = traj_data.get("pddl_params", {})
    lamp = parameters.get("toggle_target", "").lower()
    task = Task(
        type=traj_data["task_type"],
        sentence="",
        object=parameters.get("object_target", "").lower(),
        destination="" if lamp else parameters.get("parent_target", "").lower(),
        lamp=lamp,
        sliced=bool(parameters.get("object_sliced", False)),
        room=traj_data.get("room", "") or _room(traj_data),
    )
    written = [sentence for sentence in _SENTENCE.findall(grammar) if sentence != "UNKNOWN GOAL"]
    sentence = written[0] if written else traj_data.get("task_desc") or _sentence(task, traj_data)
    return Task(**{name: getattr(task, name) for name in task.__slots__ if name != "sentence"}, sentence=sentence)


def write_game(folder: Path, game: Game, domain: str = "", grammar: str = "") -> None:
    """Write a game as ALFWorld keeps it. With the texts of its `alfred.pddl` and `alfred.twl2`, its engine can play it."""
    task = game.task
    walkthrough = solve(game, _SOLUTION_LIMIT)
    data = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", task.sentence) if grammar else _GRAMMAR.format(task.sentence),
        "pddl_problem": render(game.problem),
        "solvable": walkthrough is not None,
        "walkthrough": walkthrough,
    }
    trajectory = {
        "task_type": task.type,
        "task_desc": task.sentence,
        "room": task.room,
        "pddl_params": {
            "object_target": task.object,
            "parent_target": task.destination,
            "toggle_target": task.lamp,
            "mrecep_target": "",
            "object_sliced": task.sliced,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GAME).write_text(json.dumps(data))
    (folder / TRAJECTORY).write_text(json.dumps(trajectory, indent=2))


def _room(traj_data: Mapping[str, Any]) -> str:
    found = re.fullmatch(r"FloorPlan(\d+)", traj_data.get("scene", {}).get("floor_plan", ""))
    return _ROOMS.get(int(found[1]) // 100, "") if found else ""


def _sentence(task: Task, traj_data: Mapping[str, Any]) -> str:
    """A template of the goal library, the same for the same game; a human annotation where the library has none."""
    goal = GOALS.get(task.type)
    if goal is not None and task.object:
        templates = goal.sliced if task.sliced else goal.templates
        digest = hashlib.sha256(repr((task, traj_data.get("task_id"))).encode()).digest()
        return templates[digest[0] % 2].format(object=task.object, destination=task.destination, lamp=task.lamp)
    annotations = traj_data.get("turk_annotations", {}).get("anns", [])
    if not annotations:
        raise DataError(f"household: no sentence for a task of type {task.type}")
    return annotations[0]["task_desc"].rstrip(". \n")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"household: cannot read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise DataError(f"household: {path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"household: {path} is no JSON object")
    return data
