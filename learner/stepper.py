"""The end of an optimizer step: check the gradient of a set of parameters, clip it to its norm, step."""

from collections.abc import Iterable, Mapping

import numpy as np
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from learner.optim import set_rate
from protos.errors import NonFiniteError
from protos.telemetry import Metrics, last, mean, total


class Stepper:
    """Parameters that are checked, clipped and stepped as one: the policy's (`learner`), or what the critic owns (`critic`)."""

    def __init__(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        optimizers: Mapping[str, Optimizer],
        *,
        lr: float,
        max_norm: float,
    ) -> None:
        self.optimizers = dict(optimizers)
        self._name, self._lr, self._max_norm = name, lr, max_norm
        self._parameters = list(parameters)

    def set_rate(self, factor: float) -> Metrics:
        """Take the steps that follow at `factor` of the peak rate."""
        set_rate(list(self.optimizers.values()), self._lr * factor)
        return {f"{self._name}/lr": last(self._lr * factor)}

    def zero_grad(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def norm(self) -> Tensor:
        """Global norm of the gradient, a scalar. NonFiniteError where it is NaN or infinite."""
        norm = get_total_norm([p.grad for p in self._graded() if p.grad is not None])
        if not np.isfinite(float(norm)):
            raise NonFiniteError(f"the {self._name} gradient is not finite")
        return norm

    def step(self, norm: Tensor) -> Metrics:
        """Clip and step; a gradient that is exactly 0 is no step: momentum and decay would move the weights."""
        value = float(norm)
        if value > 0:
            clip_grads_with_norm_(self._graded(), self._max_norm, norm)
            for optimizer in self.optimizers.values():
                optimizer.step()
        return {
            f"{self._name}/grad_norm": mean(value),
            f"{self._name}/clipped": mean(value > self._max_norm),
            f"{self._name}/steps": total(value > 0),
        }

    def _graded(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._parameters if parameter.grad is not None]
