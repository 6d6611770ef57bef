"""Every shipped algorithm trains by the command that a user types, from the same checkpoint."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "deploy/configs/algorithms").glob("*.toml"))
SMALL = (
    "threads=1",
    "warm_start.updates=0",
    "training.updates=2",
    "replay.groups_per_update=4",
    "replay.group_size=4",
    "evaluation.games=4",
    "evaluation.samples=1",
    "evaluation.every=0",
    'evaluation.modes=["sampled"]',
    'evaluation.splits=["seen"]',
    "collapse.policy=ignore",
    "training.advantages.invalid_penalty=0.1",  # the tiny policy never wins: this tells its episodes apart
    "training.learner.wm_max_grad_ratio=none",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def train(start: Callable[..., subprocess.Popen], runs: Path, config: Path, *overrides: str) -> Path:
    process = start("train", str(config), *SMALL, *overrides, "--runs", str(runs), "--name", config.stem, "--quiet")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return runs / config.stem


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_an_algorithm_trains(
    start: Callable[..., subprocess.Popen], whole_run: Path, tmp_path: Path, config: Path
) -> None:
    run = train(start, tmp_path, config, f"model.path={newest(whole_run)}")
    updates = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in updates] == [0, 1]
    for row in updates:
        assert np.isfinite([value for value in row.values() if isinstance(value, float)]).all()
    # In an update whose replies were all cut there is nothing to learn from: then these are absent.
    assert any(row.get("paw/loss", 0) != 0 for row in updates), "the world model learns under every algorithm"
    assert any(row.get("learner/steps", 0) > 0 for row in updates)
    before, after = (load_file(newest(folder) / "model.safetensors") for folder in (whole_run, run))
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    if "gae" in config.read_text():
        assert any(row.get("critic/steps", 0) > 0 and "value/loss" in row for row in updates)


def test_dynamic_sampling_plays_until_enough_groups_differ(
    start: Callable[..., subprocess.Popen], whole_run: Path, tmp_path: Path
) -> None:
    """The tiny policy hardly ever wins: no group differs in task return, so each update plays all the rounds that it may."""
    dapo = ROOT / "deploy/configs/algorithms/dapo.toml"
    run = train(start, tmp_path, dapo, f"model.path={newest(whole_run)}", "training.sampling_rounds=3")
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rounds = row["rollout/episodes"] / 16  # 4 groups of 4
        assert rounds in (1, 2, 3)
        assert row["rollout/success"] > 0 or rounds == 3
