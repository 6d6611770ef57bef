"""The nouns of the acting side. The loop that calls them (`actors.rollout`, pure: no network):

for lease in leases:                                 # a Lease names task, group size and seed
    envs = [build(config) for _ in range(lease.group_size)]
with engine.session(seeds) as session:               # one row an episode, KV cache kept across turns
    while rows:
        replies = session.reply(rows, new_tokens, allowed)       # Reply: ids, log-probs, entropies, versions
        observation, reward, terminated, truncated, info = env.step(prompt.command(reply, info))
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from actors import envs
from actors.sampling import Sampling
from protos.errors import ConfigError, EnvironmentFailure, TandemError
from protos.records import Stop, TokenIds, Version

Info = dict[str, Any]


class Environment(Protocol):
    """Gymnasium's form with texts. One instance plays one game at a time and shares no state with another.

    `info` is JSON-serialisable and holds
        admissible_commands  list[str], sorted
        won                  bool: the task is solved (an episode that merely ends is not)
        state_key            str: equal exactly where the states are alike for the task; the anchor of step-level groups
        valid                bool, after a step: the action was accepted
        task_id, task_type   str, after reset
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
        self, rows: Sequence[int], new_tokens: Sequence[TokenIds], allowed: Sequence[Sequence[TokenIds]] | None = None
    ) -> list[Reply]:
        """Feed each row its new prompt tokens and sample a reply.

        `new_tokens[j]` continues what row `rows[j]` was fed and sampled so far (its own reply is never sent back).
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
    path = name if "." in name else f"{envs.__name__}.{name}"
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"environment {name!r} needs the module {error.name!r}, which is not installed"
            ) from error
        raise ConfigError(f"no environment {name!r}: {_nearest(name)}") from error
    missing = [part for part in ("Config", "build") if not hasattr(module, part)]
    if missing:
        raise ConfigError(
            f"environment {name!r} ({path}) lacks {' and '.join(missing)}: a plug-in exposes Config and build"
        )
    return module


def environment_names() -> list[str]:
    """The environments that come with Tandem, sorted."""
    return sorted(module.name for module in iter_modules(envs.__path__) if not module.name.startswith("_"))


def _nearest(name: str) -> str:
    names = environment_names()
    near = get_close_matches(name.rpartition(".")[2], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"
    return f"{hint} A dotted path (my_package.my_env) loads one of your own"
