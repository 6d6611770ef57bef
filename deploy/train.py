"""The main job: warm start, then reinforcement learning with world-model co-training, in one process, synchronously.

An update is five verbs: act, remember, weigh, learn, publish. Every random choice derives from (seed, name of the choice),
so a run that was killed and resumed from a checkpoint writes the same metrics as one that was not.
"""

import time
from typing import Any

import numpy as np

from deploy.config import RunConfig
from deploy.console import Console, Phase
from deploy.interrupt import Interrupt
from deploy.job import POLICY, WARM_START, Job
from deploy.parts import play_leases, take_leases
from deploy.runs import RunFolder
from deploy.summary import summarise_run
from learner.batch import pack, pack_demonstrations, pack_world
from learner.core import Rows
from protos.errors import CollapseError
from protos.records import Demonstration, Group
from protos.seeding import derive_seed, generator
from protos.telemetry import Metrics, merge_metrics, total

CHUNK = 500
"""Demonstrations checked and played at once: few enough that an environment still holds a game when it is played."""


def train(config: RunConfig, run: RunFolder, console: Console) -> dict[str, Any]:
    """Run the main job from where `run` stands (its newest whole checkpoint, or the start); returns its summary.

    Raises CollapseError where the policy collapsed and `collapse.policy` says stop; KeyboardInterrupt, after a checkpoint,
    where the process was asked to end.
    """
    config.check_training()
    with Interrupt() as interrupt, Job(config, run, console) as job:
        if job.cursor.phase == WARM_START:
            warm_start(job, interrupt)
        reinforce(job, interrupt)
        return summarise_run(config, run, job.commit, job.seconds)


def warm_start(job: Job, interrupt: Interrupt) -> None:
    """Imitate the environment's demonstrator."""
    config, console = job.config.warm_start, job.console
    if job.cursor.update == 0:
        job.begin(WARM_START)
    if config.updates and not job.replay.info().tables["demos"].held:
        _demonstrations(job)
    with console.phase("warm start", config.updates, start=job.cursor.update) as phase:
        for update in range(job.cursor.update, config.updates):
            batch = job.demonstrations(update, config.batch)
            metrics = job.learner.update({"demos": pack_demonstrations(batch)}, update)
            shown = job.write(WARM_START, update, [metrics])
            phase.advance(loss=shown.get("supervised/loss", float("nan")))
            job.advance(update + 1, interrupt, every=job.config.checkpoints.every_warm_start)
    job.enter(POLICY)


def reinforce(job: Job, interrupt: Interrupt) -> None:
    """Policy training, evaluated on the way; a collapse stops it or rolls it back."""
    updates = job.config.training.updates
    with job.console.phase("reinforcement learning", updates, start=job.cursor.update) as phase:
        while job.cursor.update < updates:
            update = job.cursor.update
            if update == 0 or (job.config.evaluation.every and update % job.config.evaluation.every == 0):
                job.evaluate(update, full=update == 0)
            metrics = policy_update(job, update)
            _show(phase, job.write(POLICY, update, metrics))
            try:
                job.watch_collapse(metrics)
            except CollapseError as error:
                if not job.roll_back(error):
                    raise
                phase.done = job.cursor.update
                continue
            job.advance(update + 1, interrupt, every=job.config.checkpoints.every)
    job.evaluate(updates, full=True)
    job.save()


def policy_update(job: Job, update: int) -> list[Metrics]:
    """Act, remember, weigh, learn, publish."""
    groups, acting = act(job)
    job.keep_episodes("training", update, groups)
    fresh, replayed, remembering = remember(job, groups, update)
    learning = job.learner.update({"fresh": fresh} | replayed, update)
    job.publish(update + 1)
    return [acting, remembering, learning, job.replay_metrics()]


def act(job: Job) -> tuple[list[Group], Metrics]:
    """Play the groups of one update, on the newest weights; again, up to `sampling_rounds`, where too few tell anything."""
    groups: list[Group] = []
    metrics: list[Metrics] = []
    wanted = job.config.replay.groups_per_update
    for _ in range(job.config.training.sampling_rounds):
        leases = take_leases(job.replay, "rollout", wanted)
        assert leases, job.replay.waits_for("rollout")
        job.refuse_leaks(lease.key.task_id for lease in leases)
        played, measured = play_leases(job.config, job.world, job.engine, leases)
        groups += played
        metrics.append(measured)
        if sum(_unequal(group) for group in groups) >= wanted:
            break
    return groups, merge_metrics(metrics)


def _unequal(group: Group) -> bool:
    """Its episodes differ in return: the group tells a policy what to do more often."""
    return len({episode.task_return for episode in group.episodes}) > 1


def remember(job: Job, groups: list[Group], update: int) -> tuple[Rows, dict[str, Rows], Metrics]:
    """Hand the groups to replay, and take from it what the update trains on: fresh groups with advantages, replayed rows."""
    began = time.perf_counter()
    replay, config = job.replay, job.config
    for group in groups:
        replay.append_group(group)
    cap = config.training.observation_cap
    fresh = pack(replay.sample_policy(len(groups)), cap)
    fresh = job.algorithm.compute(job.learner.look_up(fresh, job.algorithm.needs))
    wanted = sum(objective.replay_rows(fresh) for objective in job.objectives[POLICY])
    items = replay.sample_world(wanted, generator(config.seed, "replay", update, job.cursor.course)) if wanted else []
    replayed = {"replay": pack_world(items, cap)} if items else {}
    return fresh, replayed, {"time/remember": total(time.perf_counter() - began)}


def _demonstrations(job: Job) -> None:
    """Fill the demos table. A checkpoint of the warm start holds it."""
    config, world = job.config, job.world
    tasks = world.tasks("train", derive_seed(config.seed, "demonstrations"), 0, config.warm_start.demonstrations)
    rows: list[Demonstration] = []
    seed = derive_seed(config.seed, "demonstrator")
    with job.console.phase("demonstrations", len(tasks)) as phase:
        for start in range(0, len(tasks), CHUNK):
            chunk = tasks[start : start + CHUNK]
            job.refuse_leaks(chunk)
            rows += world.demonstrate(chunk, seed)
            phase.advance(len(chunk), success=float(np.mean([row.success for row in rows])))
    job.replay.add_demonstrations(rows)


def _show(phase: Phase, metrics: dict[str, float]) -> None:
    names = {"success": "rollout/success", "invalid": "rollout/invalid", "entropy": "rollout/entropy"}
    phase.advance(1, **{name: metrics[key] for name, key in names.items() if key in metrics})
