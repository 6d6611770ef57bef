"""Reads what a run folder holds, as far as it is there and whole."""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.runs import RunFolder

Record = dict[str, Any]

WARM_START, POLICY = "warm_start", "policy"
TAIL_BYTES = 2_000_000
"""Read from the end of an episode file, which may be far larger: the last episodes are what is shown."""


@dataclass(frozen=True, slots=True)
class RunData:
    name: str
    config_text: str
    config: Record
    summary: Record
    metrics: list[Record]
    timings: list[Record]
    evaluations: list[Record]
    episodes: dict[str, list[Record]]  # file name -> its last episodes, in order
    flaws: tuple[str, ...]  # what could not be read, in words


def read_run(run: RunFolder) -> RunData:
    flaws: list[str] = []
    config_text = run.config.read_text(encoding="utf-8", errors="replace") if run.config.is_file() else ""
    return RunData(
        name=run.path.resolve().name,
        config_text=config_text,
        config=_toml(config_text, flaws),
        summary=_json_file(run.summary, flaws),
        metrics=_lines(run.metrics, flaws),
        timings=_lines(run.timings, flaws),
        evaluations=_lines(run.evaluations, flaws),
        episodes={file.stem: _tail(file, flaws) for file in sorted(run.episodes.glob("*.jsonl"))},
        flaws=tuple(flaws),
    )


def read_controls(path: Path) -> Record:
    """The committed controls; {} where there are none.

    {"note": "...", "arms": [{"name": "without PaW", "description": "...", "seeds": [0, 1, 2],
      "before": {"mean": .22, "low": .2, "high": .24}, "after": {...}, "greedy_before": {...}, "greedy_after": {...}}]}
    """
    controls = _json_file(path, [])
    arms = controls.get("arms")
    return controls if isinstance(arms, list) and all(isinstance(arm, dict) for arm in arms) else {}


def _toml(text: str, flaws: list[str]) -> Record:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        flaws.append(f"config.toml: {error}")
        return {}


def _json_file(path: Path, flaws: list[str]) -> Record:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        flaws.append(f"{path.name}: {error}")
        return {}
    return value if isinstance(value, dict) else {}


def _lines(path: Path, flaws: list[str]) -> list[Record]:
    if not path.is_file():
        return []
    return _records(path.name, path.read_bytes().splitlines(), flaws)


def _tail(path: Path, flaws: list[str]) -> list[Record]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().splitlines()
    return _records(path.name, lines[1:] if size > TAIL_BYTES else lines, flaws)


def _records(name: str, lines: Iterable[bytes], flaws: list[str]) -> list[Record]:
    records, broken = [], 0
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if isinstance(record, dict):
            # A page draws two phases: whatever follows the warm start, and what names no phase, is policy training.
            record["phase"] = WARM_START if record.get("phase") == WARM_START else POLICY
            records.append(record)
    if broken:
        flaws.append(f"{name}: {broken} line{'s' * (broken > 1)} could not be read")
    return records
