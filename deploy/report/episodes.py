"""The sample episodes of a report: which are shown, and their turns made ready for the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.report.read import Record

SHOWN = 4
"""Episodes shown of each file: solved and failed ones alike where there are both."""
TEXT_LIMIT = 4_000
"""Characters shown of one text."""
NATS_FULL = 2.0
"""Entropy at which the bar of a turn is full."""


def chosen_episodes(files: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """Of each file, episodes of the last update in it: [{name, episodes}, ...]; evaluations first."""
    groups = []
    for name in sorted(files, key=lambda name: ("eval" not in name, name)):
        episodes = files[name]
        if episodes:
            last = [e for e in episodes if e.get("update") == episodes[-1].get("update")]
            groups.append({"name": name, "episodes": [_shown(episode) for episode in _mixed(last)]})
    return groups


def _mixed(episodes: Sequence[Record]) -> list[Record]:
    """Up to SHOWN episodes of different tasks first, solved and failed by turns."""
    solved = _by_task([e for e in episodes if e.get("success") is True])
    failed = _by_task([e for e in episodes if e.get("success") is not True])
    half = SHOWN // 2
    take = max(half, SHOWN - len(failed))
    return [*solved[:take], *failed[: SHOWN - min(take, len(solved))]]


def _by_task(episodes: Sequence[Record]) -> list[Record]:
    """One episode of each task before a second of any."""
    seen: dict[Any, int] = {}
    ranked = []
    for index, episode in enumerate(episodes):
        task = str(episode.get("task_id"))
        ranked.append((seen.get(task, 0), index, episode))
        seen[task] = seen.get(task, 0) + 1
    return [episode for _, _, episode in sorted(ranked, key=lambda item: item[:2])]


def _shown(episode: Record) -> dict[str, Any]:
    turns = episode.get("turns")
    return {
        "task": str(episode.get("task_id", "?")),
        "task_type": str(episode.get("task_type", "")),
        "update": episode.get("update"),
        "solved": episode.get("success") is True,
        "return": _number(episode.get("return")),
        "steps": episode.get("steps"),
        "seed": str(episode.get("seed", "?")),  # text: 63-bit seeds exceed a script's whole numbers
        "opening": _cut(episode.get("opening")),
        "turns": [_turn(turn) for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else [],
    }


def _turn(turn: Record) -> dict[str, Any]:
    entropy = turn.get("entropy")
    versions = turn.get("versions")
    return {
        "action": _cut(turn.get("action")),
        "observation": _cut(turn.get("observation")),
        "reward": _number(turn.get("reward")),
        "rewarded": isinstance(turn.get("reward"), int | float) and turn["reward"] != 0,
        "entropy": _number(entropy),
        "heat": None if _number(entropy) is None else round(min(1.0, max(0.0, float(entropy or 0) / NATS_FULL)) * 100),
        "invalid": turn.get("valid") is False,
        "kind": turn.get("kind") if turn.get("kind") not in (None, "step") else "",
        "truncated": turn.get("truncated") is True,
        "versions": ", ".join(str(run[-1]) for run in versions if run) if isinstance(versions, list) else "",
    }


def _number(value: Any) -> str | None:
    """None marks a value that was not finite (null in the file), for the page to say so."""
    return f"{value:.3g}" if isinstance(value, int | float) and math.isfinite(value) else None


def _cut(text: Any) -> str:
    text = "" if text is None else str(text)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … ({len(text) - TEXT_LIMIT:,} more characters)"
