"""What every prompt lets a user set."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class PromptSettings(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """The settings that an episode's player reads, whatever the prompt."""

    max_tokens: int = Field(default=512, ge=16)
    """Tokens of one sequence, replies and observations included; a turn that may not fit is not started: the episode ends."""

    on_cut_reply: Literal["end", "continue"] = "end"
    """What follows a reply that the limit cut; either way its turn is marked truncated and counted in
    `rollout/cut_replies`. `end`: it is not executed and the episode ends. `continue`: it goes to the environment like
    any other reply."""

    max_cut_replies: int = Field(default=3, ge=1)
    """Under `continue`, so many cut replies in a row end the episode: it must not spin to the step limit."""


class ChatSettings(PromptSettings, frozen=True):
    """What a prompt that a chat model may read has besides."""

    template: str | None = None
    """The text that the model is shown: the name of a shipped template (a file of actors/prompts/templates) or the path of
    your own (jinja2, ending in .jinja). Absent: the prompt's own."""

    system: str | None = None
    """A system message before everything. Absent: the chat template's own default, where it has one."""

    chat_options: dict[str, Any] = {}
    """Passed on to the checkpoint's chat template, such as `enable_thinking = false` (Qwen3). `date_string` is fixed
    **[default]** so that a template that prints the date (Llama 3) is the same tomorrow."""

    require_reasoning: bool = False
    """A reply without a <think> block is an invalid step (it is not executed). **[default]**: off, reasoning is asked for,
    not enforced; demonstrations and constrained replies then have no block, under `true` an empty one."""

    max_action_characters: int = Field(default=256, ge=1)
    """A longer action is not executed **[default]**."""


class CommandSettings(ChatSettings, frozen=True):
    """Of prompts whose replies are commands of the game."""

    reply: Literal["tagged", "plain"] | None = None
    """`tagged`: reasoning in <think>, one command in <action>; `plain`: the command itself. Absent: plain where the tokenizer
    is compact, else tagged."""

    list_actions: bool = True
    """Show the admissible commands (in a chat model's `append` prompt: those of the first turn)."""

    def tagged(self, compact: bool) -> bool:
        return self.reply == "tagged" or (self.reply is None and not compact)


class TurnSettings(PromptSettings, frozen=True):
    """Of prompts that show each turn anew. The defaults leave room for reasoning in a chat model's words."""

    max_tokens: int = Field(default=3072, ge=16)
    """Tokens of one turn: prompt, reply and observation. The oldest of the history are left out of a prompt that would not
    leave room for a reply, counted in `rollout/dropped_history`; where even that is not enough the episode ends."""

    on_cut_reply: Literal["end", "continue"] = "continue"
    """What follows a reply that the limit cut; either way its turn is marked truncated and counted in
    `rollout/cut_replies`. `end`: it is not executed and the episode ends. `continue`: it goes to the environment like
    any other reply, which without its action's closing tag is an invalid step."""

    history: int = Field(default=2, ge=-1)
    """How many of the latest turns a prompt repeats; -1: all."""
