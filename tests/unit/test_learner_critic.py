"""The critic: its values against a loop over prefixes, its gradient against autograd on losses written by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_fixtures import Observe, Reinforce, make_rows, tiny_model, without_advantages
from torch.nn import functional as F

from learner.batch import minibatches
from learner.config import CriticConfig, LearnerConfig, OptimizerConfig
from learner.core import Rows, Stream
from learner.critic import Critic
from learner.objectives import value
from learner.update import Phase, Plan, Updater
from protos.errors import NonFiniteError
from protos.telemetry import reduce_metrics

VALUES = frozenset({"values"})
CONFIG = LearnerConfig(optimizer=OptimizerConfig(lr=1e-2, warmup_updates=4), micro_batch_tokens=32, token_budget=64)
KINDS = ["head", "model"]


def value_term(coefficient: float = 0.5, clip: float | None = None):
    return value.build(value.Config(coefficient=coefficient, clip=clip))


def updater(kind: str, objectives=None, model=None, **settings) -> Updater:
    config = CONFIG.model_copy(update={"critic": CriticConfig(kind=kind, lr=3e-2)} | settings)
    objectives = [Reinforce(), value_term()] if objectives is None else objectives
    return Updater(tiny_model() if model is None else model, Phase("policy", config, tuple(objectives), 10, VALUES))


def disturb(module: torch.nn.Module, seed: int = 7, size: float = 0.3) -> None:
    """Add noise to the parameters: a critic that was trained for a while."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(size * torch.randn(p.shape, generator=rng, dtype=p.dtype))


def with_targets(rows: Rows, seed: int = 0) -> Rows:
    """`rows` with values of some critic and targets of some estimator."""
    rng = np.random.default_rng(seed)
    values, targets = (rng.normal(0, 1, rows.tokens).astype(np.float32) for _ in range(2))
    return replace(rows, values=values, value_targets=targets)


def plan(made: Updater, rows: Rows, count: int = 1, index: int = 0) -> Plan:
    streams = [
        (number, stream)
        for number, objective in enumerate(made.phase.objectives)
        for stream in objective.weigh({"fresh": rows}, np.random.default_rng(0))[0]
    ]
    parts = minibatches([stream for _, stream in streams], count, np.random.default_rng(1))
    return Plan(index, tuple(streams), (tuple(tuple(part) for part in parts),))


def flat(parameters) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in parameters])


def gradient(parameters) -> torch.Tensor:
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])


def trunk_of(made: Updater) -> torch.nn.Module:
    assert made.critic is not None
    return made.model.base_model if made.critic.trunk is None else made.critic.trunk


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_zero_before_the_first_step(kind):
    rows = updater(kind).lookups.fill(make_rows(), VALUES)
    assert rows.values is not None
    assert not rows.values.any()


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_every_prefix_that_is_wanted(kind):
    """A forward pass for each prefix: before every action token, and of the whole row; nothing elsewhere."""
    made, rows = updater(kind), make_rows(count=8)
    disturb(made.critic)
    found = made.lookups.fill(rows, VALUES).values
    linear, expected = made.critic.head.linear, np.zeros(rows.tokens, np.float32)
    for start, stop in zip(rows.row_start[:-1], rows.row_start[1:], strict=True):
        ids = torch.from_numpy(rows.token_ids[start:stop].astype(np.int64))
        before_actions = {n - 1 for a, b in rows.action if start <= a < stop for n in range(a, b)}
        for end in sorted(before_actions | {stop - 1}):
            with torch.no_grad():
                hidden = trunk_of(made)(input_ids=ids[None, : end - start + 1], use_cache=False).last_hidden_state
                expected[end] = float(hidden[0, -1] @ linear.weight[0] + linear.bias[0])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected[expected != 0]).min() > 0


def test_a_critic_of_its_own_starts_as_the_policys_copy_and_shares_nothing_trainable():
    model = tiny_model()
    critic = Critic(model, CriticConfig(kind="model"))
    assert critic.trunk is not None
    mine = {id(p) for p in model.parameters()}
    assert not mine & {id(p) for p in critic.parameters()}
    torch.testing.assert_close(flat(critic.trunk.parameters()), flat(model.base_model.parameters()), rtol=0, atol=0)


def test_frozen_parameters_are_shared_with_the_critic():
    """Under adapters a critic costs its adapters, not another copy of the model."""
    model = tiny_model()
    adapters = [p for name, p in model.named_parameters() if "q_proj" in name]
    for p in model.parameters():
        p.requires_grad_(any(p is adapter for adapter in adapters))
    critic = Critic(model, CriticConfig(kind="model"))
    mine = {id(p) for p in model.parameters()}
    assert {name for name, p in critic.named_parameters() if id(p) not in mine} == set(critic.trainable())
    assert sum("q_proj" in name for name in critic.trainable()) == len(adapters)


def hand_loss(model, trunk, linear, rows: Rows, coefficient: float) -> torch.Tensor:
    """-A log p and coefficient (V - T)^2, mean over action tokens, and -log p, mean over observation tokens.

    Token by token, every row on its own, without padding."""
    actions = int((rows.action[:, 1] - rows.action[:, 0]).sum())
    observed = int((rows.observation[:, 1] - rows.observation[:, 0]).sum())
    loss = torch.zeros((), dtype=torch.float64)
    for r, (start, stop) in enumerate(zip(rows.row_start[:-1], rows.row_start[1:], strict=True)):
        ids = torch.from_numpy(rows.token_ids[start:stop].astype(np.int64))[None]
        log_probs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        values = F.linear(trunk(input_ids=ids, use_cache=False).last_hidden_state[0], linear.weight, linear.bias)
        for a, b in rows.action[rows.row == r] - start:
            for n in range(a, b):
                error = values[n - 1, 0] - float(rows.value_targets[start + n])
                gain = float(rows.advantages[start + n]) * log_probs[n - 1, ids[0, n]]
                loss = loss + (coefficient * error**2 - gain) / actions
        for a, b in rows.observation[rows.row == r] - start:
            for n in range(a, b):
                loss = loss - log_probs[n - 1, ids[0, n]] / observed
    return loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statistics", [0, 1])
@pytest.mark.parametrize("bound", [None, 1e9])
@pytest.mark.parametrize("budget", [32, 4096])
def test_gradients_are_those_of_the_loss_written_by_hand_in_double(kind, statistics, bound, budget):
    """Through one graph or many, and through the safeguard's split of policy, world model and critic."""
    model, rows = tiny_model(double=True), with_targets(make_rows(count=9))
    made = updater(
        kind,
        [Reinforce(), value_term(0.7), Observe()],
        model,
        critic=CriticConfig(kind=kind, max_grad_norm=1e9),
        max_grad_norm=1e9,
        wm_max_grad_ratio=bound,
        gradient_statistics_every=statistics,
        token_budget=budget,
    )
    disturb(made.critic)
    parameters = [*model.parameters(), *made.critic.parameters()]
    hand_loss(model, trunk_of(made), made.critic.head.linear, rows, 0.7).backward()
    expected = gradient(parameters)
    made.run(plan(made, rows))
    # transformers normalises in float32 whatever the model's type: so close and no closer.
    torch.testing.assert_close(gradient(parameters), expected, rtol=1e-5, atol=2e-7)


def test_a_critic_of_its_own_leaves_the_policy_exactly_as_without_it():
    """Weights bit for bit, and the gradient statistics and the safeguard's figures too."""
    rows = with_targets(make_rows(count=9))
    settings = {"wm_max_grad_ratio": 0.3, "gradient_statistics_every": 1}
    alone = updater("model", [Reinforce(), Observe()], **settings)
    beside = updater("model", [Reinforce(), Observe(), value_term()], **settings)
    start = flat(beside.critic.parameters())
    metrics = [reduce_metrics([made.run(plan(made, rows, 2))]) for made in (alone, beside)]
    assert torch.equal(flat(alone.model.parameters()), flat(beside.model.parameters()))
    assert not torch.equal(flat(beside.critic.parameters()), start)
    shared = [name for name in metrics[0] if "seconds" not in name and not name.startswith("critic/")]
    assert {"grad/cosine", "safeguard/ratio", "learner/grad_norm", "learner/tokens"} <= set(shared)
    assert {name: metrics[0][name] for name in shared} == {name: metrics[1][name] for name in shared}


def test_the_safeguard_measures_against_the_policy_and_not_against_the_critic():
    """A value loss on the same trunk, however large, gives the world model no room."""
    rows = with_targets(make_rows(count=9))
    ratios = []
    for terms in ([Reinforce(), Observe()], [Reinforce(), Observe(), value_term(100.0)]):
        made = updater("head", terms, wm_max_grad_ratio=0.3)
        disturb(made.critic)
        ratios.append(reduce_metrics([made.run(plan(made, rows))])["safeguard/ratio"])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)


def test_where_every_group_fails_the_critic_learns_and_the_world_model_sits_out():
    rows = with_targets(without_advantages(make_rows(count=9)))
    made = updater("model", [Reinforce(), Observe(), value_term()], wm_max_grad_ratio=0.3)
    policy, critic = flat(made.model.parameters()), flat(made.critic.parameters())
    metrics = reduce_metrics([made.run(plan(made, rows))])
    assert torch.equal(flat(made.model.parameters()), policy)
    assert not torch.equal(flat(made.critic.parameters()), critic)
    assert (metrics["learner/steps"], metrics["critic/steps"], metrics["safeguard/scale"]) == (0, 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_not_asked_about_tokens_that_only_the_critic_scores(kind):
    made, rows, sizes = updater(kind, [value_term()]), with_targets(make_rows()), []
    made.model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    made.run(plan(made, made.lookups.fill(rows, VALUES)))
    assert not sizes


def test_rows_that_only_the_critic_scores_do_not_pass_through_the_policy():
    rows = with_targets(make_rows(count=9))
    made = updater("model")
    (policy, critic) = plan(made, rows).streams
    weights = policy[1].weights.copy()
    weights[: rows.row_start[5]] = 0
    streams = ((0, Stream(rows, "fresh", weights)), critic)
    metrics = reduce_metrics([made.run(Plan(0, streams, plan(made, rows).epochs))])
    assert metrics["learner/tokens"] == rows.tokens - rows.row_start[5]
    assert metrics["critic/tokens"] == rows.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_has_no_weight_decay_and_each_parameter_one_optimizer(kind):
    made = updater(kind)
    groups = [group for optimizer in made.optimizers.values() for group in optimizer.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    owned = {id(p) for p in [*made.model.parameters(), *made.critic.parameters()]}
    assert len(held) == len(set(held))
    assert set(held) == owned
    head = {id(p) for p in made.critic.head.parameters()}
    assert all(group["weight_decay"] == 0 for group in groups if head & {id(p) for p in group["params"]})


@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_follows_the_phases_schedule_at_its_own_rate_and_clip(kind):
    rows = with_targets(make_rows())
    made = updater(kind, critic=CriticConfig(kind=kind, lr=3e-2, max_grad_norm=1e-3))
    metrics = [reduce_metrics([made.run(plan(made, rows, index=index))]) for index in range(4)]
    factor = [m["learner/lr"] / 1e-2 for m in metrics]
    assert factor[0] == pytest.approx(0.25)
    assert [m["critic/lr"] for m in metrics] == pytest.approx([3e-2 * f for f in factor])
    norm = gradient([p for p in made.critic.parameters() if p.requires_grad]).norm()
    assert metrics[-1]["critic/grad_norm"] > 1e-3
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)
    assert metrics[-1]["critic/clipped"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_learns_its_targets(kind):
    """Constant targets: the squared error falls to next to nothing."""
    rows = with_targets(make_rows())
    rows = replace(rows, value_targets=np.full(rows.tokens, 1.5, np.float32))
    made = updater(kind, [value_term()])
    errors = [reduce_metrics([made.run(plan(made, rows, index=4))])["value/loss"] for _ in range(60)]
    assert errors[0] == pytest.approx(0.5 * 1.5**2, rel=1e-3)
    assert errors[-1] < 0.02 * errors[0]
    learned = made.lookups.fill(rows, VALUES).values
    np.testing.assert_allclose(learned[rows.action[:, 0] - 1], 1.5, atol=0.4)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_value_loss_names_its_rows_and_steps_nobody(kind):
    rows = with_targets(make_rows(count=6, groups=3))
    made = updater(kind)
    targets = rows.value_targets.copy()
    (_, policy), (_, critic) = plan(made, rows).streams
    targets[rows.action[rows.row == 4][0][0]] = np.nan
    bad = replace(rows, value_targets=targets)
    streams = tuple((i, replace(stream, rows=bad)) for i, stream in enumerate((policy, critic)))
    parts = tuple(replace(part, rows=bad) for part in plan(made, rows).minibatches[0])
    before = flat([*made.model.parameters(), *made.critic.parameters()])
    with pytest.raises(
        NonFiniteError, match=r"loss of value is not finite on fresh rows \[4\] of groups \[2\]; the step was"
    ):
        made.run(Plan(0, streams, ((parts,),)))
    assert torch.equal(flat([*made.model.parameters(), *made.critic.parameters()]), before)
    assert not any(module.training for module in [*made.model.modules(), *made.critic.modules()])
    made.run(plan(made, rows))
    assert not torch.equal(flat([*made.model.parameters(), *made.critic.parameters()]), before)


def test_a_nan_in_a_later_minibatch_says_what_was_taken():
    """The first minibatch stands, for policy and critic alike; of the second nothing is applied."""
    rows = with_targets(make_rows(count=6, groups=3))
    bad, once = updater("model"), updater("model")
    first, second = plan(bad, rows, 2).minibatches
    targets = rows.value_targets.copy()
    targets[rows.action[rows.row == second[0].row_ids[0]][0][0]] = np.nan
    poisoned = replace(rows, value_targets=targets)
    streams = tuple((i, replace(stream, rows=poisoned)) for i, stream in plan(bad, rows).streams)
    parts = tuple(tuple(replace(part, rows=poisoned) for part in one) for one in (first, second))
    with pytest.raises(NonFiniteError, match=r"minibatch 1: .* the step was not taken, the 1 before it was"):
        bad.run(Plan(0, streams, (parts,)))
    clean = plan(once, rows, 2)
    scaled = Plan(0, clean.streams, (clean.epochs[0],))
    original = once._minibatch
    seen = []
    once._minibatch = lambda *a: original(*a) if not seen and not seen.append(1) else {}
    once.run(scaled)
    assert torch.equal(flat(bad.model.parameters()), flat(once.model.parameters()))
    assert torch.equal(flat(bad.critic.parameters()), flat(once.critic.parameters()))


class Overflow(value.Value):
    """A finite loss whose gradient is not: sqrt at 0."""

    def loss(self, scores, weights):
        loss, metrics = super().loss(scores, weights)
        return loss + (scores.values * 0).sum().sqrt(), metrics


def test_a_critics_gradient_that_is_not_finite_steps_nobody():
    """Found after the policy's backward pass and before anybody's step."""
    rows = with_targets(make_rows())
    made = updater("model", [Reinforce(), Overflow(value.Config())])
    before = flat([*made.model.parameters(), *made.critic.parameters()])
    with pytest.raises(NonFiniteError, match=r"the critic gradient is not finite, on 6 rows .* the step was not taken"):
        made.run(plan(made, rows))
    assert torch.equal(flat([*made.model.parameters(), *made.critic.parameters()]), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bfloat16_trunk_has_a_critic_in_float32(kind):
    """Values, head and its gradient in float32, whatever the trunk; close to those of a float32 trunk."""
    rows, norms = with_targets(make_rows()), []
    for dtype in (torch.float32, torch.bfloat16):
        made = updater(kind, model=tiny_model().to(dtype))
        disturb(made.critic.head)
        assert made.critic.head.linear.weight.dtype == torch.float32
        values = made.lookups.fill(rows, VALUES).values
        assert values.dtype == np.float32
        norms.append((values, reduce_metrics([made.run(plan(made, rows))])["critic/grad_norm"]))
        assert made.critic.head.linear.weight.grad.dtype == torch.float32
    (values, norm), (rough_values, rough_norm) = norms
    np.testing.assert_allclose(rough_values, values, atol=0.1)
    assert rough_norm == pytest.approx(norm, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_with_adapters_only_they_and_the_critics_own_move(kind):
    """LoRA in the trunk: a critic of its own copies the adapters, and the reference policy is a copy of them alone."""
    peft = pytest.importorskip("peft")
    model = tiny_model()
    torch.manual_seed(0)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]), model)
    made = updater(kind, [Reinforce(kl=0.1), value_term()], model)
    adapters = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.split(".")[-3] for name in adapters} == {"lora_A", "lora_B"}
    assert set(made.reference.state()) == adapters
    own = {name for name in made.critic.trainable() if not name.startswith("head.")}
    assert len(own) == (len(adapters) if kind == "model" else 0)
    frozen = flat(p for p in model.parameters() if not p.requires_grad)
    before = [flat(p for p in model.parameters() if p.requires_grad), flat(made.critic.trainable().values())]
    rows = with_targets(make_rows())
    for index in range(2):
        metrics = reduce_metrics([made.run(plan(made, rows, index=index))])
    assert torch.equal(flat(p for p in model.parameters() if not p.requires_grad), frozen)
    after = [flat(p for p in model.parameters() if p.requires_grad), flat(made.critic.trainable().values())]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert metrics["critic/steps"] == metrics["learner/steps"] == 1
