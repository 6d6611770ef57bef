"""The `search` prompt (the form of Search-R1, arXiv 2503.09516): a question, answered by searching.

    question, every <search>query</search> so far with the <information> that it brought;
    the reply reasons in <think> and ends in one <search>query</search> or <answer>text</answer>
                                                                    (actors/prompts/templates/search.jinja)

The environment gets the commands `search[query]` and `answer[text]`; what it answers to a search is the information.
Where that paper lets one text grow, this prompt tells all again in every turn: an <information> that the model makes up
after its query is no part of what it is told next.

A template may print task (the question), step, history (a list of step, observation, action, result) and observation.
"""

from pydantic import Field

from actors.prompts.chat import frame
from actors.prompts.rendering import PromptTemplate
from actors.prompts.replies import SearchReplies
from actors.prompts.settings import ChatSettings, TurnSettings
from actors.prompts.turns import Now, TurnPrompt
from protos.tokens import TextTokenizer

VARIABLES = ("task", "step", "history", "observation")


class Config(TurnSettings, ChatSettings, frozen=True):
    """Settings of the `search` prompt."""

    max_tokens: int = Field(default=6144, ge=16)
    """Tokens of one turn: prompt (the paper's 4096), reply and information. The oldest searches are left out of a prompt
    that would not leave room for a reply, counted in `rollout/dropped_history`; where even that is not enough the
    episode ends."""

    history: int = Field(default=-1, ge=-1)
    """How many of the latest searches a prompt repeats; -1: all."""


def build(config: Config, tokenizer: TextTokenizer) -> TurnPrompt:
    """See `actors.core.PromptModule`."""
    around, template = frame(tokenizer, config), PromptTemplate(config.template or "search", VARIABLES)

    def write(now: Now) -> str:
        return template(task=now.task, step=now.step, history=now.history, observation=now.observation)

    return TurnPrompt(tokenizer, config, around, SearchReplies(tokenizer, config, around.said), write)
