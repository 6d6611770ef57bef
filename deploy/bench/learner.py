"""`tandem bench learner`: the learner beside a bare torch loop, and what the world-model term, each algorithm and each prompt
cost.

All arms train the very same batch: one rollout of the main job by a trained policy. The learning rate is 1e-9, so that
every repeat finds the same weights. The term's cost is taken at equal rows: the policy term alone then trains zero-
advantage rows too (`skip_zero_advantage = false`), the bound on its gradient is off, nothing is replayed. What each of
these three adds is measured apart.

Memory is the peak of all tensors allocated by torch during an update, from its profiler, on top of weights and optimizer
state: exact, and free of the allocator's and the process's own noise.
"""

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch.autograd.profiler import profile

from deploy.bench import algorithms, layouts
from deploy.bench.bare import BareLoop
from deploy.bench.figures import Figures
from deploy.bench.measure import Seconds, added, interleave, median, ratio, standard_error
from deploy.bench.policy import QUICK, Policy, prepare
from deploy.config import PolicyTraining, RunConfig
from deploy.console import Console
from deploy.parts import build_replay
from learner import plugins
from learner.batch import pack, pack_world
from learner.config import LearnerConfig, OptimizerConfig
from learner.core import Rows, Update
from protos.records import Lease, Version
from protos.seeding import generator
from protos.telemetry import reduce_metrics

POLICY, PAW = PolicyTraining().objectives
"""The terms of the main job."""
UNSKIPPED = POLICY | {"skip_zero_advantage": False}
FRESH_PAW = PAW | {"replay_ratio": 0.0}
EQUAL = PolicyTraining().learner.model_copy(
    update={
        "optimizer": OptimizerConfig(lr=1e-9),
        "wm_max_grad_ratio": None,
        "gradient_statistics_every": 0,
    }
)
"""The main job's learner, bare of what is measured apart."""


@dataclass(frozen=True)
class Batch:
    """One rollout, as rows, with as many replayed ones as the main job would add."""

    leases: list[Lease]
    fresh: Rows
    replayed: Rows
    success: float


class Arm:
    """A learner with the policy's weights and objectives of its own; trains the same update at each call."""

    def __init__(self, policy: Policy, config: LearnerConfig, update: Update, *specs: Mapping[str, Any]) -> None:
        self.config, self.update = config, update
        self.objectives = [plugins.load("objectives", spec) for spec in specs]
        self.learner = policy.another_learner()
        self.learner.begin_phase("policy", config, self.objectives, total_updates=1)
        self.metrics: dict[str, float] = {}

    def __call__(self) -> None:
        self.metrics = reduce_metrics([self.learner.update(self.update, 0)])

    def bare(self) -> BareLoop:
        """The same update as a bare loop, on a copy of the model."""
        plan, _ = self.learner.plan(self.update, 0)
        return BareLoop(deepcopy(self.learner.model), self.config, plan, self.objectives)


def run(
    console: Console,
    checkpoint: Path | None = None,
    *,
    config: RunConfig = QUICK,
    rounds: int = 24,
    side_rounds: int = 4,
) -> Figures:
    """Medians over `rounds` of the two arms of the overhead, which takes the finest measurement, `side_rounds` of all else."""
    policy = prepare(console, checkpoint, config)
    batch = make_batch(policy)
    plain = Arm(policy, EQUAL, {"fresh": batch.fresh}, UNSKIPPED)
    both = Arm(policy, EQUAL, {"fresh": batch.fresh}, UNSKIPPED, FRESH_PAW)
    seconds = interleave({"policy": plain, "policy + paw": both}, rounds, console)
    sides = _sides(policy, batch, both, side_rounds, console)
    figures = _overhead(seconds, sides["rollout"]) | _memory(plain, both) | _ratios(sides)
    figures |= algorithms.measure(policy, batch.fresh, side_rounds, console)
    figures |= layouts.measure(policy, [lease.key.task_id for lease in batch.leases])
    return figures | _about(batch, both, seconds)


def make_batch(policy: Policy) -> Batch:
    """One rollout of the job's size, and its replayed rows drawn from what it left in replay."""
    config = policy.config
    replay = build_replay(config, policy.world, Version(0, 0))
    leases: list[Lease] = []
    while len(leases) < config.replay.groups_per_update and (lease := replay.lease("rollout")) is not None:
        leases.append(lease)
    groups, metrics = policy.play(leases)
    for group in groups:
        replay.append_group(group)
    fresh = pack(replay.sample_policy(len(groups)))
    fresh = plugins.load("advantages", config.training.advantages).compute(fresh)
    wanted = plugins.load("objectives", PAW).replay_rows(fresh)
    replayed = pack_world(replay.sample_world(wanted, generator(config.seed, "bench", "replay")))
    return Batch(leases, fresh, replayed, reduce_metrics([metrics])["rollout/success"])


def _sides(policy: Policy, batch: Batch, both: Arm, rounds: int, console: Console) -> dict[str, Seconds]:
    """The rollout of the batch, the bare loop, and what the job's settings add: skipping, replay, safeguard."""
    fresh, replaying = {"fresh": batch.fresh}, {"fresh": batch.fresh, "replay": batch.replayed}
    bounded = EQUAL.model_copy(update={"wm_max_grad_ratio": PolicyTraining().learner.wm_max_grad_ratio})
    arms = {
        "rollout": lambda: policy.play(batch.leases),
        "policy + paw": both,
        "bare loop": both.bare(),
        "safeguard": Arm(policy, bounded, fresh, UNSKIPPED, FRESH_PAW),
        "replay": Arm(policy, EQUAL, replaying, UNSKIPPED, PAW),
        "skipping": Arm(policy, EQUAL, fresh, POLICY),
        "skipping + paw": Arm(policy, EQUAL, fresh, POLICY, FRESH_PAW),
    }
    return interleave(arms, rounds, console)


def _overhead(seconds: Mapping[str, Seconds], rollout: Seconds) -> Figures:
    both, plain = seconds["policy + paw"], seconds["policy"]
    return {
        "paw_time_overhead": added(both, plain, median(rollout)),
        "paw_update_overhead": added(both, plain),
        "paw_update_overhead_error": standard_error(both, plain),
        "rollout_seconds": median(rollout),
        "update_seconds": median(both),
    }


def _memory(plain: Arm, both: Arm) -> Figures:
    peak = peak_bytes(both)
    return {"paw_memory_overhead": peak / peak_bytes(plain) - 1, "update_peak_mib": peak / 2**20}


def _ratios(sides: Mapping[str, Seconds]) -> Figures:
    return {
        "vs_bare_torch": ratio(sides["bare loop"], sides["policy + paw"]),
        "paw_skipping_overhead": added(sides["skipping + paw"], sides["skipping"]),
        "paw_replay_overhead": added(sides["replay"], sides["policy + paw"]),
        "safeguard_overhead": added(sides["safeguard"], sides["policy + paw"]),
    }


def _about(batch: Batch, both: Arm, seconds: Mapping[str, Seconds]) -> Figures:
    tokens = both.metrics["learner/tokens"]
    return {
        "tokens_per_s": tokens / median(seconds["policy + paw"]),
        "batch_tokens": tokens,
        "batch_success": batch.success,
        "zero_advantage_rows": both.metrics["policy_gradient/zero_advantage_rows"],
        "mask_rate": both.metrics["paw/mask_rate"],
    }


def peak_bytes(arm: Arm) -> int:
    """Peak bytes of tensors during one call: weights, Adam's two moments, and what torch allocates meanwhile."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read at the first profile: above it, it prints when it starts
    for parameter in arm.learner.model.parameters():
        parameter.grad = None
    with profile(use_cpu=True, profile_memory=True, use_kineto=True) as profiler:
        arm()
    recorded: Any = profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = sorted((e for e in recorded.events() if e.name() == "[memory]"), key=lambda event: event.start_ns())
    allocated = accumulate((event.nbytes() for event in events), initial=0)
    return 3 * sum(parameter.nbytes for parameter in arm.learner.model.parameters()) + max(allocated)
