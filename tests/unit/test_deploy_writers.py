"""The lines of a run: strict JSON, clocks apart, whole lines, and files that a resumed run continues."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import HOSTILE, episode

from deploy.runs import RunFolder
from deploy.writers import LineFile, RunWriter, is_timing
from protos.errors import StorageError
from protos.records import GroupKey


def strict_lines(path: Path) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path):
    with RunFolder.create(tmp_path, "r", "") as run:
        yield run


def test_metrics_and_clocks_go_to_files_of_their_own(run: RunFolder) -> None:
    with RunWriter(run) as writer:
        writer.metrics(
            "policy", 3, {"b": np.float32(0.1), "a": float("nan"), "time/rollout": 1.5, "rollout/tokens_per_s": 9.0}
        )
        writer.metrics("policy", 4, {"a": np.int64(2)})
    assert run.metrics.read_text() == (
        '{"phase": "policy", "update": 3, "a": null, "b": 0.1}\n{"phase": "policy", "update": 4, "a": 2}\n'
    )
    assert strict_lines(run.timings) == [
        {"phase": "policy", "update": 3, "rollout/tokens_per_s": 9.0, "time/rollout": 1.5},
    ]
    assert list(run.tensorboard.glob("events*"))


@pytest.mark.parametrize(
    ("name", "timing"),
    [
        ("time/update", True),
        ("rollout/seconds", True),
        ("rollout/env_seconds", True),
        ("learner/seconds/forward", True),
        ("learner/tokens_per_s", True),
        ("rollout/steps_per_second", True),
        ("rollout/steps", False),
        ("paw/time", False),
        ("timeouts", False),
        ("rollout/secondsight", False),
    ],
)
def test_which_metrics_are_clocks(name: str, timing: bool) -> None:
    assert is_timing(name) is timing


def test_a_resumed_run_writes_what_an_uninterrupted_one_writes(tmp_path: Path) -> None:
    def play(writer: RunWriter, updates: range) -> None:
        for update in updates:
            writer.metrics("policy", update, {"loss": update / 7, "time/x": 1.0})
            writer.episodes("train", update, [episode([("look", "a room")], seed=update)])

    with RunFolder.create(tmp_path, "whole", "") as whole, RunWriter(whole) as writer:
        play(writer, range(6))
    with RunFolder.create(tmp_path, "cut", "") as cut:
        with RunWriter(cut) as writer:
            play(writer, range(3))
            cursor = cut.cursor()
            play(writer, range(3, 5))
        cut.rewind(cursor)
        with RunWriter(cut, resumed_at=3) as writer:
            play(writer, range(3, 6))
    assert cut.metrics.read_bytes() == whole.metrics.read_bytes()
    assert (cut.episodes / "train.jsonl").read_bytes() == (whole.episodes / "train.jsonl").read_bytes()


def test_an_episode_line_holds_the_episode(run: RunFolder) -> None:
    original = episode([(text, text) for text in HOSTILE], success=True, seed=2**60 + 1)
    with RunWriter(run, decode=lambda ids: f"opening of {len(ids)}") as writer:
        writer.episodes("train", 7, [original, original], GroupKey("r", "pick/0", 2, 1))
    first, second = strict_lines(run.episodes / "train.jsonl")
    assert (first["update"], first["group"], first["index"], second["index"]) == (7, "r/pick/0#2.1", 0, 1)
    assert (first["task_id"], first["task_type"], first["seed"]) == ("pick/0", "pick", 2**60 + 1)
    assert (first["success"], first["return"], first["steps"]) == (True, 1.0, 5)
    assert first["opening"] == "opening of 4"
    assert [turn["action"] for turn in first["turns"]] == list(HOSTILE)
    assert [turn["valid"] for turn in first["turns"]] == [True, True, True, False, True]
    turn = first["turns"][1]
    assert turn["observation"] == HOSTILE[1]
    assert (turn["entropy"], turn["reward"], turn["versions"]) == (0.3, 0.0, [[2, "0.3"]])
    assert (turn["log_probs"], turn["action_span"], turn["observation_span"]) == ([-0.1, -0.25], [10, 12], [12, 15])
    assert (turn["kind"], turn["stop"], turn["terminated"], turn["truncated"]) == ("step", "stop", False, False)
    assert first["token_ids"] == [original.sequences[0].token_ids.tolist()]
    assert "seconds" not in json.dumps(first)


def test_a_reward_that_is_not_a_number_is_null(run: RunFolder) -> None:
    with RunWriter(run) as writer:
        writer.episodes("train", 0, [episode([("a", "b"), ("c", "d")], reward=float("nan"))])
    (line,) = strict_lines(run.episodes / "train.jsonl")
    assert [turn["reward"] for turn in line["turns"]] == [None, None]
    assert (line["opening"], line["turns"][1]["observation"]) == (None, "d")  # the rest is still there


def test_evaluations(run: RunFolder) -> None:
    with RunWriter(run) as writer:
        writer.evaluation(
            {"update": 0, "phase": "policy", "mode": "greedy", "success": {"mean": np.float64(0.5)}, "nll": np.nan}
        )
        writer.evaluation({"update": 1})
    first, second = strict_lines(run.evaluations)
    assert first == {"update": 0, "phase": "policy", "mode": "greedy", "success": {"mean": 0.5}, "nll": None}
    assert second == {"update": 1}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "m.jsonl")
    file.write({"update": 0})
    real = os.write
    calls = 0

    def half_then_full(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(StorageError, match=r"the disk is full at .*m\.jsonl"):
            file.write({"update": 1})
    file.write({"update": 2})
    file.close()
    file.close()
    assert strict_lines(tmp_path / "m.jsonl") == [{"update": 0}, {"update": 2}]
