"""The nouns of the acting side. The loop that calls them (`actors.rollout`, pure: no network):

for lease in leases:                                 # a Lease names task, group size and seed
    envs = [build(config) for _ in range(lease.group_size)]
    layouts = [prompt.open(*env.reset(...)) for env in envs]
with engine.session(seeds) as session:               # one row an episode, KV cache kept across turns
    while rows:
        replies = session.reply(rows, contexts, allowed)         # context: all that the reply is sampled after
        command, kind = prompt.parse(reply.token_ids, info)      # Reply: ids, log-probs, entropies, versions
        layout.act(reply.token_ids, command)
        observation, reward, terminated, truncated, info = env.step(command)
        layout.observe(observation, info)
        contexts = layout.context(max_reply_tokens)              # of the next turn
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from actors import envs, prompts
from actors.prompts.settings import PromptSettings
from actors.sampling import Sampling
from protos.errors import ConfigError, EnvironmentFailure, TandemError
from protos.records import Span, Stop, TokenIds, Version
from protos.tokens import TextTokenizer

Info = dict[str, Any]


class Environment(Protocol):
    """Gymnasium's form with texts. One instance plays one game at a time and shares no state with another.

    `info` is JSON-serialisable and holds
        admissible_commands  list[str], sorted
        won                  bool: the task is solved (an episode that merely ends is not)
        state_key            str: equal exactly where the states are alike for the task; the anchor of step-level groups
        valid                bool, after a step: the action was accepted
        task_id, task_type   str, after reset
        task                 str, optional, after reset: the instruction alone, for prompts that state it apart
    A bad action gets the game's own refusal as its observation, never an exception.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game named by `options["task_id"]`, or one drawn by `seed`."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]: ...

    def close(self) -> None: ...


class EnvironmentModule(Protocol):
    """What a plug-in module exposes: `Config` (a pydantic model), `build`, and, where it can, the optional rest."""

    Config: type[Any]

    def build(self, config: Any) -> Environment: ...

    # Optional: task_ids(config, split, seed, start, count) -> list[str]   the tasks of a split, in a fixed order
    # Optional: expert(config, env, rng) -> Callable[[str, Info], str]     a policy without privileged sight
    # Optional: tokenizer(config) -> TextTokenizer                         a compact vocabulary for new models


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What one row sampled in one turn (n tokens, the stop token included)."""

    token_ids: TokenIds  # (n,)
    log_probs: NDArray[np.float32]  # (n,) under the distribution that was sampled from
    entropies: NDArray[np.float32]  # (n,) nats, full vocabulary of that distribution
    stop: Stop
    versions: tuple[tuple[int, Version], ...]
    allowed: tuple[TokenIds, ...] | None = None  # per token, where decoding was constrained


class Session(Protocol):
    """A batch of episodes on one engine. Row i belongs to the seed i that the session was opened with."""

    def reply(
        self, rows: Sequence[int], contexts: Sequence[TokenIds], allowed: Sequence[Sequence[TokenIds]] | None = None
    ) -> list[Reply]:
        """Sample a reply of each row after its context.

        `contexts[j]` is everything that row `rows[j]` is to be read with, its own earlier replies included where the prompt
        keeps them: what the row was read with before is kept as far as it agrees, and the rest is read anew.
        `allowed[j]` lists the token sequences that the reply may be, without the stop token; None leaves it free.
        Rows absent from `rows` are over: their cache is released.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    @property
    def version(self) -> Version: ...

    @property
    def sampling(self) -> Sampling:
        """The settings of a session that is opened without others."""
        ...

    def session(self, seeds: Sequence[int], *, sampling: Sampling | None = None) -> Session:
        """Open a session; a row's replies depend on its seed and its tokens alone, never on its neighbours."""
        ...


class Layout(Protocol):
    """One episode as token ids, as it grows: `context`, `act`, `observe`, again and again.

    The ids that a reply is sampled after and those that stand before it in the record are the same, always.
    """

    dropped: int  # turns of the history left out of contexts so far, for want of room

    def context(self, max_reply_tokens: int) -> TokenIds | None:
        """What the next reply is sampled after; None where it leaves no room for a reply of full length."""
        ...

    def act(self, reply: TokenIds, command: str) -> Span:
        """Append the sampled ids, and note the command that they were taken for ("" where none was); their span."""
        ...

    def observe(self, observation: str, info: Info) -> Span:
        """Append what the environment answered; the span of its raw text, empty where there is no room for it."""
        ...

    def sequences(self) -> list[tuple[TokenIds, int]]:
        """Token ids, and how many of the episode's turns lie within, in order. Spans are positions within their sequence."""
        ...


class Prompt(Protocol):
    """How an episode becomes token ids, and replies become commands: a module of `actors/prompts/`.

    Stateless: one instance serves any number of episodes.
    """

    tokenizer: TextTokenizer
    kinds: tuple[str, ...]  # all that `parse` may take a reply for; each is counted as `rollout/reply_<kind>`
    settings: PromptSettings

    def open(self, observation: str, info: Info) -> Layout:
        """The layout of an episode that begins with the environment's first text."""
        ...

    def parse(self, reply: TokenIds, info: Info) -> tuple[str, str]:
        """The command to execute for the sampled ids (n,), "" where there is none, and the kind of reply."""
        ...

    def action(self, command: str) -> TokenIds:
        """A reply that stands for `command`, stop token included: what a demonstration shows."""
        ...

    def allowed(self, info: Info) -> Sequence[TokenIds]:
        """The replies that constrained decoding admits, without the stop token."""
        ...


class PromptModule(Protocol):
    """What a prompt's module exposes: `Config`, a PromptSettings with its own fields, and `build`."""

    Config: type[PromptSettings]

    def build(self, config: Any, tokenizer: TextTokenizer) -> Prompt:
        """Raises ConfigError where the tokenizer or its chat template cannot serve this prompt."""
        ...


@contextmanager
def blamed_on(where: str) -> Iterator[None]:
    """Around calls into an environment's code: whatever it raises becomes an EnvironmentFailure that names `where`."""
    try:
        yield
    except TandemError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise EnvironmentFailure(f"{where} raised {type(error).__name__}: {error}") from error


def load_environment(name: str) -> ModuleType:
    """The module of environment `name`: a module or package of `actors/envs/`, or a dotted path to the user's own.

    Raises ConfigError, with the nearest valid name, where there is none or the module lacks `Config` or `build`.
    """
    return _load("environment", envs, name, environment_names)


def environment_names() -> list[str]:
    """The environments that come with Tandem, sorted."""
    return _modules(envs)


def load_prompt(name: str) -> ModuleType:
    """The module of prompt `name`: a file of `actors/prompts/`, or a dotted path to the user's own; see PromptModule.

    Raises ConfigError, with the nearest valid name, where there is none or the module lacks `Config` or `build`.
    """
    return _load("prompt", prompts, name, prompt_names)


def prompt_names() -> list[str]:
    """The prompts that come with Tandem, sorted; what they are made from lies in the same folder."""
    return [name for name in _modules(prompts) if not _lacking(import_module(f"{prompts.__name__}.{name}"))]


def build_prompt(spec: Mapping[str, Any], tokenizer: TextTokenizer) -> Prompt:
    """The prompt named by `spec["name"]`, with the rest of `spec` as its settings.

    Raises ConfigError where a setting is refused, or the tokenizer cannot serve the prompt.
    """
    module = load_prompt(spec["name"])
    try:
        config = module.Config(**{key: value for key, value in spec.items() if key != "name"})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"prompt.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return module.build(config, tokenizer)


def _load(kind: str, package: ModuleType, name: str, names: Callable[[], list[str]]) -> ModuleType:
    path = name if "." in name else f"{package.__name__}.{name}"
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise ConfigError(f"{kind} {name!r} needs the module {error.name!r}, which is not installed") from error
        raise ConfigError(f"no {kind} {name!r}: {_nearest(name, names())}") from error
    if missing := _lacking(module):
        raise ConfigError(f"{kind} {name!r} ({path}) lacks {' and '.join(missing)}: a plug-in exposes Config and build")
    return module


def _lacking(module: ModuleType) -> list[str]:
    return [part for part in ("Config", "build") if not hasattr(module, part)]


def _modules(package: ModuleType) -> list[str]:
    return sorted(module.name for module in iter_modules(package.__path__) if not module.name.startswith("_"))


def _nearest(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name.rpartition(".")[2], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"
    return f"{hint} A dotted path (my_package.my_module) loads one of your own"
