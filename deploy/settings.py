"""Settings: a TOML file and `dotted.key=value` overrides, validated by a pydantic model.

    config = load(RunConfig, Path("quick.toml"), ["training.groups=8", "training.objectives.paw.replay_ratio=0"])
    load(RunConfig, None, [], text=dump(config)) == config

What a file or an override leaves out keeps the model's default, at every depth: a partial table is merged into the
default, never put in its place. A plug-in table (an untyped one with a `name`) that is given with its name is taken as
it is, because the settings of one plug-in mean nothing to another. `refusals.check` words what is refused.
"""

import copy
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel

from deploy.refusals import check, element_segment, models_within
from protos.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

NAME = "name"
"""The key that tells which plug-in a table configures."""
ABSENT = "none"
"""How TOML, which has no null, says None."""


def load(model: type[Model], path: Path | None = None, overrides: Sequence[str] = (), *, text: str = "") -> Model:
    """The model's defaults, the file `path` (or TOML `text`) over them, `overrides` on top. May raise ConfigError."""
    data = defaults(model)
    given = read(path) if path is not None else _parse(text, "settings")
    _merge(data, given, model)
    # Names first: what else is said about a plug-in is meant for the one named, wherever the name stands.
    for keys, value in sorted(map(parse_override, overrides), key=lambda override: override[0][-1] != NAME):
        _assign(data, keys, value, model)
    return check(model, _with_none(model, data))


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. ConfigError names a missing or broken file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"no config file {path}{_similar_file(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a config file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return _parse(text, str(path))


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b=value` as keys and value. The value is read as TOML (and `.5`, `True`); what is neither is a string."""
    dotted, separator, value = text.partition("=")
    keys = [key.strip() for key in dotted.split(".")]
    if not separator or not all(keys):
        raise ConfigError(f"{text!r} is not a setting: write dotted.key=value")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"] if "\n" not in value else value
    except tomllib.TOMLDecodeError:
        return keys, _python_word(value.strip())


def _python_word(word: str) -> Any:
    if word in ("True", "False"):
        return word == "True"
    return float(word) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", word, re.IGNORECASE) else word


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The defaults of every field that has one, as plain data; a None is left out."""
    plain = {}
    for name, field in model.model_fields.items():
        if field.is_required():
            continue
        value = _plain(field.get_default(call_default_factory=True, validated_data={}))
        if value is not None:
            plain[name] = value
    return plain


def dump(config: BaseModel, *, comments: bool = False) -> str:
    """`config` as TOML, every setting written out, such that loading it gives `config` again.

    `comments` sets each field's docstring above it.
    """
    return "\n".join(_lines(config, (), comments)).strip() + "\n"


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def _similar_file(path: Path) -> str:
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1)
    return f": did you mean {path.with_name(near[0])}?" if near else ""


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _merge(base: dict[str, Any], update: Mapping[str, Any], model: type[BaseModel] | None) -> None:
    """Lay `update` over `base`, table by table. `model` is None within a plug-in's own table."""
    for key, value in update.items():
        _set(base, key, value, _child(model, key))


def _set(table: dict[str, Any] | list[Any], key: Any, value: Any, model: type[BaseModel] | None) -> None:
    old = table[key] if isinstance(table, list) or key in table else None
    if isinstance(old, dict) and isinstance(value, str) and NAME in old and model is None:
        value = {NAME: value}  # `advantages=grpo` is short for `advantages.name=grpo`
    partial = model is not None or (isinstance(old, dict) and NAME in old)
    if isinstance(old, dict) and isinstance(value, Mapping) and partial and not (model is None and NAME in value):
        _merge(old, value, model)
    else:
        table[key] = copy.deepcopy(value)


def _child(model: type[BaseModel] | None, key: Any) -> type[BaseModel] | None:
    """The one closed model that the field `key` (or its list's elements) holds, if it is one."""
    field = model.model_fields.get(key) if model is not None else None
    models = models_within(field.annotation) if field is not None else []
    return models[0] if len(models) == 1 and models[0].model_config.get("extra") != "allow" else None


def _assign(data: dict[str, Any], keys: list[str], value: Any, model: type[BaseModel]) -> None:
    """Set the value that `keys` leads to. A list is entered by index or by the `name` of an element."""
    node: Any = data
    owner: type[BaseModel] | None = model
    for depth, key in enumerate(keys[:-1]):
        step, owner = _step(node, key, owner, keys[:depth])
        node = node[step] if isinstance(node, list) else node.setdefault(step, {})
    step, child = _step(node, keys[-1], owner, keys[:-1])
    if owner is None and step == NAME and node.get(NAME, value) != value:
        node.clear()  # another plug-in's settings
    _set(node, step, value, child)


def _step(node: Any, key: str, owner: type[BaseModel] | None, path: list[str]) -> tuple[Any, type[BaseModel] | None]:
    """Where `key` stands in `node` (found at `path`, holding an `owner`), and the model of what stands there."""
    if isinstance(node, list):
        return _index(node, key, ".".join(path)), owner
    if isinstance(node, dict):
        return key, _child(owner, key)
    raise ConfigError(f"{'.'.join(path)} is a value, not a table: it has no setting {key}")


def _index(elements: list[Any], key: str, where: str) -> int:
    names = [element_segment(element, i) for i, element in enumerate(elements)]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(elements):
        return int(key)
    raise ConfigError(f"{where} has no element {key!r}; it has {', '.join(names) or 'none'}")


def _with_none(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the word "none" read as None where the field admits None and has no such word of its own."""
    read_as = dict(data)
    for name, field in model.model_fields.items():
        value = read_as.get(name)
        choices = _choices(field.annotation)
        if value == ABSENT and NoneType in choices and ABSENT not in choices:
            read_as[name] = None
        elif isinstance(value, Mapping) and (child := _child(model, name)):
            read_as[name] = _with_none(child, value)
        elif isinstance(value, list) and (child := _child(model, name)):
            read_as[name] = [_with_none(child, v) if isinstance(v, Mapping) else v for v in value]
    return read_as


def _choices(annotation: Any) -> set[Any]:
    """The types and literal words of an annotation, flattened."""
    arguments = get_args(annotation)
    if not arguments:
        return {annotation}
    return set().union(*(_choices(argument) for argument in arguments))


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(value: Any) -> Any:
    """`value` in TOML's types; None stays None."""
    if isinstance(value, BaseModel):
        return _table(value)
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | int | float | str | date | datetime | time):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{value!r} cannot be written as TOML")


def _table(config: BaseModel) -> dict[str, Any]:
    """Every field; None is the word "none": left out, it would read as the default of whatever table the field stands in."""
    plain = {name: _plain(getattr(config, name)) for name in type(config).model_fields}
    return {name: ABSENT if value is None else value for name, value in plain.items()}


def _lines(value: BaseModel | Mapping[str, Any], path: tuple[str, ...], comments: bool) -> Iterator[str]:
    """TOML of one table: its values, then its tables, each under a header."""
    table = _table(value) if isinstance(value, BaseModel) else _plain(value)
    inner = {key: item for key, item in table.items() if _is_table(item)}
    for key, item in table.items():
        if key not in inner:
            yield from _comment(value, key, comments)
            yield f"{_key(key)} = {_inline(item)}"
    for key, item in inner.items():
        source = getattr(value, key) if isinstance(value, BaseModel) else value[key]
        header = ".".join(_key(part) for part in (*path, key))
        for element in source if isinstance(item, list) else [source]:
            yield ""
            yield from _comment(value, key, comments)
            yield f"[[{header}]]" if isinstance(item, list) else f"[{header}]"
            yield from _lines(element, (*path, key), comments)


def _is_table(item: Any) -> bool:
    return isinstance(item, dict) or (isinstance(item, list) and bool(item) and all(isinstance(e, dict) for e in item))


def _inline(value: Any) -> str:
    """`value` on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + " }" if value else "{}"
        )
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _key(key: str) -> str:
    """`key` as TOML writes it: bare, or quoted where it must be."""
    return tomli_w.dumps({key: 0}).rsplit(" = ", 1)[0]


def _comment(value: Any, key: str, comments: bool) -> Iterator[str]:
    field = type(value).model_fields.get(key) if comments and isinstance(value, BaseModel) else None
    if field is not None and field.description:
        yield from (f"# {line.strip()}".rstrip() for line in field.description.splitlines())
