"""Low-rank adapters (LoRA, arXiv 2106.09685) inside a model: put in, saved, loaded, merged.

    adapter_model.safetensors      A and B of every adapter, as `peft.PeftModel.from_pretrained(base, folder)` reads them
    adapter_config.json            peft's settings, with the folder of the base checkpoint
    trained_modules.safetensors    weights of the modules trained in full, by parameter name; only where there are any

The adapted model stays the Hugging Face model that it was, and only what is trained requires a gradient.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from learner.config import LoraSettings
from learner.parameters import contiguous, copy_by_name, trainable
from protos.errors import ConfigError, DataError
from protos.seeding import derive_seed

ADAPTER = "default"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
TRAINED_FILE = "trained_modules.safetensors"
PREFIX = "base_model.model."


def is_adapted(model: nn.Module) -> bool:
    """Whether `model` has adapters."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


def is_adapter_folder(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def adapt(model: PreTrainedModel, settings: LoraSettings, base: Path, seed: int) -> None:
    """Put float32 adapters in `model`, in place: A is drawn from `seed`, B is 0, and the function stays what it was.

    ConfigError where a module that the settings name does not exist.
    """
    names = settings.target_modules
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=cast(int, settings.alpha),  # peft divides it by the rank: any number serves
        target_modules=names if isinstance(names, str) else list(names),
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base.resolve()),
    )
    _inject(model, config, derive_seed(seed, "lora"))
    for name in settings.trained_modules:
        _train_in_full(model, name)


def base_folder(folder: Path) -> Path:
    """The base checkpoint of the adapters in `folder`."""
    base = LoraConfig.from_pretrained(str(folder)).base_model_name_or_path
    if not base:
        raise DataError(f"{folder / CONFIG_FILE} names no base model: set base_model_name_or_path to its folder")
    return Path(base)


def attach(model: PreTrainedModel, folder: Path) -> None:
    """Put the adapters saved in `folder` in their base `model`, ready to be trained on."""
    _inject(model, cast(LoraConfig, LoraConfig.from_pretrained(str(folder))), seed=0)
    parameters = dict(model.named_parameters())
    for name in _trained_weights(folder):
        if name not in parameters:
            raise DataError(f"{folder / TRAINED_FILE} holds {name}, which the base model does not have")
        parameters[name].requires_grad_(True)
    load_adapters(model, folder)


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Copy the adapters and trained modules of `folder` into those of `model`, in place. DataError where they differ."""
    saved = dict(load_file(folder / WEIGHTS_FILE))
    saved |= _trained_weights(folder)
    refusal = f"the adapters in {folder} are of another model: start with the `model` settings they came from"
    copy_by_name(_adapters(model) | _trained(model), saved, refusal)


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapters of `model`, and what it trains in full; the base is named, not copied."""
    folder.mkdir(parents=True, exist_ok=True)
    settings(model).save_pretrained(str(folder))
    save_file(contiguous(_adapters(model)), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    if trained := _trained(model):
        save_file(contiguous(trained), folder / TRAINED_FILE, metadata={"format": "pt"})
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model` with its adapters added into the weights: a plain model."""
    copy = deepcopy(model)
    for name, module in list(copy.named_modules()):
        if isinstance(module, LoraLayer):
            cast(nn.Module, module).merge()  # pyright: ignore[reportCallIssue]
            copy.set_submodule(name, module.get_base_layer())
    del copy.peft_config
    return copy


def settings(model: PreTrainedModel) -> LoraConfig:
    """peft's settings of the adapters in `model`."""
    return cast(Mapping[str, LoraConfig], model.peft_config)[ADAPTER]


def _inject(model: PreTrainedModel, config: LoraConfig, seed: int) -> None:
    config.inference_mode = False
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, ADAPTER)
    except ValueError as error:
        raise ConfigError(f"adapters do not fit the model: {error}") from error
    for _, parameter in _named_adapters(model):
        parameter.data = parameter.data.float()  # peft makes them in the precision of the base
    model.eval()


def _train_in_full(model: PreTrainedModel, name: str) -> None:
    found = [module for path, module in model.named_modules() if path == name or path.endswith(f".{name}")]
    if not found:
        raise ConfigError(f"trained_modules names {name!r}, which {type(model).__name__} does not have")
    for module in found:
        module.requires_grad_(True)


def _named_adapters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if ".lora_" in name)


def _adapters(model: nn.Module) -> dict[str, nn.Parameter]:
    """A and B by peft's names: `base_model.model.<layer>.lora_A.weight`."""
    return {PREFIX + name.replace(f".{ADAPTER}.", "."): parameter for name, parameter in _named_adapters(model)}


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in trainable(model).items() if ".lora_" not in name}


def _trained_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / TRAINED_FILE
    return load_file(path) if path.is_file() else {}
