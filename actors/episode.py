"""One episode as it is played: an environment on one side, token ids on the other, a record at the end.

player = Player(env, prompt, environment="household", max_reply_tokens=8)
context = player.open(task_id, seed)
while context is not None:
    context = player.take(session.reply(...))     # None: the episode is over
episode = player.episode()
"""

import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from actors.core import Environment, Info, Layout, Prompt, Reply, blamed_on
from actors.plugins import reset
from protos.errors import DataError, EnvironmentFailure
from protos.records import Episode, Kind, Sequence, Span, Stop, TokenIds, Transition

T = TypeVar("T")


class Outcome(NamedTuple):
    """What the environment answered to a reply."""

    observation: Span
    text: str
    reward: float
    terminated: bool
    truncated: bool
    valid: bool


class Player:
    """Steps one environment with the replies it is given, and lays the episode out as its prompt does.

    `observation` and `info` are the environment's latest; `counts` holds what the metrics of a rollout are made from.
    """

    def __init__(self, env: Environment, prompt: Prompt, *, environment: str, max_reply_tokens: int) -> None:
        self._env, self._prompt = env, prompt
        self._environment, self._max_reply_tokens = environment, max_reply_tokens
        self._layout: Layout | None = None
        self._read = np.array([], dtype=np.int32)  # the latest context, and the reply to it
        self._transitions: list[Transition] = []
        self._task_id, self._task_type, self._seed = "", "", 0
        self._return = 0.0
        self._cut_in_a_row = 0
        self._env_seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.entropy = 0.0  # nats, summed over generated tokens
        self.observation, self.info = "", Info()

    def open(self, task_id: str, seed: int) -> TokenIds | None:
        """Reset the environment to the task; what the first reply is sampled after, or None where that leaves no room."""
        self._task_id, self._seed = task_id, seed
        self.observation, self.info = self._call(lambda: reset(self._env, task_id))
        self._require("admissible_commands", "won", "state_key")
        self._task_type = str(self.info.get("task_type", ""))
        self._layout = self._prompt.open(self.observation, self.info)
        return self._context(self._layout)

    def take(self, reply: Reply) -> TokenIds | None:
        """Act on a sampled reply; what the next one is sampled after, or None where the episode is over."""
        layout = self._playing()
        self._check(reply)
        command, parsed = self._prompt.parse(reply.token_ids, self.info)
        action = layout.act(reply.token_ids, command)
        self._read = np.concatenate([self._read, reply.token_ids])
        cut = reply.stop is Stop.LENGTH
        self._cut_in_a_row = self._cut_in_a_row + 1 if cut else 0
        self.counts["generated_tokens"] += action.length
        self.counts["cut_replies"] += cut
        self.counts[f"reply_{parsed}"] += 1
        if cut and self._prompt.settings.on_cut_reply == "end":
            self._drop(reply, action, command)
            return None
        return self._step(layout, reply, action, command)

    def episode(self) -> Episode:
        """The record of what was played."""
        return Episode(
            environment=self._environment,
            task_id=self._task_id,
            task_type=self._task_type,
            seed=self._seed,
            sequences=self._sequences(),
            task_return=self._return,
            success=bool(self.info["won"]),
            timings={"env": self._env_seconds},
        )

    def _step(self, layout: Layout, reply: Reply, action: Span, text: str) -> TokenIds | None:
        """Execute the command and record the turn with what the environment answered."""
        state_key = self.info["state_key"]
        self.observation, reward, terminated, truncated, self.info = self._call(lambda: self._env.step(text))
        self._require("admissible_commands", "won", "state_key", "valid")
        self._return += float(reward)
        observation = layout.observe(self.observation, self.info)
        self.counts["observations_without_room"] += bool(self.observation) and not observation.length
        over, stop = terminated or truncated, reply.stop
        if self._cut_in_a_row:
            truncated = not terminated
            over = over or self._cut_in_a_row >= self._prompt.settings.max_cut_replies
        context = None if over else self._context(layout)
        if context is None and not over:
            truncated, stop = True, stop if self._cut_in_a_row else Stop.CONTEXT  # a cut reply stays known as one
        outcome = Outcome(observation, self.observation, float(reward), terminated, truncated, bool(self.info["valid"]))
        self._record(reply, action, text, state_key, outcome, stop)
        return context

    def _drop(self, reply: Reply, action: Span, text: str) -> None:
        """Record a cut reply that was not executed: the last turn of its episode."""
        outcome = Outcome(Span(action.stop, action.stop), "", 0.0, terminated=False, truncated=True, valid=False)
        self._record(reply, action, text, self.info["state_key"], outcome, reply.stop, Kind.REJECTED)

    def _record(
        self,
        reply: Reply,
        action: Span,
        text: str,
        state_key: str,
        outcome: Outcome,
        stop: Stop,
        kind: Kind = Kind.STEP,
    ) -> None:
        entropy = sum(reply.entropies.tolist()) / action.length  # faster than numpy on a handful of tokens
        self.entropy += entropy * action.length
        self.counts["turns"] += 1
        self.counts["invalid"] += not outcome.valid
        self._transitions.append(
            Transition(
                action=action,
                observation=outcome.observation,
                action_text=text,
                observation_text=outcome.text,
                reward=outcome.reward,
                terminated=outcome.terminated,
                truncated=outcome.truncated,
                entropy=entropy,
                log_probs=reply.log_probs,
                versions=reply.versions,
                state_key=state_key,
                stop=stop,
                kind=kind,
                valid=outcome.valid,
                allowed=reply.allowed,
            )
        )

    @property
    def dropped(self) -> int:
        """Turns of the history that contexts left out for want of room."""
        return self._playing().dropped

    def close(self) -> None:
        """Release the environment."""
        self._call(self._env.close)

    def _context(self, layout: Layout) -> TokenIds | None:
        """What the next reply is sampled after, counted as far as it was not read before; None where there is no room."""
        context = layout.context(self._max_reply_tokens)
        if context is None:
            self.counts["context_ended"] += 1
            return None
        shared = min(len(context), len(self._read))
        differ = np.flatnonzero(context[:shared] != self._read[:shared])
        fed = context[differ[0] if len(differ) else shared :]
        self._read = context
        self.counts["prompt_tokens"] += len(fed)
        self.counts["unknown_tokens"] += fed.tolist().count(self._prompt.tokenizer.unk_id)
        return context

    def _sequences(self) -> tuple[Sequence, ...]:
        """The layout's sequences, each with the turns that lie within."""
        turns, parts = iter(self._transitions), self._playing().sequences()
        return tuple(Sequence(ids, tuple(islice(turns, count))) for ids, count in parts)

    def _playing(self) -> Layout:
        assert self._layout is not None, "the player was not opened"
        return self._layout

    def _check(self, reply: Reply) -> None:
        """Refuse a reply that could not be trained on: no token, or log-probabilities of others."""
        if not len(reply.token_ids):
            raise DataError(f"{self._where()}: the engine returned a reply without a token")
        if len(reply.log_probs) != len(reply.token_ids):
            raise DataError(
                f"{self._where()}: {len(reply.token_ids)} sampled tokens but {len(reply.log_probs)} log-probabilities"
            )

    def _call(self, call: Callable[[], T]) -> T:
        """Run the environment's code, timed; whatever it raises becomes an EnvironmentFailure that names the task."""
        started = time.perf_counter()
        try:
            with blamed_on(self._where()):
                return call()
        finally:
            self._env_seconds += time.perf_counter() - started

    def _require(self, *keys: str) -> None:
        missing = [key for key in keys if key not in self.info]
        if missing:
            raise EnvironmentFailure(f"{self._where()}: info lacks {', '.join(missing)} (see actors.core.Environment)")

    def _where(self) -> str:
        return f"environment {self._environment!r}, task {self._task_id!r}"
