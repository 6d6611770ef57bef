"""One episode as it is played: an environment on one side, token ids on the other, a record at the end.

player = Player(env, prompt, environment="household", max_reply_tokens=8)
tokens = player.open(task_id, seed)
while tokens is not None:
    tokens = player.take(session.reply(...))      # None: the episode is over
episode = player.episode()
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from actors.core import Environment, Info, Reply, blamed_on
from actors.plugins import reset
from actors.prompt import AppendPrompt
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
    """Steps one environment with the replies it is given and lays the episode out as one sequence.

    `observation` and `info` are the environment's latest; `counts` holds what the metrics of a rollout are made from.
    """

    def __init__(self, env: Environment, prompt: AppendPrompt, *, environment: str, max_reply_tokens: int) -> None:
        self._env, self._prompt = env, prompt
        self._environment, self._max_reply_tokens = environment, max_reply_tokens
        self._parts: list[TokenIds] = []
        self._size = 0
        self._transitions: list[Transition] = []
        self._task_id, self._task_type, self._seed = "", "", 0
        self._return = 0.0
        self._cut_in_a_row = 0
        self._env_seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.entropy = 0.0  # nats, summed over generated tokens
        self.observation, self.info = "", Info()

    def open(self, task_id: str, seed: int) -> TokenIds | None:
        """Reset the environment to the task; the opening to feed, or None where it leaves no room for a reply."""
        self._task_id, self._seed = task_id, seed
        self.observation, self.info = self._call(lambda: reset(self._env, task_id))
        self._require("admissible_commands", "won", "state_key")
        self._task_type = str(self.info.get("task_type", ""))
        tokens = self._prompt.start(self.observation, self.info)
        self._read(tokens)
        if self._prompt.fits(self._size, self._max_reply_tokens):
            return tokens
        self.counts["context_ended"] += 1
        return None

    def take(self, reply: Reply) -> TokenIds | None:
        """Act on a sampled reply; the ids to feed next, or None where the episode is over."""
        if len(reply.log_probs) != len(reply.token_ids):
            raise DataError(
                f"{self._where()}: {len(reply.token_ids)} sampled tokens but {len(reply.log_probs)} log-probabilities"
            )
        action = Span(self._size, self._size + len(reply.token_ids))
        self._append(reply.token_ids)
        text, parsed = self._prompt.command(reply.token_ids, self.info)
        cut = reply.stop is Stop.LENGTH
        self._cut_in_a_row = self._cut_in_a_row + 1 if cut else 0
        self.counts["generated_tokens"] += action.length
        self.counts["cut_replies"] += cut
        self.counts[f"reply_{parsed}"] += 1
        if cut and self._prompt.config.on_cut_reply == "end":
            self._drop(reply, action, text)
            return None
        return self._step(reply, action, text)

    def episode(self) -> Episode:
        """The record of what was played."""
        return Episode(
            environment=self._environment,
            task_id=self._task_id,
            task_type=self._task_type,
            seed=self._seed,
            sequences=(Sequence(np.concatenate(self._parts), tuple(self._transitions)),),
            task_return=self._return,
            success=bool(self.info["won"]),
            timings={"env": self._env_seconds},
        )

    def _step(self, reply: Reply, action: Span, text: str) -> TokenIds | None:
        """Execute the command and record the turn with what the environment answered."""
        state_key = self.info["state_key"]
        self.observation, reward, terminated, truncated, self.info = self._call(lambda: self._env.step(text))
        self._require("admissible_commands", "won", "state_key", "valid")
        self._return += float(reward)
        tokens, length = self._prompt.follow(self.observation)
        over, stop = terminated or truncated, reply.stop
        if self._cut_in_a_row:
            truncated = not terminated
            over = over or self._cut_in_a_row >= self._prompt.config.max_cut_replies
        if not over and not self._prompt.fits(self._size + len(tokens), self._max_reply_tokens):
            over = truncated = True
            stop = Stop.CONTEXT
            self.counts["context_ended"] += 1
        observation = self._observe(tokens[:length] if over else tokens, length)
        outcome = Outcome(observation, self.observation, float(reward), terminated, truncated, bool(self.info["valid"]))
        self._record(reply, action, text, state_key, outcome, stop)
        return None if over else tokens

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

    def close(self) -> None:
        """Release the environment."""
        self._call(self._env.close)

    def _observe(self, tokens: TokenIds, length: int) -> Span:
        """Append what follows a reply; the span of the observation, empty where the sequence has no room for it."""
        start = self._size
        if start + len(tokens) > self._prompt.config.max_tokens:
            return Span(start, start)
        self._read(tokens)
        return Span(start, start + length)

    def _read(self, tokens: TokenIds) -> None:
        self._append(tokens)
        self.counts["prompt_tokens"] += len(tokens)
        self.counts["unknown_tokens"] += tokens.tolist().count(self._prompt.tokenizer.unk_id)

    def _append(self, tokens: TokenIds) -> None:
        self._parts.append(tokens)
        self._size += len(tokens)

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
