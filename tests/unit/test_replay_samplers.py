"""Samplers, removers and the sum tree against brute force and hand-worked shares and weights."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.seeding import generator
from replay.samplers import Fifo, Lowest, Prioritised, Sampler, TopFraction, Uniform
from replay.sumtree import SumTree

FLOOR = 0.01


def filled(sampler: Sampler, priorities: list[float]) -> Sampler:
    for key, priority in enumerate(priorities):
        sampler.insert(key, priority)
    return sampler


def shares(sampler: Sampler, items: int, draws: int = 40_000) -> list[float]:
    keys, _ = sampler.sample(draws, generator(0, "shares"))
    counts = Counter(keys)
    assert set(counts) <= set(range(items))
    return [counts[key] / draws for key in range(items)]


def weights(sampler: Sampler, items: int) -> list[float]:
    keys, importance = sampler.sample(2_000, generator(0, "weights"))
    by_key = dict(zip(keys, importance.tolist(), strict=True))
    return [by_key[key] for key in range(items)]


def test_exponent_is_applied_once_on_insert_and_on_update():
    sampler = Prioritised(0.5, 0.4, FLOOR)
    filled(sampler, [0.5, 2.0])  # sqrt: 0.707 and 1.414
    assert shares(sampler, 2) == pytest.approx([1 / 3, 2 / 3], abs=0.01)
    sampler.update(0, 0.5)
    sampler.update(1, 2.0)
    assert shares(sampler, 2) == pytest.approx([1 / 3, 2 / 3], abs=0.01)  # twice would give 0.414 and 0.586


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(1.0, [1, 1 / 2, 1 / 3, 1 / 4]), (0.5, [1, 0.70711, 0.57735, 0.5]), (0.0, [1, 1, 1, 1])],
)
def test_importance_weights_are_relative_to_the_whole_table(beta: float, expected: list[float]):
    assert weights(filled(Prioritised(1.0, beta, FLOOR), [1, 2, 3, 4]), 4) == pytest.approx(expected, abs=1e-5)


def test_importance_of_a_draw_does_not_depend_on_what_else_was_drawn():
    sampler = filled(Prioritised(1.0, 1.0, FLOOR), [1.0, 1000.0])
    keys, importance = sampler.sample(1, generator(0, "one"))
    assert keys == [1]  # nearly always
    assert importance == pytest.approx([0.001])  # a maximum over the draws would give 1


def test_zero_priority_counts_as_the_floor():
    sampler = filled(Prioritised(1.0, 1.0, 0.1), [0.0, 1, 1, 1, 1])
    assert shares(sampler, 5) == pytest.approx([0.1 / 4.1] + 4 * [1 / 4.1], abs=0.01)
    assert weights(sampler, 5) == pytest.approx([1, 0.1, 0.1, 0.1, 0.1])


def test_unfilled_leaves_are_never_drawn():
    sampler = filled(Prioritised(1.0, 1.0, FLOOR), [1.0, 1.0, 1.0])  # of 1024 leaves
    assert shares(sampler, 3) == pytest.approx([1 / 3] * 3, abs=0.01)
    sampler.delete(1)
    assert shares(sampler, 3) == pytest.approx([0.5, 0, 0.5], abs=0.01)


@pytest.mark.parametrize("sampler", [Uniform(), Prioritised(0.6, 0.4, FLOOR), TopFraction(0.5)])
def test_an_empty_sampler_draws_nothing(sampler: Sampler):
    keys, importance = sampler.sample(3, generator(0, "empty"))
    assert keys == []
    assert importance.shape == (0,)


def test_uniform_draws_all_alike_whatever_their_priority():
    sampler = filled(Uniform(), [0.0, 1.0, 100.0])
    sampler.update(0, 50.0)
    assert shares(sampler, 3) == pytest.approx([1 / 3] * 3, abs=0.01)
    assert weights(sampler, 3) == [1, 1, 1]


@pytest.mark.parametrize(("alpha", "top"), [(0.75, {1, 2, 3}), (0.5, {2, 3}), (0.1, {3}), (1.0, {0, 1, 2, 3})])
def test_top_fraction_draws_evenly_from_the_highest(alpha: float, top: set[int]):
    sampler = filled(TopFraction(alpha), [0.1, 0.2, 0.3, 0.4])
    expected = [1 / len(top) if key in top else 0 for key in range(4)]
    assert shares(sampler, 4) == pytest.approx(expected, abs=0.01)


def test_top_fraction_size_is_exact_where_floating_point_is_not():
    sampler = filled(TopFraction(0.7), [1.0] * 10)  # 0.7 * 10 = 7.000000000000001
    assert set(sampler.sample(2_000, generator(0, "seven"))[0]) == set(range(7))  # ties: the earlier


def test_top_fraction_follows_updates_and_deletions():
    sampler = filled(TopFraction(0.5), [0.1, 0.2, 0.3, 0.4])
    sampler.sample(1, generator(0, "cached"))
    sampler.update(0, 1.0)
    assert set(sampler.sample(100, generator(0, "updated"))[0]) == {0, 3}
    sampler.delete(3)
    assert set(sampler.sample(100, generator(0, "deleted"))[0]) == {0, 2}


def test_fifo_gives_the_earliest_and_takes_an_item_back_to_its_place():
    fifo = Fifo()
    filled(fifo, [0.0] * 4)
    fifo.delete(1)
    fifo.update(0, 9.0)
    assert fifo.sample(2, generator(0, "fifo"))[0] == [0, 2]
    fifo.insert(1, 0.0)
    assert fifo.order() == [0, 1, 2, 3]
    assert fifo.choose() == 0


def test_lowest_chooses_the_lowest_then_the_older():
    remover = Lowest()
    for key, priority in enumerate([3.0, 1.0, 1.0, 2.0]):
        remover.insert(key, priority)
    chosen = []
    for _ in range(2):
        chosen.append(remover.choose())
        remover.delete(chosen[-1])
    remover.update(0, 0.5)
    chosen.append(remover.choose())
    assert chosen == [1, 2, 0]


def test_lowest_forgets_stale_entries():
    remover = Lowest()
    remover.insert(0, 1.0)
    for i in range(1_000):
        remover.update(0, float(i))
    assert remover.choose() == 0
    assert len(remover._heap) < 100


@pytest.mark.parametrize("make", [Uniform, lambda: Prioritised(0.6, 0.4, FLOOR), lambda: TopFraction(0.5), Fifo])
def test_a_sampler_arranged_like_another_draws_the_same(make):
    sampler, other = make(), make()
    priorities = {key: (key * 7 % 11) / 3 for key in range(40)}
    for key, priority in priorities.items():
        sampler.insert(key, priority)
    for key in (3, 0, 39, 17):
        sampler.delete(key)
    other.arrange(sampler.order(), [priorities[key] for key in sampler.order()])
    first, second = (s.sample(20, generator(0, "arranged")) for s in (sampler, other))
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.floats(0, 1e6).map(lambda mass: 0.0 if mass < 1e-3 else mass)), min_size=1
    )
)
def test_sum_tree_finds_what_a_running_sum_finds(writes: list[tuple[int, float]]):
    tree, masses = SumTree(2), np.zeros(64)
    for leaf, mass in writes:
        tree[leaf] = mass
        masses[leaf] = mass
    assert tree.total == pytest.approx(masses.sum())
    if not masses.sum():
        return
    for leaf, (start, mass) in enumerate(zip(np.cumsum(masses) - masses, masses, strict=True)):
        if mass:
            assert tree[leaf] == mass
            assert tree.find(np.array([start + mass / 2])).tolist() == [leaf]
    edges = tree.find(np.array([0.0, tree.total, np.nextafter(tree.total, 0)]))  # rounding may reach the very end
    assert all(masses[leaf] > 0 for leaf in edges)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_importance_never_exceeds_one_and_is_finite(priorities: list[float], exponent: float, beta: float):
    _, importance = filled(Prioritised(exponent, beta, FLOOR), priorities).sample(50, generator(0, "finite"))
    assert ((importance > 0) & (importance <= 1)).all()
    assert all(math.isfinite(weight) for weight in importance)
