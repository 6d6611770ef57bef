"""TextWorldExpress (arXiv 2208.01174): eight text games of its own engine, in Java, behind our interface.

    env = build(Config(games=("coin", "twc")))
    observation, info = env.reset(options={"task_id": "textworld_express:coin:train:17"})

Needs Java and the `textworld-express` extra. A process starts one Java machine, with the first game that it plays; each
environment has a game of its own in it. The machine ends with the process, however that ends: it dies with its standard input.
"""

import atexit
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from actors.core import Environment, Info
from protos.errors import ConfigError, DataError, EnvironmentFailure
from protos.seeding import generator

Name = Literal["arithmetic", "coin", "cookingworld", "mapreader", "peckingorder", "simonsays", "sorting", "twc"]

# Our splits, the engine's folds, and the seeds that it sets aside for each.
FOLDS = {"train": "train", "seen": "dev", "unseen": "test"}
SEEDS = {"train": range(1_000), "dev": range(10_000, 11_000), "test": range(20_000, 21_000)}
OVER = "The game is over."

_PREFIX = "textworld_express:"
_TASK = re.compile(rf"{_PREFIX}(?P<game>[a-z]+):(?P<fold>train|dev|test):(?P<seed>[0-9]+)")
_JAVA_OPTIONS = ["-Xverify:none", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # short games: start fast
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_UNDO = {f"move {way}": f"move {back}" for way, back in _BACK.items()}
_UNDO |= {f"close door to {way}": f"open door to {way}" for way in _BACK}


class Config(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """Which of TextWorldExpress's games are played, how they are made, and by which demonstrator."""

    games: tuple[Name, ...] = Field(default=("coin",), min_length=1)
    """Games, drawn alike. **[default]** coin, the easiest to explore."""

    params: Mapping[Name, str] = Field(default_factory=dict)
    """Parameters of a game in the engine's own notation, such as {"coin": "numLocations=5,includeDoors=0"}; the engine's
    defaults where none are given."""

    max_steps: int = Field(default=50, ge=1)
    """Commands in an episode; then it is truncated."""

    reward: float = 1.0
    """Paid once, at success. Partial scores and failures pay nothing. **[default]**"""

    expert_noise: float = Field(default=0.1, ge=0, le=1)
    """Share of the gold path's commands before which the demonstrator plays a random admissible one. **[default]**"""


class Game:
    """One game in the Java machine. Shares nothing with another.

    The engine keeps objects of a task in static fields, where two games of that task would move each other's things: each
    Game loads the engine's classes anew. That takes seconds, so that games that are through are kept for the next player.
    """

    def __init__(self) -> None:
        gateway = _java_machine(os.getpid())
        java = gateway.jvm.java
        urls = gateway.new_array(java.net.URL, 1)
        urls[0] = java.io.File(_constants().JAR_PATH).toURI().toURL()
        loader = java.net.URLClassLoader(urls, java.lang.ClassLoader.getPlatformClassLoader())
        interface = loader.loadClass("textworldexpress.runtime.PythonInterface")
        self._process, self._gateway = os.getpid(), gateway
        self._server = interface.newInstance()
        self._methods = {method.getName(): method for method in interface.getMethods()}

    @staticmethod
    def take() -> "Game":
        """A game of this process that nobody plays, or a new one."""
        while _idle:
            game = _idle.pop()
            if game._process == os.getpid():
                return game
        return Game()

    def give_back(self) -> None:
        """Let another play it. Its holder must not use it any more."""
        _idle.append(self)

    def start(self, config: Config, task_id: str, *, gold: bool = False) -> Info:
        """The engine's first state of a task; with `gold`, its solution is worked out too."""
        found = _TASK.fullmatch(task_id)
        if found is None or found["game"] not in Name.__args__ or int(found["seed"]) not in SEEDS[found["fold"]]:
            raise DataError(
                f"textworld_express: no task {task_id!r}; ids are {_PREFIX}<game>:<train|dev|test>:<seed of that fold>"
            )
        params = config.params.get(found["game"], "")  # pyright: ignore[reportArgumentType, reportCallIssue]
        if refusal := self._call("load", found["game"], params):
            raise ConfigError(f"textworld_express: {found['game']} with parameters {params!r}: {refusal}")
        return json.loads(self._call("generateNewGameJSON", int(found["seed"]), found["fold"], gold))

    def act(self, command: str) -> Info:
        return json.loads(self._call("stepJSON", command))

    def task(self) -> str:
        """The instruction."""
        return self._call("getTaskDescription")

    def gold_path(self) -> list[str]:
        return list(self._gateway.jvm.java.util.ArrayList(self._call("getGoldActionSequence")))

    def _call(self, name: str, *arguments: Any) -> Any:
        """By Java's own reflection: py4j's looks methods up by the name of the class, which all games share."""
        packed = self._gateway.new_array(self._gateway.jvm.java.lang.Object, len(arguments))
        for position, argument in enumerate(arguments):
            packed[position] = argument
        return self._methods[name].invoke(self._server, packed)


_idle: list[Game] = []


class TextWorldExpress:
    """Plays one game at a time. The first observation opens with the instruction."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._game: Game | None = None
        self._task_id = ""
        self._state: Info = {}
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game of `options["task_id"]`; without one, a training game drawn by `seed`."""
        named = (options or {}).get("task_id")
        self._task_id = named or task_ids(self.config, "train", seed or 0, 0, 1)[0]
        self._game = self._game or Game.take()
        self._state, self._steps = self._game.start(self.config, self._task_id), 0
        task = self._game.task()
        return f"{task}\n\n{self._state['observation']}", self._info(True) | {"task": task}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Terminated at success and at failure; truncated after `max_steps` commands without either.

        A command that is not admissible is refused by the engine, and counts. A game that is over refuses everything.
        """
        if self._game is None:
            raise EnvironmentFailure("textworld_express: call reset before step")
        if self._terminated or self._steps >= self.config.max_steps:
            return OVER, 0.0, self._terminated, not self._terminated, self._info(False)
        valid = action in self._state["validActions"]
        self._state = self._game.act(action if isinstance(action, str) else "")
        self._steps += 1
        truncated = not self._terminated and self._steps >= self.config.max_steps
        reward = self.config.reward * self._state["tasksuccess"]
        return self._state["observation"], reward, self._terminated, truncated, self._info(valid)

    def close(self) -> None:
        """Let the game go; safe to call again. The Java machine stays for the process's other games."""
        if self._game is not None:
            self._game.give_back()
        self._game = None

    @property
    def _terminated(self) -> bool:
        return self._state["tasksuccess"] or self._state["taskfailure"]

    def _info(self, valid: bool) -> Info:
        state = self._state
        return {
            "admissible_commands": sorted(set(state["validActions"])),
            "won": state["tasksuccess"],
            "state_key": f"{state['observation']}\n{state['inventory']}",
            "valid": valid,
            "task_id": self._task_id,
            "task_type": self._task_id.split(":")[1],
            "score": state["score"],
            "steps": self._steps,
        }


class Expert:
    """Follows the engine's gold path. A random command that it puts in between is taken back where that is one command."""

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self._config, self._rng = config, rng
        self._path: list[str] = []

    def __call__(self, observation: str, info: Info) -> str:
        admissible: list[str] = info["admissible_commands"]
        if "task" in info:  # an episode begins
            game = Game.take()
            game.start(self._config, info["task_id"], gold=True)
            self._path = game.gold_path()[::-1]
            game.give_back()
        if self._config.expert_noise and self._rng.random() < self._config.expert_noise:
            command = str(self._rng.choice(admissible))
            if command in _UNDO:
                self._path.append(_UNDO[command])
            return command
        command = self._path.pop() if self._path else ""
        return command if command in admissible else str(self._rng.choice(admissible))


def build(config: Config) -> TextWorldExpress:
    """An environment that plays the tasks of `task_ids`. Raises ConfigError where Java or the extra is missing."""
    _constants()
    return TextWorldExpress(config)


def task_ids(config: Config, split: str, seed: int, start: int = 0, count: int = 1) -> list[str]:
    """Tasks `start` .. `start + count` of a split: each seed of its fold for each game, shuffled by `seed`.

    Training goes on for ever, each pass shuffled anew; the other splits hold each task once, so that fewer may come.
    """
    if split not in FOLDS:
        raise ConfigError(f"textworld_express: no split {split!r}; there are {', '.join(FOLDS)}")
    total = len(config.games) * len(SEEDS[FOLDS[split]])
    end = start + count if split == "train" else min(start + count, total)
    return [_shuffled(config.games, FOLDS[split], seed, index // total)[index % total] for index in range(start, end)]


def expert(config: Config, env: Environment, rng: np.random.Generator) -> Callable[[str, Info], str]:
    """The engine's own solution of each task that `env` starts, with `config.expert_noise`."""
    return Expert(config, rng)


@lru_cache(maxsize=32)
def _shuffled(games: tuple[str, ...], fold: str, seed: int, epoch: int) -> tuple[str, ...]:
    ids = [f"{_PREFIX}{game}:{fold}:{number}" for game in games for number in SEEDS[fold]]
    return tuple(ids[i] for i in generator(seed, "textworld_express", fold, "order", epoch).permutation(len(ids)))


def _constants() -> Any:
    """Where the engine lies, once all that it needs is there."""
    if shutil.which("java") is None:
        raise ConfigError(
            "textworld_express needs Java: apt-get install default-jre-headless (or any Java on the PATH)"
        )
    try:
        return import_module("textworld_express.constants")
    except ModuleNotFoundError as error:
        raise ConfigError("textworld_express is not installed: pip install -e '.[textworld-express]'") from error


@lru_cache(maxsize=1)
def _java_machine(process: int) -> Any:
    """The Java machine of this process: a fork, which has another id, starts its own."""
    constants, py4j = _constants(), import_module("py4j.java_gateway")
    port, java = py4j.launch_gateway(
        classpath=constants.JAR_PATH,
        cwd=constants.BASEPATH,  # where the engine looks for its tables
        javaopts=_JAVA_OPTIONS,
        die_on_exit=True,  # Java ends when its standard input does, so with this process even if that is killed
        return_proc=True,
    )
    gateway = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(auto_field=True, port=port))
    atexit.register(_stop, gateway, java, process)
    return gateway


def _stop(gateway: Any, java: subprocess.Popen[bytes], process: int) -> None:
    if process != os.getpid():  # a fork leaves its parent's machine alone
        return
    gateway.shutdown()
    assert java.stdin is not None
    java.stdin.close()
    java.wait()
