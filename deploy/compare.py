"""Finished runs side by side: one arm a config, its seeds averaged. What `docs/results.json` is made by."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protos.errors import DataError

MEASURES = {
    "before": "success_before",
    "after": "success_after",
    "greedy_before": "greedy_before",
    "greedy_after": "greedy_after",
}
NOTE = (
    "Held-out success on the first split, mean over seeds; low and high are the lowest and the highest seed, or the 95 % "
    "interval over games where there is one seed. Every run is listed, whatever it says."
)


def compare(runs: Sequence[Path]) -> dict[str, Any]:
    """Arms by config name, in the order in which they first come. DataError where a run has no summary or comes twice."""
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        file = run / "summary.json"
        if not file.is_file():
            raise DataError(f"{run} has no summary.json: it is not a finished run")
        summary = json.loads(file.read_text())
        if any(summary["seed"] == other["seed"] for other in arms[summary["name"]]):
            raise DataError(f"{run}: seed {summary['seed']} of {summary['name']} is there already")
        arms[summary["name"]].append(summary)
    return {"note": NOTE, "arms": [_arm(name, summaries) for name, summaries in arms.items()]}


def _arm(name: str, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "seeds": [summary["seed"] for summary in summaries],
        **{measure: _over_seeds([summary[key] for summary in summaries]) for measure, key in MEASURES.items()},
        "commits": sorted({summary["commit"] for summary in summaries}),
        "games": summaries[0]["success_after"]["games"],
        "split": summaries[0]["split"],
        "wall_seconds": [summary["wall_seconds"] for summary in summaries],
        "next_observation_nll_after": [summary["next_observation_nll_after"] for summary in summaries],
        "by_seed": {
            str(summary["seed"]): {measure: summary[key]["mean"] for measure, key in MEASURES.items()}
            for summary in summaries
        },
        "other_splits": {
            split: {
                measure: _over_seeds([summary["other_splits"][split][key] for summary in summaries])
                for measure, key in MEASURES.items()
            }
            for split in summaries[0]["other_splits"]
        },
    }


def _over_seeds(rates: list[dict[str, float]]) -> dict[str, float]:
    if len(rates) == 1:
        return {key: rates[0][key] for key in ("mean", "low", "high")}
    means = [rate["mean"] for rate in rates]
    return {"mean": float(np.mean(means)), "low": min(means), "high": max(means)}
