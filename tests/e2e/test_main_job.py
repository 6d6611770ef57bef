"""What a run leaves behind, and how the command refuses what it cannot do."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from protos.tokens import TextTokenizer

Start = Callable[..., subprocess.Popen]
DATA = Path(__file__).parents[1] / "data"

pytestmark = pytest.mark.timeout(300)


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def refusal(process: subprocess.Popen) -> tuple[int, list[str]]:
    _, err = process.communicate(timeout=120)
    return process.returncode, [line for line in err.splitlines() if line.startswith("tandem:")]


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def test_summary_holds_what_users_read(whole_run: Path) -> None:
    summary = json.loads((whole_run / "summary.json").read_text())
    for when in ("success_before", "success_after"):
        assert 0 <= summary[when]["low"] <= summary[when]["mean"] <= summary[when]["high"] <= 1
        assert summary[when]["episodes"] == 16
    assert summary["seed"] == 0
    assert summary["commit"]
    assert summary["wall_seconds"] > 0


def test_every_file_of_a_run(whole_run: Path) -> None:
    for name in ("config.toml", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "summary.json", "report.html"):
        assert (whole_run / name).stat().st_size > 0, name
    assert list((whole_run / "tensorboard").glob("events*"))
    assert rows(whole_run / "episodes" / "evaluation-seen.jsonl")
    metrics = rows(whole_run / "metrics.jsonl")
    assert [row["update"] for row in metrics] == [*range(8), *range(6)]


def test_both_sources_of_paw_are_trained(whole_run: Path) -> None:
    policy = [row for row in rows(whole_run / "metrics.jsonl") if row["phase"] == "policy"]
    for row in policy:
        assert row["learner/tokens/fresh"] > 0
        assert row["learner/tokens/replay"] > 0
        assert row["paw/loss/fresh"] > 0
        assert row["paw/loss/replay"] > 0
    assert "grad/cosine" in policy[0]


def test_no_held_out_game_is_trained_on(whole_run: Path) -> None:
    held_out = {row["task_id"] for row in rows(whole_run / "episodes" / "evaluation-seen.jsonl")}
    assert held_out
    assert all(task.startswith("household:seen:") for task in held_out)


def test_checkpoint_is_a_hugging_face_folder(whole_run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(newest(whole_run))
    tokenizer = AutoTokenizer.from_pretrained(newest(whole_run))
    text = "You arrive at drawer 1. The drawer 1 is closed."
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids[0].tolist() == TextTokenizer.load(newest(whole_run)).encode(text).tolist()
    with torch.no_grad():
        assert torch.isfinite(model(ids).logits).all()


def test_eval_of_a_run_gives_its_own_figures(start: Start, whole_run: Path) -> None:
    process = start("eval", str(whole_run), "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out)
    summary = json.loads((whole_run / "summary.json").read_text())
    assert result["seen"]["sampled"]["success"] == summary["success_after"]
    assert np.isclose(result["seen"]["next_observation_nll"], summary["next_observation_nll_after"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "training.updatess=3"], 2, "training.updates"),
        (["train", "nowhere.toml"], 2, "nowhere.toml"),
        (["train", "environment.name=houshold"], 2, "household"),
        (["train", "replay.group_size=1", "replay.leases.partial_minimum=1"], 2, "group"),
        (["train", "sampling.temperature=0.7"], 2, "sampling.temperature"),
        (["eval", "nowhere"], 3, "nowhere"),
        (["train", "--resume", "nowhere"], 3, "nowhere"),
    ],
)
def test_refusals_are_one_line(start: Start, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    if arguments[0] == "train":
        arguments = [*arguments, "--runs", str(tmp_path)]
    returned, said = refusal(start(*arguments))
    assert returned == code
    assert len(said) == 1
    assert words in said[0]


def test_checkpoint_of_another_tokenizer_is_refused(start: Start, whole_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[environment]", '[environment]\nrooms = "full"'))
    returned, said = refusal(start("train", "--resume", str(run), "--quiet"))
    assert returned == 3
    assert "tokenizer" in said[0]


def test_environment_that_raises_is_named(start: Start, tmp_path: Path) -> None:
    returned, said = refusal(
        start(
            "train", str(DATA / "tiny.toml"), "--runs", str(tmp_path), "environment.name=tests.data.broken_environment"
        )
    )
    assert returned == 4
    assert "broken_environment" in said[0]
    assert "the stove is on fire" in said[0]


def test_collapse_rolls_back_then_stops(start: Start, tmp_path: Path) -> None:
    """Nothing is ever won here and every entropy is below the bound: each window is a collapse."""
    limits = ["collapse.policy=rollback", "collapse.rollbacks=2", "collapse.window=2", "collapse.entropy=100"]
    process = start("train", str(DATA / "tiny.toml"), "--runs", str(tmp_path), "--name", "run", *limits)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 5, err
    assert err.count("going back to the last checkpoint") == 2
    assert "the policy collapsed over 2 updates: entropy" in err.splitlines()[-1]
    assert newest(tmp_path / "run").is_dir()


def test_help_answers_without_torch(start: Start) -> None:
    out, _ = start("--help").communicate(timeout=60)
    assert "train" in out
