"""The learner through RLlib's LearnerGroup: updates, stops, resumes."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import ray
import torch
from learner_fixtures import TINY, VOCABULARY, Observe, Reinforce, make_rows, without_advantages
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.torch.torch_learner import TorchLearner

from learner.advantages import gae
from learner.config import CriticConfig, LearnerConfig, ModelConfig, OptimizerConfig
from learner.core import Rows
from learner.learner import Learner
from learner.objectives import value
from learner.optim import rate_factor
from learner.rllib import TandemLearner
from protos.errors import DataError, NonFiniteError
from protos.telemetry import reduce_metrics

ROWS = [make_rows(seed, count=8, groups=4) for seed in range(8)]
CONFIG = LearnerConfig(
    optimizer=OptimizerConfig(lr=1e-2, warmup_updates=4), micro_batch_tokens=48, token_budget=96, minibatches=2
)


def learner(config: LearnerConfig = CONFIG, objectives=None, seed: int = 0, model: ModelConfig = TINY) -> Learner:
    made = Learner(model, vocab_size=VOCABULARY, pad_id=0, eoa_id=2, seed=seed)
    made.begin_phase("policy", config, objectives or [Reinforce(bonus=0.01), Observe(rho=0.3)], total_updates=10)
    return made


def parameters(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in learner.model.parameters()])


def buffers(learner: Learner) -> torch.Tensor:
    """All optimizer state in one order."""
    assert learner._local.updater is not None
    states = {name: optimizer.state_dict()["state"] for name, optimizer in learner._local.updater.optimizers.items()}
    keys = sorted(
        (name, number, buffer) for name, state in states.items() for number in state for buffer in state[number]
    )
    return torch.cat([states[name][number][buffer].flatten().clone() for name, number, buffer in keys])


def test_updates_go_through_the_learner_group_without_a_ray_runtime(monkeypatch):
    calls = []
    for owner in (LearnerGroup, TandemLearner):
        real = owner.update
        monkeypatch.setattr(
            owner, "update", lambda self, *a, real=real, owner=owner, **k: (calls.append(owner), real(self, *a, **k))[1]
        )
    made = learner()
    before = parameters(made)
    metrics = reduce_metrics([made.update({"fresh": ROWS[0]}, 0)])
    assert calls == [LearnerGroup, TandemLearner]
    assert isinstance(made._local, TorchLearner)
    assert not ray.is_initialized()
    assert not torch.equal(parameters(made), before)
    assert metrics["learner/steps"] == 2
    assert metrics["learner/lr"] == pytest.approx(1e-2 / 4)
    assert metrics["learner/tokens"] == ROWS[0].tokens
    for name in ("weigh", "pack", "forward", "backward", "step", "fresh", "update"):
        assert metrics[f"learner/seconds/{name}"] > 0


def test_an_update_equals_a_plain_loop():
    """One minibatch: the same weights as autograd, clip and AdamW written out with the full (R, T, V) logits."""
    config = CONFIG.model_copy(update={"minibatches": 1, "max_grad_norm": 0.05})
    made, rows = learner(config, [Reinforce()]), ROWS[0]
    other = learner(config, [Reinforce()]).model
    made.update({"fresh": rows}, 0)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for n, p in other.named_parameters() if p.ndim == 2 and "embed" not in n],
                "weight_decay": 0.05,
            },
            {"params": [p for n, p in other.named_parameters() if p.ndim < 2 or "embed" in n], "weight_decay": 0.0},
        ],
        lr=1e-2 / 4,
        betas=(0.9, 0.95),
    )
    loss = torch.zeros(())
    for r, (start, stop) in enumerate(zip(rows.row_start[:-1], rows.row_start[1:], strict=True)):
        ids = torch.from_numpy(rows.token_ids[start:stop].astype(np.int64))
        log_probs = other(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        for first, last in rows.action[rows.row == r] - start:
            loss = (
                loss
                - (torch.from_numpy(rows.advantages[start:stop])[first:last] * log_probs[first - 1 : last - 1]).sum()
            )
    (loss / (rows.action[:, 1] - rows.action[:, 0]).sum()).backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
    optimizer.step()
    for ours, plain in zip(made.model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=2e-5)


def test_an_update_is_a_function_of_seed_and_index():
    one, two, three = learner(), learner(), learner(seed=1)
    for made in (one, two, three):
        torch.manual_seed(id(made) % 1000)
        made.update({"fresh": ROWS[0]}, 0)
    assert torch.equal(parameters(one), parameters(two))
    assert not torch.equal(parameters(one), parameters(three))


def test_micro_batches_and_budget_do_not_change_an_update():
    results = []
    for tokens, budget in ((16, 16), (48, 96), (4096, 4096)):
        config = CONFIG.model_copy(
            update={"micro_batch_tokens": tokens, "token_budget": budget, "wm_max_grad_ratio": 0.3}
        )
        made = learner(config)
        for index in range(3):
            made.update({"fresh": ROWS[index], "replay": ROWS[index + 4]}, index)
        results.append(parameters(made))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(results[2], results[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resume_is_exact(tmp_path, optimizer):
    """BC-37: three updates, save, three more, against load and the same three: bit for bit, state included."""
    config = CONFIG.model_copy(
        update={"minibatches": 1, "optimizer": OptimizerConfig(name=optimizer, lr=1e-2, warmup_updates=5)}
    )
    straight, resumed = learner(config), learner(config, seed=0)
    rates = [straight.update({"fresh": ROWS[index]}, index)["learner/lr"].value for index in range(3)]
    straight.save(tmp_path)
    rates += [straight.update({"fresh": ROWS[index]}, index)["learner/lr"].value for index in range(3, 6)]
    resumed.restore(tmp_path)
    again = [resumed.update({"fresh": ROWS[index]}, index)["learner/lr"].value for index in range(3, 6)]
    assert torch.equal(parameters(straight), parameters(resumed))
    assert torch.equal(buffers(straight), buffers(resumed))
    assert again == rates[3:] == [1e-2 * rate_factor(config.optimizer, index, 10) for index in range(3, 6)]
    assert resumed._local.updater is not None
    adamw = resumed._local.updater.optimizers["adamw"]
    assert {int(state["step"]) for state in adamw.state.values()} == {6}
    assert all(type(beta) is float for group in adamw.param_groups for beta in group["betas"])


def test_a_save_before_the_first_update_restores(tmp_path):
    one, two = learner(), learner(seed=5)
    one.save(tmp_path)
    two.restore(tmp_path)
    assert torch.equal(parameters(one), parameters(two))


def test_the_reference_policy_survives_a_resume(tmp_path):
    objectives = [Reinforce(kl=0.5)]
    straight, resumed = learner(objectives=objectives), learner(objectives=objectives, seed=3)
    straight.update({"fresh": ROWS[0]}, 0)
    straight.save(tmp_path)
    resumed.restore(tmp_path)
    rng_of_updates = [made.plan({"fresh": ROWS[1]}, 1)[0] for made in (straight, straight)]
    assert straight._local.updater is not None
    assert resumed._local.updater is not None
    metrics = [made._local.updater.run(plan) for made, plan in zip((straight, resumed), rng_of_updates, strict=True)]
    assert metrics[0]["reinforce/loss"] == metrics[1]["reinforce/loss"]
    assert torch.equal(parameters(straight), parameters(resumed))


PPO = gae.build(gae.Config(lam=0.9))
KINDS_OF_STATE = {
    "head": (CriticConfig(kind="head"), PPO, lambda: [Reinforce(), value.build(value.Config()), Observe(rho=0.3)]),
    "model": (CriticConfig(kind="model"), PPO, lambda: [Reinforce(), value.build(value.Config()), Observe(rho=0.3)]),
    "kl in the loss": (CriticConfig(), None, lambda: [Reinforce(kl=0.5)]),
    "kl in the reward": (
        CriticConfig(),
        gae.build(gae.Config(kl=0.1)),
        lambda: [Reinforce(kl=0.5), value.build(value.Config())],
    ),
}


def rewarded(index: int) -> Rows:
    """ROWS[index] with rewards: something for a critic to learn."""
    rewards = np.random.default_rng(index).normal(1.0, 1.0, len(ROWS[index].row)).astype(np.float32)
    return replace(ROWS[index], reward=rewards)


def with_algorithm(state: str, seed: int = 0, optimizer: str = "adamw") -> tuple[Learner, Callable[[int], None]]:
    """A learner in a phase of `KINDS_OF_STATE`, and a function that takes one update by its number."""
    critic, algorithm, objectives = KINDS_OF_STATE[state]
    settings = {"critic": critic, "optimizer": OptimizerConfig(name=optimizer, lr=1e-2, warmup_updates=5), "epochs": 2}
    made = Learner(TINY, vocab_size=VOCABULARY, pad_id=0, eoa_id=2, seed=seed)
    made.begin_phase("policy", CONFIG.model_copy(update=settings), objectives(), 10, algorithm)

    def update(index: int) -> None:
        rows = rewarded(index)
        if algorithm is not None:
            rows = algorithm.compute(made.look_up(rows, algorithm.needs))
        made.update({"fresh": rows}, index)

    return made, update


def everything(made: Learner) -> dict[str, torch.Tensor]:
    """Weights, critic, reference and optimizer state."""
    updater = made._updater
    found = {"weights": parameters(made), "optimizers": buffers(made)}
    if updater.critic is not None:
        found["critic"] = torch.cat([p.detach().flatten().clone() for p in updater.critic.parameters()])
    if updater.reference is not None:
        found["reference"] = torch.cat([p.flatten().clone() for p in updater.reference.state().values()])
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("state", KINDS_OF_STATE)
def test_critic_and_reference_resume_exactly(tmp_path, state, optimizer):
    """BC-37 for their states: three updates, a save, three more, against a load into a learner of other weights and the
    same three; the advantages come from the critic and the reference of each. Bit for bit."""
    straight, update = with_algorithm(state, optimizer=optimizer)
    for index in range(3):
        update(index)
    straight.save(tmp_path)
    resumed, again = with_algorithm(state, seed=0, optimizer=optimizer)
    with torch.no_grad():
        for p in resumed.model.parameters():
            p.add_(0.1)  # as after a crash: nothing of the process before is left
    resumed.begin_phase(
        "policy", resumed._updater.phase.config, resumed._updater.phase.objectives, 10, KINDS_OF_STATE[state][1]
    )
    resumed.restore(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(everything(straight).values(), everything(resumed).values(), strict=True)
    )
    for index in range(3, 6):
        update(index)
        again(index)
    one, two = everything(straight), everything(resumed)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    adamw = resumed._updater.optimizers["adamw"]
    assert {int(entry["step"]) for entry in adamw.state.values()} == {6 * 4}
    groups = [group for optimizer in resumed._updater.optimizers.values() for group in optimizer.param_groups]
    assert all(type(beta) is float for group in groups for beta in group.get("betas", ()))


def test_the_critic_of_a_resumed_run_gives_the_values_of_the_one_that_was_saved(tmp_path):
    straight, update = with_algorithm("model")
    update(0)
    straight.save(tmp_path)
    resumed, _ = with_algorithm("model", seed=4)
    resumed.restore(tmp_path)
    values = [made.look_up(rewarded(1), PPO.needs).values for made in (straight, resumed)]
    assert values[0].any()
    np.testing.assert_array_equal(*values)


def test_a_critic_of_another_kind_or_none_is_not_restored(tmp_path):
    made, _ = with_algorithm("head")
    made.save(tmp_path)
    other, _ = with_algorithm("model")
    with pytest.raises(DataError, match="critic = 'head', this run has 'model'"):
        other.restore(tmp_path)
    with pytest.raises(DataError, match="critic = 'head', this run has None"):
        learner(objectives=[Reinforce()]).restore(tmp_path)


def test_the_files_of_a_save_without_critic_and_reference_are_those_of_the_optimizer_alone(tmp_path):
    learner().save(tmp_path)
    assert {path.name for path in (tmp_path / "trainer").iterdir()} == {"optimizer.safetensors", "state.json"}


def test_state_of_another_phase_or_optimizer_is_refused(tmp_path):
    made = learner()
    made.save(tmp_path / "policy")
    made.begin_phase("warm_start", CONFIG, [Reinforce()], 10)
    with pytest.raises(DataError, match="phase = 'policy', this run has 'warm_start'"):
        made.restore(tmp_path / "policy")
    muon = learner(CONFIG.model_copy(update={"optimizer": OptimizerConfig(name="muon")}))
    with pytest.raises(DataError, match="optimizers"):
        muon.restore(tmp_path / "policy")
    with pytest.raises(DataError, match="not resumed"):
        made.restore(tmp_path)


def test_a_checkpoint_folder_starts_a_new_learner(tmp_path):
    made = learner()
    made.update({"fresh": ROWS[0]}, 0)
    made.save(tmp_path)
    loaded = learner(model=ModelConfig(path=str(tmp_path)))
    assert torch.equal(parameters(made), parameters(loaded))


def poisoned(where: str):
    rows = ROWS[0]
    column = getattr(rows, where).copy()
    column[rows.action[rows.row == 5][0][0]] = np.nan
    return replace(rows, **{where: column})


class Overflow(Reinforce):
    """A finite loss whose gradient is not: sqrt at 0."""

    def loss(self, scores, weights):
        loss, metrics = super().loss(scores, weights)
        return loss + (scores.log_probs * 0).sum().sqrt(), metrics


def test_nan_in_the_data_stops_before_the_weights_change():
    made = learner(CONFIG.model_copy(update={"minibatches": 1}))
    made.update({"fresh": ROWS[1]}, 0)
    before, state = parameters(made), buffers(made)
    with pytest.raises(
        NonFiniteError, match=r"update 1, minibatch 0: the loss of reinforce .* rows \[5\] of groups \[2\]"
    ):
        made.update({"fresh": poisoned("advantages")}, 1)
    assert torch.equal(parameters(made), before)
    assert torch.equal(buffers(made), state)


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change():
    """RLlib's default would set it to 0 and step."""
    made = learner(objectives=[Overflow()])
    before = parameters(made)
    with pytest.raises(NonFiniteError, match=r"update 0, minibatch 0: the learner gradient is not finite, on 4 rows"):
        made.update({"fresh": ROWS[0]}, 0)
    assert torch.equal(parameters(made), before)


def test_after_a_stop_training_goes_on_as_if_the_batch_had_not_been():
    one, two = learner(), learner()
    with pytest.raises(NonFiniteError):
        one.update({"fresh": poisoned("advantages")}, 0)
    # The first minibatch of the bad update may have been taken: start both from the same weights.
    two.model.load_state_dict(one.model.state_dict())
    one.begin_phase("policy", CONFIG, [Reinforce()], 10)
    two.begin_phase("policy", CONFIG, [Reinforce()], 10)
    for made in (one, two):
        made.update({"fresh": ROWS[2]}, 1)
    assert torch.equal(parameters(one), parameters(two))


def test_a_gradient_of_zero_is_no_step():
    """All-fail groups under the safeguard: neither momentum nor weight decay moves the weights."""
    made = learner(CONFIG.model_copy(update={"wm_max_grad_ratio": 1.0}), [Reinforce(), Observe()])
    made.update({"fresh": ROWS[0]}, 0)
    before = parameters(made)
    metrics = reduce_metrics([made.update({"fresh": without_advantages(ROWS[1])}, 1)])
    assert torch.equal(parameters(made), before)
    assert metrics["learner/steps"] == 0
    assert metrics["safeguard/active"] == 1


def test_the_safeguard_is_off_in_a_phase_without_a_policy_term():
    made = learner(CONFIG.model_copy(update={"wm_max_grad_ratio": 0.1}), [Observe()])
    metrics = reduce_metrics([made.update({"fresh": ROWS[0]}, 0)])
    assert metrics["learner/steps"] == 2
    assert "safeguard/scale" not in metrics


def test_gradient_statistics_come_every_n_updates():
    made = learner(CONFIG.model_copy(update={"gradient_statistics_every": 2}), [Reinforce(), Observe()])
    seen = ["grad/cosine" in made.update({"fresh": ROWS[index]}, index) for index in range(4)]
    assert seen == [True, False, True, False]


def test_an_update_with_nothing_to_train_on_changes_nothing():
    made = learner(objectives=[Observe()])
    rows = replace(ROWS[0], observation=np.stack([ROWS[0].observation[:, 0]] * 2, axis=1))
    before = parameters(made)
    made.update({"fresh": rows}, 0)
    assert torch.equal(parameters(made), before)


def test_a_plan_survives_pickling_with_its_rows_still_shared():
    """What crosses to a remote learner: numpy arrays, each set of rows once."""
    made = learner()
    plan, _ = made.plan({"fresh": ROWS[0]}, 0)
    copy = pickle.loads(pickle.dumps(plan))
    assert made._local.updater is not None
    other = learner()
    assert other._local.updater is not None
    made._local.updater.run(plan)
    other._local.updater.run(copy)
    assert torch.equal(parameters(made), parameters(other))


def test_score_follows_the_weights():
    made, rows = learner(), ROWS[0]
    wanted = np.ones(rows.tokens, bool)
    wanted[rows.row_start[:-1]] = False
    before = made.score(rows, wanted)
    made.update({"fresh": rows}, 0)
    assert (made.score(rows, wanted) != before).any()
