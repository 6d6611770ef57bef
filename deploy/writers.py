"""What a run writes line by line: metrics, timings, evaluations, episodes; each line strict JSON, written at once."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploy.runs import RunFolder, storage, strict
from protos.records import Episode, GroupKey, TokenIds, Transition

TIMING = re.compile(r"^time/|(^|[/_])seconds(/|$)|_per_s(econd)?$")


class LineFile:
    """Appends JSON lines. A line reaches the file in one write: a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line. On StorageError the file ends where it ended before."""
        line = (json.dumps(strict(record), ensure_ascii=True, allow_nan=False) + "\n").encode()
        end = os.fstat(self._descriptor).st_size
        with storage(self._path):
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                os.ftruncate(self._descriptor, end)
                raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RunWriter:
    """The one writer of a run's metrics, to JSON lines and TensorBoard.

        with RunWriter(run, resumed_at=None) as writer:
            writer.metrics("policy", update, reduce_metrics([...]))
            writer.evaluation({"update": 0, "phase": "policy", "mode": "sampled", ...})
            writer.episodes("train", update, episodes)

    Open it after `run.rewind`, which moves the ends of the files. `resumed_at` is the first TensorBoard step (see
    `step`) that will be written again: TensorBoard then hides what an earlier process wrote from there on.
    """

    def __init__(
        self, run: RunFolder, *, resumed_at: int | None = None, decode: Callable[[TokenIds], str] | None = None
    ) -> None:
        from tensorboardX import SummaryWriter

        self._run = run
        self._decode = decode
        self._metrics, self._timings, self._evaluations = map(LineFile, (run.metrics, run.timings, run.evaluations))
        self._episodes: dict[str, LineFile] = {}
        self._tensorboard = SummaryWriter(str(run.tensorboard), purge_step=resumed_at, flush_secs=10)

    def metrics(self, phase: str, update: int, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """One update's reduced metrics. `step` is TensorBoard's axis where `update` starts again in each phase."""
        names = sorted(metrics)
        head = {"phase": phase, "update": update}
        self._metrics.write({**head, **{name: metrics[name] for name in names if not is_timing(name)}})
        timings = {name: metrics[name] for name in names if is_timing(name)}
        if timings:
            self._timings.write({**head, **timings})
        self._scalars(phase, update if step is None else step, metrics)

    def evaluation(self, record: Mapping[str, Any], *, step: int | None = None) -> None:
        """One evaluation: phase, update, mode, split, success {mean, low, high, episodes}, by_task, pass_at_k, ..."""
        self._evaluations.write(record)
        success = record.get("success") or {}
        if "mean" in success:
            name = f"{record.get('split', 'eval')}_{record.get('mode', 'sampled')}"
            at = int(record.get("update", 0)) if step is None else step
            self._scalars(f"eval/{record.get('phase', 'rl')}", at, {name: success["mean"]})

    def episodes(self, name: str, update: int, episodes: Iterable[Episode], key: GroupKey | None = None) -> None:
        """Append to episodes/<name>.jsonl."""
        if name not in self._episodes:
            self._episodes[name] = LineFile(self._run.episodes / f"{name}.jsonl")
        for index, episode in enumerate(episodes):
            record = {"update": update, "group": None if key is None else str(key), "index": index}
            self._episodes[name].write({**record, **episode_record(episode, self._decode)})

    def close(self) -> None:
        for file in (self._metrics, self._timings, self._evaluations, *self._episodes.values()):
            file.close()
        self._tensorboard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scalars(self, prefix: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                continue  # TensorBoard prints a warning for each and shows nothing; the null in metrics.jsonl tells
            self._tensorboard.add_scalar(f"{prefix}/{name}", float(value), step)


def is_timing(name: str) -> bool:
    """Clocks differ between runs: they have a file of their own, so that metrics.jsonl can be compared bit for bit."""
    return bool(TIMING.search(name))


def episode_record(episode: Episode, decode: Callable[[TokenIds], str] | None = None) -> dict[str, Any]:
    """An episode as JSON holds it: its turns as text and numbers, its sequences as token ids; no clocks.

    `decode` gives the text that the first action answered (`opening`), which the records hold as ids alone.
    """
    sequences = episode.sequences
    first = sequences[0].transitions[0].action.start if sequences and sequences[0].transitions else 0
    return {
        "environment": episode.environment,
        "task_id": episode.task_id,
        "task_type": episode.task_type,
        "seed": episode.seed,
        "success": episode.success,
        "return": episode.task_return,
        "steps": episode.steps,
        "opening": decode(sequences[0].token_ids[:first]) if decode is not None and sequences else None,
        "turns": [_turn(t, i) for i, sequence in enumerate(sequences) for t in sequence.transitions],
        "token_ids": [sequence.token_ids for sequence in sequences],
    }


def _turn(transition: Transition, sequence: int) -> dict[str, Any]:
    return {
        "action": transition.action_text,
        "observation": transition.observation_text,
        "reward": transition.reward,
        "entropy": transition.entropy,
        "valid": transition.valid,
        "kind": str(transition.kind),
        "stop": str(transition.stop),
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "versions": [[count, str(version)] for count, version in transition.versions],
        "sequence": sequence,
        "action_span": list(transition.action),
        "observation_span": list(transition.observation),
        "log_probs": transition.log_probs,
        "state_key": transition.state_key,
    }
