"""Play leased tasks: environments, prompt and engine in, groups of episodes out. Pure: no network, no weights.

All episodes of all leases share one session of the engine, one row an episode. Episode i of a lease samples its replies
from `derive_seed(lease.seed, i)`, so neither the number of leases in a call nor their order changes an episode.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from actors.core import Engine, Environment, Prompt, Session
from actors.episode import Player
from actors.sampling import Sampling
from protos.errors import ConfigError
from protos.records import Episode, Group, Lease, TokenIds, group_lambda
from protos.seeding import derive_seed
from protos.telemetry import Metric, Metrics, mean, total


def play(
    leases: Sequence[Lease],
    make_env: Callable[[], Environment],
    prompt: Prompt,
    engine: Engine,
    *,
    environment: str = "environment",
    sampling: Sampling | None = None,
    reward_max: float = 1.0,
) -> tuple[list[Group], Metrics]:
    """Play every episode of `leases` to its end; one group a lease, in their order, and the metrics of the call.

    `environment` names it in the records; `sampling` replaces the engine's own; `reward_max` is R_max of lambda
    (arXiv 2606.02388, eq. 10). An episode counts as a success where the environment says `won`, however it ended.

    A task whose opening leaves no room for a reply raises ConfigError in a rollout lease (it could never be trained
    on); in an eval lease its episodes have no turns and count as failures.
    Raises EnvironmentFailure, naming the task, where an environment raises.
    """
    started = time.perf_counter()
    settings = sampling or engine.sampling
    seeds = [derive_seed(lease.seed, i) for lease in leases for i in range(lease.group_size)]
    tasks = [lease for lease in leases for _ in range(lease.group_size)]
    players = [
        Player(make_env(), prompt, environment=environment, max_reply_tokens=settings.max_reply_tokens) for _ in tasks
    ]
    openings = [_open(player, lease, seed) for player, lease, seed in zip(players, tasks, seeds, strict=True)]
    with engine.session(seeds, sampling=settings) as session:
        _drive(players, openings, session, prompt if settings.constrained else None)
    for player in players:
        player.close()
    groups = _groups(leases, [player.episode() for player in players], reward_max)
    return groups, _metrics(players, groups, prompt.kinds, time.perf_counter() - started)


def _open(player: Player, lease: Lease, seed: int) -> TokenIds | None:
    context = player.open(lease.key.task_id, seed)
    if context is None and lease.kind == "rollout":
        raise ConfigError(
            f"the opening of task {lease.key.task_id!r} leaves no room for a reply: raise prompt.max_tokens"
        )
    return context


def _drive(players: list[Player], openings: list[TokenIds | None], session: Session, constrain: Prompt | None) -> None:
    """Turn by turn, until every episode is over."""
    pending = {row: context for row, context in enumerate(openings) if context is not None}
    while pending:
        allowed = [constrain.allowed(players[row].info) for row in pending] if constrain else None
        replies = session.reply(list(pending), list(pending.values()), allowed)
        answers = {row: players[row].take(reply) for row, reply in zip(pending, replies, strict=True)}
        pending = {row: context for row, context in answers.items() if context is not None}


def _groups(leases: Sequence[Lease], episodes: list[Episode], reward_max: float) -> list[Group]:
    groups, first = [], 0
    for lease in leases:
        members = tuple(episodes[first : first + lease.group_size])
        groups.append(Group(lease.key, members, group_lambda([e.task_return for e in members], reward_max)))
        first += lease.group_size
    return groups


def _metrics(players: list[Player], groups: list[Group], kinds: Sequence[str], seconds: float) -> Metrics:
    """Shares are over turns (`invalid`, `reply_*`) or episodes (`success`, `truncated`).

    `prompt_tokens` are those that an engine has to read: of each context what it does not share with the one before.
    `observations_without_room` are not in the record: the world model cannot learn from them. `dropped_history` counts
    the turns that prompts did not tell again for want of room.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    counts = sum((player.counts for player in players), Counter())
    turns, tokens, count = counts["turns"], counts["generated_tokens"], len(episodes)
    env_seconds = sum(episode.timings["env"] for episode in episodes)
    truncated = sum(any(t.truncated for t in episode.transitions()) for episode in episodes)

    def share(part: float, whole: float) -> Metric:
        return mean(part / whole if whole else 0.0, weight=whole)

    return {
        "rollout/success": share(sum(episode.success for episode in episodes), count),
        "rollout/return": share(sum(episode.task_return for episode in episodes), count),
        "rollout/steps": share(sum(episode.steps for episode in episodes), count),
        "rollout/truncated": share(truncated, count),
        "rollout/context_ended": total(counts["context_ended"]),
        "rollout/observations_without_room": total(counts["observations_without_room"]),
        "rollout/dropped_history": total(sum(player.dropped for player in players)),
        "rollout/cut_replies": total(counts["cut_replies"]),
        "rollout/invalid": share(counts["invalid"], turns),
        **{f"rollout/reply_{kind}": share(counts[f"reply_{kind}"], turns) for kind in kinds},
        "rollout/entropy": share(sum(player.entropy for player in players), tokens),
        "rollout/reply_tokens": share(tokens, turns),
        "rollout/unknown_tokens": share(counts["unknown_tokens"], counts["prompt_tokens"]),
        "rollout/episodes": total(count),
        "rollout/generated_tokens": total(tokens),
        "rollout/prompt_tokens": total(counts["prompt_tokens"]),
        "rollout/seconds": total(seconds),
        "rollout/env_seconds": total(env_seconds),
        "rollout/tokens_per_second": mean(tokens / seconds, weight=seconds),
        "rollout/steps_per_second": mean(turns / seconds, weight=seconds),
    }
