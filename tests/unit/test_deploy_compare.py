"""Runs side by side: means over seeds, by hand."""

import json
from pathlib import Path

import pytest

from deploy.compare import compare
from protos.errors import DataError


def rate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "games": 10, "episodes": 10}


def write_run(path: Path, name: str, seed: int, after: float) -> Path:
    split = {
        "success_before": rate(0.2),
        "success_after": rate(after),
        "greedy_before": rate(0.3),
        "greedy_after": rate(0.8),
    }
    summary = {
        **split,
        "name": name,
        "seed": seed,
        "commit": "abc",
        "split": "seen",
        "other_splits": {"unseen": split},
        "wall_seconds": 1.0,
        "next_observation_nll_after": 0.5,
    }
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_seeds_are_averaged_and_their_range_told(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"a{seed}", "main", seed, after) for seed, after in enumerate((0.7, 0.8, 0.9))]
    runs.append(write_run(tmp_path / "b", "control", 0, 0.4))
    main, control = compare(runs)["arms"]
    assert (main["name"], main["seeds"]) == ("main", [0, 1, 2])
    assert main["after"] == pytest.approx({"mean": 0.8, "low": 0.7, "high": 0.9})
    assert main["by_seed"]["2"]["after"] == 0.9
    assert control["after"] == pytest.approx({"mean": 0.4, "low": 0.3, "high": 0.5})
    assert control["other_splits"]["unseen"]["after"]["mean"] == 0.4


def test_a_seed_counts_once(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, "main", 0, 0.5) for name in ("one", "two")]
    with pytest.raises(DataError, match="seed 0 of main"):
        compare(runs)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no summary\.json"):
        compare([tmp_path])
