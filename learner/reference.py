"""The reference policy: the model as a phase began, kept as a copy of the trainable parameters alone.

With adapters that is the adapters; what is frozen is the same in both. To score, the copies change places with the
parameters' own data, by pointer: nothing is copied, and what comes back is what was there, bit for bit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from learner.parameters import contiguous, copy_by_name, trainable

OTHER_PARAMETERS = "{} was saved with other parameters: resume with the `model` settings that it was saved with"


class Reference:
    """A snapshot of the trainable parameters of `model`, each tied one once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._snapshot = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model is the reference policy within; afterwards, whatever happened, it is itself again."""
        parameters = trainable(self._model)
        current = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self._snapshot[name]
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = current[name]

    def state(self) -> dict[str, Tensor]:
        """The snapshot by the parameters' names."""
        return contiguous(self._snapshot)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take on what `state` returned. DataError where it is of another model."""
        copy_by_name(self._snapshot, state, OTHER_PARAMETERS.format("the reference policy"))
