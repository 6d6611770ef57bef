"""Scores against the plain forward pass of the Hugging Face model, row by row and without padding."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_fixtures import VOCABULARY, Observe, Reinforce, make_rows, spans_mask, tiny_model
from learner_rows import owner_of

from learner.core import Scores, Stream
from learner.network import Network, policy_network
from learner.scoring import Fixed, Term, _only, owners, pad, score, score_terms, scored_tokens, trunk
from learner.vocabulary import entropies
from protos.errors import NonFiniteError

MODEL = tiny_model()
NETWORK = policy_network(MODEL)


def reference_log_probs(rows, model=MODEL) -> np.ndarray:
    """(N, V) log-probabilities of every token by a forward pass of its row alone; NaN on first tokens."""
    table = np.full((rows.tokens, VOCABULARY), np.nan, np.float32)
    for start, stop in zip(rows.row_start[:-1], rows.row_start[1:], strict=True):
        ids = torch.from_numpy(rows.token_ids[start:stop].astype(np.int64))
        with torch.no_grad():
            table[start + 1 : stop] = model(ids[None]).logits[0, :-1].log_softmax(-1).numpy()
    return table


def of_tokens(rows, table) -> np.ndarray:
    return table[np.arange(rows.tokens), rows.token_ids]


def term(objective, rows, weights=None) -> Term:
    (stream,), _ = objective.weigh({"fresh": rows}, np.random.default_rng(0))
    return Term(objective, stream if weights is None else Stream(rows, "fresh", weights))


def run(rows, terms, row_ids=None, model=MODEL):
    ids = np.arange(len(rows.row_start) - 1) if row_ids is None else row_ids
    network, micro = policy_network(model), pad(rows, ids)
    tokens = scored_tokens(micro, terms)
    hidden = trunk(network, micro).index_select(0, tokens.slots)
    return tokens, *score_terms(network, micro, tokens, hidden, terms)


class Recorder(Reinforce):
    """Keeps the scores it was given."""

    def loss(self, scores: Scores, weights):
        self.seen = scores
        return super().loss(scores, weights)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 40))
def test_log_probs_equal_a_forward_pass_of_each_row_alone(seed, count, budget):
    """Whatever the padding and the split, to 1e-5: what makes the learner's ratio 1 on the engine's own samples."""
    rows = make_rows(seed, count, groups=1)
    wanted = np.random.default_rng(seed).random(rows.tokens) < 0.5
    wanted[rows.row_start[:-1]] = False
    expected = np.where(wanted, of_tokens(rows, reference_log_probs(rows)), 0.0)
    np.testing.assert_allclose(score(NETWORK, rows, wanted, budget), expected, atol=1e-5)


def test_nothing_wanted_is_nothing_scored():
    rows = make_rows()
    assert not score(NETWORK, rows, np.zeros(rows.tokens, bool), 64).any()


def test_the_first_token_of_a_row_cannot_be_scored():
    rows = make_rows()
    with pytest.raises(ValueError, match="first token"):
        score(NETWORK, rows, np.ones(rows.tokens, bool), 64)


def test_padding_is_told_by_length_and_never_by_token_value():
    """BC-24: pad = eos = 0, ids [5, 6, 0, 7, 8, 0]; both zeros are real, attended to, and in the loss."""
    rows = replace(
        make_rows(count=2, groups=1),
        token_ids=np.array([5, 6, 0, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8], np.int32),
        row_start=np.array([0, 6, 14]),
    )
    micro = pad(rows, np.array([0, 1]))
    assert micro.token_ids.tolist() == [[5, 6, 0, 7, 8, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert micro.slots[micro.flat < 6].tolist() == [0, 1, 2, 3, 4, 5]
    wanted = np.ones(14, bool)
    wanted[[0, 6]] = False
    expected = of_tokens(rows, reference_log_probs(rows))
    np.testing.assert_allclose(score(NETWORK, rows, wanted, 64)[wanted], expected[wanted], atol=1e-5)


def test_scores_carry_the_columns_of_their_tokens():
    rows = make_rows()
    objective = Recorder(bonus=0.1)
    tokens, _, _ = run(rows, [term(objective, rows)])
    mask = spans_mask(rows.tokens, rows.action)
    assert set(tokens.flat) == set(np.flatnonzero(mask))
    seen, table = objective.seen, reference_log_probs(rows)
    np.testing.assert_allclose(seen.log_probs.detach(), of_tokens(rows, table)[tokens.flat], atol=1e-5)
    entropy = -(np.exp(table) * table).sum(-1)[tokens.flat]
    np.testing.assert_allclose(seen.entropy.detach(), entropy, atol=1e-5)
    np.testing.assert_array_equal(seen.behaviour, rows.log_probs[tokens.flat])
    np.testing.assert_array_equal(seen.advantages, rows.advantages[tokens.flat])
    assert seen.reference is None
    assert seen.source == "fresh"


def test_entropy_is_not_made_where_nobody_reads_it():
    rows, objective = make_rows(), Recorder()
    run(rows, [term(objective, rows)])
    assert objective.seen.entropy is None


def test_no_logits_outside_scored_tokens(monkeypatch):
    """The output matrix never sees the padded batch."""
    rows = make_rows()
    sizes = []
    handle = MODEL.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    tokens, _, _ = run(rows, [term(Reinforce(), rows)])
    handle.remove()
    assert sizes == [len(tokens.flat)]


def constrained(rows, allowed: dict[int, list[int]]):
    """`rows` with admissible ids on some tokens."""
    sizes = np.array([len(allowed.get(n, [])) for n in range(rows.tokens)])
    ids = [i for n in range(rows.tokens) for i in sorted(allowed.get(n, []))]
    return replace(rows, allowed_start=np.concatenate([[0], np.cumsum(sizes)]), allowed_ids=np.array(ids, np.int32))


def test_constrained_tokens_are_scored_among_their_admissible_ids():
    rows = make_rows()
    action = np.flatnonzero(spans_mask(rows.tokens, rows.action))
    token = int(action[0])
    others = [i for i in range(5) if i != rows.token_ids[token]]
    single = int(action[1])
    rows = constrained(rows, {token: [int(rows.token_ids[token]), *others[:2]], single: [int(rows.token_ids[single])]})
    objective = Recorder(bonus=0.1)
    run(rows, [term(objective, rows)])
    table = reference_log_probs(rows)
    among = table[token, [rows.token_ids[token], *others[:2]]]
    among = among - np.log(np.exp(among).sum())
    np.testing.assert_allclose(objective.seen.log_probs[0].item(), among[0], atol=1e-5)
    np.testing.assert_allclose(objective.seen.entropy[0].item(), -(np.exp(among) * among).sum(), atol=1e-5)
    assert objective.seen.log_probs[1].item() == 0.0, "a single admissible id has probability 1"
    assert objective.seen.entropy[1].item() == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(objective.seen.log_probs[2:].detach(), of_tokens(rows, table)[action[2:]], atol=1e-5)


def test_constrained_tokens_have_finite_gradients():
    rows = make_rows()
    action = np.flatnonzero(spans_mask(rows.tokens, rows.action))
    rows = constrained(
        rows, {int(n): [int(rows.token_ids[n]), (int(rows.token_ids[n]) + 1) % VOCABULARY] for n in action}
    )
    model = tiny_model()
    _, losses, _ = run(rows, [term(Reinforce(bonus=0.1), rows)], model=model)
    losses[0].backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def gradients(terms, rows, model):
    model.zero_grad()
    _, losses, metrics = run(rows, terms, model=model)
    torch.stack(losses).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


class Unpruned(Observe):
    """The same loss without the hint."""

    def keep(self, log_probs):
        return None


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.05, 1.0])
def test_pruned_tokens_change_neither_gradient_nor_metrics(rho):
    rows, model = make_rows(count=10), tiny_model()
    pruned, metrics = gradients([term(Reinforce(), rows), term(Observe(rho=rho), rows)], rows, model)
    plain, expected = gradients([term(Reinforce(), rows), term(Unpruned(rho=rho), rows)], rows, model)
    torch.testing.assert_close(pruned, plain, rtol=1e-5, atol=1e-7)
    assert metrics.keys() == expected.keys()
    for name, metric in metrics.items():
        assert metric.value == pytest.approx(expected[name].value, rel=1e-5), name


def test_only_kept_tokens_reach_the_differentiable_head():
    rows, sizes = make_rows(count=10), []
    (world,) = [term(Observe(rho=0.02), rows)]
    observed = world.stream.weights != 0
    kept = np.exp(of_tokens(rows, reference_log_probs(rows))[observed]) <= 0.02
    handle = MODEL.lm_head.register_forward_hook(
        lambda _, inputs, output: sizes.append((len(inputs[0]), output.requires_grad))
    )
    run(rows, [world])
    handle.remove()
    assert 0 < kept.sum() < observed.sum()
    assert sizes == [(observed.sum(), False), (kept.sum(), True)]


class LogLoss(Observe):
    """Ignores its own mask in the loss: the learner must still keep the ruled-out tokens from the gradient."""

    def loss(self, scores, weights):
        loss = -(weights * scores.log_probs).sum()
        return loss, {}


def test_a_token_ruled_out_by_one_term_keeps_the_gradient_of_another():
    """Two terms on the same tokens: the pruning one adds value there, not gradient."""
    rows, model = make_rows(count=10), tiny_model()
    cross_entropy, _ = gradients([term(Observe(rho=None), rows)], rows, model)
    both, _ = gradients([term(Observe(rho=None), rows), term(LogLoss(rho=0.0), rows)], rows, model)
    torch.testing.assert_close(both, cross_entropy)


def test_a_non_finite_loss_names_term_rows_and_groups():
    rows = make_rows(count=6, groups=3)
    bad = rows.advantages.copy()
    bad[rows.action[rows.row == 4][0][0]] = np.nan
    with pytest.raises(NonFiniteError, match=r"reinforce is not finite on fresh rows \[4\] of groups \[2\]"):
        run(replace(rows, advantages=bad), [term(Reinforce(), replace(rows, advantages=bad))])


def test_every_column_follows_a_token_when_rows_are_taken_apart():
    """The search for the rows of a NaN hands each row's own columns to the loss, whichever there are."""
    names = [field.name for field in fields(Scores) if field.name != "source"]
    scores = Scores(**{name: torch.arange(6.0) + 10 * i for i, name in enumerate(names)}, source="fresh")
    chosen = torch.tensor([False, True, False, False, True, False])
    alone = _only(scores, chosen)
    for i, name in enumerate(names):
        assert getattr(alone, name).tolist() == [1.0 + 10 * i, 4.0 + 10 * i], name
    assert alone.source == "fresh"


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_tokens_know_whose_action_they_are(turns):
    """Against a loop over the spans; empty actions own nothing, whatever follows them."""
    spans, at = [], 0
    for gap, length in turns:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    rows = replace(make_rows(), action=np.array(spans, np.int64).reshape(-1, 2))
    expected = np.full(at + 2, -1)
    for k, (start, stop) in enumerate(spans):
        expected[start:stop] = k
    np.testing.assert_array_equal(owners(rows, np.arange(at + 2)), expected)


def test_scores_name_the_transition_of_each_token():
    rows, objective = make_rows(), Recorder()
    tokens, _, _ = run(rows, [term(objective, rows)])
    np.testing.assert_array_equal(objective.seen.transition, owner_of(rows)[tokens.flat])
    world = Recorder()
    run(rows, [term(world, rows, spans_mask(rows.tokens, rows.observation).astype(np.float32))])
    assert (world.seen.transition == -1).all()


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0, -math.inf], 0.693147),
        ([0.0, -math.inf], 0.0),
        (torch.tensor([65504, -65504], dtype=torch.float16).float().tolist(), 0.0),
        ([0.0] * 4, math.log(4)),
    ],
)
def test_entropy_with_impossible_tokens(logits, expected):
    """BC-31: p log p of a token with probability 0 is 0, its gradient is finite, and no entropy is below 0."""
    leaf = torch.tensor([logits], requires_grad=True)
    entropy = entropies(leaf.log_softmax(-1))
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(expected, abs=1e-6)
    assert entropy.item() >= 0
    assert torch.isfinite(leaf.grad).all()


class Bias(torch.nn.Module):
    """An output matrix that makes some tokens impossible."""

    def __init__(self, inner, banned):
        super().__init__()
        self.inner, self.banned = inner, banned

    def forward(self, hidden):
        logits = self.inner(hidden).clone()
        logits[:, self.banned] = -torch.inf
        return logits


def test_an_output_matrix_with_infinite_logits_has_finite_entropies_and_gradients():
    model, rows = tiny_model(), make_rows()
    action = spans_mask(rows.tokens, rows.action)
    banned = [i for i in range(VOCABULARY) if i not in set(rows.token_ids[action].tolist())] or [0]
    network = Network(model.base_model, Bias(model.lm_head, banned[:3]))
    objective = Recorder(bonus=0.1)
    own = [term(objective, rows)]
    micro = pad(rows, np.arange(len(rows.row_start) - 1))
    tokens = scored_tokens(micro, own)
    losses, _ = score_terms(network, micro, tokens, trunk(network, micro)[tokens.slots], own)
    losses[0].backward()
    assert (objective.seen.entropy > 0).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("prune", [None, 0.05])
def test_a_bfloat16_model_is_scored_in_float32(prune):
    """Log-probabilities and entropies; only the trunk and the matrix are in bfloat16."""
    rows, model = make_rows(), tiny_model().bfloat16()
    objective = Recorder(bonus=0.1)
    run(rows, [term(objective, rows), term(Observe(rho=prune), rows)], model=model)
    assert objective.seen.log_probs.dtype == objective.seen.entropy.dtype == torch.float32
    table = reference_log_probs(rows, model.float())
    action = spans_mask(rows.tokens, rows.action)
    np.testing.assert_allclose(objective.seen.log_probs.detach(), of_tokens(rows, table)[action], atol=0.15)


def test_a_bfloat16_model_scores_without_gradient_in_float32_too():
    rows, model = make_rows(), tiny_model().bfloat16()
    wanted = spans_mask(rows.tokens, rows.action)
    found = score(policy_network(model), rows, wanted, 64)
    assert found.dtype == np.float32
    expected = np.where(wanted, of_tokens(rows, reference_log_probs(rows, model.float())), 0)
    np.testing.assert_allclose(found, expected, atol=0.15)


@pytest.mark.parametrize("where", ["behaviour", "reference", "proximal"])
def test_the_rows_of_a_non_finite_loss_are_found_by_any_column(where):
    rows, fixed = make_rows(count=6, groups=3), {}
    column = np.zeros(rows.tokens, np.float32)
    column[rows.action[rows.row == 4][0][0]] = np.nan
    if where == "behaviour":
        rows = replace(rows, log_probs=column)
    else:
        fixed = {where: column}

    class Reads(Recorder):
        needs = frozenset({where} - {"behaviour"})

        def loss(self, scores, weights):
            return (weights * (scores.log_probs - getattr(scores, where))).sum(), {}

    own = [term(Reads(), rows)]
    micro = pad(rows, np.arange(6))
    tokens = scored_tokens(micro, own)
    hidden = trunk(NETWORK, micro)[tokens.slots]
    with pytest.raises(NonFiniteError, match=r"not finite on fresh rows \[4\] of groups \[2\]"):
        score_terms(NETWORK, micro, tokens, hidden, own, Fixed(**fixed))
