"""The minibatch gradient against plain autograd, and the safeguard against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_fixtures import Observe, Reinforce, make_rows, tiny_model, without_advantages

from learner.batch import micro_batches
from learner.gradients import Step, Work, minibatch_gradient
from learner.network import policy_network
from learner.scoring import Fixed, Term, pad, score_terms, scored_tokens, trunk
from protos.telemetry import reduce_metrics

LARGE = 100_000


def terms_of(objectives, rows):
    return tuple(
        Term(objective, stream)
        for objective in objectives
        for stream in objective.weigh({"fresh": rows}, np.random.default_rng(0))[0]
    )


def works_of(objectives, rows, tokens_each=LARGE):
    terms = terms_of(objectives, rows)
    every = np.arange(len(rows.row_start) - 1)
    return [Work(rows, ids, terms) for ids in micro_batches(rows, every, tokens_each)]


def gradient(model, works, **settings):
    """Flat gradient in double precision, and metrics as numbers."""
    model.zero_grad(set_to_none=True)
    metrics = minibatch_gradient(policy_network(model), works, Step(**({"token_budget": LARGE} | settings)))
    flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()]
    return torch.cat(flat).double(), reduce_metrics([metrics])


def autograd(model, objectives, rows):
    """Flat gradient of the summed losses, by one backward pass over all rows in one padded batch."""
    model.zero_grad(set_to_none=True)
    terms = terms_of(objectives, rows)
    (all_rows,) = micro_batches(rows, np.arange(len(rows.row_start) - 1), LARGE)
    network, micro = policy_network(model), pad(rows, all_rows)
    tokens = scored_tokens(micro, terms)
    hidden = trunk(network, micro).index_select(0, tokens.slots)
    losses, _ = score_terms(network, micro, tokens, hidden, terms)
    torch.stack(losses).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


def norms_at_the_head(model, objectives, rows):
    """Norms of one side's gradient over the hidden states (R * T, H) and over the output matrix, the trunk cut off."""
    terms = terms_of(objectives, rows)
    network, micro = policy_network(model), pad(rows, np.arange(len(rows.row_start) - 1))
    tokens = scored_tokens(micro, terms)
    with torch.no_grad():
        hidden = trunk(network, micro)
    hidden.requires_grad_()
    losses, _ = score_terms(network, micro, tokens, hidden[tokens.slots], terms)
    gradients = torch.autograd.grad(torch.stack(losses).sum(), [hidden, model.lm_head.weight])
    return [float(g.norm()) for g in gradients]


def test_without_the_safeguard_the_gradient_is_plain_autograds_exactly():
    model, rows, objectives = tiny_model(), make_rows(), [Reinforce(bonus=0.1), Observe(rho=0.1)]
    ours, metrics = gradient(model, works_of(objectives, rows))
    assert torch.equal(ours, autograd(model, objectives, rows))
    assert not any(name.startswith(("safeguard", "grad/")) for name in metrics)


def test_a_safeguard_that_does_not_bind_changes_nothing():
    model, rows, objectives = tiny_model(), make_rows(), [Reinforce(bonus=0.1), Observe(rho=0.1)]
    ours, metrics = gradient(model, works_of(objectives, rows), max_ratio=1e6)
    torch.testing.assert_close(ours, autograd(model, objectives, rows), rtol=1e-5, atol=1e-7)
    assert (metrics["safeguard/scale"], metrics["safeguard/active"]) == (1.0, 0.0)


@pytest.mark.parametrize("coefficient", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("max_ratio", [0.1, 0.7])
def test_the_ratio_holds(coefficient, max_ratio):
    """The wm side is scaled by min(1, r / ratio), and the gradient is g_rl + s g_wm over all parameters."""
    model, rows = tiny_model(), make_rows(count=8)
    policy, world = Reinforce(), Observe(coefficient=coefficient)
    g_rl, g_wm = norms_at_the_head(model, [policy], rows), norms_at_the_head(model, [world], rows)
    ratio = max(w / p for w, p in zip(g_wm, g_rl, strict=True))
    scale = min(1.0, max_ratio / ratio)
    ours, metrics = gradient(model, works_of([policy, world], rows), max_ratio=max_ratio)
    expected = autograd(model, [policy], rows) + scale * autograd(model, [world], rows)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)
    assert metrics["safeguard/scale"] == pytest.approx(scale, rel=1e-5)
    assert metrics["safeguard/active"] == float(scale < 1)
    assert metrics["safeguard/ratio"] == pytest.approx(ratio, rel=1e-5)
    for w, p in zip(g_wm, g_rl, strict=True):
        assert scale * w <= max_ratio * p * (1 + 1e-6)


def test_where_the_policy_has_no_gradient_the_world_model_sits_out():
    """All-fail groups: without the bound Adam would make a full step of the world-model term alone."""
    model, rows = tiny_model(), without_advantages(make_rows())
    unbounded, _ = gradient(model, works_of([Reinforce(), Observe()], rows))
    assert unbounded.norm() > 0
    ours, metrics = gradient(model, works_of([Reinforce(), Observe()], rows), max_ratio=0.5)
    assert ours.norm() == 0
    assert (metrics["safeguard/scale"], metrics["safeguard/active"]) == (0.0, 1.0)


def test_a_minibatch_of_world_model_rows_alone_sits_out_too():
    ours, _ = gradient(tiny_model(), works_of([Observe()], make_rows()), max_ratio=0.5)
    assert ours.norm() == 0


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(5, 40),
    st.sampled_from([None, 0.3, 1e6]),
    st.booleans(),
    st.sampled_from([10, 40, LARGE]),
)
def test_accumulation_does_not_change_the_gradient(seed, tokens_each, max_ratio, statistics, token_budget):
    """One micro-batch or many, graphs kept or trunks run twice: the same gradient and the same metrics."""
    model, rows = tiny_model(), make_rows(seed, count=9)
    objectives = [Reinforce(bonus=0.05), Observe(rho=0.2)]
    whole, expected = gradient(model, works_of(objectives, rows), max_ratio=max_ratio, statistics=statistics)
    split, metrics = gradient(
        model,
        works_of(objectives, rows, tokens_each),
        max_ratio=max_ratio,
        statistics=statistics,
        token_budget=token_budget,
    )
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6)
    for name in expected.keys() - {"learner/padding"}:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_statistics_are_those_of_two_separate_backward_passes():
    model, rows = tiny_model(), make_rows(count=8)
    policy, world = Reinforce(), Observe()
    g_rl, g_wm = autograd(model, [policy], rows), autograd(model, [world], rows)
    ours, metrics = gradient(model, works_of([policy, world], rows, 20), statistics=True)
    assert metrics["grad/cosine"] == pytest.approx(float(g_rl @ g_wm / g_rl.norm() / g_wm.norm()), rel=1e-4)
    assert metrics["grad/ratio"] == pytest.approx(float(g_wm.norm() / g_rl.norm()), rel=1e-4)
    torch.testing.assert_close(ours, g_rl + g_wm, rtol=1e-4, atol=1e-7)


def test_statistics_measure_the_world_model_before_it_is_scaled():
    model, rows = tiny_model(), make_rows(count=8)
    objectives = [Reinforce(), Observe(coefficient=30.0)]
    _, free = gradient(model, works_of(objectives, rows), statistics=True)
    ours, bounded = gradient(model, works_of(objectives, rows), statistics=True, max_ratio=0.2)
    assert bounded["grad/ratio"] == pytest.approx(free["grad/ratio"], rel=1e-5)
    assert bounded["safeguard/scale"] < 1
    same, _ = gradient(model, works_of(objectives, rows), max_ratio=0.2)
    torch.testing.assert_close(ours, same, rtol=1e-4, atol=1e-7)


def test_the_scale_of_the_losses_scales_the_gradient():
    model, rows = tiny_model(), make_rows()
    once, _ = gradient(model, works_of([Reinforce(), Observe()], rows))
    twice, _ = gradient(model, works_of([Reinforce(), Observe()], rows), scale=2.0)
    torch.testing.assert_close(twice, 2 * once)


def test_a_term_whose_tokens_are_all_pruned_has_no_gradient():
    model, rows = tiny_model(), make_rows()
    policy, _ = gradient(model, works_of([Reinforce()], rows))
    for settings_ in ({}, {"max_ratio": 0.5}, {"statistics": True}):
        ours, _ = gradient(model, works_of([Reinforce(), Observe(rho=0.0)], rows), **settings_)
        torch.testing.assert_close(ours, policy, rtol=1e-5, atol=1e-7)
    alone, _ = gradient(model, works_of([Observe(rho=0.0)], rows))
    assert alone.norm() == 0


def test_frozen_output_matrix():
    """Adapters train the trunk alone: the safeguard works without a gradient of the output matrix."""
    model, rows = tiny_model(), make_rows()
    model.get_output_embeddings().weight.requires_grad_(False)
    objectives = [Reinforce(), Observe()]
    ours, metrics = gradient(model, works_of(objectives, rows), max_ratio=0.1, statistics=True)
    assert ours.norm() > 0
    assert "grad/cosine" in metrics


def test_two_sources_are_counted_apart():
    fresh, replayed = make_rows(0), make_rows(1)
    policy, world = Reinforce(), Observe()
    streams, _ = world.weigh({"fresh": fresh, "replay": replayed}, np.random.default_rng(0))
    works = [
        Work(fresh, np.arange(6), (*terms_of([policy], fresh), Term(world, streams[0]))),
        Work(replayed, np.arange(6), (Term(world, streams[1]),)),
    ]
    for settings_ in ({}, {"max_ratio": 0.5}):
        step = Step(token_budget=LARGE, **settings_)
        metrics = reduce_metrics([minibatch_gradient(policy_network(tiny_model()), works, step)])
        assert metrics["learner/tokens/fresh"] == fresh.tokens
        assert metrics["learner/tokens/replay"] == replayed.tokens
        assert metrics["learner/tokens"] == fresh.tokens + replayed.tokens
        assert min(step.watch.seconds[source] for source in ("fresh", "replay")) > 0


def test_references_reach_their_terms():
    model, rows = tiny_model(), make_rows()
    reference = np.full(rows.tokens, -1.0, np.float32)
    works = works_of([Reinforce(kl=1.0)], rows)
    step = Step(token_budget=LARGE, fixed={id(works[0].rows): Fixed(reference=reference)})
    metrics = reduce_metrics([minibatch_gradient(policy_network(model), works, step)])
    step = Step(token_budget=LARGE)
    without = reduce_metrics([minibatch_gradient(policy_network(model), works_of([Reinforce()], rows), step)])
    assert metrics["reinforce/loss"] != pytest.approx(without["reinforce/loss"])
