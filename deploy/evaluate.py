"""`tandem eval`: a run's or a checkpoint's policy on held-out games."""

from pathlib import Path
from typing import Any

from deploy.config import RunConfig
from deploy.console import Console
from deploy.evaluation import HeldOut
from deploy.parts import World, build_engine, build_learner, build_replay, build_world
from deploy.settings import load
from learner.checkpoint import latest
from learner.learner import Learner
from protos.errors import DataError
from protos.records import Version


def evaluate(folder: Path, overrides: list[str], console: Console) -> dict[str, Any]:
    """Success sampled, greedy and constrained, pass@k, and the world model's error, as one flat record a mode.

    `folder` is a run (its newest whole checkpoint is taken) or a checkpoint of one. Settings are the run's own, changed by
    `overrides`. Raises DataError where the folder is neither, TokenizerMismatch where the tokenizer is not the run's.
    """
    saved, config, world, learner = open_checkpoint(folder, overrides)
    engine, replay = build_engine(config, learner, world.tokenizer), build_replay(config, world, Version(0, 0))
    result: dict[str, Any] = {"checkpoint": str(saved)}
    modes = {"sampled": config.evaluation.samples, "greedy": 1, "constrained": 1}
    with console.phase("evaluation", len(modes) * len(config.evaluation.splits)) as phase:
        for split in config.evaluation.splits:
            held_out = HeldOut(config, world, split)
            result[split] = {"next_observation_nll": held_out.next_observation_nll(learner)}
            for mode, samples in modes.items():
                record, _ = held_out.evaluate(replay, engine, mode, samples)
                result[split][mode] = {name: value for name, value in record.items() if name not in ("mode", "split")}
                phase.advance(**{f"{split} {mode}": record["success"]["mean"]})
    return result


def open_checkpoint(folder: Path, overrides: list[str]) -> tuple[Path, RunConfig, World, Learner]:
    """The checkpoint's own folder, its run's settings changed by `overrides`, its world, and its model in a learner."""
    saved = _checkpoint(folder)
    config = load(RunConfig, _config(saved), overrides)
    world = build_world(config, saved)
    learner = build_learner(config, world.tokenizer)
    learner.load_weights(saved)
    return saved, config, world, learner


def _checkpoint(folder: Path) -> Path:
    if (folder / "checkpoints").is_dir():
        newest = latest(folder / "checkpoints")
        if newest is None:
            raise DataError(f"{folder} holds no whole checkpoint yet")
        return newest.folder
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is neither a run nor a checkpoint: it has no checkpoints/ and no config.json")
    return folder


def _config(saved: Path) -> Path:
    config = saved.parent.parent / "config.toml"
    if not config.is_file():
        raise DataError(f"{saved} lies outside its run: {config} says how it was trained and is missing")
    return config
