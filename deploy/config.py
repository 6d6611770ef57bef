"""The config of a run: each owner's own model, composed. Its defaults are the main job of `make train`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actors.core import load_environment, load_prompt
from actors.prompts.settings import PromptSettings
from actors.sampling import Sampling
from deploy.refusals import check
from learner import plugins
from learner.config import LearnerConfig, ModelConfig, OptimizerConfig
from protos.errors import ConfigError
from replay.config import Config as ReplayConfig


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WarmStart(Section):
    """Imitation of a demonstrator, so that reinforcement learning has successes to learn from. Skipped where `updates` is 0."""

    demonstrations: int = Field(default=10_000, ge=1)
    """Games that the environment's expert plays, all of the train split."""
    updates: int = Field(default=700, ge=0)
    batch: int = Field(default=32, ge=1)
    """Demonstrations an update."""
    objectives: list[dict[str, Any]] = [
        {"name": "supervised"},
        {"name": "next_observation", "coefficient": 0.2, "normalise": "token"},
    ]
    learner: LearnerConfig = LearnerConfig(
        minibatches=1,
        optimizer=OptimizerConfig(
            name="muon", lr=5e-3, betas=(0.9, 0.98), weight_decay=0.05, warmup_updates=100, schedule="cosine"
        ),
    )


class PolicyTraining(Section):
    """Reinforcement learning with the objectives listed, summed: each has its own denominator and coefficient."""

    updates: int = Field(default=150, ge=0)
    advantages: dict[str, Any] = {"name": "gigpo"}
    objectives: list[dict[str, Any]] = [
        {"name": "policy_gradient", "entropy_bonus": 0.02},
        {"name": "paw", "replay_ratio": 0.05},
    ]
    sampling_rounds: int = Field(default=1, ge=1)
    """Rounds of rollouts an update at most, until `replay.groups_per_update` groups have unequal returns: DAPO's dynamic
    sampling (arXiv 2503.14476, eq. 11). All that was played is trained on: the other groups still teach the world model."""
    observation_cap: int = Field(default=512, ge=1)
    """Tokens of an observation that a world model is scored on at most; |o| of eq. 8 is then this many **[default]**."""
    learner: LearnerConfig = LearnerConfig(
        minibatches=2,
        wm_max_grad_ratio=1.0,
        optimizer=OptimizerConfig(name="adamw", lr=1e-3, betas=(0.9, 0.95), warmup_updates=8, schedule="linear"),
    )


Mode = Literal["sampled", "greedy", "constrained"]


class Evaluation(Section):
    """Held-out games, played before, during and after training. No held-out game is ever a training game: asserted."""

    splits: tuple[str, ...] = Field(default=("seen", "unseen"), min_length=1)
    """The first gives the headline and the evaluations on the way; the others are played before and after training too."""
    games: int = Field(default=256, ge=1)
    every: int = Field(default=25, ge=0)
    """Updates between evaluations on the way (0: only before and after)."""
    modes: tuple[Mode, ...] = Field(default=("sampled", "greedy", "constrained"), min_length=1)
    """How replies are decoded before and after training and in `tandem eval`: sampled, greedy, and constrained (sampled
    among the admissible commands). Evaluations on the way leave out the last."""
    samples: int = Field(default=4, ge=1)
    """Episodes a game for pass@k, where replies are sampled freely; the other modes and evaluations on the way take one."""
    temperature: float | None = Field(default=None, gt=0)
    """Of sampled and constrained replies; absent: `sampling.temperature`."""
    probe_games: int = Field(default=256, ge=0)
    """Games of the demonstrator on which the error of next-observation prediction is measured (0: it is not)."""
    seed: int = 0
    """Chooses the games and the sampling: the same for every training seed, so that runs compare on the same games."""


class Collapse(Section):
    """What counts as a collapse, over `window` updates in a row, and what happens then."""

    policy: Literal["stop", "rollback", "ignore"] = "stop"
    """stop: save nothing more, say why. rollback: go back to the last checkpoint and draw other games, `rollbacks` times."""
    rollbacks: int = Field(default=2, ge=0)
    window: int = Field(default=5, ge=1)
    invalid_share: float = Field(default=0.9, gt=0, le=1)
    """Share of refused actions at and above which the policy no longer plays."""
    entropy: float = Field(default=1e-3, ge=0)
    """Nats at and below which the policy no longer explores, counted only where it does not succeed either."""
    success_drop: float = Field(default=0.9, gt=0, le=1)
    """Fall of training success below its best window, as a share of that best."""
    success_from: float = Field(default=0.2, gt=0, le=1)
    """Best success from which a fall counts: below it, chance alone can empty a window."""


class Checkpoints(Section):
    every: int = Field(default=25, ge=1)
    """Updates between checkpoints in policy training."""
    every_warm_start: int = Field(default=200, ge=1)
    """The same in the warm start."""
    keep: int = Field(default=2, ge=-1)
    """Newest checkpoints kept (-1: all)."""


class RunConfig(Section):
    name: str = "household"
    seed: int = Field(default=0, ge=0)
    """Every random choice of the run derives from it; `protos.seeding` says how."""
    threads: int = Field(default=2, ge=1)
    """Threads of torch in this process."""
    environment: dict[str, Any] = {"name": "household"}
    """`name`: a file of actors/envs or a dotted path to your own module; the other keys are its Config's."""
    prompt: dict[str, Any] = {"name": "append"}
    """`name`: a file of actors/prompts or a dotted path to your own module; the other keys are its Config's."""
    sampling: Sampling = Sampling()
    episodes_at_once: int = Field(default=256, ge=1)
    """Episodes in one batch of the engine: bounds the memory of its cache, never changes a result."""
    model: ModelConfig = ModelConfig()
    replay: ReplayConfig = ReplayConfig()
    warm_start: WarmStart = WarmStart()
    training: PolicyTraining = PolicyTraining()
    evaluation: Evaluation = Evaluation()
    collapse: Collapse = Collapse()
    checkpoints: Checkpoints = Checkpoints()

    @model_validator(mode="after")
    def _check_plugins(self) -> "RunConfig":
        """Refuse a typo within a plug-in's table before anything heavy is loaded."""
        self.environment_config()
        self.prompt_settings()
        _check_plugin("advantages", self.training.advantages, "training", "advantages")
        for phase, settings in (("warm_start", self.warm_start), ("training", self.training)):
            for table in settings.objectives:
                _check_plugin("objectives", table, phase, "objectives", str(table.get("name")))
        return self

    def check_training(self) -> None:
        """ConfigError where policies could not be trained on what these settings sample.

        The learner scores the model's own distribution: tempered or cut behaviour log-probabilities would belong to another.
        """
        sampling = self.sampling
        if "sampled" not in self.evaluation.modes:
            raise ConfigError('training is judged by sampled replies: put "sampled" among evaluation.modes')
        if self.training.updates and (sampling.temperature != 1 or sampling.truncates):
            raise ConfigError(
                "policy training needs sampling.temperature = 1, sampling.top_p = 1 and sampling.top_k = 0; "
                f"they are {sampling.temperature}, {sampling.top_p} and {sampling.top_k} (evaluation may differ: tandem eval)"
            )

    def environment_config(self) -> Any:
        """The environment's own Config, validated."""
        module = load_environment(self.environment.get("name", ""))
        return check(module.Config, _settings(self.environment), at=("environment",))

    def prompt_settings(self) -> PromptSettings:
        """The prompt's own Config, validated."""
        return check(load_prompt(self.prompt.get("name", "")).Config, _settings(self.prompt), at=("prompt",))


def _check_plugin(kind: plugins.PluginKind, table: dict[str, Any], *at: str) -> None:
    check(plugins.find(kind, table.get("name", "")).Config, _settings(table), at=at)


def _settings(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}
