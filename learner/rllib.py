"""RLlib's learner stack around `learner.update`; the only module that imports ray.

    group = learner_group(source)                            # LearnerGroup, local: no Ray runtime
    on_learners(group, lambda learner: learner.begin_phase(phase))
    group.update(training_data=UpdateData(plan))             # -> TandemLearner.update -> Updater.run

RLlib brings what a group of learners needs: placement, construction from a serialisable spec, one call to all. What an
update is stays ours, and three of its defaults must not apply: it sets NaN gradients to 0 and steps on, it zeroes
gradients in each call (accumulation is ours), and its batches are copied and cast on the way in. So `TandemLearner`
overrides `update` as a whole, and its data is `UpdateData`, which hands a plan of numpy arrays through untouched.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import gymnasium
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from transformers import PreTrainedModel

from learner.config import ModelConfig
from learner.model import build_model
from learner.update import Phase, Plan, Updater
from protos.telemetry import Metrics

Result = TypeVar("Result")

# RLlib wants spaces; a language model's are its token ids, which travel in `UpdateData`.
_SPACE = gymnasium.spaces.Discrete(1)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """How every learner of a group builds the same model."""

    config: ModelConfig
    vocab_size: int
    pad_id: int
    eoa_id: int
    seed: int

    def build(self) -> PreTrainedModel:
        return build_model(
            self.config, vocab_size=self.vocab_size, pad_id=self.pad_id, eoa_id=self.eoa_id, seed=self.seed
        )


class UpdateData(TrainingData):
    """A plan, passed through `LearnerGroup.update` as it is."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def validate(self) -> None:
        """Nothing to choose between: there is one kind of data."""

    def solve_refs(self) -> None:
        """Nothing to fetch: the arrays are here."""


class LanguageModule(TorchRLModule):
    """An RLModule that holds the Hugging Face model `lm`, built from its `model_config`."""

    def setup(self) -> None:
        self.lm = ModelSource(**self.model_config).build()

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Logits (R, T, V) of `batch["token_ids"]` (R, T): for RLlib's callers; training scores tokens by itself."""
        return {"logits": self.lm(input_ids=batch["token_ids"], use_cache=False).logits}


class TandemLearner(TorchLearner):
    """Runs a plan on its copy of the model, in the phase that it was told to begin."""

    updater: Updater | None = None

    @property
    def lm(self) -> PreTrainedModel:
        return cast(LanguageModule, self.module[DEFAULT_MODULE_ID].unwrapped()).lm

    def begin_phase(self, phase: Phase) -> None:
        """Take on the objectives of `phase`, with a fresh optimizer."""
        self.updater = Updater(self.lm, phase)

    def update(self, *args: Any, training_data: Any = None, **kwargs: Any) -> Metrics:
        """Run the plan of an `UpdateData`; the other arguments are those of RLlib's own update, unused."""
        assert self.updater is not None, "begin_phase comes before update"
        return self.updater.run(training_data.plan)

    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig | None = None) -> None:
        """None yet: each phase brings its own, and RLlib's registry cannot drop one."""

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        raise NotImplementedError("the losses are the objectives of a phase: see learner.update")


def learner_group(source: ModelSource) -> LearnerGroup:
    """A group of one learner in this process."""
    _quiet_rllib()
    config = AlgorithmConfig().learners(num_learners=0, num_gpus_per_learner=0, learner_class=TandemLearner)
    module = RLModuleSpec(
        module_class=LanguageModule,
        observation_space=_SPACE,
        action_space=_SPACE,
        model_config={name: getattr(source, name) for name in source.__slots__},
    )
    return LearnerGroup(config=config, module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: module}))


def on_learners(group: LearnerGroup, function: Callable[[TandemLearner], Result]) -> list[Result]:
    """Call `function` on each learner; its exceptions are raised here."""
    return [result.get() for result in cast(Any, group.foreach_learner)(function)]


def _quiet_rllib() -> None:
    """RLlib logs, once, that its own RLModule uses its own deprecated RLModuleConfig; nobody here can act on it."""
    logging.getLogger("ray._common.deprecation").addFilter(lambda record: "RLModuleConfig" not in record.getMessage())
