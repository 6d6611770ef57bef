"""A trunk and the layers that read its hidden states: what `learner.scoring` runs, the policy or a critic of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from learner.model import decoder, output_head


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """One trunk, and at least one layer on it."""

    trunk: nn.Module  # input_ids (R, T) -> last_hidden_state (R, T, H)
    vocabulary: nn.Module | None = None  # hidden states (M, H) -> logits (M, V)
    value: nn.Module | None = None  # hidden states (M, H) -> values (M,)

    @property
    def device(self) -> torch.device:
        return next(self.trunk.parameters()).device

    def hidden(self, token_ids: Tensor) -> Tensor:
        """(R * T, H) last hidden states of `token_ids` (R, T), padded on the right."""
        return self.trunk(input_ids=token_ids, use_cache=False).last_hidden_state.flatten(0, 1)

    def trainable(self) -> list[nn.Parameter]:
        """Parameters with a gradient, each tied one once, the value layer's last."""
        return list({id(p): p for p in self._parameters() if p.requires_grad}.values())

    def _parameters(self) -> Iterator[nn.Parameter]:
        for layer in (self.trunk, self.vocabulary, self.value):
            if layer is not None:
                yield from layer.parameters()


def policy_network(model: PreTrainedModel, value: nn.Module | None = None) -> Network:
    """The causal LM `model`, and the value layer of a critic on its trunk."""
    return Network(decoder(model), output_head(model), value)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The precision of log-probabilities, entropies and values: float32 for a bfloat16 model, double for a double one."""
    return torch.promote_types(dtype, torch.float32)
