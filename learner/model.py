"""The language model: made from scratch with a seed, loaded from and saved to a Hugging Face folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from learner import lora
from learner.config import ModelConfig
from learner.parameters import copy_by_name
from protos.errors import DataError
from protos.seeding import derive_seed


def build_model(config: ModelConfig, *, vocab_size: int, pad_id: int, eoa_id: int, seed: int) -> PreTrainedModel:
    """The model that `config` names, in eval mode: loaded where it has a path, else made from `seed`.

    Weights are of `config.dtype`; adapters are float32. Raises DataError where the folder holds no causal LM, or one
    whose vocabulary is smaller than the tokenizer's.
    """
    if config.path is None:
        model = _from_scratch(config, vocab_size, eoa_id, seed)
    else:
        model = load_model(Path(config.path), getattr(torch, config.dtype))
        rows = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
        if rows < vocab_size:
            raise DataError(
                f"{config.path} embeds {rows} tokens, the tokenizer has {vocab_size}: use its own tokenizer"
            )
        _adapt(model, config, Path(config.path), seed)
    model.generation_config = neutral_generation(pad_id, eoa_id)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal LM of a local Hugging Face folder, in `dtype` and eval mode, without dropout.

    A folder of adapters gives its base with the adapters on it.
    """
    if lora.is_adapter_folder(folder):
        model = load_model(lora.base_folder(folder), dtype)
        lora.attach(model, folder)
        return model
    if not (folder / "config.json").is_file():
        raise DataError(f"no config.json in {folder}: not a Hugging Face model folder")
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise DataError(f"{folder} holds pickled weights alone: convert them to safetensors, pickles are not read")
    try:
        with _no_progress_bars():
            loaded = AutoModelForCausalLM.from_pretrained(
                folder,
                config=_without_dropout(AutoConfig.from_pretrained(folder, local_files_only=True)),
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
            )
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} does not load as a causal language model: {error}") from error
    model = cast(PreTrainedModel, loaded)
    _train_every_embedding(model)
    _check_plain_head(model, folder)
    return model.eval()


def decoder(model: PreTrainedModel) -> nn.Module:
    """The trunk: called with `input_ids` (R, T) and `use_cache=False`, it gives `last_hidden_state` (R, T, H)."""
    return model.base_model


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Around gradient work. Where gradient checkpointing is on, the model is in train mode within: it would do nothing in
    eval mode. Dropout is off in both modes (`load_model`)."""
    if not getattr(model, "is_gradient_checkpointing", False):
        yield  # setting the mode walks all modules, which takes as long as a small forward
        return
    model.train()
    try:
        yield
    finally:
        model.eval()


def output_head(model: PreTrainedModel) -> nn.Module:
    """The layer that makes logits of hidden states."""
    head = model.get_output_embeddings()
    assert head is not None, "a causal LM has an output matrix"
    return head


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write config, weights (safetensors) and neutral generation settings: a folder that AutoModelForCausalLM loads.

    Of a model with adapters, those alone are written (`learner.lora`).
    """
    if lora.is_adapted(model):
        lora.save_adapters(model, folder)
        return
    with _no_progress_bars():
        model.save_pretrained(folder)


def merge_into(model: PreTrainedModel, folder: Path) -> None:
    """Write `model` as a plain checkpoint, its adapters added into the weights."""
    save_model(lora.merged(model) if lora.is_adapted(model) else model, folder)


def load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Copy the weights saved in `folder` into `model`, in place: whoever shares the module sees them."""
    if lora.is_adapted(model) and lora.is_adapter_folder(folder):
        lora.load_adapters(model, folder)
        return
    refusal = f"the weights in {folder} are of another model: start with the `model` settings they came from"
    copy_by_name(model.state_dict(), load_model(folder, model.dtype).state_dict(), refusal)


def neutral_generation(pad_id: int, eoa_id: int) -> GenerationConfig:
    """Sampling settings that change nothing, spelt out so that no server fills in its own.

    A checkpoint's own generation_config.json (repetition_penalty 1.1, top_k 20 ...) makes the engine sample from another
    distribution than the one the learner scores.
    """
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        eos_token_id=eoa_id,
        pad_token_id=pad_id,
    )


def _adapt(model: PreTrainedModel, config: ModelConfig, folder: Path, seed: int) -> None:
    """Put the adapters that `config` asks for on a base; adapters that were loaded go on, and must be those asked for."""
    if config.lora is None:
        return
    if not lora.is_adapted(model):
        lora.adapt(model, config.lora, folder, seed)
        return
    saved = lora.settings(model)
    if (saved.r, saved.lora_alpha) != (config.lora.rank, config.lora.alpha):
        raise DataError(f"{folder} holds adapters of rank {saved.r} and alpha {saved.lora_alpha}: set `lora` to them")


def _from_scratch(config: ModelConfig, vocab_size: int, eoa_id: int, seed: int) -> PreTrainedModel:
    # pad_token_id stays unset: the embedding of a padding id gets no gradient, and padding is told by length here.
    architecture = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=config.width,
        intermediate_size=config.mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        attention_bias=True,
        eos_token_id=eoa_id,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor's own draws are thrown away below
        made = AutoModelForCausalLM.from_config(architecture, dtype=torch.float32, attn_implementation="sdpa")
    model = cast(PreTrainedModel, made)
    _initialise(model, config, torch.Generator().manual_seed(derive_seed(seed, "model")))
    return model.to(getattr(torch, config.dtype)).eval()


@torch.no_grad()
def _initialise(model: nn.Module, config: ModelConfig, rng: torch.Generator) -> None:
    """Normal weights: 0.02 in the embedding, 0.8 / sqrt(width) elsewhere; what writes to the residual stream is scaled
    by 1 / sqrt(2 layers) (as in GPT-2), so that its variance does not grow with depth."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 2:
            deviation = 0.02 if "embed" in name else 0.8 * config.width**-0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation *= (2 * config.layers) ** -0.5
            parameter.normal_(0.0, deviation, generator=rng)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """transformers draws one for each file; the screen belongs to the run."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


def _without_dropout(config: PreTrainedConfig) -> PreTrainedConfig:
    """`config` with every dropout probability at 0: behaviour and learner score with the same function."""
    for each in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in vars(each).items():
            if isinstance(value, float) and any(word in name for word in ("dropout", "pdrop", "layerdrop")):
                setattr(each, name, 0.0)
    return config


def _train_every_embedding(model: PreTrainedModel) -> None:
    """Where a checkpoint's padding id is also its end token, torch would give that token's embedding no gradient."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None


@torch.no_grad()
def _check_plain_head(model: PreTrainedModel, folder: Path) -> None:
    """Refuse models that scale or cap their logits: `learner.scoring` applies the bare output matrix to hidden states."""
    ids = torch.arange(4).unsqueeze(0)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits.float()
    tolerance = max(1e-5, 4 * torch.finfo(model.dtype).eps) * float(logits.abs().max())
    capped = getattr(model.config.get_text_config(), "final_logit_softcapping", None)  # small logits would not show it
    if capped or not torch.allclose(output_head(model)(hidden).float(), logits, rtol=0, atol=tolerance):
        raise DataError(f"{folder}: {type(model).__name__} changes its logits after the output matrix; not supported")
