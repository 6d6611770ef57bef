"""The policy that the benchmarks play and train: of a checkpoint, or warm-started quickly here.

Random weights would not do: their replies never end, and no probability on observations is like a trained model's.
The quick warm start imitates an expert with little noise for some twenty seconds. It wins about a third of its games and
finds 40 % of observation tokens improbable (p <= 0.2), where the main job is between 15 and 40 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.rollout import play
from deploy.config import RunConfig, WarmStart
from deploy.console import Console
from deploy.evaluate import open_checkpoint
from deploy.parts import World, build_engine, build_learner, build_world
from learner import plugins
from learner.batch import pack_demonstrations
from learner.config import LearnerConfig, OptimizerConfig
from learner.learner import Learner
from protos.records import Group, Lease
from protos.seeding import derive_seed, generator
from protos.telemetry import Metrics, reduce_metrics

QUICK = RunConfig(
    threads=1,
    environment={"name": "household", "expert_noise": 0.1},
    warm_start=WarmStart(
        demonstrations=2000,
        updates=100,
        objectives=[
            {"name": "supervised"},
            {"name": "next_observation", "coefficient": 0.3, "normalise": "token"},
        ],
        learner=LearnerConfig(
            minibatches=1,
            optimizer=OptimizerConfig(name="muon", lr=1.5e-2, betas=(0.9, 0.98), warmup_updates=10, schedule="cosine"),
            gradient_statistics_every=0,
        ),
    ),
)
"""The main job on one thread, with a warm start of some twenty seconds."""


@dataclass(frozen=True)
class Policy:
    """A trained model with the settings and the environment that it belongs to."""

    config: RunConfig
    world: World
    learner: Learner

    def play(self, leases: Sequence[Lease]) -> tuple[list[Group], Metrics]:
        engine = build_engine(self.config, self.learner, self.world.tokenizer)
        return play(leases, self.world.make, self.world.prompt, engine, environment=self.world.name)

    def another_learner(self) -> Learner:
        """A learner of its own with a copy of the weights."""
        learner = build_learner(self.config, self.world.tokenizer)
        learner.model.load_state_dict(self.learner.model.state_dict())
        return learner


def prepare(console: Console, checkpoint: Path | None = None, config: RunConfig = QUICK) -> Policy:
    """The policy of `checkpoint` (a run folder or a checkpoint folder), or of the quick warm start in `config`."""
    if checkpoint is not None:
        _, loaded, world, learner = open_checkpoint(str(checkpoint), ["threads=1"])
        return Policy(loaded, world, learner)
    world = build_world(config)
    policy = Policy(config, world, build_learner(config, world.tokenizer))
    _warm_start(policy, console)
    return policy


def _warm_start(policy: Policy, console: Console) -> None:
    settings, world, seed = policy.config.warm_start, policy.world, policy.config.seed
    tasks = world.tasks("train", derive_seed(seed, "demonstrations"), 0, settings.demonstrations)
    shown = world.demonstrate(tasks, derive_seed(seed, "demonstrator"))
    objectives = [plugins.load("objectives", spec) for spec in settings.objectives]
    policy.learner.begin_phase("warm_start", settings.learner, objectives, settings.updates)
    with console.phase("quick warm start", settings.updates) as phase:
        for update in range(settings.updates):
            chosen = generator(seed, "bench", update).choice(len(shown), settings.batch)
            metrics = policy.learner.update({"demos": pack_demonstrations([shown[i] for i in chosen])}, update)
            phase.advance(loss=reduce_metrics([metrics])["supervised/loss"])
