"""Parameters of a module by name: those that are trained, and saved ones copied into them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from protos.errors import DataError


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, each tied one once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the form that safetensors saves, detached: the very same memory where that has the form already."""
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def copy_by_name(mine: Mapping[str, Tensor], saved: Mapping[str, Tensor], refusal: str) -> None:
    """Copy `saved` into the tensors of the same names. DataError with the text `refusal` unless names and shapes agree."""
    if saved.keys() != mine.keys() or any(saved[name].shape != tensor.shape for name, tensor in mine.items()):
        raise DataError(refusal)
    for name, tensor in mine.items():
        tensor.copy_(saved[name])
