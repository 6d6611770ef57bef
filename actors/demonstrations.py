"""Demonstrations to warm start on: an environment's own expert, laid out by the `append` prompt like any episode."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from actors import plugins
from actors.core import Reply
from actors.episode import Player
from actors.prompt import AppendPrompt
from protos.records import Demonstration, Episode, Stop, TokenIds, Version
from protos.seeding import derive_seed

NOBODY = Version(-1, -1)  # the version of tokens that no model sampled


def demonstrate(
    task_ids: Sequence[str],
    module: ModuleType,
    config: Any,
    prompt: AppendPrompt,
    seed: int,
    *,
    max_reply_tokens: int = 8,
    source: str = "expert",
) -> list[Demonstration]:
    """Play the module's expert once on each task, its choices drawn from `seed` and the task; one row a task.

    `max_reply_tokens` is that of the rollouts to come: rows end where an episode would, for want of room.

    Commands take the way of sampled replies: encoded, framed by `<act>` and `<eoa>`, read back by the prompt and
    executed, so a row shows what its own tokens do. Raises ConfigError where the module has no expert.
    """
    env = module.build(config)
    rows = []
    for task_id in task_ids:
        player = Player(env, prompt, environment=module.__name__, max_reply_tokens=max_reply_tokens)
        task_seed = derive_seed(seed, "demonstration", task_id)
        tokens = player.open(task_id, task_seed)
        expert = plugins.expert(module, config, env, task_seed)
        while tokens is not None:
            tokens = player.take(_reply(prompt.action(expert(player.observation, player.info))))
        rows.append(_as_row(player.episode(), source))
    env.close()
    return rows


def _reply(action: TokenIds) -> Reply:
    """The expert's command in the form of a sampled reply, with probability 1."""
    zeros = np.zeros(len(action), dtype=np.float32)
    return Reply(action, zeros, zeros, Stop.STOP, ((len(action), NOBODY),))


def _as_row(episode: Episode, source: str) -> Demonstration:
    (sequence,) = episode.sequences
    return Demonstration(
        token_ids=sequence.token_ids,
        actions=tuple(turn.action for turn in sequence.transitions),
        observations=tuple(turn.observation for turn in sequence.transitions),
        task_id=episode.task_id,
        source=source,
        success=episode.success,
    )
