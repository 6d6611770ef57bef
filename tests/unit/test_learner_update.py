"""What an update looks up before its first step, how often it passes over its rows, and what all of it costs."""

from copy import deepcopy
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from learner_fixtures import TINY, VOCABULARY, Observe, Reinforce, make_rows, spans_mask, tiny_model
from learner_rows import random_groups

from learner.advantages import gae
from learner.batch import minibatches, pack
from learner.config import CriticConfig, LearnerConfig, OptimizerConfig
from learner.core import Rows
from learner.learner import Learner
from learner.network import policy_network
from learner.objectives import next_observation, paw, placebo, policy_gradient, value
from learner.reference import Reference
from learner.scoring import score
from learner.update import Phase, Plan, Updater
from protos.errors import ConfigError
from protos.telemetry import reduce_metrics

CONFIG = LearnerConfig(
    optimizer=OptimizerConfig(lr=1e-2, warmup_updates=0, schedule="constant"),
    micro_batch_tokens=48,
    token_budget=96,
    gradient_statistics_every=0,
)
ROWS = make_rows(count=8, groups=4)
ACTION = spans_mask(ROWS.tokens, ROWS.action)


def learner(objectives, algorithm=None, **settings) -> Learner:
    made = Learner(TINY, vocab_size=VOCABULARY, pad_id=0, eoa_id=2, seed=0)
    made.begin_phase("policy", CONFIG.model_copy(update=settings), objectives, 10, algorithm)
    return made


def parameters(made: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in made.model.parameters()])


def passes(model) -> list[int]:
    """Grows by the number of rows of each pass through the trunk."""
    seen: list[int] = []
    model.base_model.register_forward_hook(
        lambda _, args, kwargs, out: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return seen


def plan_of(made: Updater, rows: Rows) -> Plan:
    streams = [
        (number, stream)
        for number, objective in enumerate(made.phase.objectives)
        for stream in objective.weigh({"fresh": rows}, np.random.default_rng(0))[0]
    ]
    parts = minibatches([stream for _, stream in streams], 1, np.random.default_rng(1))
    return Plan(0, tuple(streams), (tuple(map(tuple, parts)),))


class Decoupled(Reinforce):
    """Reads the proximal log-probabilities, and keeps what it was given."""

    needs = frozenset({"proximal"})

    def __init__(self):
        super().__init__()
        self.seen = []

    def loss(self, scores, weights):
        self.seen.append(scores)
        return super().loss(scores, weights)


def of_action_tokens(model, rows: Rows = ROWS) -> np.ndarray:
    return score(policy_network(model), rows, spans_mask(rows.tokens, rows.action), 4096)


@pytest.mark.parametrize("epochs", [1, 2])
def test_proximal_log_probs_are_those_before_the_first_step_in_every_minibatch(epochs):
    objective = Decoupled()
    made = learner([objective], epochs=epochs)
    before = of_action_tokens(made.model)
    metrics = reduce_metrics([made.update({"fresh": ROWS}, 0)])
    assert metrics["learner/steps"] == 2 * epochs
    assert metrics["learner/seconds/proximal"] > 0
    for seen in objective.seen:
        token = [np.flatnonzero(ROWS.log_probs == b)[0] for b in seen.behaviour.numpy()]
        np.testing.assert_allclose(seen.proximal, before[token], atol=1e-5)
    assert len(torch.cat([seen.proximal for seen in objective.seen])) == epochs * ACTION.sum()
    moved = [(seen.proximal - seen.log_probs.detach()).abs().max() for seen in objective.seen]
    assert float(moved[0]) < 1e-5
    assert float(moved[-1]) > 1e-3


def test_a_default_update_makes_no_pass_beside_its_micro_batches():
    """No critic, reference or proximal pass; nothing for an estimator that needs nothing."""
    made = learner([Reinforce(bonus=0.01), Observe(rho=0.3)])
    plan, _ = made.plan({"fresh": ROWS}, 0)
    seen = passes(made.model)
    assert made.look_up(ROWS, frozenset()) is ROWS
    made._updater.run(plan)
    assert sum(seen) == len(ROWS.row_start) - 1
    assert made._updater.critic is made._updater.reference is None


def test_the_reference_snapshot_scores_as_a_copy_of_the_model():
    model = tiny_model()
    reference, copy = Reference(model), deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    moved = of_action_tokens(model)
    with reference.swapped_in():
        np.testing.assert_array_equal(of_action_tokens(model), of_action_tokens(copy))
    np.testing.assert_array_equal(of_action_tokens(model), moved)
    assert np.abs(moved - of_action_tokens(copy)).max() > 0.01


def test_the_model_is_itself_again_after_an_exception_bit_for_bit():
    model = tiny_model()
    reference = Reference(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    before = {name: (p, p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError, match="halfway"), reference.swapped_in():
        raise RuntimeError("halfway")
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert p.data_ptr() == before[name][1]
        assert torch.equal(p, before[name][2])


def test_a_reference_under_adapters_is_the_adapters_alone():
    model = tiny_model()
    for name, p in model.named_parameters():
        p.requires_grad_("q_proj" in name)
    assert set(Reference(model).state()) == {name for name, _ in model.named_parameters() if "q_proj" in name}


def test_references_looked_up_for_the_estimator_are_not_computed_again():
    needs = frozenset({"reference"})
    objective = Reinforce(kl=0.3)
    looked, plain = learner([objective]), learner([objective])
    rows = looked.look_up(ROWS, needs)
    np.testing.assert_allclose(rows.reference, of_action_tokens(looked.model), atol=1e-5)
    plan, _ = looked.plan({"fresh": rows}, 0)
    seen = passes(looked.model)
    looked._updater.run(plan)
    assert sum(seen) == len(ROWS.row_start) - 1, "no pass for the reference"
    plain.update({"fresh": ROWS}, 0)
    torch.testing.assert_close(parameters(looked), parameters(plain), rtol=1e-4, atol=1e-5)


def test_a_term_on_other_tokens_than_actions_gets_their_reference_too():
    class Everywhere(Reinforce):
        def weigh(self, update, rng):
            (stream,), metrics = super().weigh(update, rng)
            weights = np.ones(stream.rows.tokens, np.float32)
            weights[stream.rows.row_start[:-1]] = 0
            return [replace(stream, weights=weights)], metrics

        def loss(self, scores, weights):
            # The first minibatch of the phase: the reference is the model itself.
            torch.testing.assert_close(scores.reference, scores.log_probs.detach(), rtol=0, atol=1e-5)
            return super().loss(scores, weights)

    made = learner([Everywhere(kl=0.1)], minibatches=1)
    made.update({"fresh": made.look_up(ROWS, frozenset({"reference"}))}, 0)


def test_three_epochs_of_one_minibatch_are_three_updates_on_the_same_rows():
    """Behaviour log-probabilities and advantages stay; only the weights move."""
    once, thrice = learner([Reinforce()], minibatches=1, epochs=3), learner([Reinforce()], minibatches=1)
    metrics = reduce_metrics([once.update({"fresh": ROWS}, 0)])
    losses = [reduce_metrics([thrice.update({"fresh": ROWS}, 0)])["reinforce/loss"] for _ in range(3)]
    assert torch.equal(parameters(once), parameters(thrice))
    assert metrics["learner/steps"] == 3
    assert metrics["learner/tokens"] == 3 * ROWS.tokens
    assert metrics["reinforce/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_each_epoch_covers_every_row_and_is_cut_anew():
    made = learner([Reinforce()], epochs=4)
    plan, _ = made.plan({"fresh": ROWS}, 0)
    single, _ = learner([Reinforce()]).plan({"fresh": ROWS}, 0)
    cuts = [[sorted(part.row_ids) for (part,) in epoch] for epoch in plan.epochs]
    assert cuts[0] == [sorted(part.row_ids) for (part,) in single.epochs[0]]
    assert all(sorted(chain.from_iterable(cut)) == list(range(8)) for cut in cuts)
    assert any(cut != cuts[0] for cut in cuts)
    again, _ = made.plan({"fresh": ROWS}, 0)
    assert [[sorted(part.row_ids) for (part,) in epoch] for epoch in again.epochs] == cuts


def test_values_without_an_objective_that_trains_them_are_refused():
    with pytest.raises(ConfigError, match="critic that no objective trains"):
        learner([Reinforce()], gae.build(gae.Config()))


def world_rows(seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    rows = pack(random_groups(seed, groups=4, size=3))
    return replace(rows, entropy=rng.random(len(rows.row)).astype(np.float32))


WORLD = {
    "paw": lambda: paw.build(paw.Config(replay_ratio=0, rho=1.0)),
    "next_observation": lambda: next_observation.build(next_observation.Config()),
    "placebo": lambda: placebo.build(placebo.Config(of={"name": "paw", "replay_ratio": 0.0, "rho": 1.0})),
}


@pytest.mark.parametrize("world", WORLD)
@pytest.mark.parametrize("kind", ["head", "model"])
def test_world_model_terms_train_beside_ppo(world, kind):
    """gae and a value loss, through the learner: policy, world model and critic each have a gradient of their own."""
    algorithm = gae.build(gae.Config(lam=0.9))
    objectives = [policy_gradient.build(policy_gradient.Config()), value.build(value.Config()), WORLD[world]()]
    settings = {"critic": CriticConfig(kind=kind), "gradient_statistics_every": 1, "wm_max_grad_ratio": 0.5}
    made = learner(objectives, algorithm, **settings)
    for index in range(3):
        rows = algorithm.compute(made.look_up(world_rows(index), algorithm.needs))
        before = parameters(made)
        metrics = reduce_metrics([made.update({"fresh": rows}, index)])
        assert all(np.isfinite(v) for v in metrics.values())
        assert metrics["grad/ratio"] > 0, "policy and world model both have a gradient"
        assert metrics["critic/grad_norm"] > 0
        assert metrics["value/loss"] > 0
        assert metrics[f"{world}/loss"] > 0
        assert not torch.equal(parameters(made), before)
    assert rows.values is not None
    assert rows.values.any(), "the critic has learned something by the third update"


def test_a_bfloat16_model_takes_a_full_update_close_to_float32():
    """PaW beside the policy gradient with entropy bonus, KL and recomputed ratio, gae with a value head."""
    algorithm = gae.build(gae.Config(lam=0.9, kl=0.01))
    settings = policy_gradient.Config(entropy_bonus=0.01, kl=0.01, proximal="recomputed")
    losses, moved = [], []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model().to(dtype)
        objectives = [policy_gradient.build(settings), value.build(value.Config()), WORLD["paw"]()]
        config = CONFIG.model_copy(update={"minibatches": 1, "wm_max_grad_ratio": 10.0})
        made = Updater(model, Phase("policy", config, tuple(objectives), 10, algorithm.needs))
        rows = algorithm.compute(made.lookups.fill(world_rows(), algorithm.needs))
        before = torch.cat([p.detach().flatten().float() for p in model.parameters()])
        metrics = reduce_metrics([made.run(plan_of(made, rows))])
        assert all(np.isfinite(v) for v in metrics.values())
        losses.append({name: v for name, v in metrics.items() if name.endswith("/loss") or "entropy" in name})
        after = torch.cat([p.detach().flatten().float() for p in model.parameters()])
        moved.append(after - before)
    assert losses[0].keys() == losses[1].keys()
    for name, expected in losses[0].items():
        assert losses[1][name] == pytest.approx(expected, rel=0.05, abs=0.02), name
    # The first AdamW step is the learning rate times the sign of the gradient: count agreeing signs where both moved.
    both = (moved[0] != 0) & (moved[1] != 0)
    assert float((moved[0][both].sign() == moved[1][both].sign()).float().mean()) > 0.9


@pytest.mark.parametrize("budget", [48, 4096])
def test_gradient_checkpointing_changes_nothing_but_the_passes(budget):
    """Layers run again in the backward pass, and the engine finds the model in eval mode afterwards."""
    plain, frugal = (learner([Reinforce(), Observe()], token_budget=budget, wm_max_grad_ratio=0.5) for _ in range(2))
    frugal.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    calls = []
    frugal.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    trunks = passes(frugal.model)
    for made in (plain, frugal):
        made.update({"fresh": ROWS}, 0)
        assert not any(module.training for module in made.model.modules())
    assert len(calls) > len(trunks)
    torch.testing.assert_close(parameters(plain), parameters(frugal), rtol=1e-4, atol=1e-5)
