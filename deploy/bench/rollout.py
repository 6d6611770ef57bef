"""`tandem bench rollout`: generated tokens a second while playing games, beside transformers' own `generate`.

Ours plays household games never seen before, 32 at once: rows leave as their games end, every token gets its exact
log-probability and entropy, and environment, parsing and records are part of the time. `generate` gets the same model
and, in each round, the games just played, as `deploy.bench.generating` has it; it is called in four ways:

    generate           a call a turn, KV cache handed on, rows dropped as their games end: the very same turn lengths
    full batch         the same with mean lengths: no row ever leaves, no padding, which no game allows
    one call           all reply tokens of the full batch in a row: no observation is read at all
    no cache           a call a turn on the grown context, as in a plain script
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.bench.figures import Figures
from deploy.bench.generating import generate, generated, mean_turns, one_turn, turns_of
from deploy.bench.measure import interleave, median, ratio
from deploy.bench.policy import QUICK, Policy, prepare
from deploy.config import RunConfig
from deploy.console import Console
from protos.records import Episode
from protos.seeding import derive_seed
from protos.telemetry import reduce_metrics
from replay.dispatcher import Dispatcher

Counts = NDArray[np.float64]


class Player:
    """Plays `episodes` episodes of new games at each call."""

    def __init__(self, policy: Policy, episodes: int) -> None:
        config, size = policy.config, min(episodes, policy.config.replay.group_size)
        self._policy, self._groups = policy, episodes // size
        self._games = Dispatcher(config.replay.leases, "bench", config.seed, size, self._task)
        self.latest: list[Episode] = []
        self._played: list[dict[str, float]] = []

    def __call__(self) -> None:
        leases = [self._games.lease("rollout", 0.0) for _ in range(self._groups)]
        groups, metrics = self._policy.play([lease for lease in leases if lease is not None])
        self.latest = [episode for group in groups for episode in group.episodes]
        self._played.append(reduce_metrics([metrics]))

    def measured(self, name: str) -> Counts:
        """Metric `rollout/<name>` of each call but the first, which is not measured."""
        return np.array([played[f"rollout/{name}"] for played in self._played[1:]])

    def _task(self, index: int) -> str:
        return self._policy.world.tasks("train", derive_seed(self._policy.config.seed, "bench"), index, 1)[0]


class Generator:
    """Generates, at each call, the turns of the games that `player` played last; counts their tokens."""

    def __init__(self, policy: Policy, player: Player, kind: str) -> None:
        self._policy, self._player, self._kind = policy, player, kind
        self._tokens: list[int] = []
        self._turns = []

    def prepare(self) -> None:
        played = self._player.latest
        turns = turns_of(played) if self._kind in ("generate", "no cache") else mean_turns(played)
        self._turns = one_turn(turns) if self._kind == "one call" else turns
        self._tokens.append(generated(self._turns))

    def __call__(self) -> None:
        tokenizer = self._policy.world.tokenizer
        generate(self._policy.learner.model, self._turns, tokenizer.pad_id, keep_cache=self._kind != "no cache")

    def tokens(self) -> Counts:
        return np.array(self._tokens[1:])


def run(
    console: Console, checkpoint: Path | None = None, *, config: RunConfig = QUICK, batch: int = 32, rounds: int = 11
) -> Figures:
    """Medians over `rounds` of all arms."""
    policy = prepare(console, checkpoint, config)
    replay = policy.config.replay
    play, play_job = Player(policy, batch), Player(policy, replay.groups_per_update * replay.group_size)
    generators = {kind: Generator(policy, play, kind) for kind in ("generate", "full batch", "one call", "no cache")}
    seconds = interleave({"play": play} | generators | {"play the job's batch": play_job}, rounds, console)
    ours = play.measured("generated_tokens") / seconds["play"]
    theirs = {kind: generator.tokens() / seconds[kind] for kind, generator in generators.items()}
    turns = play.measured("steps") * play.measured("episodes")
    return {
        "tokens_per_s": median(ours),
        "read_tokens_per_s": median(play.measured("prompt_tokens") / seconds["play"]),
        "steps_per_s": median(turns / seconds["play"]),
        "job_tokens_per_s": median(play_job.measured("generated_tokens") / seconds["play the job's batch"]),
        "generate_tokens_per_s": median(theirs["generate"]),
        "vs_generate": ratio(ours, theirs["generate"]),
        "vs_generate_full_batch": ratio(ours, theirs["full batch"]),
        "vs_generate_one_call": ratio(ours, theirs["one call"]),
        "vs_generate_no_cache": ratio(ours, theirs["no cache"]),
        "batch_success": float(play.measured("success").mean()),
        "reply_tokens": float(play.measured("reply_tokens").mean()),
        "turns": float(play.measured("steps").mean()),
    }
