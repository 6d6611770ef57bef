"""Adapters, bfloat16 and gradient checkpointing on tiny checkpoints of the common architectures."""

import pytest
import torch
from learner_fixtures import VOCABULARY, Observe, make_rows
from peft import PeftModel
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from learner.config import LearnerConfig, LoraSettings, ModelConfig, OptimizerConfig
from learner.learner import Learner
from learner.model import build_model, load_model, load_weights, merge_into, save_model, training
from protos.errors import ConfigError, DataError

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
ARCHITECTURES = {
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=True),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True, attention_dropout=0.5),
    "llama-untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
}
LORA = LoraSettings(rank=2, alpha=4)
TOKENS = {"vocab_size": VOCABULARY, "pad_id": 0, "eoa_id": 2, "seed": 0}
IDS = torch.arange(2 * 9).view(2, 9) % VOCABULARY


@pytest.fixture(params=ARCHITECTURES)
def base(request, tmp_path):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ARCHITECTURES[request.param]).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base, lora=LORA, random=True, **settings):
    model = build_model(ModelConfig(path=str(base), lora=lora, **settings), **TOKENS)
    if random:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0.0, 0.3)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_adapters_start_as_the_base_and_alone_require_a_gradient(base):
    model = adapted(base, random=False, dtype="bfloat16")
    assert torch.equal(logits(model), logits(load_model(base, torch.bfloat16)))
    trained = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 7 * 2
    assert all("lora_" in name for name in trained)
    assert set(trained.values()) == {torch.float32}
    assert model.dtype == torch.bfloat16


def test_saved_adapters_are_what_peft_reads_and_what_training_goes_on_from(base, tmp_path):
    model = adapted(base)
    assert not torch.allclose(logits(model), logits(load_model(base)), atol=1e-2)
    save_model(model, tmp_path / "adapter")
    assert torch.equal(logits(PeftModel.from_pretrained(load_model(base), tmp_path / "adapter")), logits(model))
    again = build_model(ModelConfig(path=str(tmp_path / "adapter")), **TOKENS)
    assert torch.equal(logits(again), logits(model))
    assert all(p.requires_grad == ("lora_" in name) for name, p in again.named_parameters())
    other = adapted(base, random=False)
    load_weights(other, tmp_path / "adapter")
    assert torch.equal(logits(other), logits(model))


def test_merged_adapters_are_a_plain_checkpoint(base, tmp_path):
    model = adapted(base)
    before = logits(model)
    merge_into(model, tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert not any("lora" in name or "base_layer" in name for name in plain.state_dict())
    torch.testing.assert_close(logits(plain), before, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(model), before), "the model itself is left alone"


def test_modules_trained_in_full_are_saved_with_the_adapters(base, tmp_path):
    settings = LoraSettings(rank=2, alpha=4, trained_modules=("norm",))
    model = adapted(base, settings)
    save_model(model, tmp_path / "adapter")
    again = load_model(tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model))
    assert again.base_model.norm.weight.requires_grad


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_one_update_lowers_a_supervised_loss(base, lora):
    learner = Learner(ModelConfig(path=str(base), lora=lora), **TOKENS)
    optimizer = OptimizerConfig(lr=1e-2, warmup_updates=0)
    learner.begin_phase("supervised", LearnerConfig(optimizer=optimizer), [Observe()], 10)
    rows = make_rows()
    wanted = Observe().weigh({"fresh": rows}, None)[0][0].weights != 0
    before = learner.score(rows, wanted).sum()
    learner.update({"fresh": rows}, 0)
    assert learner.score(rows, wanted).sum() > before


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_gradient_checkpointing_changes_no_gradient(base, lora):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = adapted(base, lora, random=lora is not None, gradient_checkpointing=checkpointing)
        with training(model):
            assert model.training == checkpointing
            model(IDS, use_cache=False).logits.square().sum().backward()
        assert not model.training
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_settings_that_fit_no_model_are_refused(base, tmp_path):
    with pytest.raises(ValidationError, match="set `path`"):
        ModelConfig(lora=LORA)
    with pytest.raises(ConfigError, match="nowhere"):
        adapted(base, LoraSettings(trained_modules=("nowhere",)))
    save_model(adapted(base), tmp_path / "adapter")
    with pytest.raises(DataError, match="rank 2"):
        adapted(tmp_path / "adapter", LoraSettings(rank=3))
    with pytest.raises(DataError, match="another model"):
        load_weights(adapted(base, LoraSettings(rank=3)), tmp_path / "adapter")


def test_pickled_weights_are_refused(base):
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(DataError, match="pickled"):
        load_model(base)
