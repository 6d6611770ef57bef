"""The learner as the training loop sees it.

    learner = Learner(ModelConfig(), vocab_size=tokenizer.size, pad_id=tokenizer.pad_id, eoa_id=tokenizer.eoa_id, seed=0)
    learner.begin_phase("policy", LearnerConfig(), objectives, 150, algorithm)
    for index in range(150):
        rows = algorithm.compute(learner.look_up(rows, algorithm.needs))
        metrics = learner.update({"fresh": rows, "replay": replayed}, index)
        engine.adopt(version)                    # the engine samples from learner.model, the very module updated here

An update depends on its data, the weights, the optimizer state and (seed, phase, index), on nothing else: a resumed run
repeats it bit for bit.
"""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from learner.batch import minibatches
from learner.config import LearnerConfig, ModelConfig
from learner.core import Algorithm, BoolArray, FloatArray, Need, Objective, Rows, Stream, Update
from learner.model import load_weights, save_model
from learner.network import policy_network
from learner.rllib import ModelSource, UpdateData, learner_group, on_learners
from learner.scoring import score
from learner.state import load_state, save_state
from learner.timing import Stopwatch
from learner.update import Phase, Plan, Updater
from protos.errors import ConfigError
from protos.seeding import generator
from protos.telemetry import Metrics, merge_metrics, total


class Learner:
    """One model, trained in phases through RLlib's LearnerGroup."""

    def __init__(self, model: ModelConfig, *, vocab_size: int, pad_id: int, eoa_id: int, seed: int) -> None:
        self._seed = seed
        self._group = learner_group(ModelSource(model, vocab_size, pad_id, eoa_id, seed))
        (self._local,) = on_learners(self._group, lambda learner: learner)
        self._phase: Phase | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The Hugging Face causal LM, updated in place."""
        return self._local.lm

    @property
    def _updater(self) -> Updater:
        assert self._local.updater is not None, "begin_phase comes first"
        return self._local.updater

    def begin_phase(
        self,
        name: str,
        config: LearnerConfig,
        objectives: Sequence[Objective],
        total_updates: int,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Train on `objectives` from here on, with fresh optimizers and a schedule of `total_updates`.

        Where one of them or the `algorithm` needs a reference policy, it is the model as it is now; where one needs values, a
        critic is made of it. ConfigError where no objective would train that critic.
        """
        looked_up = frozenset() if algorithm is None else algorithm.needs
        if "values" in looked_up and not any("values" in objective.needs for objective in objectives):
            raise ConfigError(
                'the advantage estimator reads the values of a critic that no objective trains: add one with name = "value"'
            )
        phase = Phase(name, config, tuple(objectives), total_updates, looked_up)
        on_learners(self._group, lambda learner: learner.begin_phase(phase))
        self._phase = phase

    def look_up(self, rows: Rows, needs: frozenset[Need]) -> Rows:
        """`rows` with the columns that an advantage estimator `needs`; no forward pass where it needs none.

        `reference` (N,): log-probabilities of action tokens under the reference policy, 0 elsewhere. `values` (N,): the
        critic's, at the position before each action token and at the last of each row, 0 elsewhere.
        """
        return self._updater.lookups.fill(rows, needs)

    def update(self, update: Update, index: int) -> Metrics:
        """Train once on `update` (rows by source), as update `index` (from 0) of the phase.

        Raises NonFiniteError, naming the rows, before the optimizer step that a NaN or infinity would have entered.
        """
        watch = Stopwatch()
        with watch("weigh"):
            plan, metrics = self.plan(update, index)
        with watch("update"):
            (trained,) = self._group.update(training_data=UpdateData(plan))
        seconds = {f"learner/seconds/{name}": total(value) for name, value in watch.seconds.items()}
        return merge_metrics([metrics, trained, seconds])

    def score(self, rows: Rows, wanted: BoolArray, token_budget: int = 4096) -> FloatArray:
        """(N,) log-probabilities of the `wanted` (N,) tokens of `rows` under the current weights, 0 elsewhere."""
        return score(policy_network(self.model), rows, wanted, token_budget)

    def save(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, and the phase's optimizer state below it."""
        save_model(self.model, folder)
        if self._local.updater is not None:
            save_state(self._local.updater, folder)

    def load_weights(self, folder: Path) -> None:
        """Take on the weights saved in `folder`; optimizer state stays as it is."""
        load_weights(self.model, folder)

    def restore(self, folder: Path) -> None:
        """Go on where `save` left off; the phase that was saved must have begun again."""
        load_state(self._updater, folder)
        load_weights(self.model, folder)

    def plan(self, update: Update, index: int) -> tuple[Plan, Metrics]:
        """Weigh every objective on the whole of `update`, then cut it in minibatches."""
        phase = self._phase
        assert phase is not None, "begin_phase comes before update"
        streams: list[tuple[int, Stream]] = []
        metrics = []
        for number, objective in enumerate(phase.objectives):
            rng = generator(self._seed, "learner", phase.name, index, objective.name)
            own, measured = objective.weigh(update, rng)
            streams += [(number, stream) for stream in own]
            metrics.append(measured)
        rng = generator(self._seed, "learner", phase.name, index, "minibatches")
        scored = [stream for _, stream in streams]
        epochs = [minibatches(scored, phase.config.minibatches, rng) for _ in range(phase.config.epochs)]
        return Plan(index, tuple(streams), tuple(tuple(map(tuple, epoch)) for epoch in epochs)), merge_metrics(metrics)
