"""The nouns of the learning side, and the loop that calls them (`learner.rllib`):

    fresh = pack(groups)                                      # learner.batch: Rows, ragged numpy arrays of one update
    fresh = learner.look_up(fresh, algorithm.needs)           # values, reference log-probs: only what it asks for
    fresh = algorithm.compute(fresh)                          # learner/advantages/<name>.py, pure numpy: `advantages`
    update = {"fresh": fresh, "replay": pack_world(items)}
    for objective in objectives:                              # learner/objectives/<name>.py
        streams, metrics = objective.weigh(update, rng)       #   Stream: rows, one weight a token, denominators inside
    for minibatch in split(streams): for micro in minibatch:
        loss, metrics = objective.loss(scores, weights)       #   pure torch, summed over tokens

Because every denominator is inside the weights, which are made once for the whole update, a loss is a plain sum over
tokens: the split into minibatches, micro-batches and learners cannot change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protos.records import TokenIds
from protos.telemetry import Metrics

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Need = Literal["entropy", "reference", "proximal", "values"]
"""What costs more than log-probabilities and is computed only where it is asked for.

entropy: of the model, in nats, with a gradient. reference: log-probabilities under the policy that the phase began with.
proximal: log-probabilities of the model as this update began, before its first step. values: those of the critic.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All that one update trains on, ragged: N tokens in R rows, K transitions of E episodes in G groups.

    Positions index the flat token array. A transition's spans lie within its row. `log_probs` and `advantages` are 0 outside
    action tokens.
    """

    token_ids: TokenIds  # (N,)
    row_start: IntArray  # (R + 1,) row r holds tokens row_start[r] .. row_start[r + 1]
    log_probs: FloatArray  # (N,) behaviour log-probabilities
    advantages: FloatArray  # (N,)
    row: IntArray  # (K,) the row of each transition
    episode: IntArray  # (K,) the episode, 0 .. E - 1
    group: IntArray  # (K,) the group, 0 .. G - 1
    action: IntArray  # (K, 2) start, stop
    observation: IntArray  # (K, 2) start, stop; equal where there is none
    entropy: FloatArray  # (K,) nats, mean over the action tokens
    world: BoolArray  # (K,) may train the world model: a real step with an observation
    valid: BoolArray  # (K,) the environment accepted the action
    terminated: (
        BoolArray  # (K,) the episode ended here by itself: nothing comes after (truncated ones are bootstrapped)
    )
    cut: BoolArray  # (K,) the reply limit cut the action
    reward: FloatArray  # (K,) task reward of the step
    importance: FloatArray  # (K,) weight against the sampling priority; 1 for fresh rows
    state_key: tuple[str, ...]  # (K,)
    task_return: FloatArray  # (E,)
    episode_group: IntArray  # (E,)
    lam: FloatArray  # (G,) lambda of each group
    allowed_start: IntArray | None = (
        None  # (N + 1,) admissible ids of token n: allowed_ids[allowed_start[n] : allowed_start[n + 1]], empty: any
    )
    allowed_ids: TokenIds | None = None
    reference: FloatArray | None = None  # (N,) reference log-probabilities of action tokens, 0 elsewhere
    values: FloatArray | None = None  # (N,) the critic's value of the row's prefix up to token n, that token included
    value_targets: FloatArray | None = None  # (N,) at action tokens: what the value *before* the token should have been

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def groups(self) -> int:
        return len(self.lam)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The model's view of M scored tokens of a micro-batch, as torch tensors of shape (M,).

    Token n is scored by the logits at position n - 1 of its row. Tokens whose every stream is 0 are not among the M.
    """

    log_probs: "torch.Tensor"  # log p(token n | tokens before it), differentiable; NaN for a term that needs `values`
    behaviour: "torch.Tensor"  # behaviour log-probabilities
    advantages: "torch.Tensor"
    transition: "torch.Tensor"  # int64: whose action the token belongs to (k of `Rows`), -1 outside actions
    # The rest is None where the objective does not need it.
    entropy: "torch.Tensor | None" = None  # nats over the (admissible) vocabulary
    reference: "torch.Tensor | None" = None  # reference log-probabilities
    proximal: "torch.Tensor | None" = None  # log-probabilities as the update began
    values: "torch.Tensor | None" = None  # the critic's, of the prefix before token n, differentiable
    old_values: "torch.Tensor | None" = None  # the same as the advantages were computed from
    value_targets: "torch.Tensor | None" = None
    source: str = ""  # label of the stream; where it is given, world-model terms report a loss for each source


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Where one objective scores one set of rows, and how much: weight 0 where it does not.

    Streams over the very same `rows` object share one forward pass. A row on which every stream is 0 is skipped.
    """

    rows: Rows
    source: str  # "fresh", "replay", "placebo", "demos": the label of its cost in the metrics
    weights: FloatArray  # (N,)


Update = Mapping[str, Rows]  # source -> rows; "fresh" is always there in policy training


class Algorithm(Protocol):
    """An advantage estimator: a module of `learner/advantages/` exposing `Config` and `build(config) -> Algorithm`."""

    needs: frozenset[Need]
    """Of `reference` and `values`: the fields of `Rows` that `compute` reads."""

    def compute(self, rows: Rows) -> Rows:
        """`rows` with `advantages` (0 outside action tokens) and, from a critic's values, `value_targets`; pure.

        Groups are `rows.group`, never a text.
        """
        ...

    def check(self, group_size: int) -> None:
        """Called once at start: refuse (ConfigError) a number of episodes a group from which nothing can be learned."""
        ...


class Objective(Protocol):
    """A term of the loss: pure; a module of `learner/objectives/` exposing `Config` and `build(config) -> Objective`."""

    name: str
    needs: frozenset[Need]
    """The optional fields of `Scores` that `loss` reads. One that needs `values` is a term of the critic, scored by it alone:
    nobody asks the vocabulary about its tokens."""
    world_model: bool  # counted as world-model gradient by the safeguard and the gradient statistics

    def replay_rows(self, fresh: Rows) -> int:
        """How many transitions of the wm table this term wants beside `fresh` (0: none)."""
        ...

    def weigh(self, update: Update, rng: np.random.Generator) -> tuple[list[Stream], Metrics]:
        """One stream for each set of rows that this term scores, with the denominators of the whole update inside."""
        ...

    def keep(self, log_probs: "torch.Tensor") -> "torch.Tensor | None":
        """Of the tokens that this term scores, those with a gradient (a bool mask), told by their log-probabilities; None: all.

        Lets the learner skip the vocabulary's backward pass for tokens that a detached mask drops anyway.
        """
        ...

    def loss(self, scores: Scores, weights: "torch.Tensor") -> "tuple[torch.Tensor, Metrics]":
        """Sum over tokens of weight times term (a scalar), and metrics detached from the graph.

        `scores` holds this term's own tokens (weight not 0). Tokens that `keep` rules out come with a detached log-probability:
        they add to the value and the metrics, not to the gradient.
        """
        ...
