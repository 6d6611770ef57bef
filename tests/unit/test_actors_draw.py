"""Sampling arithmetic against brute force: entropies, top-k, top-p, inverse sampling, tries, the split of a prefill."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.engines.draw import Uniforms, admit, draw, entropy, invert, truncate
from actors.engines.reader import split_by_length
from actors.engines.trie import TokenTrie
from actors.sampling import Sampling
from protos.errors import DataError

INF = float("inf")


@pytest.mark.parametrize(
    ("logits", "expected"),
    [([0.0, 0.0, -INF], 0.693147), ([0.0, -INF], 0.0), ([65504.0, -65504.0], 0.0), ([0.0] * 4, 1.386294)],
)
def test_entropy_of_extreme_logits(logits: list[float], expected: float) -> None:
    dtype = torch.float16 if max(logits) > 1000 else torch.float32
    drawn = draw(torch.tensor([logits], dtype=dtype), np.array([0.3]), Sampling())
    assert drawn.entropies.item() == pytest.approx(expected, abs=1e-6)
    assert drawn.entropies.item() >= 0


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.floats(0.2, 3))
@settings(deadline=None, max_examples=60)
def test_log_probs_and_entropy_are_of_the_tempered_distribution(logits: list[float], temperature: float) -> None:
    scaled = np.exp(np.array(logits) / temperature - max(logits) / temperature)
    probs = scaled / scaled.sum()
    drawn = draw(torch.tensor([logits]), np.array([0.5]), Sampling(temperature=temperature))
    assert drawn.log_probs.item() == pytest.approx(np.log(probs[drawn.token_ids.item()]), abs=1e-4)
    assert drawn.entropies.item() == pytest.approx(-(probs * np.log(np.maximum(probs, 1e-300))).sum(), abs=1e-4)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda p: sum(p) > 0), st.floats(0, 1, exclude_max=True)
)
@settings(deadline=None, max_examples=100)
def test_inverse_sampling_is_the_first_token_past_u(weights: list[float], u: float) -> None:
    probs = np.array(weights) / sum(weights)
    chosen = invert(torch.from_numpy(probs)[None], torch.tensor([u], dtype=torch.float64)).item()
    assert probs[chosen] > 0
    assert probs[:chosen].sum() <= u + 1e-9
    assert probs[: chosen + 1].sum() >= u - 1e-9


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    assert invert(probs, torch.tensor([0.0], dtype=torch.float64)).item() == 1
    assert invert(probs, torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)).item() == 2


def test_frequencies_match_probabilities() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).expand(20_000, 3)
    counts = draw(logits, np.random.default_rng(0).random(20_000), Sampling()).token_ids.bincount()
    assert counts.numpy() / 20_000 == pytest.approx([0.5, 0.3, 0.2], abs=0.012)


def test_greedy_is_a_point_mass() -> None:
    drawn = draw(torch.tensor([[1.0, 3.0, 2.0]]), np.array([0.99]), Sampling(temperature=0))
    assert [part.item() for part in drawn] == [1, 0.0, 0.0]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7, unique=True), st.integers(0, 8), st.floats(0.05, 1))
@settings(deadline=None, max_examples=100)
def test_top_k_and_top_p_against_brute_force(logits: list[float], top_k: int, top_p: float) -> None:
    kept = truncate(torch.tensor([logits], dtype=torch.float64), top_k, top_p)[0].isfinite().tolist()
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[: top_k or None]
    probs = np.exp(np.array(logits)[order])
    probs /= probs.sum()
    expected, mass = set(), 0.0
    for token, prob in zip(order, probs, strict=True):
        if top_p < 1 and mass >= top_p - 1e-12:
            break
        expected.add(token)
        mass += prob
    assert {i for i, keep in enumerate(kept) if keep} == expected


def test_sampling_settings_are_checked() -> None:
    for bad in (
        {"temperature": -1},
        {"temperature": INF},
        {"top_p": 0},
        {"top_k": -1},
        {"max_reply_tokens": 0},
        {"tempo": 1},
    ):
        with pytest.raises(ValidationError):
            Sampling(**bad)


def test_uniforms_depend_on_the_seed_alone() -> None:
    together, alone = Uniforms([3, 4, 5]), Uniforms([4])
    both = [(together.next(np.array([0, 1] if i % 3 else [1]))[-1], alone.next(np.array([0]))[0]) for i in range(150)]
    assert [a for a, _ in both] == [b for _, b in both]
    assert len({a for a, _ in both}) == 150


REPLIES = [[7, 5], [7], [7, 5, 9], [3, 4], [7, 5]]


def test_trie_admits_exactly_the_replies() -> None:
    trie = TokenTrie([np.array(reply, dtype=np.int32) for reply in REPLIES], stop=2)

    def admitted(tokens: tuple[int, ...]) -> bool:
        node = trie.root
        for token in (*tokens, 2):
            if token not in node.allowed.tolist():
                return False
            node = node.next[token]
        return True

    words = {w for n in range(5) for w in product([3, 4, 5, 7, 9], repeat=n)}
    assert {w for w in words if admitted(w)} == {tuple(reply) for reply in REPLIES}
    assert trie.root.allowed.tolist() == [3, 7]
    assert trie.root.next[7].allowed.tolist() == [2, 5]


def test_an_empty_command_is_a_reply_and_no_command_is_an_error() -> None:
    assert TokenTrie([np.array([], dtype=np.int32)], stop=2).root.allowed.tolist() == [2]
    with pytest.raises(DataError, match="at least one admissible command"):
        TokenTrie([], stop=2)


def test_admit_excludes_all_else() -> None:
    masked = admit(torch.zeros(2, 4), [np.array([1, 3], dtype=np.int32), np.array([0], dtype=np.int32)])
    assert masked.isfinite().tolist() == [[False, True, False, True], [True, False, False, False]]
    assert entropy(masked.softmax(-1)).tolist() == pytest.approx([0.693147, 0.0])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(0, 100))
@settings(deadline=None, max_examples=100)
def test_split_is_a_partition_of_least_cost(lengths: list[int], cost: int) -> None:
    groups = split_by_length(np.array(lengths), cost)
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(lengths)))

    def price(parts: list[list[int]]) -> int:
        return sum(len(part) * max(part) + cost for part in parts)

    ordered, n = sorted(lengths), len(lengths)
    best = min(
        price([ordered[a:b] for a, b in pairwise(cuts)])
        for mask in range(2 ** (n - 1))
        for cuts in [[0, *(i + 1 for i in range(n - 1) if mask >> i & 1), n]]
    )
    assert price([[lengths[row] for row in group] for group in groups]) == best
