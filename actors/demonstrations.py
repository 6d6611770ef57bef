"""Demonstrations to warm start on: an environment's own expert, laid out by the prompt like any episode.

Under `append` an episode is one row; under prompts that show each turn anew it is one row a turn, all of one `task_id`.
What is imitated is the same, every action once, but a warm start counts rows: a batch of so many rows then holds so many
turns, not episodes, and long episodes weigh by their turns. Tagged replies show an action without reasoning, so a warm
start on them teaches not to reason; start an instruct model on none.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from actors import plugins
from actors.core import Prompt, Reply
from actors.episode import Player
from protos.records import Demonstration, Episode, Stop, TokenIds, Version
from protos.seeding import derive_seed

NOBODY = Version(-1, -1)  # the version of tokens that no model sampled


def demonstrate(
    task_ids: Sequence[str],
    module: ModuleType,
    config: Any,
    prompt: Prompt,
    seed: int,
    *,
    max_reply_tokens: int = 8,
    source: str = "expert",
) -> list[Demonstration]:
    """Play the module's expert once on each task, its choices drawn from `seed` and the task; one row a sequence.

    `max_reply_tokens` is that of the rollouts to come: rows end where an episode would, for want of room.

    Commands take the way of sampled replies: written as one, read back by the prompt and executed, so a row shows what
    its own tokens do. Raises ConfigError where the module has no expert.
    """
    env = module.build(config)
    rows: list[Demonstration] = []
    for task_id in task_ids:
        player = Player(env, prompt, environment=module.__name__, max_reply_tokens=max_reply_tokens)
        task_seed = derive_seed(seed, "demonstration", task_id)
        context = player.open(task_id, task_seed)
        expert = plugins.expert(module, config, env, task_seed)
        while context is not None:
            context = player.take(_reply(prompt.action(expert(player.observation, player.info))))
        rows += _as_rows(player.episode(), source)
    env.close()
    return rows


def _reply(action: TokenIds) -> Reply:
    """The expert's command in the form of a sampled reply, with probability 1."""
    zeros = np.zeros(len(action), dtype=np.float32)
    return Reply(action, zeros, zeros, Stop.STOP, ((len(action), NOBODY),))


def _as_rows(episode: Episode, source: str) -> list[Demonstration]:
    return [
        Demonstration(
            token_ids=sequence.token_ids,
            actions=tuple(turn.action for turn in sequence.transitions),
            observations=tuple(turn.observation for turn in sequence.transitions),
            task_id=episode.task_id,
            source=source,
            success=episode.success,
        )
        for sequence in episode.sequences
    ]
