"""Held-out evaluation: the same games before, during and after training, and the world model's error on them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from actors.evaluation import Summary, summarise
from actors.sampling import Sampling
from deploy.config import Mode, RunConfig
from deploy.parts import World, play_leases, take_leases
from learner.batch import pack_demonstrations, token_weights
from learner.learner import Learner
from protos.errors import DataError
from protos.records import Group
from protos.seeding import derive_seed
from protos.telemetry import Metrics, reduce_metrics
from replay.service import Replay


class HeldOut:
    """The held-out games of a split. Fixed by `evaluation.seed`: every run of the same environment sees the same games."""

    def __init__(self, config: RunConfig, world: World, split: str) -> None:
        self._config, self._world, self.split = config, world, split
        evaluation = config.evaluation
        self.tasks = world.tasks(split, derive_seed(evaluation.seed, "held-out"), 0, evaluation.games)
        self._games = {world.fingerprint(task): task for task in self.tasks}
        self._probe = None
        if evaluation.probe_games and hasattr(world.module, "expert"):
            games, seed = self.tasks[: evaluation.probe_games], derive_seed(evaluation.seed, "probe")
            self._probe = pack_demonstrations(world.demonstrate(games, seed))

    def refuse_leaks(self, training_tasks: Iterable[str]) -> None:
        """DataError where a training game is one of the held-out games."""
        for task in training_tasks:
            held_out = self._games.get(self._world.fingerprint(task))
            if held_out is not None:
                raise DataError(
                    f"training game {task} is held-out game {held_out}: success on it would measure memory; "
                    "choose other evaluation.splits"
                )

    def evaluate(self, replay: Replay, engine: Any, mode: Mode, samples: int = 1) -> tuple[dict[str, Any], list[Group]]:
        """Play every game, `samples` times where replies are sampled freely."""
        samples = samples if mode == "sampled" else 1
        metrics: list[Metrics] = []
        replay.request_evaluation(self.tasks, samples, derive_seed(self._config.evaluation.seed, "sampling"))
        while leases := take_leases(replay, "eval", max(1, self._config.episodes_at_once // samples)):
            played, measured = play_leases(self._config, self._world, engine, leases, self._sampling(mode))
            metrics.append(measured)
            for group in played:
                replay.append_group(group)
        groups, shown = replay.take_evaluations(), reduce_metrics(metrics)
        kinds = {kind: shown.get(f"rollout/reply_{kind}", 0.0) for kind in self._world.prompt.kinds}
        record = {"mode": mode, "split": self.split, **_record(summarise(groups)), "reply_kinds": kinds}
        return record, groups

    def _sampling(self, mode: Mode) -> Sampling:
        settings = self._config.sampling
        temperature = self._config.evaluation.temperature or settings.temperature
        changed = {"temperature": 0.0 if mode == "greedy" else temperature, "constrained": mode == "constrained"}
        return settings.model_copy(update=changed)

    def next_observation_nll(self, learner: Learner) -> float | None:
        """Nats a token of the held-out games' observations, given the demonstrator's true actions; None without an expert."""
        if self._probe is None:
            return None
        wanted = token_weights(self._probe, self._probe.observation, np.ones(len(self._probe.row))) > 0
        return -float(learner.score(self._probe, wanted)[wanted].mean())


def _record(summary: Summary) -> dict[str, Any]:
    """A line of evaluations.jsonl."""
    record: dict[str, Any] = dict(summary)
    return record | {"by_task": record.pop("by_task_type"), "pass_at_k": record.pop("pass_at")}
