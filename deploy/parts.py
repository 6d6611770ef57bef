"""A run's parts, put together in one process: environment, tokenizer, prompt, learner, engine, replay.

The engine samples from the learner's own module, so publishing weights costs nothing here; the versions, leases and
tables are those of the distributed system.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from actors import plugins
from actors.core import Environment, Prompt, build_prompt, load_environment
from actors.demonstrations import demonstrate
from actors.engines.transformers import TransformersEngine
from actors.pretrained import load_tokenizer
from actors.rollout import play
from actors.sampling import Sampling
from deploy.config import RunConfig
from deploy.hub import checkpoint_folder
from learner.learner import Learner
from protos.errors import ConfigError
from protos.records import Demonstration, Group, Lease, LeaseKind, Version
from protos.seeding import derive_seed
from protos.telemetry import Metrics, merge_metrics
from protos.tokens import TextTokenizer
from replay.service import Replay


@dataclass(frozen=True)
class World:
    """The environment module with its validated config, and how its texts become token ids."""

    name: str
    module: ModuleType
    config: Any
    prompt: Prompt
    max_reply_tokens: int

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.prompt.tokenizer

    def make(self) -> Environment:
        return self.module.build(self.config)

    def tasks(self, split: str, seed: int, start: int, count: int) -> list[str]:
        return plugins.task_ids(self.module, self.config, split, seed, start, count)

    def demonstrate(self, tasks: list[str], seed: int) -> list[Demonstration]:
        """The expert's rows on `tasks`, ending where a rollout would for want of room."""
        limit = self.max_reply_tokens
        return demonstrate(tasks, self.module, self.config, self.prompt, seed, max_reply_tokens=limit)

    def fingerprint(self, task_id: str) -> str:
        """Equal for equal games, whatever they are called: what tells a held-out game from a training game."""
        if hasattr(self.module, "game_fingerprint"):
            return self.module.game_fingerprint(self.config, task_id)
        return task_id


def build_world(config: RunConfig, tokenizer_folder: Path | None = None) -> World:
    """The environment, with the tokenizer saved beside the model that it starts from, or one made for the environment."""
    module = load_environment(config.environment["name"])
    environment = config.environment_config()
    folder = tokenizer_folder or (checkpoint_folder(config.model.path) if config.model.path else None)
    tokenizer = load_tokenizer(folder) if folder else plugins.tokenizer(module, environment, seed=config.seed)
    prompt = build_prompt(config.prompt, tokenizer)
    return World(config.environment["name"], module, environment, prompt, config.sampling.max_reply_tokens)


def build_learner(config: RunConfig, tokenizer: TextTokenizer) -> Learner:
    """The learner with its model, whose context is checked against the prompt's limit."""
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    model = config.model
    if model.path is not None:
        model = model.model_copy(update={"path": str(checkpoint_folder(model.path))})
    learner = Learner(
        model, vocab_size=tokenizer.size, pad_id=tokenizer.pad_id, eoa_id=tokenizer.eoa_id, seed=config.seed
    )
    room, wanted = getattr(learner.model.config, "max_position_embeddings", None), config.prompt_settings().max_tokens
    if room is not None and wanted > room:
        raise ConfigError(f"prompt.max_tokens = {wanted} exceeds the {room} positions of the model")
    return learner


def build_engine(config: RunConfig, learner: Learner, tokenizer: TextTokenizer) -> TransformersEngine:
    return TransformersEngine(learner.model, tokenizer, config.sampling, Version(0, 0))


def build_replay(config: RunConfig, world: World, version: Version, course: int = 0) -> Replay:
    """Replay whose rollout leases draw tasks of the train split; each `course` (a rollback begins one) draws others."""
    seed = derive_seed(config.seed, "rollout", course)
    settings = config.replay
    if config.training.sampling_rounds > 1:  # an update may take so many batches
        most = settings.groups_per_update * config.training.sampling_rounds
        settings = settings.model_copy(update={"groups_per_update": most})
    return Replay(
        settings,
        run=f"{config.name}-s{config.seed}",
        seed=seed,
        tasks=lambda index: world.tasks("train", seed, index, 1)[0],
        version=version,
    )


def take_leases(replay: Replay, kind: LeaseKind, count: int) -> list[Lease]:
    """Up to `count` leases; fewer, or none, where replay has no more to give now."""
    leases: list[Lease] = []
    while len(leases) < count and (lease := replay.lease(kind)) is not None:
        leases.append(lease)
    return leases


def play_leases(
    config: RunConfig, world: World, engine: TransformersEngine, leases: list[Lease], sampling: Sampling | None = None
) -> tuple[list[Group], Metrics]:
    """`actors.rollout.play` with this run's environment, prompt and R_max, `episodes_at_once`; `sampling` replaces the
    engine's own."""
    groups: list[Group] = []
    metrics: list[Metrics] = []
    for some in _batches(leases, config.episodes_at_once):
        played, measured = play(
            some,
            world.make,
            world.prompt,
            engine,
            environment=world.name,
            sampling=sampling,
            reward_max=config.replay.reward_max,
        )
        groups += played
        metrics.append(measured)
    return groups, merge_metrics(metrics)


def _batches(leases: list[Lease], episodes: int) -> Iterator[list[Lease]]:
    """Runs of leases of at most so many episodes together, at least one lease each."""
    batch: list[Lease] = []
    for lease in leases:
        if batch and sum(other.group_size for other in batch) + lease.group_size > episodes:
            yield batch
            batch = []
        batch.append(lease)
    if batch:
        yield batch
