"""The summary of a finished run, from the files it wrote."""

import json
from typing import Any

from deploy.config import RunConfig
from deploy.runs import RunFolder, code_commit


def summarise_run(config: RunConfig, run: RunFolder, seconds: float) -> dict[str, Any]:
    """Success before and after policy training, sampled and greedy, and what the run was made of.

    `success_before` and `success_after` are sampled, unconstrained, on the held-out split, with 95 % intervals over games.
    """
    lines = [json.loads(line) for line in run.evaluations.read_text().splitlines()]
    full = [line for line in lines if line["full"]]
    first, final = min(line["update"] for line in full), max(line["update"] for line in full)

    def at(update: int, mode: str) -> dict[str, Any]:
        return next(line for line in full if line["update"] == update and line["mode"] == mode)

    before, after = at(first, "sampled"), at(final, "sampled")
    return {
        "name": config.name,
        "success_before": before["success"],
        "success_after": after["success"],
        "greedy_before": at(first, "greedy")["success"],
        "greedy_after": at(final, "greedy")["success"],
        "constrained_before": at(first, "constrained")["success"],
        "constrained_after": at(final, "constrained")["success"],
        "by_task": after["by_task"],
        "pass_at_k_before": before["pass_at_k"],
        "pass_at_k_after": after["pass_at_k"],
        "steps_to_goal": after["steps_to_goal"],
        "invalid_before": before["invalid"],
        "invalid_after": after["invalid"],
        "nll_before": before["nll"],
        "nll_after": after["nll"],
        "split": config.evaluation.split,
        "seed": config.seed,
        "commit": code_commit(),
        "wall_seconds": round(seconds, 1),
    }
