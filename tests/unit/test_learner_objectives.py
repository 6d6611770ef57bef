"""Objectives against double loops written from the papers' equations, on a model that both sides differentiate."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_rows import (
    Bigram,
    assert_same,
    demonstrations,
    episode,
    generator,
    group,
    objective,
    replayed,
    scores_of,
    split,
    update_of,
)

from learner.batch import pack, pack_demonstrations, pack_world
from learner.core import Rows
from learner.objectives import placebo
from protos.records import Demonstration, Span
from protos.telemetry import reduce_metrics

# --- PaW ---


def test_selection_is_global_and_ties_go_to_the_earlier_transition():
    """alpha 0.5 of six transitions with an observation: the three highest entropies, all in the second group."""
    rng = generator()
    first = episode([{"entropy": 0.1}, {"entropy": 0.2}, {"entropy": 9.0, "observation": 0}], 0.0, rng)
    second = episode([{"entropy": e} for e in (0.3, 0.5, 0.3, 0.3)], 0.0, rng)
    rows = pack([group([first]), group([second], repeat=1)])
    term = objective("paw", alpha=0.5)
    choices, metrics = term.choose({"fresh": rows}, rng)
    assert np.flatnonzero(choices["fresh"].selected).tolist() == [3, 4, 5]
    assert metrics["paw/entropy_threshold"].value == pytest.approx(0.3)
    assert metrics["paw/selected_share"].value == pytest.approx(0.5)
    assert metrics["paw/lambda"].value == pytest.approx(0.5)


@pytest.mark.parametrize(("alpha", "count"), [(0, 0), (0.01, 1), (0.1, 3), (0.75, 23), (1, 30)])
@pytest.mark.parametrize("selection", ["entropy", "random"])
def test_the_selected_share_is_rounded_up(selection: str, alpha: float, count: int):
    rows = pack([group([episode([{"entropy": float(e)} for e in range(30)], 0.0, generator())])])
    term = objective("paw", alpha=alpha, selection=selection, replay_ratio=2.0)
    choices, _ = term.choose({"fresh": rows}, generator(1))
    assert choices["fresh"].selected.sum() == count
    assert term.replay_rows(rows) == 2 * count


def test_random_selection_is_another_draw_for_another_generator_and_all_is_all():
    rows = pack([group([episode([{"entropy": float(e)} for e in range(30)], 0.0, generator())])])
    term = objective("paw", selection="random", alpha=0.5)
    drawn = [term.choose({"fresh": rows}, generator(s))[0]["fresh"].selected.tolist() for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    everything, _ = objective("paw", selection="all").choose({"fresh": rows}, generator())
    assert everything["fresh"].selected.all()


def test_paw_by_hand():
    """Eqs. 8 to 11 on two groups: lambda 0.5 with two selected transitions, lambda 1 with none."""
    rng = generator()
    high = episode([{"observation": 4, "entropy": 1.0}, {"observation": 2, "entropy": 1.0}], 0.5, rng)
    rows = pack([group([high], lam=0.5), group([episode([{"entropy": 0.0}], 0.0, rng)], lam=1.0, repeat=1)])
    term = objective("paw", alpha=2 / 3)
    (stream,), _ = term.weigh({"fresh": rows}, rng)
    # p of the six observation tokens; at rho 0.2 the tokens 0.1, 0.2, 0.05 count.
    p = [0.1, 0.9, 0.2, 0.5, 0.05, 0.3]
    weights = stream.weights[stream.weights != 0]
    assert weights == pytest.approx([0.5 / 2 / 2 / 4] * 4 + [0.5 / 2 / 2 / 2] * 2)
    scores = scores_of([math.log(value) for value in p])
    # log and exp do not give back 0.2 exactly: the boundary belongs to the mask, so ask with the value next to it.
    scores.log_probs.data[2] = math.log(0.2 - 1e-12)
    loss, metrics = term.loss(scores, torch.tensor(weights, dtype=torch.float64))
    right = 0.5 * 0.5 * ((0.9 + 0.8) / 4 + 0.95 / 2) / 2
    assert float(loss.detach()) == pytest.approx(right)
    loss.backward()
    assert scores.log_probs.grad is not None
    assert scores.log_probs.grad.tolist() == pytest.approx([-0.1 / 32, 0, -0.2 / 32, 0, -0.05 / 16, 0])
    values = reduce_metrics([metrics])
    assert values["paw/mask_rate"] == pytest.approx(0.5)
    assert values["paw/probability"] == pytest.approx(sum(p) / 6)
    assert term.keep(scores.log_probs).tolist() == [True, False, True, False, True, False]


def naive_paw(model: Bigram, rows: Rows, replay: Rows | None, config: dict) -> torch.Tensor:
    """Select, then eq. 8 for a transition, eq. 9 for a group, eq. 11 over all groups; then the replayed mean."""
    rho, alpha, lam = config.get("rho", 0.2), config.get("alpha", 0.75), config.get("lam", "adaptive")
    zero = torch.zeros((), dtype=torch.float64)

    def transition_loss(source: Rows, k: int) -> torch.Tensor:
        start, stop = source.observation[k].tolist()
        value = zero
        for n in range(start, stop):
            log_prob = model.log_prob(int(source.token_ids[n - 1]), int(source.token_ids[n]))
            if config.get("loss") == "cross_entropy":
                value = value - log_prob
            elif math.exp(float(log_prob.detach())) <= rho:
                value = value + 1 - torch.exp(log_prob)
        return value / (stop - start)

    able = [k for k in range(len(rows.row)) if rows.world[k]]
    ranked = sorted(able, key=lambda k: (-rows.entropy[k], k))
    chosen = ranked[: math.ceil(round(alpha * len(able), 9))]
    fresh = zero
    for g in range(rows.groups):
        mine = [k for k in chosen if rows.group[k] == g]
        if mine:
            weight = float(rows.lam[g]) if lam == "adaptive" else lam
            fresh = fresh + weight * sum((transition_loss(rows, k) for k in mine), zero) / len(mine)
    fresh = fresh / rows.groups
    if replay is None:
        return fresh
    drawn = [k for k in range(len(replay.row)) if replay.world[k]]
    weighted = zero
    for k in drawn:
        weight = float(replay.lam[replay.group[k]]) if lam == "adaptive" else lam
        weighted = weighted + float(replay.importance[k]) * weight * transition_loss(replay, k)
    old = weighted / sum(float(replay.importance[k]) for k in drawn)
    if config.get("combine") == "sum":
        return fresh + old
    return (len(chosen) * fresh + len(drawn) * old) / (len(chosen) + len(drawn))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("source", ["fresh", "both"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rows": "transition"},
        {"loss": "cross_entropy", "lam": 1.0},
        {"rho": 0.5, "alpha": 0.3, "combine": "sum"},
    ],
)
def test_paw_equals_the_definition(seed: int, source: str, config: dict):
    model, update = Bigram(seed), update_of(seed)
    if source == "fresh":
        del update["replay"]
    term = objective("paw", **config)
    streams, _ = term.weigh(update, generator())
    right = naive_paw(model, update["fresh"], update.get("replay"), config)
    for respect_keep in (False, True):
        loss, _ = model.loss(term, streams, respect_keep=respect_keep)
        assert_same(model, loss, right)


def test_both_sources_of_paw_have_a_gradient_and_a_loss_of_their_own():
    model, update = Bigram(0), update_of(0)
    term = objective("paw")
    streams, metrics = term.weigh(update, generator())
    assert [stream.source for stream in streams] == ["fresh", "replay"]
    assert streams[0].rows is update["fresh"]  # the policy's own forward pass
    for stream in streams:
        loss, calls = model.loss(term, [stream])
        assert model.gradient(loss).abs().max() > 1e-6
        assert calls[0][f"paw/loss/{stream.source}"].value == pytest.approx(float(loss.detach()))
        assert metrics[f"paw/transitions/{stream.source}"].value > 0


def test_a_group_that_always_wins_has_no_world_model_weight():
    rng = generator()
    rows = pack([group([episode([{}], 1.0, rng)], lam=0.0), group([episode([{}], 0.0, rng)], lam=1.0, repeat=1)])
    (stream,), _ = objective("paw", alpha=1.0).weigh({"fresh": rows}, rng)
    assert stream.weights[slice(*rows.observation[0])].tolist() == [0] * 3
    assert stream.weights[slice(*rows.observation[1])] == pytest.approx([1 / 2 / 3] * 3)


def test_a_group_that_lost_all_its_episodes_still_counts_in_the_mean_over_groups():
    rng = generator()
    rows = pack([group([episode([{}], 0.0, rng)], lam=1.0), group([], lam=1.0, repeat=1)])
    rows = replace(rows, advantages=np.ones(rows.tokens, np.float32))
    for name in ("paw", "policy_gradient"):
        (stream,), _ = objective(name, **({"alpha": 1.0} if name == "paw" else {})).weigh({"fresh": rows}, rng)
        assert stream.weights.sum() == pytest.approx(0.5)


# --- next observation, imitation ---


def naive_next_observation(model: Bigram, rows: Rows, normalise: str) -> torch.Tensor:
    means, sums, tokens = [], [], 0
    for k in range(len(rows.row)):
        if rows.world[k]:
            start, stop = rows.observation[k].tolist()
            value = -sum(model.log_prob(int(rows.token_ids[n - 1]), int(rows.token_ids[n])) for n in range(start, stop))
            means.append(value / (stop - start))
            sums.append(value)
            tokens += stop - start
    return torch.stack(means).mean() if normalise == "observation" else torch.stack(sums).sum() / tokens


@pytest.mark.parametrize("source", ["fresh", "demos"])
@pytest.mark.parametrize("normalise", ["observation", "token"])
@pytest.mark.parametrize("form", ["episode", "transition"])
def test_next_observation_equals_the_definition(source: str, normalise: str, form: str):
    model = Bigram(1)
    rows = update_of(1)["fresh"] if source == "fresh" else demonstrations(1)
    term = objective("next_observation", normalise=normalise, rows=form, coefficient=0.2)
    streams, _ = term.weigh({source: rows}, generator())
    loss, calls = model.loss(term, streams)
    assert_same(model, loss, 0.2 * naive_next_observation(model, rows, normalise))
    assert calls[0][f"next_observation/loss/{source}"].value == pytest.approx(float(loss.detach()))
    assert term.keep(torch.zeros(2)) is None
    assert term.replay_rows(rows) == 0


def test_the_papers_coefficient_of_next_observation():
    model, rows = Bigram(2), update_of(2)["fresh"]
    term = objective("next_observation")
    loss, _ = model.loss(term, term.weigh({"fresh": rows}, generator())[0])
    assert_same(model, loss, 0.05 * naive_next_observation(model, rows, "observation"))


def test_supervised_is_the_mean_over_action_tokens():
    model, rows = Bigram(3), demonstrations(3)
    term = objective("supervised")
    streams, _ = term.weigh({"demos": rows}, generator())
    loss, _ = model.loss(term, streams)
    positions = [n for start, stop in rows.action for n in range(start, stop)]
    terms = [-model.log_prob(int(rows.token_ids[n - 1]), int(rows.token_ids[n])) for n in positions]
    assert_same(model, loss, sum(terms, torch.zeros(())) / len(positions))


def test_a_masked_sequence_is_not_in_the_divisor():
    """Two sequences of 4 tokens with loss 1 each, one without an action: 1.0, not 0.5 (huggingface/trl#6369)."""
    tokens = np.arange(5, dtype=np.int32)
    demos = [
        Demonstration(tokens, (Span(1, 5),), (Span(5, 5),), "t", "x", True),
        Demonstration(tokens, (), (), "t", "x", True),
    ]
    term = objective("supervised")
    (stream,), _ = term.weigh({"demos": pack_demonstrations(demos)}, generator())
    weights = torch.as_tensor(stream.weights[stream.weights != 0], dtype=torch.float64)
    loss, _ = term.loss(scores_of([-1.0] * 4), weights)
    assert float(loss.detach()) == 1.0


# --- placebo ---


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_donors_are_a_derangement_across_groups(sizes: list[int], seed: int):
    rng = generator(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))
    donors = placebo.donors_of(groups, rng)
    if len(sizes) == 1:
        assert (donors == -1).all()
        return
    assert (groups[donors] != groups).all()
    if 2 * max(sizes) <= sum(sizes):
        assert sorted(donors.tolist()) == list(range(len(groups)))


def test_donors_of_nothing():
    assert placebo.donors_of(np.zeros(0, np.int64), generator()).tolist() == []


@pytest.mark.parametrize("name", ["paw", "next_observation"])
def test_the_placebo_reads_and_scores_observations_of_other_groups_within_the_budget(name: str):
    """Each group's observations hold one token of its own, so a donor is known by its text."""
    rng = generator(4)
    groups = []
    for g in range(5):
        turns = [{"observation": int(rng.integers(1, 5)), "entropy": float(rng.random())} for _ in range(4)]
        played = episode(turns, 0.0, rng)
        sequence = played.sequences[0]
        for t in sequence.transitions:
            sequence.token_ids[slice(*t.observation)] = g
        groups.append(group([played], lam=0.2 * g, repeat=g))  # the first group has lambda 0
    rows = pack(groups)
    update = {"fresh": rows, "replay": replayed(9)}
    of = {"name": name} | ({"replay_ratio": 0.0} if name == "paw" else {})
    own = objective(**of, rows="transition")
    fake = objective("placebo", of=of)
    own_streams, _ = own.weigh(update, generator(5))
    fake_streams, metrics = fake.weigh(update, generator(5))
    assert {stream.source for stream in fake_streams} == {"placebo"}
    trained, reading = own_streams[0], fake_streams[0]
    assert np.count_nonzero(trained.weights) == np.count_nonzero(reading.weights)
    assert trained.weights.sum() == pytest.approx(reading.weights.sum(), rel=1e-5)
    assert len(trained.rows.row) == len(reading.rows.row)
    for r in range(len(reading.rows.row)):
        mine, theirs = trained.rows, reading.rows
        head = slice(mine.row_start[r], mine.observation[r, 0]), slice(theirs.row_start[r], theirs.observation[r, 0])
        assert mine.token_ids[head[0]].tolist() == theirs.token_ids[head[1]].tolist()
        tail = slice(*theirs.observation[r])
        if reading.weights[tail].any():
            (text,) = set(theirs.token_ids[tail].tolist())
            assert text != theirs.group[r]
            assert reading.weights[tail].all()
            assert theirs.observation[r, 1] == theirs.row_start[r + 1]
    assert metrics["placebo/token_ratio"].value == pytest.approx(1.0)
    assert metrics["placebo/without_donor"].value == 0


def test_the_placebos_loss_is_the_terms_own():
    term, fake = objective("paw"), objective("placebo", of={"name": "paw", "replay_ratio": 0.0})
    scores, weights = scores_of([-0.1, -2.0, -3.0]), torch.ones(3, dtype=torch.float64)
    (own, own_metrics), (loss, metrics) = term.loss(scores, weights), fake.loss(scores, weights)
    assert torch.equal(own, loss)
    assert {key.replace("placebo", "paw") for key in metrics} == set(own_metrics)
    assert torch.equal(term.keep(scores.log_probs), fake.keep(scores.log_probs))
    assert fake.replay_rows(update_of(0)["fresh"]) == 0


def test_a_placebo_refuses_replayed_rows_whose_group_is_unknown():
    for of in ({"name": "paw"}, {"name": "paw", "replay_ratio": 0.1}):
        with pytest.raises(ValueError, match=r"of\.replay_ratio = 0"):
            placebo.Config(of=of)


def test_a_single_group_has_no_placebo():
    rows = pack([group([episode([{}, {}], 0.0, generator())])])
    streams, metrics = objective("placebo").weigh({"fresh": rows}, generator())
    assert streams == []
    assert metrics["placebo/without_donor"].value == 2
    assert metrics["placebo/no_tokens"].value == 1


# --- laws of all ---

EVERY = [
    ("policy_gradient", {"entropy_bonus": 0.02, "kl": 0.1}),
    ("paw", {}),
    ("paw", {"rows": "transition", "loss": "cross_entropy"}),
    ("next_observation", {"normalise": "token"}),
    ("placebo", {"of": {"name": "paw", "replay_ratio": 0.0}}),
    ("placebo", {"of": {"name": "next_observation"}}),
    ("supervised", {}),
    ("value", {}),
]
GAE = {"name": "gae"}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 4), budget=st.integers(10, 200))
@pytest.mark.parametrize(("name", "config"), EVERY)
def test_no_split_changes_loss_or_gradient(name: str, config: dict, seed: int, count: int, budget: int):
    model, term = Bigram(0), objective(name, **config)
    streams, _ = term.weigh({**update_of(seed, advantages=GAE), "demos": demonstrations(seed)}, generator(seed))
    whole, calls = model.loss(term, streams)
    parts = split(streams, count, budget, generator(seed))
    in_parts, part_calls = model.loss(term, streams, parts)
    assert_same(model, in_parts, whole)
    assert reduce_metrics(part_calls) == pytest.approx(reduce_metrics(calls))


@pytest.mark.parametrize(("name", "config"), EVERY)
def test_without_a_token_the_term_is_zero_with_a_finite_gradient(name: str, config: dict):
    """Every episode ended at once, without an observation, and no advantage differs from 0 (huggingface/trl#6668)."""
    rows = pack([group([episode([{"observation": 0}], math.nan, generator())] * 2, repeat=g) for g in range(2)])
    rows = replace(rows, values=rows.log_probs, value_targets=np.full(rows.tokens, np.nan, np.float32))
    term = objective(name, **config)
    streams, metrics = term.weigh({"fresh": rows}, generator())
    assert not any(stream.weights.any() for stream in streams)
    assert metrics[f"{term.name}/no_tokens"].value == 1
    nothing = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    scores = scores_of([], behaviour=[], advantages=[], entropy=[], reference=[])
    scores = replace(scores, values=nothing, old_values=nothing, value_targets=nothing)
    loss, measured = term.loss(scores, torch.zeros(0, dtype=torch.float64))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(math.isfinite(value) for value in reduce_metrics([metrics, measured]).values())


@pytest.mark.parametrize(("name", "config"), EVERY)
def test_an_update_of_nothing(name: str, config: dict):
    term = objective(name, **config)
    fresh = pack([])
    fresh = replace(fresh, values=fresh.log_probs, value_targets=fresh.log_probs)
    for update in ({"fresh": fresh}, {"fresh": fresh, "replay": pack_world([]), "demos": pack_demonstrations([])}):
        streams, metrics = term.weigh(update, generator())
        assert streams == []
        assert metrics[f"{term.name}/no_tokens"].value == 1


@pytest.mark.parametrize(("name", "config"), EVERY)
def test_weigh_is_pure_and_counts_no_token_when_there_is_one(name: str, config: dict):
    term, update = objective(name, **config), {**update_of(1, advantages=GAE), "demos": demonstrations(1)}
    first, metrics = term.weigh(update, generator(7))
    second, _ = term.weigh(update, generator(7))
    assert [stream.weights.tolist() for stream in first] == [stream.weights.tolist() for stream in second]
    assert [stream.rows.token_ids.tolist() for stream in first] == [stream.rows.token_ids.tolist() for stream in second]
    assert metrics[f"{term.name}/no_tokens"].value == 0
    assert term.world_model == (name in ("paw", "next_observation", "placebo"))
    assert (term.replay_rows(update["fresh"]) > 0) == (name == "paw")
    masked = "paw" in (name, config.get("of", {}).get("name")) and config.get("loss") != "cross_entropy"
    kept = term.keep(torch.tensor([-9.0, -0.1]))
    assert (kept is None) if not masked else kept.tolist() == [True, False]
