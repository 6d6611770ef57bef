"""Optimizers against written-out references, schedules against worked numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_fixtures import tiny_model

from learner.config import OptimizerConfig
from learner.optim import build_optimizers, rate_factor, set_rate, split_parameters


def test_warm_up_and_linear_decay_by_hand():
    config = OptimizerConfig(warmup_updates=4, schedule="linear", final_fraction=0.1)
    expected = {0: 0.25, 1: 0.5 * 0.91, 3: 0.73, 5: 0.55, 10: 0.1, 99: 0.1}
    for update, factor in expected.items():
        assert rate_factor(config, update, 10) == pytest.approx(factor)


def test_cosine_decay_by_hand():
    config = OptimizerConfig(warmup_updates=0, schedule="cosine", final_fraction=0.2)
    assert rate_factor(config, 0, 8) == pytest.approx(1.0)
    assert rate_factor(config, 4, 8) == pytest.approx(0.6)
    assert rate_factor(config, 2, 8) == pytest.approx(0.2 + 0.4 * (1 + math.sqrt(0.5)))
    assert rate_factor(config, 8, 8) == pytest.approx(0.2)


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 50),
    st.floats(0, 1),
    st.integers(0, 300),
    st.integers(1, 200),
)
def test_the_rate_stays_between_zero_and_the_peak_and_never_climbs_after_warm_up(name, warmup, final, update, total):
    config = OptimizerConfig(warmup_updates=warmup, schedule=name, final_fraction=final)
    factor = rate_factor(config, update, total)
    assert 0 <= factor <= 1
    if update + 1 >= warmup:
        assert rate_factor(config, update + 1, total) <= factor + 1e-12


def test_matrices_of_hidden_layers_are_told_from_everything_else():
    model = tiny_model()
    names = {id(p): name for name, p in model.named_parameters()}
    matrices, rest = ({names[id(p)] for p in part} for part in split_parameters(model))
    assert {name.rsplit(".", 2)[-2] for name in matrices} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert all(name.endswith("weight") for name in matrices)
    assert "model.embed_tokens.weight" in rest
    assert matrices | rest == set(names.values())
    assert not matrices & rest


def test_frozen_parameters_are_left_out():
    model = tiny_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    assert sum(len(part) for part in split_parameters(model)) == len(list(model.parameters())) - 1


def fill_gradients(model, seed: int):
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=rng)


def newton_schulz(gradient: torch.Tensor) -> torch.Tensor:
    """Written out from arXiv 2502.16982, in fp32."""
    x = gradient / (gradient.norm() + 1e-7)
    wide = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide.T if x.shape[0] > x.shape[1] else wide


def test_muon_steps_match_the_written_out_algorithm():
    """Nesterov momentum, Newton-Schulz, step 0.2 sqrt(max dim), decoupled decay; to bfloat16's precision."""
    config = OptimizerConfig(name="muon", lr=1e-2, momentum=0.9, weight_decay=0.1)
    model = tiny_model()
    optimizers = build_optimizers(model, config)
    matrices, _ = split_parameters(model)
    expected = [p.detach().clone() for p in matrices]
    buffers = [torch.zeros_like(p) for p in matrices]
    for step in range(3):
        fill_gradients(model, step)
        for value, buffer, parameter in zip(expected, buffers, matrices, strict=True):
            buffer.mul_(0.9).add_(parameter.grad)
            direction = newton_schulz(parameter.grad + 0.9 * buffer)
            value.mul_(1 - 1e-2 * 0.1).sub_(1e-2 * 0.2 * max(value.shape) ** 0.5 * direction)
        for optimizer in optimizers.values():
            optimizer.step()
    start, _ = split_parameters(tiny_model())
    for value, parameter, begin in zip(expected, matrices, start, strict=True):
        assert (parameter - value).norm() < 0.02 * (value - begin).norm()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_adamw_matches_torchs_plain_loop(name):
    """`muon` leaves embeddings, norms and biases to AdamW without decay; `adamw` decays the matrices alone."""
    config = OptimizerConfig(name=name, lr=1e-2, betas=(0.8, 0.9), weight_decay=0.1)
    model, other = tiny_model(), tiny_model()
    optimizers = build_optimizers(model, config)
    matrices, rest = split_parameters(other)
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), foreach=False)
    for step in range(3):
        for each in (model, other):
            fill_gradients(each, step)
        for optimizer in (*optimizers.values(), reference):
            optimizer.step()
    compared = split_parameters(model)[1] if name == "muon" else list(model.parameters())
    wanted = rest if name == "muon" else list(other.parameters())
    for parameter, value in zip(compared, wanted, strict=True):
        torch.testing.assert_close(parameter, value, rtol=1e-5, atol=1e-6)


def test_set_rate_reaches_every_group():
    optimizers = build_optimizers(tiny_model(), OptimizerConfig(name="muon"))
    set_rate(list(optimizers.values()), 0.125)
    assert {group["lr"] for optimizer in optimizers.values() for group in optimizer.param_groups} == {0.125}


def one_weight():
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    return model


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_small_steps_add_up_on_bfloat16_weights_and_their_state_is_restored_exactly(name):
    """AdamW moves by the rate each step: after 100 steps of 1e-5 the copy is at 0.999, after 400 the bfloat16 weight too is
    off 1, at the nearest number to 0.996 (its spacing there is 2^-8)."""
    config = OptimizerConfig(name=name, lr=1e-5, weight_decay=0.0)
    model, other = one_weight(), one_weight()
    optimizer, resumed = build_optimizers(model, config)[name], build_optimizers(other, config)[name]

    def step(each, parameter, count):
        for _ in range(count):
            parameter.grad = torch.ones_like(parameter)
            each.step()

    step(optimizer, model.weight, 100)
    saved = {number: dict(buffers) for number, buffers in optimizer.state_dict()["state"].items()}
    saved = {number: {key: value.clone() for key, value in buffers.items()} for number, buffers in saved.items()}
    if name == "adamw":
        assert float(saved[0]["master"][0, 0]) == pytest.approx(0.999, abs=5e-6)
    resumed.load_state_dict({"state": saved, "param_groups": resumed.state_dict()["param_groups"]})
    step(optimizer, model.weight, 300)
    step(resumed, other.weight, 300)
    if name == "adamw":
        assert model.weight[0, 0].item() == 1 - 2**-8
    for key, value in optimizer.state_dict()["state"][0].items():
        assert torch.equal(resumed.state_dict()["state"][0][key], value)
    assert torch.equal(model.weight, other.weight)


def test_weights_loaded_into_bfloat16_parameters_are_stepped_from():
    model = one_weight()
    optimizer = build_optimizers(model, OptimizerConfig(lr=1e-5))["adamw"]
    with torch.no_grad():
        model.weight.fill_(3.0)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    assert model.weight[0, 0].item() == 3.0
