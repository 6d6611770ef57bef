"""`tandem eval`: the policy of a run, of one of its checkpoints, or of any Hugging Face causal LM, on held-out games."""

from pathlib import Path
from typing import Any, NamedTuple

from deploy.config import RunConfig
from deploy.console import Console
from deploy.evaluation import HeldOut
from deploy.hub import checkpoint_folder
from deploy.parts import World, build_engine, build_learner, build_replay, build_world
from deploy.settings import load
from learner.checkpoint import latest
from learner.learner import Learner
from protos.errors import ConfigError, DataError
from protos.records import Version

PRETRAINED = Path(__file__).parent / "configs" / "pretrained.toml"
"""Settings of a checkpoint that no run made, unless others are given."""


class Opened(NamedTuple):
    """A policy ready to play: where its weights lie, its settings, its environment and prompt, its model in a learner."""

    folder: Path
    config: RunConfig
    world: World
    learner: Learner


def evaluate(name: str, overrides: list[str], console: Console, settings: Path | None = None) -> dict[str, Any]:
    """Success in each of `evaluation.modes`, pass@k, and the world model's error, as one flat record a split and mode.

    `name` and `settings` are those of `open_checkpoint`.
    """
    saved, config, world, learner = open_checkpoint(name, overrides, settings)
    engine, replay = build_engine(config, learner, world.tokenizer), build_replay(config, world, Version(0, 0))
    result: dict[str, Any] = {"checkpoint": str(saved)}
    modes, splits = config.evaluation.modes, config.evaluation.splits
    with console.phase("evaluation", len(modes) * len(splits)) as phase:
        for split in splits:
            held_out = HeldOut(config, world, split)
            result[split] = {"next_observation_nll": held_out.next_observation_nll(learner)}
            for mode in modes:
                record, _ = held_out.evaluate(replay, engine, mode, config.evaluation.samples)
                result[split][mode] = {key: value for key, value in record.items() if key not in ("mode", "split")}
                phase.advance(**{f"{split} {mode}": record["success"]["mean"]})
    return result


def open_checkpoint(name: str, overrides: list[str], settings: Path | None = None) -> Opened:
    """The policy called `name`: a run (its newest whole checkpoint), a checkpoint of one, a Hugging Face folder or hub name.

    A run's settings are its own, and `settings` must be None; any other checkpoint has those of the file `settings`, by
    default `configs/pretrained.toml`. `overrides` change them.
    Raises DataError where there is no such checkpoint, TokenizerMismatch where the tokenizer is not the run's.
    """
    folder = _newest(Path(name)) if (Path(name) / "checkpoints").is_dir() else checkpoint_folder(name)
    own = folder.parent.parent / "config.toml"
    if not own.is_file():
        config = load(RunConfig, settings or PRETRAINED, [*overrides, f"model.path={folder}"])
        world = build_world(config)
        return Opened(folder, config, world, build_learner(config, world.tokenizer))
    if settings is not None:
        raise ConfigError(f"{folder} has the settings of its run: leave out --config, change them with key=value")
    config = load(RunConfig, own, overrides)
    world = build_world(config, folder)
    learner = build_learner(config, world.tokenizer)
    learner.load_weights(folder)
    return Opened(folder, config, world, learner)


def _newest(run: Path) -> Path:
    newest = latest(run / "checkpoints")
    if newest is None:
        raise DataError(f"{run} holds no whole checkpoint yet")
    return newest.folder
