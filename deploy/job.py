"""A training run in progress: its parts, its place, and how it is saved and taken up again."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploy.collapse import CollapseWatch
from deploy.config import Mode, RunConfig
from deploy.console import Console
from deploy.evaluation import HeldOut
from deploy.interrupt import Interrupt
from deploy.parts import build_engine, build_learner, build_replay, build_world
from deploy.runs import RunFolder, code_commit
from deploy.writers import RunWriter
from learner import plugins
from learner.checkpoint import Checkpoint, CheckpointWriter, latest
from protos.errors import CollapseError, DataError
from protos.records import Demonstration, Group, Version
from protos.seeding import generator
from protos.telemetry import Metrics, reduce_metrics

WARM_START, POLICY = "warm_start", "policy"
STATE = "job.json"
BLOCK = 16
"""Batches drawn together and sorted by length before they are cut: less padding, in an order drawn anew each block."""


@dataclass(frozen=True)
class Cursor:
    """What comes next: update `update` of `phase`."""

    phase: str = WARM_START
    update: int = 0
    incarnation: int = 0  # of the weights: grows by one each time a checkpoint is taken up
    course: int = 0  # of the tasks: grows by one at each rollback
    seconds: float = 0.0  # worked up to here, in all processes


class Job:
    """Opens a run where its newest whole checkpoint left it, or at the start."""

    def __init__(self, config: RunConfig, run: RunFolder, console: Console) -> None:
        self.config, self.run, self.console = config, run, console
        self._began = time.monotonic()
        self.commit = code_commit()  # now: the tree may change while the run goes on, the loaded code does not
        self.objectives = {
            WARM_START: [plugins.load("objectives", spec) for spec in config.warm_start.objectives],
            POLICY: [plugins.load("objectives", spec) for spec in config.training.objectives],
        }
        self.algorithm = plugins.load("advantages", config.training.advantages)
        self.algorithm.check(config.replay.group_size)
        self.world = build_world(config)
        self.learner = build_learner(config, self.world.tokenizer)
        self.engine = build_engine(config, self.learner, self.world.tokenizer)
        self.held_out = [HeldOut(config, self.world, split) for split in config.evaluation.splits]
        self.watch = CollapseWatch(config.collapse)
        self.cursor = Cursor()
        self.replay = build_replay(config, self.world, Version(0, 0))
        self._checkpoints = CheckpointWriter(run.checkpoints, config.checkpoints.keep)
        self._parent: Checkpoint | None = None
        self._block: tuple[int, list[list[Demonstration]]] = (-1, [])
        self._resume()
        self.writer = RunWriter(run, resumed_at=self._step(), decode=self.world.tokenizer.decode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    @property
    def seconds(self) -> float:
        return self.cursor.seconds + time.monotonic() - self._began

    # Where the run stands

    def begin(self, phase: str) -> None:
        """Fresh optimizer and schedule for `phase`."""
        settings = {WARM_START: self.config.warm_start, POLICY: self.config.training}[phase]
        algorithm = self.algorithm if phase == POLICY else None
        self.learner.begin_phase(phase, settings.learner, self.objectives[phase], settings.updates, algorithm)

    def enter(self, phase: str) -> None:
        """Go on to the first update of `phase`, with an empty replay, and save."""
        self.cursor = replace(self.cursor, phase=phase, update=0)
        self.replay = build_replay(self.config, self.world, Version(self.cursor.incarnation, 0), self.cursor.course)
        self.engine.adopt(Version(self.cursor.incarnation, 0))
        self.begin(phase)
        self.save()

    def advance(self, update: int, interrupt: Interrupt, *, every: int) -> None:
        """Update `update` is next: save where that is due or the process was asked to end."""
        self.cursor = replace(self.cursor, update=update)
        if update % every == 0 or interrupt.asked:
            self.save()
        if interrupt.asked:
            raise KeyboardInterrupt

    def publish(self, update: int) -> None:
        """The learner's weights are in service as version `update`."""
        version = Version(self.cursor.incarnation, update)
        self.engine.adopt(version)
        self.replay.publish(version)

    def watch_collapse(self, metrics: list[Metrics]) -> None:
        """Raises CollapseError where the latest updates show a collapse."""
        shown = reduce_metrics(metrics)
        self.watch.observe(
            invalid=shown["rollout/invalid"], entropy=shown["rollout/entropy"], success=shown["rollout/success"]
        )

    def roll_back(self, error: CollapseError) -> bool:
        """Go back to the last checkpoint and on with other games; False where the policy or the number of tries says no."""
        limits = self.config.collapse
        if limits.policy != "rollback" or self.cursor.course >= limits.rollbacks:
            return False
        course = self.cursor.course + 1
        self.console.note(f"{error}; going back to the last checkpoint, other games ({course} of {limits.rollbacks})")
        self.writer.close()
        self._resume(course)
        self.watch.reset()
        self.writer = RunWriter(self.run, resumed_at=self._step(), decode=self.world.tokenizer.decode)
        return True

    # What it writes

    def write(self, phase: str, update: int, metrics: list[Metrics]) -> dict[str, float]:
        shown = reduce_metrics(metrics)
        self.writer.metrics(phase, update, shown, step=self._step(phase, update))
        return shown

    def replay_metrics(self) -> Metrics:
        """Without the policy table's: what it holds depends on when checkpoints are taken, and metrics must not."""
        return {name: metric for name, metric in self.replay.metrics().items() if not name.startswith("replay/policy/")}

    def evaluate(self, update: int, *, full: bool) -> None:
        """Evaluate on the held-out games: every split in all modes with `samples` replies a game where `full`, else the
        first split, sampled once and greedy."""
        settings = self.config.evaluation
        modes: list[Mode] = [mode for mode in settings.modes if full or mode != "constrained"]
        splits = self.held_out if full else self.held_out[:1]
        with self.console.phase(f"evaluation at update {update}", len(splits) * len(modes)) as phase:
            for held_out in splits:
                nll = held_out.next_observation_nll(self.learner)
                for mode in modes:
                    samples = settings.samples if full else 1
                    record, groups = held_out.evaluate(self.replay, self.engine, mode, samples)
                    record |= {"phase": POLICY, "update": update, "full": full, "nll": nll}
                    self.writer.evaluation(record, step=self._step(POLICY, update))
                    if mode == settings.modes[0]:
                        self.keep_episodes(f"evaluation-{held_out.split}", update, groups, most=16)
                    phase.advance(**{f"{held_out.split} {mode}": record["success"]["mean"]})

    def keep_episodes(self, name: str, update: int, groups: list[Group], most: int = 1) -> None:
        """Write the first episode of the first `most` groups: enough to read, far from all."""
        for group in groups[:most]:
            self.writer.episodes(name, update, group.episodes[:1], key=group.key)

    def refuse_leaks(self, training_tasks: Iterable[str]) -> None:
        """DataError where a training game is one of the held-out games, of any split."""
        tasks = list(training_tasks)
        for held_out in self.held_out:
            held_out.refuse_leaks(tasks)

    def demonstrations(self, update: int, count: int) -> list[Demonstration]:
        """The batch of warm-start update `update`: `count` rows of like length."""
        number, place = divmod(update, BLOCK)
        if self._block[0] != number:
            rng = generator(self.config.seed, "warm start", number)
            rows = sorted(self.replay.sample_demonstrations(count * BLOCK, rng), key=lambda row: len(row.token_ids))
            order = rng.permutation(BLOCK)
            self._block = (number, [rows[i * count : (i + 1) * count] for i in order])
        return self._block[1][place]

    # Saving and taking up again

    def save(self) -> None:
        """A whole checkpoint of everything that the next update depends on."""
        self.cursor = replace(self.cursor, seconds=self.seconds)
        self._began = time.monotonic()
        self._parent = self._checkpoints.save(
            self._step(), self._contents(), incarnation=self.cursor.incarnation, parent=self._parent
        )
        if self.cursor.phase == POLICY:
            self.replay.commit(Version(self.cursor.incarnation, self.cursor.update))

    def _contents(self) -> Callable[[Path], None]:
        state = {
            "cursor": asdict(self.cursor),
            "lines": self.run.cursor(),
            "collapse": self.watch.state(),
            "tokenizer": self.world.tokenizer.fingerprint,
        }

        def write(folder: Path) -> None:
            self.learner.save(folder)
            self.world.tokenizer.save(folder)
            self.replay.save(folder / "replay")
            (folder / STATE).write_text(json.dumps(state, indent=2) + "\n")

        return write

    def _resume(self, course: int | None = None) -> None:
        self._parent = latest(self.run.checkpoints)
        if self._parent is None:
            self.run.rewind({})
            return
        folder = self._parent.folder
        state = self._state(folder)
        cursor = Cursor(**state["cursor"])
        # Rolling back to one checkpoint twice must not give two sets of weights one number.
        incarnation = max(self.cursor.incarnation, cursor.incarnation) + 1
        self.cursor = replace(cursor, incarnation=incarnation, course=cursor.course if course is None else course)
        self.run.rewind(state["lines"])
        self.watch.restore(state["collapse"])
        self.begin(cursor.phase)
        self.learner.restore(folder)
        version = Version(self.cursor.incarnation, self.cursor.update if cursor.phase == POLICY else 0)
        self.replay = build_replay(self.config, self.world, Version(0, 0), self.cursor.course)
        for line in self.replay.restore(folder / "replay", version):
            self.console.note(line)
        self.engine.adopt(version)
        self.console.note(f"going on from {folder}: {cursor.phase}, update {cursor.update}")

    def _state(self, folder: Path) -> dict[str, Any]:
        try:
            state = json.loads((folder / STATE).read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} cannot be resumed from: {STATE} is missing or broken") from error
        self.world.tokenizer.check(state["tokenizer"], str(folder))
        return state

    def _step(self, phase: str | None = None, update: int | None = None) -> int:
        """Updates of all phases up to here: the number of a checkpoint, the axis of TensorBoard."""
        phase = self.cursor.phase if phase is None else phase
        update = self.cursor.update if update is None else update
        return update + (self.config.warm_start.updates if phase == POLICY else 0)
