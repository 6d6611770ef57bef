"""How a refused setting is worded: one line that names the key, the value and what was expected.

A plug-in's own settings are checked by its own model, from within a validator of the model around it:

    @field_validator("environment")
    def _known(cls, value): check(load_environment(value["name"]).Config, rest(value)); return value

The problems found within come out under the dotted names of the whole config.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protos.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str, ...]

SHOWN = 3
"""Problems worded in one message; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    text: str | None  # follows the name; None: there is no such setting
    names: tuple[Path, ...]  # the settings that do exist, for the nearest name


class InvalidSettings(ConfigError):
    """Settings that a model refused."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        lines = [_wording(problem) for problem in problems[:SHOWN]]
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        super().__init__("; ".join(lines + more))
        self.problems = tuple(problems)


def check(model: type[Model], data: Any, at: Sequence[str] = ()) -> Model:
    """`data` as a `model`. InvalidSettings words what was refused, by its dotted name under `at`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        names = tuple(_names(model, data))
        problems = [problem for details in error.errors() for problem in _problems(details, data, names)]
    raise InvalidSettings(_unique([_under(tuple(at), problem) for problem in problems]))


def worded(error: ValidationError) -> str:
    """One line for an error of a model that was not checked by `check`: without the nearest names."""
    problems = [p for details in error.errors() for p in _problems(details, None, ())]
    return f"{error.title}: {InvalidSettings(_unique(problems))}"


def element_segment(element: Any, index: int) -> str:
    """What a dotted name calls an element of a list: its `name` where it has one, else its index."""
    name = element.get("name") if isinstance(element, Mapping) else getattr(element, "name", None)
    return name if isinstance(name, str) else str(index)


def models_within(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models that an annotation mentions, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_within(argument)]


def _problems(details: ErrorDetails, data: Any, names: tuple[Path, ...]) -> Iterator[Problem]:
    path = _dotted(details["loc"], data)
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidSettings):
        for problem in cause.problems:
            within = _under(path, problem)
            yield replace(within, names=(*within.names, *names))
    elif details["type"] == "extra_forbidden":
        yield Problem(path, None, names)
    else:
        yield Problem(path, _expectation(details, cause), names)


def _under(at: Path, problem: Problem) -> Problem:
    return replace(problem, path=(*at, *problem.path), names=tuple((*at, *name) for name in problem.names))


def _unique(problems: Sequence[Problem]) -> list[Problem]:
    """The first problem of each setting: a union reports every one of its variants."""
    return list({problem.path: problem for problem in reversed(problems)}.values())[::-1]


def _dotted(location: Sequence[str | int], data: Any) -> Path:
    """pydantic's location as a dotted name: without the variants of a union, elements by their names."""
    path: list[str] = []
    for depth, segment in enumerate(location):
        if isinstance(data, Mapping) and segment in data:
            path.append(str(segment))
            data = data[segment]
        elif isinstance(data, list | tuple) and isinstance(segment, int) and segment < len(data):
            path.append(element_segment(data[segment], segment))
            data = data[segment]
        elif data is None or (isinstance(data, Mapping) and depth == len(location) - 1):
            path.append(str(segment))
    return tuple(path)


def _names(model: type[BaseModel], data: Any) -> Iterator[Path]:
    """Every setting of `model`, lists entered as far as `data` fills them."""
    table = data if isinstance(data, Mapping) else {}
    for key, field in model.model_fields.items():
        yield (key,)
        value = table.get(key)
        for inner in models_within(field.annotation):
            if isinstance(value, list | tuple):
                for i, element in enumerate(value):
                    yield from ((key, element_segment(element, i), *name) for name in _names(inner, element))
            else:
                yield from ((key, *name) for name in _names(inner, value))


def _expectation(details: ErrorDetails, cause: Exception | None) -> str:
    if details["type"] == "missing":
        return " is required but not set"
    message = str(cause) if cause is not None else details["msg"]
    message = " ".join(message.split())
    message = re.sub(r"^Input should be (?=greater|less|a multiple)", "expected a value ", message)
    message = re.sub(r"^Input should (be )?", "expected ", message)
    value = details["input"]
    if isinstance(value, Mapping | BaseModel) and cause is not None:
        return f": {message}"
    shown = json.dumps(value, default=str, ensure_ascii=False)
    return f" = {shown if len(shown) <= 60 else shown[:57] + '...'}: {message[:1].lower() + message[1:]}"


def _wording(problem: Problem) -> str:
    name = ".".join(problem.path)
    if problem.text is None:
        nearest = _nearest(problem.path, problem.names)
        return f"unknown setting {name}: " + (f"did you mean {nearest}?" if nearest else _siblings(problem))
    return (name + problem.text).removeprefix(": ")


def _nearest(path: Path, names: Sequence[Path]) -> str | None:
    """The closest setting, judged by the whole dotted name and by its last part alike."""

    def likeness(name: Path) -> float:
        whole = difflib.SequenceMatcher(None, ".".join(path), ".".join(name)).ratio()
        return whole + difflib.SequenceMatcher(None, path[-1], name[-1]).ratio()

    best = max(names, key=likeness, default=None)
    return ".".join(best) if best is not None and likeness(best) >= 1.1 else None


def _siblings(problem: Problem) -> str:
    parent = problem.path[:-1]
    siblings = [name[-1] for name in problem.names if name[:-1] == parent]
    return f"{'.'.join(parent) or 'a config'} has {', '.join(siblings)}" if siblings else "there is none like it"
