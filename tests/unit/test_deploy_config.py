"""Every shipped config is valid, resolves, and survives being written and read."""

from pathlib import Path

import pytest

from deploy.config import RunConfig
from deploy.settings import dump, load

ROOT = Path(__file__).parents[2]
CONFIGS = sorted([*(ROOT / "deploy/configs").glob("*.toml"), *(ROOT / "tests/data").glob("*.toml")])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config(path: Path, tmp_path: Path) -> None:
    config = load(RunConfig, path, [])
    written = tmp_path / "resolved.toml"
    written.write_text(dump(config, comments=True))
    assert load(RunConfig, written, []) == config


def test_defaults_train_both_sources_under_the_safeguard() -> None:
    config = RunConfig()
    paw = next(table for table in config.training.objectives if table["name"] == "paw")
    assert paw["replay_ratio"] > 0
    assert config.training.learner.wm_max_grad_ratio is not None
    assert config.replay.max_staleness == 0


def test_the_papers_recipe_has_the_papers_constants() -> None:
    """arXiv 2606.02388: alpha, rho, group size, tasks an update, learning rate, reward, prompt; no safeguard, no replay."""
    config = load(RunConfig, ROOT / "deploy/configs/paw_paper.toml", [])
    paw = next(table for table in config.training.objectives if table["name"] == "paw")
    assert (paw["alpha"], paw["rho"], paw["replay_ratio"]) == (0.75, 0.2, 0.0)
    assert (config.replay.groups_per_update, config.replay.group_size) == (16, 8)
    assert config.replay.reward_max == config.environment_config().reward == 10
    assert config.environment_config().max_steps == 50
    assert config.training.learner.optimizer.lr == 1e-6
    assert config.training.learner.wm_max_grad_ratio is None
    assert config.sampling.max_reply_tokens == 512
