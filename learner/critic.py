"""The critic: a value for every prefix of a row, from a layer on the policy's trunk or on a trunk of its own.

    critic = Critic(model, config)
    critic.trunk         None for kind `head`: the policy's trunk gives the hidden states, and gets the value loss's gradient
                         for kind `model`: a copy of the model's decoder, adapters included, that the policy never feels
    critic.head          (M, H) hidden states -> (M,) values, 0 before the first step

What the critic owns (the head, and the trunk where it has one) is stepped by optimizers of its own and clipped apart, in
both kinds: its gradient grows with the size of returns and hidden states, and would use up the policy's norm.
"""

from copy import deepcopy

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

from learner.config import CriticConfig, OptimizerConfig
from learner.model import decoder
from learner.network import Network, at_least_float32
from learner.optim import build_optimizers
from learner.parameters import trainable
from learner.stepper import Stepper


class ValueHead(nn.Module):
    """A linear layer to one number, in float32 at least, whatever the precision of the trunk.

    **[default]** Weights and bias start at 0, and so do all values: the first advantages are those without a critic, and a
    trunk shared with the policy is not disturbed by a random critic.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        like = next(decoder(model).parameters())
        width = model.config.get_text_config().hidden_size
        self.linear = nn.Linear(width, 1, device=like.device, dtype=at_least_float32(like.dtype))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(M,) values of hidden states (M, H)."""
        return self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1)


class Critic(nn.Module):
    """The critic of a phase, made of the model as the phase begins."""

    def __init__(self, model: PreTrainedModel, config: CriticConfig) -> None:
        super().__init__()
        self.head = ValueHead(model)
        self.trunk = _copy(decoder(model)) if config.kind == "model" else None
        self.eval()

    def network(self) -> Network | None:
        """What is run to get values where the policy's own network is not."""
        return None if self.trunk is None else Network(self.trunk, value=self.head)

    def stepper(self, config: CriticConfig, optimizer: OptimizerConfig) -> Stepper:
        """The phase's optimizer, at the critic's rate, for a trunk of its own; AdamW without weight decay for the head."""
        head = AdamW(self.head.parameters(), lr=config.lr, betas=optimizer.betas, weight_decay=0.0, fused=True)
        optimizers: dict[str, Optimizer] = {"critic_head": head}
        if self.trunk is not None:
            own = build_optimizers(self.trunk, optimizer.model_copy(update={"lr": config.lr}))
            optimizers |= {f"critic_{name}": one for name, one in own.items()}
        return Stepper("critic", self.parameters(), optimizers, lr=config.lr, max_norm=config.max_grad_norm)

    def trainable(self) -> dict[str, nn.Parameter]:
        """What it learns, by name; frozen parameters under its adapters are the model's own."""
        return trainable(self)


def _copy(trunk: nn.Module) -> nn.Module:
    """A copy with trainable parameters of its own; frozen ones are shared, so that adapters cost only themselves."""
    shared = {id(parameter): parameter for parameter in trunk.parameters() if not parameter.requires_grad}
    return deepcopy(trunk, shared)
