"""A run folder with all that a run leaves, made up: what the report is tested on."""

import json
from pathlib import Path

import numpy as np

from deploy.runs import RunFolder
from deploy.writers import RunWriter
from protos.records import Episode, Sequence, Span, Transition, Version

CONFIG = """name = "household"
seed = 0

[environment]
name = "household"

[training]
updates = 150

[training.advantages]
name = "gigpo"

[[training.objectives]]
name = "policy_gradient"

[[training.objectives]]
name = "paw"
"""
HOSTILE = (
    '<think>a<b</think><action>open "x"</action>',
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;",
    "\N{GRINNING FACE}",
)
"""Texts that a page must show literally."""
TASKS = ("pick", "heat", "cool")


def estimate(mean: float, episodes: int = 256) -> dict[str, float]:
    half = 1.96 * float(np.sqrt(mean * (1 - mean) / episodes))
    return {"mean": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half), "episodes": episodes}


def episode(
    turns: list[tuple[str, str]], *, success: bool = False, task: str = "pick/0", seed: int = 5, **changes: float
) -> Episode:
    """One sequence of `turns` (action, observation): two action tokens and three of observation each."""
    transitions, at = [], 4
    for i, (action, observation) in enumerate(turns):
        last = i == len(turns) - 1
        transitions.append(
            Transition(
                action=Span(at, at + 2),
                observation=Span(at + 2, at + 5),
                action_text=action,
                observation_text=observation,
                reward=changes.get("reward", float(success and last)),
                terminated=success and last,
                truncated=last and not success,
                entropy=0.3 * (i % 5),
                log_probs=np.array([-0.1, -0.25], dtype=np.float32),
                versions=((2, Version(0, 3)),),
                state_key=f"s{i}",
                valid=i % 4 != 3,
            )
        )
        at += 6
    sequence = Sequence(np.arange(at, dtype=np.int32), tuple(transitions))
    return Episode("household", task, task.partition("/")[0], seed, (sequence,), float(success), success)


def write_run(runs: Path, updates: int = 150, warm_updates: int = 700) -> RunFolder:
    """The files of a finished run, through the writers that a run uses."""
    rng = np.random.default_rng(0)
    with RunFolder.create(runs, "2026-01-01-household-s0", CONFIG) as run, RunWriter(run) as writer:
        for update in range(0, warm_updates, 10):
            decay = float(np.exp(-update / 150))
            losses = {
                "supervised/loss": 0.4 + 2 * decay,
                "next_observation/loss": 0.6 + 3 * decay,
                "learner/seconds/backward": 0.2,
            }
            writer.metrics("warm_start", update, losses)
        for update in range(updates):
            writer.metrics("policy", update, _metrics(update / updates, rng), step=warm_updates + update)
        _evaluations(writer, updates, warm_updates)
        _episodes(writer, updates)
        run.write_summary(
            {
                "success_before": estimate(0.22),
                "success_after": estimate(0.87),
                "seed": 0,
                "commit": "0123abc",
                "wall_seconds": 431.0,
            }
        )
    return run


def _metrics(progress: float, rng: np.random.Generator) -> dict[str, float]:
    success = 0.22 + 0.65 * (1 - np.exp(-4 * progress)) + rng.normal(0, 0.03)
    return {
        "rollout/success": success,
        "rollout/invalid": 0.05 + 0.06 * progress + rng.normal(0, 0.005),
        "rollout/entropy": 0.9 * np.exp(-2 * progress) + rng.normal(0, 0.02),
        "policy_gradient/clip_fraction": 0.1 + rng.normal(0, 0.01),
        "policy_gradient/loss": rng.normal(0, 0.02),
        "paw/lambda": 1 - success,
        "paw/mask_rate": 0.3 - 0.1 * progress,
        "paw/probability": 0.6 + 0.2 * progress,
        "paw/selected_share": 0.75,
        "paw/loss/fresh": 0.2 - 0.1 * progress,
        "paw/loss/replay": 0.25 - 0.1 * progress,
        "grad/cosine": rng.normal(0.05, 0.05),
        "grad/ratio": 0.4 - 0.2 * progress + rng.normal(0, 0.02),
        "learner/grad_norm": np.nan if progress == 0 else abs(rng.normal(0.5, 0.1)),
        "learner/lr": 1e-3 * (1 - 0.9 * progress),
        "rollout/env_seconds": 0.02,
        "rollout/seconds": 0.55 + rng.normal(0, 0.02),
        "learner/seconds/forward": 0.15 + rng.normal(0, 0.01),
        "learner/seconds/backward": 0.3 + rng.normal(0, 0.01),
        "learner/seconds/step": 0.05,
        "learner/seconds/fresh": 0.4,
        "learner/seconds/update": 0.5 + rng.normal(0, 0.01),
        "rollout/steps": 10 - 4 * success,
        "time/evaluation": 0.1,
        "rollout/tokens_per_second": 6000 + rng.normal(0, 100),
        "learner/tokens_per_second": 14000 + rng.normal(0, 100),
    }


def _evaluations(writer: RunWriter, updates: int, warm_updates: int) -> None:
    points = [("warm_start", 0, 0.0), ("warm_start", warm_updates, 0.22)]
    points += [("policy", u, 0.22 + 0.65 * (1 - float(np.exp(-4 * u / updates)))) for u in range(25, updates + 1, 25)]
    for phase, update, mean in points:
        for mode, lift in (("sampled", 0.0), ("greedy", 0.2 * (1 - mean) if mean else 0.0)):
            writer.evaluation(
                {
                    "update": update,
                    "phase": phase,
                    "mode": mode,
                    "split": "unseen",
                    "success": estimate(mean + lift),
                    "by_task": {task: estimate(max(0.0, mean - 0.08 * i), 85) for i, task in enumerate(TASKS)},
                    "pass_at_k": {str(k): 1 - (1 - mean) ** (k**0.6) for k in (1, 2, 4)},
                    "steps_to_goal": 7.5 - 2 * mean,
                    "invalid": 0.05 + 0.05 * mean,
                    "nll": 0.62 + 0.2 * mean if mean else 3.1,
                }
            )


def _episodes(writer: RunWriter, updates: int) -> None:
    walk = [
        ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed."),
        ("open cabinet 1", "You open the cabinet 1. In it, you see a mug 2 and a plate 1."),
        ("take mug 2 from cabinet 1", "You pick up the mug 2 from the cabinet 1."),
        ("go to go desk", "Nothing happens."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1."),
        ("move mug 2 to desk 1", "You move the mug 2 to the desk 1."),
    ]
    writer.episodes(
        "eval-sampled", updates, [episode(walk, success=i % 2 == 0, task=f"{TASKS[i % 3]}/{i}") for i in range(8)]
    )
    writer.episodes("train", updates, [episode([(text, text) for text in HOSTILE])])


def controls(path: Path) -> Path:
    """A file of committed controls."""
    same = {"seeds": [0, 1, 2], "before": estimate(0.22)}
    greedy = {"greedy_before": estimate(0.45), "greedy_after": estimate(0.88)}
    arms = [
        {
            "name": "PaW, the default",
            "description": "both world-model sources",
            "after": estimate(0.87),
            **same,
            **greedy,
        },
        {"name": "without PaW", "description": "policy gradient alone", "after": estimate(0.85), **same},
        {"name": "more warm start", "description": "the same compute on imitation", "after": estimate(0.31), **same},
        {"name": "noise-free warm start", "seeds": [0], "before": estimate(0.70)},
    ]
    path.write_text(json.dumps({"note": "Run once, with the seeds shown; 256 held-out games a seed.", "arms": arms}))
    return path
