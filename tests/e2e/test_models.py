"""Models that no run made from scratch: a plain Hugging Face folder is evaluated; adapters are trained, resumed, evaluated."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen]
FEW = ("evaluation.games=4", "evaluation.samples=2", 'evaluation.splits=["seen"]', "threads=1")
LORA = """
[model]
dtype = "bfloat16"
gradient_checkpointing = true
lora = { rank = 4, trained_modules = ["norm"] }
"""

pytestmark = pytest.mark.timeout(300)


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def done(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def test_a_plain_folder_is_evaluated_under_the_window_prompt(start: Start, whole_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(newest(whole_run), folder, ignore=shutil.ignore_patterns("replay", "trainer", "job.json"))
    limits = ("prompt.max_tokens=512", "sampling.max_reply_tokens=8", 'evaluation.modes=["sampled","constrained"]')
    result = json.loads(done(start("eval", str(folder), *FEW, *limits, "--json")))["seen"]
    assert set(result) == {"next_observation_nll", "sampled", "constrained"}
    assert result["sampled"]["success"]["episodes"] == 8
    assert set(result["sampled"]["pass_at_k"]) == {"1", "2"}
    assert result["constrained"]["reply_kinds"]["admissible"] == 1
    assert result["constrained"]["invalid"] == 0
    assert sum(result["sampled"]["reply_kinds"].values()) == pytest.approx(1)
    assert result["constrained"]["by_task"]["pick_and_place_simple"]["games"] == 4


def test_adapters_are_trained_resumed_and_evaluated(start: Start, whole_run: Path, tmp_path: Path) -> None:
    config = tmp_path / "lora.toml"
    config.write_text(LORA)
    small = ("warm_start.updates=0", "replay.groups_per_update=2", "replay.group_size=4", "evaluation.probe_games=4")
    base = f"model.path={newest(whole_run)}"
    runs = ("--runs", str(tmp_path), "--quiet")
    done(start("train", str(config), base, *FEW, *small, "training.updates=1", *runs, "--name", "lora"))
    run = tmp_path / "lora"
    assert (newest(run) / "adapter_model.safetensors").is_file()
    assert not (newest(run) / "model.safetensors").exists(), "the base is not saved again"
    done(start("train", "--resume", str(run), "training.updates=2", "--quiet"))
    summary = json.loads((run / "summary.json").read_text())
    result = json.loads(done(start("eval", str(run), "--json")))
    assert result["seen"]["sampled"]["success"] == summary["success_after"]
