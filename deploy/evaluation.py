"""Held-out evaluation: the same games before, during and after training, and the world model's error on them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from actors.demonstrations import demonstrate
from actors.evaluation import Summary, summarise
from actors.sampling import Sampling
from deploy.config import RunConfig
from deploy.parts import World, play_leases, take_leases
from learner.batch import pack_demonstrations, token_weights
from learner.learner import Learner
from protos.errors import DataError
from protos.records import Group
from protos.seeding import derive_seed
from replay.service import Replay

ROWS = 256
"""Episodes played at once: what bounds the memory of the KV cache, never the result."""


class HeldOut:
    """The held-out games of a split. Fixed by `evaluation.seed`: every run of the same environment sees the same games."""

    def __init__(self, config: RunConfig, world: World, split: str) -> None:
        self._config, self._world, self.split = config, world, split
        evaluation = config.evaluation
        self.tasks = world.tasks(split, derive_seed(evaluation.seed, "held-out"), 0, evaluation.games)
        self._games = {world.fingerprint(task): task for task in self.tasks}
        self._probe = None
        if hasattr(world.module, "expert"):
            shown = demonstrate(
                self.tasks, world.module, world.config, world.prompt, derive_seed(evaluation.seed, "probe")
            )
            self._probe = pack_demonstrations(shown)

    def refuse_leaks(self, training_tasks: Iterable[str]) -> None:
        """DataError where a training game is one of the held-out games."""
        for task in training_tasks:
            held_out = self._games.get(self._world.fingerprint(task))
            if held_out is not None:
                raise DataError(
                    f"training game {task} is held-out game {held_out}: success on it would measure memory; "
                    "choose other evaluation.splits"
                )

    def evaluate(self, replay: Replay, engine: Any, mode: str, samples: int = 1) -> tuple[dict[str, Any], list[Group]]:
        """Play every game `samples` times. `mode`: sampled, greedy, or constrained (sampled among admissible commands)."""
        sampling = {
            "sampled": self._config.sampling.model_copy(update={"constrained": False}),
            "greedy": self._config.sampling.model_copy(update={"constrained": False, "temperature": 0.0}),
            "constrained": self._config.sampling.model_copy(update={"constrained": True}),
        }[mode]
        replay.request_evaluation(self.tasks, samples, derive_seed(self._config.evaluation.seed, "sampling"))
        self._play(replay, engine, sampling, max(1, ROWS // samples))
        groups = replay.take_evaluations()
        return {"mode": mode, "split": self.split, **_record(summarise(groups))}, groups

    def next_observation_nll(self, learner: Learner) -> float | None:
        """Nats a token of the held-out games' observations, given the demonstrator's true actions; None without an expert."""
        if self._probe is None:
            return None
        wanted = token_weights(self._probe, self._probe.observation, np.ones(len(self._probe.row))) > 0
        return -float(learner.score(self._probe, wanted)[wanted].mean())

    def _play(self, replay: Replay, engine: Any, sampling: Sampling, leases_at_once: int) -> None:
        while leases := take_leases(replay, "eval", leases_at_once):
            groups, _ = play_leases(self._config, self._world, engine, leases, sampling)
            for group in groups:
                replay.append_group(group)


def _record(summary: Summary) -> dict[str, Any]:
    """A line of evaluations.jsonl."""
    record: dict[str, Any] = dict(summary)
    return record | {"by_task": record.pop("by_task_type"), "pass_at_k": record.pop("pass_at")}
