"""Models: seeds, folders that transformers loads, neutral generation settings."""

import json

import pytest
import torch
from learner_fixtures import TINY, VOCABULARY, tiny_model
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from learner.config import LearnerConfig, ModelConfig
from learner.model import build_model, load_model, load_weights, save_model
from protos.errors import DataError


def build(config=TINY, seed=0):
    return build_model(config, vocab_size=VOCABULARY, pad_id=0, eoa_id=2, seed=seed)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = build(seed=3)
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator is not touched"
    torch.manual_seed(2)
    assert torch.equal(parameters(one), parameters(build(seed=3)))
    assert not torch.equal(parameters(one), parameters(build(seed=4)))


def test_the_default_model_has_the_size_and_spread_of_the_recipe():
    model = build_model(ModelConfig(), vocab_size=400, pad_id=0, eoa_id=2, seed=0)
    assert (
        sum(p.numel() for p in model.parameters()) == 399_360 + 3 * 96
    )  # the recipe, and a bias on each output projection
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.ndim == 2}
    assert spread["model.embed_tokens.weight"] == pytest.approx(0.02, rel=0.05)
    assert spread["model.layers.1.self_attn.q_proj.weight"] == pytest.approx(0.8 / 96**0.5, rel=0.05)
    assert spread["model.layers.1.mlp.down_proj.weight"] == pytest.approx(0.8 / 96**0.5 / 6**0.5, rel=0.05)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_a_saved_folder_loads_in_transformers_with_the_same_logits(tmp_path):
    model = tiny_model()
    save_model(model, tmp_path)
    ids = torch.randint(0, VOCABULARY, (2, 9))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (tmp_path / "model.safetensors").is_file()


def test_generation_settings_are_neutral_whatever_the_checkpoint_says(tmp_path):
    """BC-04: repetition_penalty 1.3, top_k 2, temperature 0.1 in the file must not reach any sampler."""
    save_model(tiny_model(), tmp_path / "hub")
    hostile = {"repetition_penalty": 1.3, "top_k": 2, "temperature": 0.1, "do_sample": True}
    (tmp_path / "hub" / "generation_config.json").write_text(json.dumps(hostile))
    model = build(ModelConfig(path=str(tmp_path / "hub")))
    save_model(model, tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    neutral = {"repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
    assert {name: written[name] for name in neutral} == neutral
    assert model.generation_config.to_dict() | neutral == model.generation_config.to_dict()


def test_load_weights_is_in_place(tmp_path):
    saved, other = tiny_model(1), tiny_model(2)
    save_model(saved, tmp_path)
    before = [p.data_ptr() for p in other.parameters()]
    load_weights(other, tmp_path)
    assert torch.equal(parameters(other), parameters(saved))
    assert [p.data_ptr() for p in other.parameters()] == before


def test_weights_of_another_model_are_refused(tmp_path):
    save_model(build(TINY.model_copy(update={"layers": 1})), tmp_path)
    with pytest.raises(DataError, match="another model"):
        load_weights(tiny_model(), tmp_path)


def test_folders_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(DataError, match="does not load"):
        load_model(tmp_path)


def test_a_vocabulary_too_small_for_the_tokenizer_is_refused(tmp_path):
    save_model(tiny_model(), tmp_path)
    with pytest.raises(DataError, match="own tokenizer"):
        build_model(ModelConfig(path=str(tmp_path)), vocab_size=VOCABULARY + 1, pad_id=0, eoa_id=2, seed=0)


def test_the_padding_tokens_embedding_is_trained(tmp_path):
    """BC-24: a checkpoint whose padding id is its end token would give that token no gradient."""
    config = Qwen2Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    model(torch.tensor([[5, 6, 0, 7]])).logits.square().sum().backward()
    assert model.get_input_embeddings().weight.grad[0].abs().sum() > 0


def test_models_that_change_their_logits_are_refused(tmp_path):
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, logit_scale=0.5,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    CohereForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="changes its logits"):
        load_model(tmp_path)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="multiple of 2"):
        ModelConfig(width=96, heads=5)
    with pytest.raises(ValidationError, match="at least one micro-batch"):
        LearnerConfig(token_budget=100, micro_batch_tokens=200)
    with pytest.raises(ValidationError, match="extra"):
        ModelConfig.model_validate({"widht": 96})
