"""Tokens that a learner trains on for each environment step, under the `append` prompt and under `window`.

The demonstrator plays the same games under both, so that commands and observations are the same: what differs is how often
they are laid out. `append` writes an episode once; `window` writes the instruction, the last observations and the
admissible commands again at each step.
"""

from collections.abc import Sequence

from actors.core import Prompt, build_prompt
from actors.demonstrations import demonstrate
from deploy.bench.figures import Figures
from deploy.bench.policy import Policy

WINDOW = {"name": "window"}
"""The window prompt as it is for a compact tokenizer, which has no words for the instructions of the full form."""


def measure(policy: Policy, tasks: Sequence[str]) -> Figures:
    """Tokens a step of both prompts on `tasks`, and how many times fewer `append` takes."""
    append = _tokens_per_step(policy, policy.world.prompt, tasks)
    window = _tokens_per_step(policy, build_prompt(WINDOW, policy.world.tokenizer), tasks)
    return {
        "append_tokens_per_step": append,
        "window_tokens_per_step": window,
        "append_vs_window": window / append,
    }


def _tokens_per_step(policy: Policy, prompt: Prompt, tasks: Sequence[str]) -> float:
    rows = demonstrate(tasks, policy.world.module, policy.world.config, prompt, policy.config.seed)
    return sum(len(row.token_ids) for row in rows) / sum(len(row.actions) for row in rows)
