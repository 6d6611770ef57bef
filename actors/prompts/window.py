"""The `window` prompt, the form of the papers (arXiv 2606.02388): every turn is shown anew, with the last few before it.

    role, task, step count, the last k observations and actions, the current observation, the admissible actions;
    the reply reasons in <think> and ends in one <action>            (actors/prompts/templates/window.jinja)

Each turn is a sequence of its own, `[prompt, reply, glue, observation]`: contexts stay short however long the episode,
but most of their tokens are read, and trained on, again every turn.

**Reasoning of earlier turns** is never shown again: the history tells the commands that were executed and what was
observed, not replies, so there is nothing that a chat template could strip.

A template may print task, step, history (a list of step, observation, action, result), observation, actions,
list_actions and tagged.
"""

from actors.prompts.chat import frame
from actors.prompts.rendering import PromptTemplate
from actors.prompts.replies import PlainReplies, TaggedReplies
from actors.prompts.settings import CommandSettings, TurnSettings
from actors.prompts.turns import Now, TurnPrompt
from protos.tokens import TextTokenizer

VARIABLES = ("task", "step", "history", "observation", "actions", "list_actions", "tagged")


class Config(TurnSettings, CommandSettings, frozen=True):
    """Settings of the `window` prompt."""


def build(config: Config, tokenizer: TextTokenizer) -> TurnPrompt:
    """See `actors.core.PromptModule`."""
    compact = tokenizer.act_id is not None
    tagged, around = config.tagged(compact), frame(tokenizer, config)
    template = PromptTemplate(config.template or ("window_compact" if compact and not tagged else "window"), VARIABLES)
    replies = TaggedReplies(tokenizer, config, around.said) if tagged else PlainReplies(tokenizer)

    def write(now: Now) -> str:
        return template(
            task=now.task,
            step=now.step,
            history=now.history,
            observation=now.observation,
            actions=now.actions,
            list_actions=config.list_actions,
            tagged=tagged,
        )

    return TurnPrompt(tokenizer, config, around, replies, write)
