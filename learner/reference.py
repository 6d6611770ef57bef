"""The reference policy: the model as a phase began, kept as a copy of the trainable parameters alone.

With adapters that is the adapters; what is frozen is the same in both. To score, the copies change places with the
parameters' own data, by pointer: nothing is copied, and what comes back is what was there, bit for bit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protos.errors import DataError


class Reference:
    """A snapshot of the trainable parameters of `model`, each tied one once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._snapshot = {name: parameter.detach().clone() for name, parameter in _trainable(model).items()}

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model is the reference policy within; afterwards, whatever happened, it is itself again."""
        current = {name: parameter.data for name, parameter in _trainable(self._model).items()}
        try:
            for name, parameter in _trainable(self._model).items():
                parameter.data = self._snapshot[name]
            yield
        finally:
            for name, parameter in _trainable(self._model).items():
                parameter.data = current[name]

    def state(self) -> dict[str, Tensor]:
        """The snapshot by the parameters' names."""
        return {name: saved.contiguous() for name, saved in self._snapshot.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take on what `state` returned. DataError where it is of another model."""
        copy_by_name(self._snapshot, state, "the reference policy")


@torch.no_grad()
def copy_by_name(mine: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy `saved` into the tensors of the same names. DataError unless names and shapes are the same."""
    if saved.keys() != mine.keys() or any(saved[name].shape != tensor.shape for name, tensor in mine.items()):
        raise DataError(
            f"{what} was saved with other parameters: resume with the `model` settings that it was saved with"
        )
    for name, tensor in mine.items():
        tensor.copy_(saved[name])


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
