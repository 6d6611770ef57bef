"""Advantages and objectives by name: modules of `learner/advantages/` and `learner/objectives/`, or a user's own.

A plug-in is a module that exposes `Config` (a pydantic model) and `build(config)`. In a run's config it is a table:

    {"name": "paw", "alpha": 0.5}              learner/objectives/paw.py, Config(alpha=0.5)
    {"name": "my_package.my_objective"}        a module on the Python path
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Literal, overload

from pydantic import BaseModel, ValidationError

from learner.core import Algorithm, Objective
from protos.errors import ConfigError

PluginKind = Literal["advantages", "objectives"]


@overload
def load(kind: Literal["advantages"], spec: Mapping[str, Any]) -> Algorithm: ...
@overload
def load(kind: Literal["objectives"], spec: Mapping[str, Any]) -> Objective: ...
def load(kind: PluginKind, spec: Mapping[str, Any]) -> Algorithm | Objective:
    """The `Algorithm` or `Objective` that `spec` describes; a ConfigError says what is wrong, and what is near."""
    module = find(kind, spec.get("name", ""))
    settings = {key: value for key, value in spec.items() if key != "name"}
    try:
        config = module.Config.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{kind}, {spec['name']}: {_explain(error, module.Config)}") from None
    return module.build(config)


def names(kind: PluginKind) -> list[str]:
    """The modules that the learner brings."""
    package = importlib.import_module(f"learner.{kind}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def find(kind: PluginKind, name: str) -> ModuleType:
    """The module called `name`: one of `names(kind)`, or a dotted path."""
    known = names(kind)
    if name in known:
        return importlib.import_module(f"learner.{kind}.{name}")
    if "." not in name:
        raise ConfigError(f"{kind}: there is no {name!r}; {_nearest(name, known)}, or a dotted path to your own module")
    if not _exists(name):
        raise ConfigError(f"{kind}: no module {name!r} on the Python path")
    module = importlib.import_module(name)
    missing = [part for part in ("Config", "build") if not hasattr(module, part)]
    if missing:
        raise ConfigError(f"{kind}: module {name!r} lacks {' and '.join(missing)}")
    return module


def _exists(dotted: str) -> bool:
    """Whether the module can be found; errors within it are left to the import, which shows where they are."""
    try:
        return importlib.util.find_spec(dotted) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _explain(error: ValidationError, config: type[BaseModel]) -> str:
    """All that is wrong, on one line."""
    parts = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            parts.append(f"there is no setting {where!r}; {_nearest(where, config.model_fields)}")
        else:
            parts.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
