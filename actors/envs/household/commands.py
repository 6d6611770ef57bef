"""The commands of one game and what they mean: texts are made once and shared by all plays of the game."""

from collections.abc import Sequence
from typing import NamedTuple

from actors.envs.household.texts import COMMANDS


class Operation(NamedTuple):
    """A command, understood: the effect's name and the indices of its arguments (-1: none).

    Effects are called like their verbs, but `inspect` is `examine` of an object.
    """

    effect: str
    first: int
    second: int


class Commands:
    """The table of commands over named `objects` and `receptacles`, and back from text to `Operation`."""

    def __init__(self, objects: Sequence[str], receptacles: Sequence[str]) -> None:
        self._objects, self._receptacles = objects, receptacles
        self.operations = {verb: Operation(verb, -1, -1) for verb in ("help", "inventory", "look")}
        self.go = self._each("go", "go", receptacles)
        self.open = self._each("open", "open", receptacles)
        self.close = self._each("close", "close", receptacles)
        self.examine = self._each("examine", "examine", receptacles)
        self.inspect = self._each("inspect", "examine", objects)
        self.use = self._each("use", "use", objects)
        self._pairs: dict[tuple[str, int, int], str] = {}

    def pair(self, verb: str, first: int, second: int) -> str:
        """`take`, `move`, `clean`, `heat`, `cool` of an object and a receptacle, or `slice` of two objects."""
        key = (verb, first, second)
        text = self._pairs.get(key)
        if text is None:
            other = self._objects if verb == "slice" else self._receptacles
            text = COMMANDS[verb].format(self._objects[first], other[second])
            self.operations[text] = Operation(verb, first, second)
            self._pairs[key] = text  # last: another thread that finds it finds its meaning too
        return text

    def _each(self, effect: str, verb: str, names: Sequence[str]) -> list[str]:
        written = [COMMANDS[verb].format(name) for name in names]
        self.operations.update({text: Operation(effect, i, -1) for i, text in enumerate(written)})
        return written
