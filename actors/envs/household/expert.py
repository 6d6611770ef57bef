"""A demonstrator without privileged sight: all that it knows, it read in the observations."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from actors.core import Environment, Info
from actors.envs.household.config import Config
from actors.envs.household.library import GOALS
from actors.envs.household.rooms import HOLDS
from protos.errors import EnvironmentFailure

_NAME = r"([a-z]+ \d+)"
_EVENTS = {
    "arrive": re.compile(rf"You arrive at {_NAME}\."),
    "take": re.compile(rf"You pick up the {_NAME} from the {_NAME}\."),
    "move": re.compile(rf"You move the {_NAME} to the {_NAME}\."),
    "treat": re.compile(rf"You (?:clean|heat|cool) the {_NAME} using the {_NAME}\."),
    "view": re.compile(rf"(?:On the {_NAME}, you see|The {_NAME} is open\. In it, you see) ([^.]*)\."),
}
_ITEM = re.compile(rf"\ba {_NAME}")
# What may lie where, as common sense has it.
_LYING = {receptacle.lower(): frozenset(o.lower() for o in objects) for receptacle, objects in HOLDS.items()}
_IDLE = frozenset(["help", "look", "inventory", "examine"])
_TREATMENT = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """The task sentence, understood."""

    task_type: str
    object: str
    destination: str = ""
    lamp: str = ""


@dataclass(slots=True)
class Memory:
    """What the texts told so far."""

    receptacles: list[str]  # in the order of the first text
    contents: dict[str, list[str]] = field(default_factory=dict)  # as last seen
    treated: set[str] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)  # receptacles yet to be searched
    at: str = ""
    held: str = ""

    def read(self, text: str) -> None:
        if found := _EVENTS["arrive"].search(text):
            self.at = found[1]
        for found in _EVENTS["view"].finditer(text):
            receptacle = found[1] or found[2]
            self.contents[receptacle] = _ITEM.findall(found[3])
            if receptacle in self.unseen:
                self.unseen.remove(receptacle)
        if found := _EVENTS["take"].search(text):
            self.held = found[1]
            if found[1] in self.contents.get(found[2], []):
                self.contents[found[2]].remove(found[1])
        if found := _EVENTS["move"].search(text):
            self.held = ""
            self.contents.setdefault(found[2], []).append(found[1])
        if found := _EVENTS["treat"].search(text):
            self.treated.add(found[1])


def kind(name: str) -> str:
    """'cabinet' of 'cabinet 2'."""
    return name.rpartition(" ")[0]


def understand(sentence: str) -> Wish:
    """Read a task sentence by the templates of the goal library."""
    for task_type, goal in GOALS.items():
        for template in goal.templates:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[a-z]+)", re.escape(template))
            if found := re.fullmatch(pattern, sentence):
                return Wish(task_type, **found.groupdict())
    raise EnvironmentFailure(f"household: the expert does not understand the task {sentence!r}")


class Expert:
    """Searches the receptacles in the order of the first text until it knows what it needs, and does what the task asks for.

    With probability `noise` it does something else: a random admissible command, help, look, inventory and examine apart.
    """

    def __init__(self, rng: np.random.Generator, noise: float) -> None:
        self._rng = rng
        self._noise = noise
        self._memory = Memory([])
        self._wish = Wish("", "")

    def __call__(self, observation: str, info: Info) -> str:
        if "Your task is to: " in observation:
            scene, _, sentence = observation.partition("Your task is to: ")
            self._wish = understand(sentence.strip().removesuffix("."))
            # A game that starts in front of a receptacle does not list the room: the ways out do.
            ways = [c.removeprefix("go to ") for c in info["admissible_commands"] if c.startswith("go to ")]
            receptacles = _ITEM.findall(scene) or ways
            self._memory = Memory(receptacles, unseen=list(receptacles))
        else:
            self._memory.read(observation)
        admissible: list[str] = info["admissible_commands"]
        if self._noise and self._rng.random() < self._noise:
            return self._random(admissible)
        command = self._decide(admissible)
        return command if command in admissible else self._random(admissible)

    def _random(self, admissible: list[str]) -> str:
        useful = [command for command in admissible if command.split(" ", 1)[0] not in _IDLE]
        return useful[int(self._rng.integers(len(useful)))] if useful else "look"

    def _decide(self, admissible: list[str]) -> str:
        memory = self._memory
        if not memory.held:
            return self._fetch(admissible)
        if kind(memory.held) == self._wish.object:
            return self._deliver(admissible)
        return self._put_down(admissible)

    def _fetch(self, admissible: list[str]) -> str:
        memory = self._memory
        places = [memory.at, *(r for r in memory.contents if r != memory.at)]
        for receptacle in places:
            for name in memory.contents.get(receptacle, ()):
                if kind(name) == self._wish.object and not self._is_done(name, receptacle):
                    return self._reach(receptacle, f"take {name} from {receptacle}", admissible)
        return self._explore(admissible)

    def _is_done(self, name: str, receptacle: str) -> bool:
        treated = self._wish.task_type not in _TREATMENT or name in self._memory.treated
        return treated and kind(receptacle) == self._wish.destination

    def _holds_one(self, names: list[str]) -> bool:
        return any(kind(name) == self._wish.object for name in names)

    def _deliver(self, admissible: list[str]) -> str:
        memory, wish, held = self._memory, self._wish, self._memory.held
        if wish.lamp:
            for receptacle, names in memory.contents.items():
                for name in names:
                    if kind(name) == wish.lamp:
                        return self._reach(receptacle, f"use {name}", admissible)
            return self._explore(admissible)
        if wish.task_type in _TREATMENT and held not in memory.treated:
            verb, appliance = _TREATMENT[wish.task_type]
            there = f"{appliance} 1"
            treat = f"{verb} {held} with {there}"
            return treat if treat in admissible else f"go to {there}"
        begun = [
            r
            for r, names in memory.contents.items()
            if any(self._is_done(n, r) and kind(n) == wish.object for n in names)
        ]
        target = begun[0] if begun else f"{wish.destination} 1"
        return self._reach(target, f"move {held} to {target}", admissible)

    def _put_down(self, admissible: list[str]) -> str:
        """Rid the hand of something that nobody asked for: here if it may lie here, else where such things may lie."""
        memory = self._memory
        here = [command for command in admissible if command.startswith("move ")]
        if here:
            return here[0]
        if memory.at and f"open {memory.at}" in admissible:
            return f"open {memory.at}"
        others = [r for r in memory.receptacles if r != memory.at]
        fitting = [r for r in others if kind(memory.held) in _LYING.get(kind(r), ())] or others
        return f"go to {fitting[int(self._rng.integers(len(fitting)))]}"

    def _explore(self, admissible: list[str]) -> str:
        memory = self._memory
        if not memory.unseen:  # something moved unnoticed: search again
            memory.unseen = list(memory.receptacles)
        target = memory.at if memory.at in memory.unseen else memory.unseen[0]
        return self._reach(target, f"examine {target}", admissible)

    def _reach(self, receptacle: str, command: str, admissible: list[str]) -> str:
        """`command`, or what has to be done first: go there, open it."""
        go, open_it = f"go to {receptacle}", f"open {receptacle}"
        return go if go in admissible else open_it if open_it in admissible else command


def expert(config: Config, env: Environment, rng: np.random.Generator) -> Callable[[str, Info], str]:
    """A demonstrator for one environment; it starts anew with the first observation of each episode."""
    return Expert(rng, config.expert_noise)
