"""The optional hooks of an environment module, with what applies where a module has none.

Tasks: "seed:<n>" names the game that `reset(seed=n)` draws. Tokenizer: byte-level BPE trained on random play. Expert:
none.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from actors.core import Environment, Info, blamed_on
from protos.errors import ConfigError
from protos.seeding import derive_seed, generator
from protos.tokens import TextTokenizer, bpe_tokenizer

SEED = "seed:"
Expert = Callable[[str, Info], str]


def task_ids(module: ModuleType, config: Any, split: str, seed: int, start: int, count: int) -> list[str]:
    """Tasks `start` .. `start + count` of a split, in the fixed order that `seed` gives.

    Without the hook the splits are disjoint streams of 63-bit seeds: no two tasks coincide for any practical purpose,
    though two seeds may of course draw the same game where the environment has few.
    """
    if hasattr(module, "task_ids"):
        return module.task_ids(config, split, seed, start, count)
    return [f"{SEED}{derive_seed(seed, 'task', split, i)}" for i in range(start, start + count)]


def reset(env: Environment, task_id: str) -> tuple[str, Info]:
    """Start the game called `task_id`."""
    if task_id.startswith(SEED):
        return env.reset(seed=int(task_id.removeprefix(SEED)))
    return env.reset(options={"task_id": task_id})


def expert(module: ModuleType, config: Any, env: Environment, seed: int) -> Expert:
    """The module's own player, its choices drawn from `seed`. Raises ConfigError where there is none."""
    if not hasattr(module, "expert"):
        raise ConfigError(
            f"environment {module.__name__} has no expert: it cannot give demonstrations to warm start on"
        )
    return module.expert(config, env, generator(seed, "expert"))


def tokenizer(module: ModuleType, config: Any, *, seed: int = 0, episodes: int = 50, steps: int = 20) -> TextTokenizer:
    """The module's own compact tokenizer, or a byte-level BPE trained on the texts and commands of random play."""
    if hasattr(module, "tokenizer"):
        return module.tokenizer(config)
    with blamed_on(f"environment {module.__name__!r}, in random play for its tokenizer,"):
        texts = _texts_of_random_play(module, config, seed, episodes, steps)
    return bpe_tokenizer(sorted(texts))


def _texts_of_random_play(module: ModuleType, config: Any, seed: int, episodes: int, steps: int) -> set[str]:
    env, texts = module.build(config), set[str]()
    for task_id in task_ids(module, config, "train", seed, 0, episodes):
        rng = generator(seed, "tokenizer", task_id)
        observation, info = reset(env, task_id)
        for _ in range(steps):
            texts.update([observation, *info["admissible_commands"]])
            observation, _, terminated, truncated, info = env.step(str(rng.choice(info["admissible_commands"])))
            if terminated or truncated:
                break
        texts.add(observation)
    env.close()
    return texts
