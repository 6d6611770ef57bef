"""Detects a collapsed policy from the metrics of recent updates and names what collapsed."""

from collections import deque

from deploy.config import Collapse
from protos.errors import CollapseError


class CollapseWatch:
    """Looks at the last `window` updates. State is small and saved with the checkpoint, so that a resumed run judges alike.

        watch.observe(invalid=0.95, entropy=0.3, success=0.0)      # raises CollapseError, or not

    A collapse is one of
        invalid   the share of refused actions stays at `invalid_share` or above
        entropy   the entropy stays at `entropy` or below while nothing succeeds (a solved task may be deterministic)
        success   the mean success of the window fell by `success_drop` of the best window, once that reached `success_from`
    """

    def __init__(self, config: Collapse) -> None:
        self._config = config
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=config.window)
        self._best = 0.0

    def observe(self, *, invalid: float, entropy: float, success: float) -> None:
        """Take in one update's shares (0 to 1) and entropy (nats). Raises CollapseError where the window shows a collapse."""
        self._recent.append((invalid, entropy, success))
        if self._config.policy == "ignore" or len(self._recent) < self._config.window:
            return
        mean = sum(success for _, _, success in self._recent) / len(self._recent)
        self._best = max(self._best, mean)
        reason = self._reason(mean)
        if reason:
            raise CollapseError(f"the policy collapsed over {len(self._recent)} updates: {reason}")

    def reset(self) -> None:
        """Forget the window (after a rollback); the best success stays."""
        self._recent.clear()

    def state(self) -> dict[str, object]:
        return {"recent": [list(row) for row in self._recent], "best": self._best}

    def restore(self, state: dict) -> None:
        self._recent = deque((tuple(row) for row in state["recent"]), maxlen=self._config.window)
        self._best = float(state["best"])

    def _reason(self, success: float) -> str | None:
        limits = self._config
        invalid = min(row[0] for row in self._recent)
        if invalid >= limits.invalid_share:
            return (
                f"at least {invalid:.0%} of the actions were refused (collapse.invalid_share = {limits.invalid_share})"
            )
        entropy = max(row[1] for row in self._recent)
        if entropy <= limits.entropy and success == 0:
            return f"entropy is {entropy:.2g} nats and nothing succeeds (collapse.entropy = {limits.entropy})"
        if self._best >= limits.success_from and success <= self._best * (1 - limits.success_drop):
            return (
                f"success fell from {self._best:.2f} to {success:.2f} (collapse.success_drop = {limits.success_drop})"
            )
        return None
