"""What a learner needs beside its weights to go on exactly where it was: optimizer state as safetensors and JSON, no pickle.

    trainer/optimizer.safetensors     "<optimizer>/<parameter number>/<buffer>"
    trainer/reference.safetensors     trainable parameters of the reference policy, where the phase has one
    trainer/critic.safetensors        what the critic owns, where the phase has one
    trainer/state.json                phase, and the settings that the state belongs to

Learning rates and random numbers are functions of the update's number: they have no state.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from learner.parameters import contiguous, copy_by_name
from learner.reference import OTHER_PARAMETERS
from learner.update import Updater
from protos.errors import DataError

FOLDER = "trainer"


def save_state(updater: Updater, folder: Path) -> None:
    """Write the state of `updater`, less its weights, below `folder`."""
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    save_file(_buffers(updater.optimizers), target / "optimizer.safetensors")
    if updater.reference is not None:
        save_file(updater.reference.state(), target / "reference.safetensors")
    if updater.critic is not None:
        save_file(contiguous(updater.critic.trainable()), target / "critic.safetensors")
    (target / "state.json").write_text(json.dumps(_identity(updater), indent=2) + "\n")


def load_state(updater: Updater, folder: Path) -> None:
    """Restore what `save_state` wrote. DataError where it belongs to another phase, optimizer or model."""
    source = folder / FOLDER
    if not (source / "state.json").is_file():
        raise DataError(f"{folder} holds no trainer state: it can be evaluated or started from, not resumed")
    saved, mine = json.loads((source / "state.json").read_text()), _identity(updater)
    for name, value in mine.items():
        if saved.get(name) != value:
            raise DataError(f"{folder} was saved with {name} = {saved.get(name)!r}, this run has {value!r}")
    _restore_buffers(updater.optimizers, load_file(source / "optimizer.safetensors"), folder)
    if updater.reference is not None:
        updater.reference.load(load_file(source / "reference.safetensors"))
    if updater.critic is not None:
        saved_critic = load_file(source / "critic.safetensors")
        copy_by_name(updater.critic.trainable(), saved_critic, OTHER_PARAMETERS.format("the critic"))


def _identity(updater: Updater) -> dict[str, object]:
    return {
        "phase": updater.phase.name,
        "reference": updater.reference is not None,
        "critic": None if updater.critic is None else updater.phase.config.critic.kind,
        "optimizers": sorted(updater.optimizers),
        "parameters": [list(p.shape) for p in updater.model.parameters()],
    }


def _buffers(optimizers: Mapping[str, Optimizer]) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{number}/{buffer}": tensor.contiguous()
        for name, optimizer in optimizers.items()
        for number, state in optimizer.state_dict()["state"].items()
        for buffer, tensor in state.items()
    }


def _restore_buffers(optimizers: Mapping[str, Optimizer], saved: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Load buffers and leave the parameter groups alone: their settings are this run's, as Python numbers."""
    by_optimizer: dict[str, dict[int, dict[str, torch.Tensor]]] = {name: defaultdict(dict) for name in optimizers}
    for key, tensor in saved.items():
        name, number, buffer = key.split("/")
        if name not in by_optimizer:
            raise DataError(f"{folder} holds state of optimizer {name!r}, which this run does not have")
        by_optimizer[name][int(number)][buffer] = tensor
    for name, optimizer in optimizers.items():
        fresh = optimizer.state_dict()
        optimizer.load_state_dict({"state": dict(by_optimizer[name]), "param_groups": fresh["param_groups"]})
