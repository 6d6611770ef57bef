"""TOML settings: overrides, refusals in one line, and writing them out again."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deploy.refusals import check, worded
from deploy.settings import dump, load, parse_override
from protos.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Schedule(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"


class Optimizer(Section):
    name: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    """Step size."""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0
    """Bound of the gradient's norm.

    "none": no bound."""
    schedule: Schedule = Schedule.LINEAR


class Learner(Section):
    optimizer: Optimizer = Optimizer(lr=5e-3)
    """How the weights move."""
    minibatches: int = 2


class Paw(Section):
    name: str = "paw"
    alpha: float = Field(0.75, gt=0, le=1)
    replay_ratio: float = 0.0


class Stage(Section):
    name: str = "stage"
    updates: int = 1
    memory: Literal["none", "facts"] | None = "facts"


class Config(Section):
    name: str = "household"
    seed: int = 0
    where: Path = Path("runs")
    learner: Learner = Learner()
    environment: dict[str, Any] = {"name": "household", "rooms": 5, "tasks": ["pick", "heat"]}
    objectives: list[dict[str, Any]] = [{"name": "policy_gradient"}, {"name": "paw", "alpha": 0.5}]
    stages: list[Stage] = [Stage(name="first"), Stage(name="second", updates=2)]

    @field_validator("objectives")
    @classmethod
    def _plugins(cls, objectives: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for objective in objectives:
            if objective.get("name") == "paw":
                check(Paw, objective, at=("paw",))
        return objectives


class Needs(Section):
    data: str
    learner: Learner = Learner()


def refused(model: type[BaseModel], *overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as error:
        load(model, None, list(overrides), text=text)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_defaults_are_the_models() -> None:
    assert load(Config) == Config()


def test_a_partial_table_keeps_the_rest_of_its_default() -> None:
    config = load(Config, text="[learner.optimizer]\nclip = 0.5\n")
    assert config.learner.optimizer == Optimizer(lr=5e-3, clip=0.5)  # lr of the default instance, not of the class


def test_overrides_follow_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("seed = 3\n[learner]\nminibatches = 4\n[environment]\nrooms = 8\n")
    config = load(Config, path, ["seed=4", "learner.optimizer.lr=1e-2", "seed=5", "environment.rooms=9"])
    assert (config.seed, config.learner.minibatches, config.learner.optimizer.lr) == (5, 4, 0.01)
    assert config.environment == {"name": "household", "rooms": 9, "tasks": ["pick", "heat"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("-2", -2),
        ("true", True),
        ("False", False),
        ("[0.9, 0.95]", [0.9, 0.95]),
        ('{ name = "x" }', {"name": "x"}),
        ('"1"', "1"),
        ("unseen", "unseen"),
        ("runs/a=b", "runs/a=b"),
        ("", ""),
        ("two words", "two words"),
        ("1\nb = 2", "1\nb = 2"),
    ],
)
def test_override_values(text: str, value: object) -> None:
    keys, read = parse_override(f"a.b={text}")
    assert keys == ["a", "b"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", ".a=1"])
def test_what_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"dotted\.key=value"):
        parse_override(text)


def test_lists_are_entered_by_name_and_by_index() -> None:
    config = load(
        Config, None, ["objectives.paw.replay_ratio=0.125", "objectives.0.clip=0.3", "stages.second.updates=7"]
    )
    assert config.objectives == [
        {"name": "policy_gradient", "clip": 0.3},
        {"name": "paw", "alpha": 0.5, "replay_ratio": 0.125},
    ]
    assert [stage.updates for stage in config.stages] == [1, 7]
    assert load(Config, None, ["learner.optimizer.betas.1=0.99"]).learner.optimizer.betas == (0.9, 0.99)


def test_another_plugin_drops_the_settings_of_the_one_before() -> None:
    for overrides in (
        ["environment=mine.world", "environment.size=3"],
        ["environment.size=3", "environment.name=mine.world"],
    ):
        assert load(Config, None, overrides).environment == {"name": "mine.world", "size": 3}
    for name in ("other", "household"):  # a file that names the plug-in says all of it
        assert load(Config, text=f'[environment]\nname = "{name}"\n').environment == {"name": name}
    assert load(Config, None, ["environment.name=household"]) == Config()
    # A closed table's `name` is a choice like any other.
    assert load(Config, None, ["learner.optimizer.name=muon"]).learner.optimizer == Optimizer(name="muon", lr=5e-3)
    assert load(Config, None, ["name=mine"]).environment["rooms"] == 5


@pytest.mark.parametrize(
    ("override", "name", "nearest"),
    [
        ("sed=1", "sed", "seed"),
        ("learner.optimizer.lrr=1", "learner.optimizer.lrr", "learner.optimizer.lr"),
        ("learner.optimzer.lr=1", "learner.optimzer", "learner.optimizer"),
        ("lr=1", "lr", "learner.optimizer.lr"),
        ("objectives.paw.alhpa=1", "objectives.paw.alhpa", "objectives.paw.alpha"),
        ("stages.second.update=1", "stages.second.update", "stages.second.updates"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(override: str, name: str, nearest: str) -> None:
    assert refused(Config, override) == f"unknown setting {name}: did you mean {nearest}?"


def test_an_unknown_setting_like_none_lists_what_there_is() -> None:
    message = refused(Config, "learner.qqqq=1")
    assert message == "unknown setting learner.qqqq: learner has optimizer, minibatches"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("learner.optimizer.lr=fast", ["learner.optimizer.lr", '"fast"', "expected a valid number"]),
        ("learner.optimizer.lr=-1", ["learner.optimizer.lr", "-1", "expected a value greater than 0"]),
        ("learner.optimizer.name=sgd", ["learner.optimizer.name", '"sgd"', "'adamw' or 'muon'"]),
        ("learner.minibatches=1.5", ["learner.minibatches", "1.5", "integer"]),
        ("learner=3", ["learner", "3"]),
        ("objectives.paw.alpha=2", ["objectives.paw.alpha", "2", "less than or equal to 1"]),
        ("stages.first.updates=x", ["stages.first.updates", '"x"', "integer"]),
        ("seed.deep=1", ["seed is a value", "deep"]),
        ("objectives.echo.alpha=1", ["no element 'echo'", "policy_gradient, paw"]),
        ("objectives.7.alpha=1", ["no element '7'"]),
    ],
)
def test_a_wrong_value_names_key_value_and_expectation(override: str, parts: list[str]) -> None:
    message = refused(Config, override)
    assert all(part in message for part in parts), message


def test_several_problems_share_the_line_and_a_missing_setting_is_named() -> None:
    message = refused(Needs, "learner.minibatches=x", "learner.optimizer.lr=y", "learner.foo=1", "bar=1")
    assert message.startswith("data is required but not set; learner.")
    assert message.endswith("and 2 more")


def test_an_unchecked_validation_error_is_worded_too() -> None:
    with pytest.raises(ValidationError) as error:
        Optimizer.model_validate({"lr": "x", "lrr": 1})
    line = worded(error.value)
    assert line.startswith('Optimizer: lr = "x": expected a valid number')
    assert "unknown setting lrr" in line


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=r"no config file .*quik\.toml: did you mean .*quick\.toml\?"):
        load(Config, tmp_path / "quik.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(Config, tmp_path)
    with pytest.raises(ConfigError, match="no config file"):
        load(Config, tmp_path / "quick.toml" / "deeper.toml")
    (tmp_path / "bad.toml").write_text("seed = = 1\n")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML.*line 1"):
        load(Config, tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Config, tmp_path / "latin.toml")


def test_none_has_a_word() -> None:
    config = load(Config, None, ["learner.optimizer.clip=none"])
    assert config.learner.optimizer.clip is None
    assert 'clip = "none"' in dump(config)
    assert load(Config, text=dump(config)) == config
    # Where "none" is a word of the setting itself, it is that word.
    assert load(Config, None, ["stages.first.memory=none"]).stages[0].memory == "none"


def test_comments_are_the_docstrings() -> None:
    text = dump(Config(), comments=True)
    assert "# Step size.\nlr = 0.005\n" in text
    assert '# Bound of the gradient\'s norm.\n#\n# "none": no bound.\nclip = 1.0\n' in text
    assert "# How the weights move.\n[learner.optimizer]\n" in text
    assert load(Config, text=text) == Config()


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be written as TOML"):
        dump(Config(environment={"name": "x", "thing": object()}))


plain = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    environment=st.dictionaries(st.text(max_size=5), plain, max_size=4),
    objectives=st.lists(st.dictionaries(st.sampled_from(["a", "b c", "ä"]), plain), max_size=3),
    lr=st.floats(min_value=0, exclude_min=True, allow_nan=False),
    clip=st.none() | st.floats(allow_nan=False),
    name=st.text(max_size=12),
    stages=st.lists(st.builds(Stage, name=st.text(max_size=3), memory=st.sampled_from(["none", "facts"])), max_size=2),
)
def test_dump_then_load_gives_the_config_again(
    environment: dict, objectives: list, lr: float, clip: float | None, name: str, stages: list
) -> None:
    environment = {**environment, "name": "household"}
    learner = Learner(optimizer=Optimizer(lr=lr, clip=clip))
    config = Config(environment=environment, objectives=objectives, learner=learner, name=name, stages=stages)
    for comments in (False, True):
        assert load(Config, text=dump(config, comments=comments)) == config
