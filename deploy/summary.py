"""The summary of a finished run, from the files it wrote."""

import json
from typing import Any

from deploy.config import RunConfig
from deploy.runs import RunFolder


def summarise_run(config: RunConfig, run: RunFolder, commit: str, seconds: float) -> dict[str, Any]:
    """Success before and after policy training, sampled and greedy, and what the run was made of.

    `success_before` and `success_after`: sampled, unconstrained, on the first held-out split, 95 % intervals over games.
    """
    lines = [json.loads(line) for line in run.evaluations.read_text().splitlines()]
    full = [line for line in lines if line["full"]]
    first, final = min(line["update"] for line in full), max(line["update"] for line in full)
    by_split = {
        split: _split(
            {line["mode"]: line for line in full if line["split"] == split and line["update"] == first},
            {line["mode"]: line for line in full if line["split"] == split and line["update"] == final},
        )
        for split in config.evaluation.splits
    }
    head, *others = config.evaluation.splits
    return {
        "name": config.name,
        **by_split[head],
        "split": head,
        "other_splits": {split: by_split[split] for split in others},
        "seed": config.seed,
        "commit": commit,
        "wall_seconds": round(seconds, 1),
    }


def _split(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """One split's lines by mode, first and last."""
    pairs: dict[str, Any] = {}
    for when, lines in (("before", before), ("after", after)):
        sampled = lines["sampled"]
        pairs[f"success_{when}"] = sampled["success"]
        pairs |= {f"{mode}_{when}": lines[mode]["success"] for mode in ("greedy", "constrained") if mode in lines}
        pairs |= {
            f"pass_at_k_{when}": sampled["pass_at_k"],
            f"steps_to_goal_{when}": sampled["steps_to_goal"],
            f"invalid_{when}": sampled["invalid"],
            f"next_observation_nll_{when}": sampled["nll"],
            f"by_task_{when}": sampled["by_task"],
        }
    return pairs
