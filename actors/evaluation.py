"""What a set of evaluation games says: pure statistics over groups, each group the k samples of one game.

Every game counts exactly once: a game that comes twice is refused, and one whose opening was too long for the prompt
counts as failed. Intervals are taken **over games**, because the k samples of one game are not independent: Wilson's
score interval (1927, doi:10.2307/2276774) of the mean of the games' success rates with n = the number of games. For
k = 1 that is the usual interval; for k > 1 it is conservative, since a rate within [0, 1] with mean p varies by at most
p (1 - p). Unlike a bootstrap it needs no seed and keeps its width where every game was lost or won.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import comb, sqrt
from typing import TypedDict

import numpy as np
from scipy.stats import norm

from protos.errors import DataError
from protos.records import Episode, Group, Stop


class Rate(TypedDict):
    """A share with its 95 % interval over `games`."""

    mean: float
    low: float
    high: float
    games: int
    episodes: int


class Summary(TypedDict):
    """An evaluation in numbers, JSON-serialisable."""

    success: Rate
    by_task_type: dict[str, Rate]  # sorted by type
    pass_at: dict[str, float]  # "k" -> probability that one of k samples wins; k = 1, 2, 4, ... and all samples
    steps_to_goal: float | None  # mean steps of the episodes that were won; None where none was
    invalid: float  # share of turns that were refused
    truncated: float  # share of episodes that were cut: step limit, context, reply limit
    cut_replies: float  # share of turns whose reply the limit cut
    tokens_per_episode: float  # prompts and replies
    mean_return: float  # task return


def summarise(groups: Sequence[Group]) -> Summary:
    """Statistics of the evaluation `groups`, one a game. Raises DataError where a game comes twice or there is none."""
    _check(groups)
    episodes = [episode for group in groups for episode in group.episodes]
    turns = [turn for episode in episodes for turn in episode.transitions()]
    steps = [episode.steps for episode in episodes if episode.success]
    by_type: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_type[group.episodes[0].task_type].append(group)
    return Summary(
        success=success_rate(groups),
        by_task_type={kind: success_rate(members) for kind, members in sorted(by_type.items())},
        pass_at=_pass_curve(groups),
        steps_to_goal=float(np.mean(steps)) if steps else None,
        invalid=float(np.mean([not turn.valid for turn in turns])) if turns else 0.0,
        cut_replies=float(np.mean([turn.stop is Stop.LENGTH for turn in turns])) if turns else 0.0,
        truncated=float(np.mean([_was_cut(episode) for episode in episodes])),
        tokens_per_episode=float(np.mean([sum(len(s.token_ids) for s in e.sequences) for e in episodes])),
        mean_return=float(np.mean([episode.task_return for episode in episodes])),
    )


def success_rate(groups: Sequence[Group]) -> Rate:
    """Mean over games of the share of samples won, with its interval over games."""
    mean = float(np.mean([np.mean([episode.success for episode in group.episodes]) for group in groups]))
    low, high = wilson(mean, len(groups))
    return Rate(mean=mean, low=low, high=high, games=len(groups), episodes=sum(len(g.episodes) for g in groups))


def wilson(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a `share` of n trials: within [0, 1], of positive width even at 0 and 1."""
    z = float(norm.ppf(0.5 + confidence / 2))
    centre = share + z * z / (2 * n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def pass_at(k: int, samples: int, successes: int) -> float:
    """Unbiased probability that one of k samples of a game wins: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374, eq. 1)."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of each game, there are {samples}")
    return 1 - comb(samples - successes, k) / comb(samples, k)


def _pass_curve(groups: Sequence[Group]) -> dict[str, float]:
    samples = min(len(group.episodes) for group in groups)
    ks = sorted({2**i for i in range(samples.bit_length())} | {samples})
    wins = [(len(group.episodes), sum(episode.success for episode in group.episodes)) for group in groups]
    return {str(k): float(np.mean([pass_at(k, n, c) for n, c in wins])) for k in ks}


def _check(groups: Sequence[Group]) -> None:
    games = Counter(group.key.task_id for group in groups)
    twice = [game for game, count in games.items() if count > 1]
    if twice:
        raise DataError(f"each game counts once in an evaluation, but {twice[0]!r} was played {games[twice[0]]} times")
    if not groups or not all(group.episodes for group in groups):
        raise DataError("an evaluation needs at least one game, and an episode of each")


def _was_cut(episode: Episode) -> bool:
    """Cut on the way, or never begun because its opening was too long."""
    turns = episode.transitions()
    return not turns or any(turn.truncated for turn in turns)
