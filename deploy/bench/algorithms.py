"""What an update of each algorithm costs beside GRPO's: every config of `deploy/configs/algorithms`, on the same batch.

An update here is all that a learner does with a batch: values and reference log-probabilities where the algorithm wants
them, advantages, minibatches. Nothing is replayed, and the learning rate is 1e-9, so that every repeat finds the same weights.
"""

from collections.abc import Mapping

from deploy.bench.figures import CONFIGS, Figures
from deploy.bench.measure import Seconds, interleave, ratio
from deploy.bench.policy import Policy
from deploy.config import PolicyTraining, RunConfig
from deploy.console import Console
from deploy.settings import load
from learner import plugins
from learner.core import Rows

BASELINE = "grpo"
RATE = 1e-9


class Arm:
    """A learner with the policy's weights and an algorithm of its own; trains on the same rows at each call."""

    def __init__(self, policy: Policy, training: PolicyTraining, rows: Rows) -> None:
        self.rows = rows
        self.algorithm = plugins.load("advantages", training.advantages)
        self.learner = policy.another_learner()
        slow = training.learner.optimizer.model_copy(update={"lr": RATE})
        critic = training.learner.critic.model_copy(update={"lr": RATE})
        config = training.learner.model_copy(
            update={"optimizer": slow, "critic": critic, "gradient_statistics_every": 0}
        )
        objectives = [plugins.load("objectives", spec) for spec in training.objectives]
        self.learner.begin_phase("policy", config, objectives, 1, self.algorithm)

    def __call__(self) -> None:
        rows = self.algorithm.compute(self.learner.look_up(self.rows, self.algorithm.needs))
        self.learner.update({"fresh": rows}, 0)


def measure(policy: Policy, rows: Rows, rounds: int, console: Console) -> Figures:
    """`<algorithm>_vs_grpo` for each config but GRPO's own, medians over `rounds`."""
    trainings = {path.stem: load(RunConfig, path).training for path in sorted(CONFIGS.glob("*.toml"))}
    seconds = interleave({name: Arm(policy, training, rows) for name, training in trainings.items()}, rounds, console)
    return _beside(seconds)


def _beside(seconds: Mapping[str, Seconds]) -> Figures:
    return {f"{name}_vs_{BASELINE}": ratio(own, seconds[BASELINE]) for name, own in seconds.items() if name != BASELINE}
