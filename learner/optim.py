"""Optimizers and learning-rate schedules. The rate is a pure function of the update's number: nothing to restore."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from learner.config import OptimizerConfig


def rate_factor(config: OptimizerConfig, update: int, total_updates: int) -> float:
    """Share of the peak learning rate at `update` (counted from 0) of a phase of `total_updates`.

    Warm-up and decay multiply, and updates past the end keep the final rate.
    """
    warmup = min(1.0, (update + 1) / config.warmup_updates) if config.warmup_updates else 1.0
    done = min(1.0, update / total_updates) if total_updates else 1.0
    match config.schedule:
        case "constant":
            decay = 1.0
        case "linear":
            decay = 1.0 - (1.0 - config.final_fraction) * done
        case "cosine":
            decay = config.final_fraction + (1.0 - config.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * done))
    return warmup * decay


def set_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    """Set the learning rate of the next step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> dict[str, Optimizer]:
    """Optimizers by name that share out the trainable parameters of `model`.

    AdamW runs fused: 0.3 ms a step at the default model size, against 1.1 ms foreach and 1.4 ms for a loop. Muon is
    torch's own (its Newton-Schulz iteration runs in bfloat16); `match_rms_adamw` scales a step by
    0.2 sqrt(max(rows, columns)) (arXiv 2502.16982, eq. 4).
    """
    matrices, rest = split_parameters(model)
    if config.name == "adamw":
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return {"adamw": _stepping_float32(groups, partial(AdamW, lr=config.lr, betas=config.betas, fused=True))}
    muon = partial(Muon, lr=config.lr, momentum=config.momentum, adjust_lr_fn="match_rms_adamw")
    adamw = partial(AdamW, lr=config.lr, betas=config.betas, fused=True)
    shared = {"muon": (muon, matrices, config.weight_decay), "adamw": (adamw, rest, 0.0)}
    return {
        name: _stepping_float32([{"params": parameters, "weight_decay": decay}], make)
        for name, (make, parameters, decay) in shared.items()
        if parameters
    }


class MasterWeights(Optimizer):
    """Steps float32 copies of parameters of lower precision, in which a small step would round to none.

    `make` builds the optimizer of the copies. Its state is this one's, with the copy of each parameter as buffer `master`.
    A parameter that something else wrote (loaded weights) is taken over into its copy before the next step.
    """

    def __init__(self, groups: list[dict[str, Any]], make: Callable[[list[dict[str, Any]]], Optimizer]) -> None:
        copied = [group | {"params": [p.detach().float() for p in group["params"]]} for group in groups]
        self._inner = make(copied)
        super().__init__(groups, self._inner.defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Step the copies, then round them into the parameters. Parameters without a gradient stay as they are."""
        for mine, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update({name: value for name, value in mine.items() if name != "params"})
        stepped = [pair for pair in self._pairs() if pair[0].grad is not None]
        for parameter, master in stepped:
            master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter.float()))
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self._inner.step()
        for parameter, master in stepped:
            parameter.copy_(master)
            master.grad = None

    def state_dict(self) -> dict[str, Any]:
        state = self._inner.state_dict()
        for number, (_, master) in enumerate(self._pairs()):
            state["state"].setdefault(number, {})
            state["state"][number] = state["state"][number] | {"master": master.detach()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        buffers = {number: dict(state) for number, state in state_dict["state"].items()}
        for number, (parameter, master) in enumerate(self._pairs()):
            master.copy_(buffers[number].pop("master"))
            parameter.copy_(master)
        # A parameter that was never stepped has no other buffer.
        kept = {number: state for number, state in buffers.items() if state}
        self._inner.load_state_dict({"state": kept, "param_groups": state_dict["param_groups"]})

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for mine, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            yield from zip(mine["params"], inner["params"], strict=True)


def _stepping_float32(groups: list[dict[str, Any]], make: Callable[[list[dict[str, Any]]], Optimizer]) -> Optimizer:
    low = any(torch.finfo(p.dtype).bits < 32 for group in groups for p in group["params"])
    return MasterWeights(groups, make) if low else make(groups)


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters as (matrices of hidden layers, everything else: embeddings, output head, norms, biases)."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    head = getattr(model, "lm_head", None)
    if isinstance(head, nn.Module):
        tables |= {id(p) for p in head.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in tables]
    kept = {id(p) for p in matrices}
    return matrices, [p for p in trainable if id(p) not in kept]
